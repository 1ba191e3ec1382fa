// Gates of the gated delta rule, per token.
//   g = -exp(A_log) softplus(a + dt_bias) <= 0, natural log of the decay      beta = sigmoid(b)
//   c_i = sum of x_j over the tokens j <= i of i's document, x = g log2 e     G_ij = 2^min(c_i - c_j, 0)
#pragma once
#include "gdn/kernels/documents.hpp"
#include "gdn/ops.hpp"

namespace gdn {

inline constexpr f32 log2_e = 1.44269504f;
// Below this power of two nothing is left of a state: a gate of -inf "forgets", and sums stay finite.
inline constexpr f32 least_log2_decay = -256.f;

// g [C] from a [C] and the head's A_log and dt_bias. The floor keeps exp(A_log) softplus finite; where softplus is 0, g is 0.
template <class M, class C>
Column<M, f32, C> decay_gate(const Column<M, f32, C>& a, const Scalar<M, f32>& A_log, const Scalar<M, f32>& dt_bias) {
  return map(
      [](auto a, auto rate, auto bias) {
        auto s = softplus(a + bias);
        return max(where(s <= 0.f, s, 0.f - rate * s), -1e30f);
      },
      a, exp(A_log), dt_bias);
}

// Sums of log2 decays. In class PF they are kept as high + low: `high` are multiples of 2^-10, whose sums are exact in any order,
// so that differences of long sums do not cancel (errors of 5e-7 instead of up to 8e-4 on strong gates).
template <Precision P, class M, class R> struct LogDecay {
  Column<M, f32, R> high;
};
template <class M, class R> struct LogDecay<Precision::f32, M, R> {
  Column<M, f32, R> high, low;
};

template <Precision P, class Documents, class M, class C>
LogDecay<P, M, C> log_decay(const Documents& documents, const Column<M, f32, C>& g) {
  auto x = map([](auto g) { return max(g * log2_e, least_log2_decay); }, g);
  if constexpr (P == Precision::f32) {
    auto high = map([](auto x) { return (x + 12288.f) - 12288.f; }, x);  // 1.5 * 2^13: leaves multiples of 2^-10
    return {sum_within(documents, high), sum_within(documents, x - high)};
  } else {
    return {sum_within(documents, x)};
  }
}
template <Precision P, class M, class C> LogDecay<P, M, One> last_row(const LogDecay<P, M, C>& c) {
  if constexpr (P == Precision::f32) return {last_row(c.high), last_row(c.low)};
  else return {last_row(c.high)};
}
// 2^min(c_i - c_j, 0), [C, C]
struct PairDecay {
  template <class X> [[gnu::always_inline]] auto operator()(X ci, X cj) const { return exp2(min(ci - cj, 0.f)); }
  template <class X> [[gnu::always_inline]] auto operator()(X hi, X hj, X li, X lj) const { return exp2(min((hi - hj) + (li - lj), 0.f)); }
};
template <Precision P, class M, class C> Tile<M, f32, C, C> pairwise_decay(const LogDecay<P, M, C>& c) {
  if constexpr (P == Precision::f32) return map(PairDecay{}, c.high, as_row(c.high), c.low, as_row(c.low));
  else return map(PairDecay{}, c.high, as_row(c.high));
}
// x_ij G_ij b_j for every x. The x are lower triangular, so above the diagonal only zeros come out.
template <Precision P, class M, class C, TileLike... X>
auto decayed_lower(const LogDecay<P, M, C>& c, const Column<M, f32, C>& beta, const X&... x) {
  if constexpr (requires { M::decayed_lower(PairDecay{}, c, beta, x...); }) {
    return M::decayed_lower(PairDecay{}, c, beta, x...);
  } else {
    auto Gb = pairwise_decay(c) * as_row(beta);
    return std::tuple{Gb * x...};
  }
}
// 2^c
template <Precision P, class M, class R> Column<M, f32, R> decay(const LogDecay<P, M, R>& c) {
  if constexpr (P == Precision::f32) return map([](auto h, auto l) { return exp2(min(h + l, 0.f)); }, c.high, c.low);
  else return exp2(c.high);
}
// 2^(c_last - c)
template <Precision P, class M, class C> Column<M, f32, C> decay_to_end(const LogDecay<P, M, C>& c) {
  auto end = last_row(c);
  if constexpr (P == Precision::f32)
    return map([](auto he, auto h, auto le, auto l) { return exp2(min((he - h) + (le - l), 0.f)); }, end.high, c.high, end.low, c.low);
  else
    return map([](auto ce, auto c) { return exp2(min(ce - c, 0.f)); }, end.high, c.high);
}

}  // namespace gdn

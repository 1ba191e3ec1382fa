// Causal depthwise convolution with SiLU, and l2 normalisation, per chunk of one head.
//   z_t = sum over taps j ascending of w_j x_(t - (taps - 1 - j)) + bias, products and sums each rounded; y = silu(z)
//   A tap counts only if its token is valid and of t's document. x before the chunk is in `tail` (its last taps - 1 rows count).
//   l2norm(y) = y rsqrt(sum y^2 + 1e-6)
#pragma once
#include "gdn/kernels/documents.hpp"
#include "gdn/ops.hpp"

namespace gdn {

inline constexpr f32 l2_epsilon = 1e-6f;
inline constexpr int tail_rows = 8;  // one vector register high, so that tail and chunk join without moves on the TPU

template <class D, class M, class C, class W, class T, int Tail, class... Bias>
Tile<M, f32, C, W> short_conv(const D& documents, const Tile<M, f32, C, W>& x, const Tile<M, f32, Row<Tail>, W>& tail,
                              const Tile<M, f32, T, W>& weights, const Bias&... bias) {
  static_assert(T::size >= 2 && T::size <= tail_rows, "short_conv: 2 to 8 taps");
  static_assert(Tail >= T::size - 1, "short_conv: the tail must hold taps - 1 rows");
  auto history = concat_rows(tail, x);
  auto tap = [&](auto j) {
    constexpr int distance = T::size - 1 - j;
    auto earlier = retyped<Tile<M, f32, C, W>>(rows<Tail - distance, C::size>(history));
    return rows_that_see<distance>(documents, earlier * row<j>(weights));
  };
  auto z = tap(std::integral_constant<int, 0>{});
  unroll<T::size - 1>([&](auto j) { z = z + tap(std::integral_constant<int, j + 1>{}); });
  return valid_rows(documents, (z + ... + bias));
}

template <class D, TileLike X, TileLike Tail, TileLike Weights, TileLike... Bias>
X silu_of_short_conv(const D& documents, const X& x, const Tail& tail, const Weights& weights, const Bias&... bias) {
  using M = typename X::machine;
  if constexpr (requires { M::silu_of_short_conv(documents, x, tail, weights, bias...); }) return {M::silu_of_short_conv(documents, x, tail, weights, bias...)};
  else return silu(short_conv(documents, x, tail, weights, bias...));
}

// The last rows of the chunk, for the next one.
template <class M, class C, class W> Tile<M, f32, Row<tail_rows>, W> tail_of(const Tile<M, f32, C, W>& x) {
  return retyped<Tile<M, f32, Row<tail_rows>, W>>(rows<C::size - tail_rows, tail_rows>(x));
}

template <TileLike A> auto l2_factor(const A& y, f32 scale) {
  return map([scale](auto s) { return rsqrt(s + l2_epsilon) * scale; }, sum_cols(y * y));
}
template <TileLike A> A l2_normalised(const A& y, f32 scale) { return y * l2_factor(y, scale); }
// The cotangent of y from that of x = y factor, x perhaps rounded; factor is l2_factor(y, scale).
template <TileLike A, TileLike F> A l2_normalised_backward(const A& x, const F& factor, const A& d, f32 scale) {
  auto along = sum_cols(d * x) * (1.f / (scale * scale));
  return map([](auto d, auto x, auto along, auto factor) { return (d - x * along) * factor; }, d, x, along, factor);
}

}  // namespace gdn

// One token of the delta rule in two passes over the rows of the state, of which the second finds them in the cache.
// kernels/recurrent.hpp, token_step_by_tiles, is the definition; columns do not meet, so their grouping changes no bit.
#pragma once
#include <gdn/cpu/simd.hpp>

namespace gdn {
inline namespace GDN_ISA {
namespace cpu {

struct TokenStep {
  int rows = 0, columns = 0;    // K and V; V a multiple of W
  const float *q, *k, *v;
  float decay, beta;
  const float* from = nullptr;
  long from_row = 0;            // 0: the same row for all
  float* to = nullptr;          // may be `from`
  long to_row = 0;
  const float* next = nullptr;  // what the next step will read, from memory; or null
  float* out = nullptr;
};

namespace detail {
// n vectors of every row. To decay twice costs less than to store in between: a store is half as fast as a load.
template <int n> GDN_INLINE void token_panel(const TokenStep& s, int at) {
  constexpr int line = 16, lines = n * W > line ? n * W / line : 1;
  const auto fetch = [&](int row, int first, int last) __attribute__((always_inline)) {
    if (s.next)
      for (int c = first; c < last; c++) __builtin_prefetch(s.next + row * s.from_row + at + c * line, 0, 2);
  };
  const F zero(0.f), decay(s.decay), beta(s.beta);
  F sum[n], r[n];
  GDN_UNROLL
  for (int j = 0; j < n; j++) sum[j] = zero;
  for (int i = 0; i < s.rows; i++) {
    const F k(s.k[i]);
    const float* from = s.from + i * s.from_row + at;
    fetch(i, 0, (lines + 1) / 2);
    GDN_UNROLL
    for (int j = 0; j < n; j++) sum[j] = fma(k, decay * load(from + j * W), sum[j]);
  }
  GDN_UNROLL
  for (int j = 0; j < n; j++) {
    r[j] = beta * (load(s.v + at + j * W) - (zero + sum[j]));
    sum[j] = zero;
  }
  for (int i = 0; i < s.rows; i++) {
    const F k(s.k[i]), q(s.q[i]);
    const float* from = s.from + i * s.from_row + at;
    float* to = s.to + i * s.to_row + at;
    fetch(i, (lines + 1) / 2, lines);
    GDN_UNROLL
    for (int j = 0; j < n; j++) {
      const F S = decay * load(from + j * W) + k * r[j];
      store(to + j * W, S);
      sum[j] = fma(q, S, sum[j]);
    }
  }
  GDN_UNROLL
  for (int j = 0; j < n; j++) store(s.out + at + j * W, zero + sum[j]);
}
template <int n> GDN_INLINE int token_panels(const TokenStep& s, int at) {
  for (; at + n * W <= s.columns; at += n * W) token_panel<n>(s, at);
  return at;
}
}  // namespace detail

// Whole rows where the registers allow it: memory is read in order.
[[gnu::noinline]] inline void token_step(const TokenStep& s) {
  int at = 0;
#if GDN_AVX512 || GDN_NEON
  at = detail::token_panels<8>(s, at);
#endif
  at = detail::token_panels<4>(s, at);
  at = detail::token_panels<2>(s, at);
  detail::token_panels<1>(s, at);
}

}  // namespace cpu
}  // namespace GDN_ISA
}  // namespace gdn

// The vector type: a shim over xsimd 8.1.0, and the only file that includes it. F holds W floats, I W 32-bit integers, M W truths.
// xsimd does loads, stores, + - *, compares, selects and bit operations. The shim adds what 8.1.0 lacks or does otherwise: a fused
// multiply-add on AVX-512 (xsimd::fma rounds twice there) and on SSE2 (exact emulation), a negation that flips the sign of zero
// on AVX-512, min and max with IEEE's NaN and zero rules, partial loads and stores, and bf16.
#pragma once
#include <cstdint>
#include <cstring>
#include <gdn/bf16.hpp>
#include <gdn/cpu/isa.hpp>
#include <xsimd/xsimd.hpp>

namespace gdn {
inline namespace GDN_ISA {
namespace cpu {

#if GDN_AVX512
using Arch = xsimd::avx512bw;
#elif GDN_AVX2
using Arch = xsimd::fma3<xsimd::avx2>;
#elif GDN_SSE2
using Arch = xsimd::sse2;
#else
using Arch = xsimd::neon64;
#endif

struct F {
  using Batch = xsimd::batch<float, Arch>;
  Batch v;
  F() = default;
  GDN_INLINE F(Batch x) : v(x) {}
  GDN_INLINE F(Batch::register_type x) : v(x) {}
  GDN_INLINE F(float x) : v(x) {}
  GDN_INLINE operator Batch::register_type() const { return v.data; }
};

struct I {
  using Batch = xsimd::batch<std::int32_t, Arch>;
  Batch v;
  I() = default;
  GDN_INLINE I(Batch x) : v(x) {}
  GDN_INLINE I(Batch::register_type x) : v(x) {}
  GDN_INLINE I(std::int32_t x) : v(x) {}
  GDN_INLINE I(std::uint32_t x) : v(static_cast<std::int32_t>(x)) {}
  GDN_INLINE operator Batch::register_type() const { return v.data; }
};

struct M {
  using Batch = xsimd::batch_bool<float, Arch>;
  Batch v;
  M() = default;
  GDN_INLINE M(Batch x) : v(x) {}
};

inline constexpr int W = static_cast<int>(F::Batch::size);

GDN_INLINE F load(const float* p) { return F::Batch::load_unaligned(p); }
GDN_INLINE I load(const std::int32_t* p) { return I::Batch::load_unaligned(p); }
GDN_INLINE I load(const std::uint32_t* p) { return I::Batch::load_unaligned(reinterpret_cast<const std::int32_t*>(p)); }
GDN_INLINE void store(float* p, F a) { a.v.store_unaligned(p); }
GDN_INLINE void store(std::int32_t* p, I a) { a.v.store_unaligned(p); }
GDN_INLINE void store(std::uint32_t* p, I a) { a.v.store_unaligned(reinterpret_cast<std::int32_t*>(p)); }

GDN_INLINE F operator+(F a, F b) { return a.v + b.v; }
GDN_INLINE F operator-(F a, F b) { return a.v - b.v; }
GDN_INLINE F operator*(F a, F b) { return a.v * b.v; }
GDN_INLINE M operator<(F a, F b) { return a.v < b.v; }
GDN_INLINE M operator<=(F a, F b) { return a.v <= b.v; }
GDN_INLINE M operator>(F a, F b) { return b.v < a.v; }
GDN_INLINE M operator>=(F a, F b) { return b.v <= a.v; }
GDN_INLINE M operator==(F a, F b) { return a.v == b.v; }

GDN_INLINE I operator+(I a, I b) { return a.v + b.v; }
GDN_INLINE I operator-(I a, I b) { return a.v - b.v; }
GDN_INLINE I operator&(I a, I b) { return a.v & b.v; }
GDN_INLINE I operator|(I a, I b) { return a.v | b.v; }
GDN_INLINE I operator^(I a, I b) { return a.v ^ b.v; }
GDN_INLINE M operator<(I a, I b) { return xsimd::bool_cast(a.v < b.v); }
GDN_INLINE M operator>(I a, I b) { return xsimd::bool_cast(b.v < a.v); }
GDN_INLINE M operator==(I a, I b) { return xsimd::bool_cast(a.v == b.v); }
GDN_INLINE M operator&(M a, M b) { return a.v & b.v; }
GDN_INLINE M operator|(M a, M b) { return a.v | b.v; }
GDN_INLINE M operator!(M a) { return ~a.v; }
GDN_INLINE M operator<=(I a, I b) { return !(b < a); }
GDN_INLINE M operator>=(I a, I b) { return !(a < b); }

template <int n>
GDN_INLINE I shift_left(I a) {
  return a.v << n;
}
GDN_INLINE I operator>>(I a, int n) {  // logical
  using Unsigned = xsimd::batch<std::uint32_t, Arch>;
  return xsimd::bitwise_cast<I::Batch>(xsimd::bitwise_cast<Unsigned>(a.v) >> n);
}
template <int n>
GDN_INLINE I shift_right(I a) {
  return a >> n;
}

GDN_INLINE I bits(F a) { return xsimd::bitwise_cast<I::Batch>(a.v); }
GDN_INLINE F from_bits(I a) { return xsimd::bitwise_cast<F::Batch>(a.v); }
GDN_INLINE F constant(F, float x) { return x; }
GDN_INLINE I constant(I, std::uint32_t x) { return x; }
GDN_INLINE F select(M m, F a, F b) { return xsimd::select(m.v, a.v, b.v); }
GDN_INLINE I select(M m, I a, I b) { return bits(select(m, from_bits(a), from_bits(b))); }

GDN_INLINE F operator-(F a) { return from_bits(bits(a) ^ I(0x80000000u)); }
GDN_INLINE F abs(F a) { return from_bits(bits(a) & I(0x7fffffffu)); }

// NaN where an argument is one, -0 below +0.
GDN_INLINE F min(F a, F b) {
  const F other = select(b < a, b, from_bits(bits(a) | bits(b)));  // equal: the sign of either zero; unordered: a NaN's exponent
  return select(a < b, a, other);
}
GDN_INLINE F max(F a, F b) { return -min(-a, -b); }

// 0, 1, .. W - 1
GDN_INLINE I iota() {
  static constexpr std::int32_t lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return load(lanes);
}

// The lanes of even and of odd index among the 2 W lanes of (a, b).
#if GDN_AVX512
GDN_INLINE I even_lanes(I a, I b) { return _mm512_permutex2var_epi32(a, I::Batch(iota().v << 1), b); }
GDN_INLINE I odd_lanes(I a, I b) { return _mm512_permutex2var_epi32(a, I::Batch((iota().v << 1) + 1), b); }
#elif GDN_AVX2
namespace detail {
template <int which>
GDN_INLINE I alternate_lanes(I a, I b) {
  const __m256 x = _mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), which);
  return _mm256_permute4x64_epi64(_mm256_castps_si256(x), 0xd8);
}
}  // namespace detail
GDN_INLINE I even_lanes(I a, I b) { return detail::alternate_lanes<0x88>(a, b); }
GDN_INLINE I odd_lanes(I a, I b) { return detail::alternate_lanes<0xdd>(a, b); }
#elif GDN_SSE2
GDN_INLINE I even_lanes(I a, I b) { return _mm_castps_si128(_mm_shuffle_ps(_mm_castsi128_ps(a), _mm_castsi128_ps(b), 0x88)); }
GDN_INLINE I odd_lanes(I a, I b) { return _mm_castps_si128(_mm_shuffle_ps(_mm_castsi128_ps(a), _mm_castsi128_ps(b), 0xdd)); }
#else
GDN_INLINE I even_lanes(I a, I b) { return vuzp1q_s32(a, b); }
GDN_INLINE I odd_lanes(I a, I b) { return vuzp2q_s32(a, b); }
#endif

// The first n lanes of a vector, 0 <= n <= W. Partial loads give +0 in the others and touch no memory behind them; so do partial stores.
#if GDN_AVX512
struct Lanes {
  __mmask16 mask;
};
GDN_INLINE Lanes first_lanes(int n) { return {static_cast<__mmask16>((1u << n) - 1u)}; }
GDN_INLINE F load(const float* p, Lanes n) { return _mm512_maskz_loadu_ps(n.mask, p); }
GDN_INLINE I load(const std::uint32_t* p, Lanes n) { return _mm512_maskz_loadu_epi32(n.mask, p); }
GDN_INLINE void store(float* p, F a, Lanes n) { _mm512_mask_storeu_ps(p, n.mask, a); }
GDN_INLINE void store(std::uint32_t* p, I a, Lanes n) { _mm512_mask_storeu_epi32(p, n.mask, a); }
#elif GDN_AVX2
struct Lanes {
  __m256i mask;
};
GDN_INLINE Lanes first_lanes(int n) { return {_mm256_cmpgt_epi32(_mm256_set1_epi32(n), iota())}; }
GDN_INLINE F load(const float* p, Lanes n) { return _mm256_maskload_ps(p, n.mask); }
GDN_INLINE I load(const std::uint32_t* p, Lanes n) { return _mm256_maskload_epi32(reinterpret_cast<const int*>(p), n.mask); }
GDN_INLINE void store(float* p, F a, Lanes n) { _mm256_maskstore_ps(p, n.mask, a); }
GDN_INLINE void store(std::uint32_t* p, I a, Lanes n) { _mm256_maskstore_epi32(reinterpret_cast<int*>(p), n.mask, a); }
#else
struct Lanes {
  int count;
};
GDN_INLINE Lanes first_lanes(int n) { return {n}; }
GDN_INLINE F load(const float* p, Lanes n) {
  float x[W] = {};
  std::memcpy(x, p, sizeof(float) * static_cast<unsigned>(n.count));
  return load(x);
}
GDN_INLINE I load(const std::uint32_t* p, Lanes n) {
  std::uint32_t x[W] = {};
  std::memcpy(x, p, sizeof(float) * static_cast<unsigned>(n.count));
  return load(x);
}
GDN_INLINE void store(float* p, F a, Lanes n) {
  float x[W];
  store(x, a);
  std::memcpy(p, x, sizeof(float) * static_cast<unsigned>(n.count));
}
GDN_INLINE void store(std::uint32_t* p, I a, Lanes n) {
  std::uint32_t x[W];
  store(x, a);
  std::memcpy(p, x, sizeof(float) * static_cast<unsigned>(n.count));
}
#endif

// a b + c with one rounding.
#if GDN_AVX512
GDN_INLINE F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
#elif GDN_AVX2 || GDN_NEON
GDN_INLINE F fma(F a, F b, F c) { return xsimd::fma(a.v, b.v, c.v); }
#else
namespace detail {
// Two lanes: the product is exact in double; its sum with c is rounded to odd, so that the narrowing rounds as if it saw the exact sum.
GDN_INLINE __m128 fma_of_low_lanes(__m128 a, __m128 b, __m128 c) {
  const __m128d p = _mm_mul_pd(_mm_cvtps_pd(a), _mm_cvtps_pd(b)), q = _mm_cvtps_pd(c);
  const __m128d s = _mm_add_pd(p, q), t = _mm_sub_pd(s, p);
  const __m128d error = _mm_add_pd(_mm_sub_pd(p, _mm_sub_pd(s, t)), _mm_sub_pd(q, t));  // s + error = p + q
  const __m128d inexact = _mm_cmplt_pd(_mm_setzero_pd(), _mm_andnot_pd(_mm_set1_pd(-0.0), error));  // false for the NaN of an infinite s
  const __m128i bits = _mm_castpd_si128(s), one = _mm_set_epi32(0, 1, 0, 1);
  const __m128i even = _mm_sub_epi64(_mm_and_si128(bits, one), one);
  const __m128i signs = _mm_srai_epi32(_mm_xor_si128(bits, _mm_castpd_si128(error)), 31);
  const __m128i step = _mm_or_si128(_mm_shuffle_epi32(signs, _MM_SHUFFLE(3, 3, 1, 1)), one);  // away from zero, or towards it
  const __m128i odd = _mm_add_epi64(bits, _mm_and_si128(step, _mm_and_si128(even, _mm_castpd_si128(inexact))));
  return _mm_cvtpd_ps(_mm_castsi128_pd(odd));
}
}  // namespace detail
GDN_INLINE F fma(F a, F b, F c) {
  const __m128 low = detail::fma_of_low_lanes(a, b, c);
  const __m128 high = detail::fma_of_low_lanes(_mm_movehl_ps(a, a), _mm_movehl_ps(b, b), _mm_movehl_ps(c, c));
  return _mm_movelh_ps(low, high);
}
#endif

// The nearest bf16 in the upper half of each lane, zeros in the lower; subnormals and NaNs as in to_bf16.
GDN_INLINE I round_to_bf16(F a) {
  const I u = bits(a);
  const I magnitude = u & I(0x7fffffffu);
  const I rounded = (u + I(0x7fffu) + (shift_right<16>(u) & I(1u))) & I(0xffff0000u);
  const I flushed = select(magnitude < I(0x00800000u), u & I(0x80000000u), rounded);
  return select(magnitude > I(0x7f800000u), I(0x7fc00000u), flushed);
}

// W values of bf16 as floats, and back.
#if GDN_AVX512
GDN_INLINE F load(const bf16* p) {
  const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}
GDN_INLINE void store(bf16* p, F a) {
#if defined(__AVX512BF16__)
  const __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);  // the instruction would keep the payload
  const __m256i x = _mm256_mask_mov_epi16((__m256i)_mm512_cvtneps_pbh(a), nan, _mm256_set1_epi16(0x7fc0));
#else
  const __m256i x = _mm512_cvtepi32_epi16(_mm512_srli_epi32(round_to_bf16(a), 16));
#endif
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x);
}
#elif GDN_AVX2
GDN_INLINE F load(const bf16* p) {
  const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}
GDN_INLINE void store(bf16* p, F a) {
  const __m256i x = _mm256_srli_epi32(round_to_bf16(a), 16);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1)));
}
#elif GDN_SSE2
GDN_INLINE F load(const bf16* p) {
  const __m128i x = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return _mm_castsi128_ps(_mm_unpacklo_epi16(_mm_setzero_si128(), x));
}
GDN_INLINE void store(bf16* p, F a) {
  const __m128i x = _mm_srai_epi32(round_to_bf16(a), 16);  // signed, because packs saturates
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi32(x, x));
}
#else
GDN_INLINE F load(const bf16* p) {
  return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(reinterpret_cast<const std::uint16_t*>(p)), 16));
}
GDN_INLINE void store(bf16* p, F a) {
  vst1_u16(reinterpret_cast<std::uint16_t*>(p), vshrn_n_u32(vreinterpretq_u32_s32(round_to_bf16(a)), 16));
}
#endif

// Two bf16 factors in each lane, that of even k in the high half, and their multiply-add:
// fma(a_odd, b_odd, fma(a_even, b_even, c)). vdpbf16ps computes just this, high half first, and always flushes subnormals.
#if defined(__AVX512BF16__) && GDN_AVX512
struct Pairs {
  I v;
  Pairs() = default;
  GDN_INLINE explicit Pairs(I words) : v(words) {}
};
GDN_INLINE F fma(Pairs a, Pairs b, F c) { return _mm512_dpbf16_ps(c, (__m512bh)(__m512i)a.v, (__m512bh)(__m512i)b.v); }
#else
struct Pairs {
  F even, odd;
  Pairs() = default;
  GDN_INLINE explicit Pairs(I words) : even(from_bits(words & I(0xffff0000u))), odd(from_bits(shift_left<16>(words))) {}
};
GDN_INLINE F fma(Pairs a, Pairs b, F c) { return fma(a.odd, b.odd, fma(a.even, b.even, c)); }
#endif

}  // namespace cpu
}  // namespace GDN_ISA
}  // namespace gdn

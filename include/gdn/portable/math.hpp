// Transcendental functions from f32 +, -, *, integer operations, compares and selects only, so that every machine computes the
// same bits: float (the simulator, the scalar twin of a test), a SIMD vector of cpu/simd.hpp, a symbolic value of the tracer.
//
// Each function is one template over a value type V, and asks of V (with V's integer vector I and truth vector `m`):
//   V + V   V - V   V * V      rounded once, to nearest even, never contracted
//   V < V   V == V             ordered compares, false for a NaN; they give m
//   select(m, V, V)            the second where m holds, else the third
//   constant(V, float)         a constant; the argument of type V only chooses the type
//   constant(I, uint32)        the same for integers
//   bits(V), from_bits(I)      bit casts
//   I + I   I - I   I & I      modulo 2^32
//   shift_left<n>(I)   shift_right<n>(I)   logical shifts
// Free functions are found by argument-dependent lookup; those of float are below.
//
// Results are normal numbers, zeros, infinities or the canonical NaN 0x7fc00000 (for every NaN): what would fall below 2^-126 is 0.
// Subnormal arguments count as zeros of their sign where flush-to-zero is on, as it must be around all kernels. The error bounds
// are the maxima over all 2^32 arguments (tests/numerics/transcendental.cpp), in units of the last place of the right result:
//   exp2 0.82   exp 0.91   log1p 0.92   reciprocal 0.5003   rsqrt 0.5005   sigmoid 1.96   softplus 1.69
#pragma once
#include <bit>
#include <cstdint>

namespace gdn::portable {

// Everything is inlined into its caller: a copy of its own could be compiled for an instruction set the linker's choice lacks.
#define GDN_PORTABLE_INLINE [[gnu::always_inline]] inline
#define GDN_PORTABLE template <class V> GDN_PORTABLE_INLINE V

GDN_PORTABLE_INLINE std::uint32_t bits(float x) { return std::bit_cast<std::uint32_t>(x); }
GDN_PORTABLE_INLINE float from_bits(std::uint32_t i) { return std::bit_cast<float>(i); }
GDN_PORTABLE_INLINE float select(bool m, float a, float b) { return m ? a : b; }
GDN_PORTABLE_INLINE float constant(float, float x) { return x; }
GDN_PORTABLE_INLINE std::uint32_t constant(std::uint32_t, std::uint32_t i) { return i; }
template <int n>
GDN_PORTABLE_INLINE std::uint32_t shift_left(std::uint32_t i) {
  return i << n;
}
template <int n>
GDN_PORTABLE_INLINE std::uint32_t shift_right(std::uint32_t i) {
  return i >> n;
}

namespace detail {

inline constexpr float infinity = std::bit_cast<float>(0x7f800000u), canonical_nan = std::bit_cast<float>(0x7fc00000u);
inline constexpr float round_to_integer = 12582912.0f;  // 1.5 * 2^23: added to |x| < 2^22, leaves the nearest integer in the low bits

// c[0] + x (c[1] + x (c[2] + ..)), from c[k] on. Not a loop: g++ does not unroll it at -O2.
template <int k = 0, class V, int n>
GDN_PORTABLE_INLINE V horner(V x, const std::uint32_t (&c)[n]) {
  if constexpr (k == n - 1) {
    return constant(x, std::bit_cast<float>(c[k]));
  } else {
    const V y = horner<k + 1>(x, c);
    return y * x + constant(x, std::bit_cast<float>(c[k]));
  }
}

// The upper 12 of the 24 bits of a significand: products of two such numbers are exact.
GDN_PORTABLE upper_half(V x) { return from_bits(bits(x) & constant(bits(x), 0xfffff000u)); }

GDN_PORTABLE nan_unless_ordered(V x, V y) { return select(x == x, y, constant(x, canonical_nan)); }

// 1 / (d + low) for d in [1, 2] and |low| < 2^-23. A seed of 4 good bits becomes one of 12, is cut to 12 bits, and then
// its residual 1 - (d + low) r has an error of its own last place only.
GDN_PORTABLE reciprocal_near_one(V d, V low) {
  const V one = constant(d, 1.0f);
  V r = from_bits(constant(bits(d), 0x7ef311c7u) - bits(d));
  V e = one - d * r;
  r = r + r * (e + e * e);
  r = upper_half(from_bits(bits(r) + constant(bits(r), 0x800u)));
  const V high = upper_half(d);
  e = ((one - high * r) - (d - high) * r) - low * r;
  return r + r * (e + (e * e) * (one + e));
}

}  // namespace detail

// 2^x. Exact for integers; 0 below -126, infinity from 128 on.
GDN_PORTABLE exp2(V x) {
  const V t = x + constant(x, detail::round_to_integer);
  const V r = x - (t - constant(x, detail::round_to_integer));
  // 2^r = 1 + r ln 2 + ..: for r < 0 the sum is below 1, where half a bit lost in r ln 2 would show. Its leading part is exact.
  const V high = detail::upper_half(r), ln2 = constant(x, std::bit_cast<float>(0x3f317000u));
  const V p = detail::horner(r, {0x380622e6u, 0x3e75fdf1u, 0x3d635756u, 0x3c1d9560u, 0x3aafa8a2u, 0x39217c3fu});  // (2^r - 1) / r - ln2
  V y = constant(x, 1.0f) + (high * ln2 + ((r - high) * ln2 + r * p));
  y = from_bits(bits(y) + shift_left<23>(bits(t)));
  y = select(x < constant(x, -126.0f), constant(x, 0.0f), y);
  y = select(x < constant(x, 128.0f), y, constant(x, detail::infinity));
  return detail::nan_unless_ordered(x, y);
}

// e^x. 0 where the result is below 2^-126, infinity where it rounds to 2^128.
GDN_PORTABLE exp(V x) {
  const V t = x * constant(x, std::bit_cast<float>(0x3fb8aa3bu)) + constant(x, detail::round_to_integer);
  const V n = t - constant(x, detail::round_to_integer);
  const V high = x - n * constant(x, std::bit_cast<float>(0x3f317200u));  // exact: 15 bits of ln 2 times 8 bits of n
  const V low = n * constant(x, std::bit_cast<float>(0x35bfbe8eu));
  const V r = high - low;
  const V q = detail::horner(r, {0x3f000000u, 0x3e2aaa32u, 0x3d2aa97du, 0x3c092c89u, 0x3ab7f95du});  // (e^r - 1 - r) / r^2
  V y = constant(x, 1.0f) + (high + (q * (r * r) - low));
  y = from_bits(bits(y) + shift_left<23>(bits(t)));
  y = select(x < constant(x, std::bit_cast<float>(0xc2aeac4fu)), constant(x, 0.0f), y);
  y = select(x < constant(x, std::bit_cast<float>(0x42b17218u)), y, constant(x, detail::infinity));
  return detail::nan_unless_ordered(x, y);
}

// ln(1 + x) for x in [0, 1]; other arguments have no defined result.
GDN_PORTABLE log1p(V x) {
  // From 1/2 on: ln 2 + ln(1 + (x - 1) / 2). Either way f is exact and in [-1/4, 1/2].
  const V half = constant(x, 0.5f);
  const auto small = x < half;
  const V f = select(small, x, (x - constant(x, 1.0f)) * half);
  const V p = detail::horner(f, {0x3eaaaac6u, 0xbe7fff63u, 0x3e4cb6f6u, 0xbe2a97c4u, 0x3e1468d8u, 0xbe05cc7cu, 0x3dd0808du, 0xbd2faa4du});
  const V rest = (f * f) * (p * f - half);
  const V y = constant(x, std::bit_cast<float>(0x3f317200u)) + (f + (rest + constant(x, std::bit_cast<float>(0x35bfbe8eu))));
  return select(small, f + rest, y);
}

// 1 / x. Infinities and zeros have the sign of x; 0 also where the result is below 2^-126.
GDN_PORTABLE reciprocal(V x) {
  const auto magnitude = bits(x) & constant(bits(x), 0x7fffffffu);
  const auto exponent = (magnitude - constant(magnitude, 0x3f800000u)) & constant(magnitude, 0xff800000u);
  const V a = from_bits(magnitude);
  V y = from_bits(bits(detail::reciprocal_near_one(from_bits(magnitude - exponent), constant(x, 0.0f))) - exponent);
  y = select(constant(x, 0x1p126f) < a, constant(x, 0.0f), y);
  y = select(a < constant(x, 0x1p-126f), constant(x, detail::infinity), y);
  return detail::nan_unless_ordered(x, from_bits(bits(y) + (bits(x) - magnitude)));
}

// 1 / sqrt(x). Infinity for both zeros, NaN below zero.
GDN_PORTABLE rsqrt(V x) {
  // x = m 4^n with m in [1/2, 2)
  const auto i = bits(x);
  const V m = from_bits((i & constant(i, 0x00ffffffu)) + constant(i, 0x3f000000u));
  const V one = constant(x, 1.0f), half = constant(x, 0.5f);
  V y = from_bits(constant(i, 0x5f375a86u) - shift_right<1>(bits(m)));
  V e = one - m * (y * y);
  y = y + y * (e * (half + constant(x, 0.375f) * e));
  // As in reciprocal_near_one: y of 12 bits, so y^2 is exact, and so are the four products of halves.
  y = detail::upper_half(from_bits(bits(y) + constant(i, 0x800u)));
  const V square = y * y;
  const V mh = detail::upper_half(m), ml = m - mh, sh = detail::upper_half(square), sl = square - sh;
  e = ((one - mh * sh) - (mh * sl + ml * sh)) - ml * sl;
  y = y + y * (e * (half + e * (constant(x, 0.375f) + constant(x, 0.3125f) * e)));
  y = from_bits(bits(y) + (constant(i, 63u << 23) - shift_right<1>(i & constant(i, 0x7f000000u))));
  y = select(x < constant(x, detail::infinity), y, constant(x, 0.0f));
  y = select(x < constant(x, 0x1p-126f), constant(x, detail::infinity), y);
  const V zero = constant(x, 0.0f), nan = constant(x, detail::canonical_nan);
  return select(x < zero, nan, detail::nan_unless_ordered(x, y));
}

// 1 / (1 + e^-x); for negative x as e^x / (1 + e^x), so that small results keep their last bits.
GDN_PORTABLE sigmoid(V x) {
  const V one = constant(x, 1.0f), zero = constant(x, 0.0f);
  const V e = exp(zero - from_bits(bits(x) & constant(bits(x), 0x7fffffffu)));
  const V sum = one + e;
  const V r = detail::reciprocal_near_one(sum, e - (sum - one));
  return detail::nan_unless_ordered(x, select(x < zero, e * r, r));
}

// ln(1 + e^x) as max(x, 0) + log1p(e^-|x|)
GDN_PORTABLE softplus(V x) {
  const V zero = constant(x, 0.0f);
  const V e = exp(zero - from_bits(bits(x) & constant(bits(x), 0x7fffffffu)));
  return detail::nan_unless_ordered(x, select(zero < x, x, zero) + log1p(e));
}

#undef GDN_PORTABLE
#undef GDN_PORTABLE_INLINE

}  // namespace gdn::portable

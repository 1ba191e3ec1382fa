// Names the instruction set this translation unit is compiled for, and refuses builds whose arithmetic is not the contract's.
// All code of the CPU machine lives in namespace gdn::GDN_ISA (inline), so that translation units with different flags can be linked.
#pragma once
#include <gdn/error.hpp>

#if defined(__FAST_MATH__)
#error "gdn: -ffast-math changes results; compile with -ffp-contract=off and without fast-math options"
#endif

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define GDN_AVX512 1
#if defined(__AVX512BF16__)
#define GDN_ISA avx512bf16
#else
#define GDN_ISA avx512
#endif
#elif defined(__AVX2__) && defined(__FMA__)
#define GDN_AVX2 1
#define GDN_ISA avx2
#elif defined(__SSE2__)
#define GDN_SSE2 1
#define GDN_ISA sse2
#elif defined(__aarch64__)
#define GDN_NEON 1
#define GDN_ISA neon
#else
#error "gdn: the CPU machine needs SSE2, AVX2 with FMA, AVX-512 (F, BW, DQ, VL), or AArch64"
#endif

// Small functions on vectors must never be calls: their arguments would go through memory.
#define GDN_INLINE [[gnu::always_inline]] inline

// Complete unrolling of the next loop, at every optimisation level: arrays of vectors must become registers.
#if defined(__clang__)
#define GDN_UNROLL _Pragma("clang loop unroll(full)")
#else
#define GDN_UNROLL _Pragma("GCC unroll 16")
#endif

namespace gdn {
inline namespace GDN_ISA {
namespace cpu {

#define GDN_QUOTE_(x) #x
#define GDN_QUOTE(x) GDN_QUOTE_(x)
inline constexpr const char* isa_name = GDN_QUOTE(GDN_ISA);
#undef GDN_QUOTE
#undef GDN_QUOTE_

// Throws unless a * b + c is rounded twice in the calling translation unit (always inlined: the caller's flags count). -ffp-contract=off
// is part of the contract; g++'s default is to contract. The data are f32, because bf16 products are exact and would hide it.
GDN_INLINE void check_environment() {
  volatile float a = 0x1.001p0f, b = 0x1.001p0f, c = -0x1.002p0f;  // a * b = 1 + 2^-11 + 2^-24, whose last term a rounding drops
  const float x = a, y = b, z = c;
  const volatile float sum = x * y + z;
  const float got = sum;
  require(got == 0.0f, "gdn: this build contracts a * b + c to a fused multiply-add (got ", got,
          ", expected 0); compile with -ffp-contract=off");
}

}  // namespace cpu
}  // namespace GDN_ISA
}  // namespace gdn

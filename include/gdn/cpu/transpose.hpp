// Transposition of f32 tiles and of 32-bit words, any extents: blocks of W x W in registers, edges by partial loads and stores.
#pragma once
#include <gdn/cpu/simd.hpp>
#include <type_traits>

namespace gdn {
inline namespace GDN_ISA {
namespace cpu {

// Lane j of vector i becomes lane i of vector j.
#if GDN_AVX512
GDN_INLINE void transpose_block(F (&x)[16]) {
  F y[16];
  GDN_UNROLL
  for (int i = 0; i < 16; i += 2) {
    y[i] = _mm512_unpacklo_ps(x[i], x[i + 1]);
    y[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
  }
  GDN_UNROLL
  for (int i = 0; i < 16; i += 4) {
    GDN_UNROLL
    for (int j = 0; j < 2; ++j) {
      const __m512d a = _mm512_castps_pd(y[i + j]), b = _mm512_castps_pd(y[i + j + 2]);
      x[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
      x[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
    }
  }
  GDN_UNROLL
  for (int i = 0; i < 4; ++i) {
    y[i] = _mm512_shuffle_f32x4(x[i], x[i + 4], 0x88);
    y[i + 4] = _mm512_shuffle_f32x4(x[i], x[i + 4], 0xdd);
    y[i + 8] = _mm512_shuffle_f32x4(x[i + 8], x[i + 12], 0x88);
    y[i + 12] = _mm512_shuffle_f32x4(x[i + 8], x[i + 12], 0xdd);
  }
  GDN_UNROLL
  for (int i = 0; i < 8; ++i) {
    x[i] = _mm512_shuffle_f32x4(y[i], y[i + 8], 0x88);
    x[i + 8] = _mm512_shuffle_f32x4(y[i], y[i + 8], 0xdd);
  }
}
#elif GDN_AVX2
GDN_INLINE void transpose_block(F (&x)[8]) {
  F y[8];
  GDN_UNROLL
  for (int i = 0; i < 8; i += 2) {
    y[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
    y[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
  }
  GDN_UNROLL
  for (int i = 0; i < 8; i += 4) {
    GDN_UNROLL
    for (int j = 0; j < 2; ++j) {
      const __m256d a = _mm256_castps_pd(y[i + j]), b = _mm256_castps_pd(y[i + j + 2]);
      x[i + 2 * j] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, b));
      x[i + 2 * j + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, b));
    }
  }
  GDN_UNROLL
  for (int i = 0; i < 4; ++i) {
    const __m256 a = x[i], b = x[i + 4];
    x[i] = _mm256_permute2f128_ps(a, b, 0x20);
    x[i + 4] = _mm256_permute2f128_ps(a, b, 0x31);
  }
}
#elif GDN_SSE2
GDN_INLINE void transpose_block(F (&x)[4]) {
  const __m128 a = _mm_unpacklo_ps(x[0], x[1]), b = _mm_unpackhi_ps(x[0], x[1]);
  const __m128 c = _mm_unpacklo_ps(x[2], x[3]), d = _mm_unpackhi_ps(x[2], x[3]);
  x[0] = _mm_movelh_ps(a, c);
  x[1] = _mm_movehl_ps(c, a);
  x[2] = _mm_movelh_ps(b, d);
  x[3] = _mm_movehl_ps(d, b);
}
#else
GDN_INLINE void transpose_block(F (&x)[4]) {
  const float32x4_t a = vzip1q_f32(x[0], x[2]), b = vzip2q_f32(x[0], x[2]);
  const float32x4_t c = vzip1q_f32(x[1], x[3]), d = vzip2q_f32(x[1], x[3]);
  x[0] = vzip1q_f32(a, c);
  x[1] = vzip2q_f32(a, c);
  x[2] = vzip1q_f32(b, d);
  x[3] = vzip2q_f32(b, d);
}
#endif

namespace detail {

// The first n <= W elements, +0 in the other lanes.
template <class T>
GDN_INLINE F load_first(const T* p, int n) {
  if constexpr (std::is_same_v<T, float>) {
    return load(p, first_lanes(n));
  } else {
    bf16 x[W] = {};
    std::memcpy(static_cast<void*>(x), p, sizeof(bf16) * static_cast<unsigned>(n));
    return load(x);
  }
}

template <class T>
[[gnu::noinline]] void transpose(int rows, int cols, const T* from, long from_row, float* to, long to_row) {
  for (int r = 0; r < rows; r += W) {
    const int height = rows - r < W ? rows - r : W;
    for (int c = 0; c < cols; c += W) {
      const int width = cols - c < W ? cols - c : W;
      const T* source = from + r * from_row + c;
      float* target = to + c * to_row + r;
      F x[W];
      if (height == W && width == W) {
        GDN_UNROLL
        for (int i = 0; i < W; ++i) x[i] = load(source + i * from_row);
        transpose_block(x);
        GDN_UNROLL
        for (int i = 0; i < W; ++i) store(target + i * to_row, x[i]);
      } else {
        const Lanes down = first_lanes(height);
        for (int i = 0; i < W; ++i) x[i] = i < height ? load_first(source + i * from_row, width) : F(0.0f);
        transpose_block(x);
        for (int i = 0; i < width; ++i) store(target + i * to_row, x[i], down);
      }
    }
  }
}

}  // namespace detail

// to [cols, rows] <- from [rows, cols] transposed, bf16 widened; pitches in elements. The two may not overlap.
inline void transpose(int rows, int cols, const float* from, long from_row, float* to, long to_row) {
  detail::transpose(rows, cols, from, from_row, to, to_row);
}
inline void transpose(int rows, int cols, const bf16* from, long from_row, float* to, long to_row) {
  detail::transpose(rows, cols, from, from_row, to, to_row);
}

// Packed bf16 pairs are moved by the same code: loads and stores do not look at the bits.
inline void transpose(int rows, int cols, const std::uint32_t* from, long from_row, std::uint32_t* to, long to_row) {
  transpose(rows, cols, reinterpret_cast<const float*>(from), from_row, reinterpret_cast<float*>(to), to_row);
}

}  // namespace cpu
}  // namespace GDN_ISA
}  // namespace gdn

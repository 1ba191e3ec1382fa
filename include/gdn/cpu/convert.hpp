// Rows of bf16 as rows of f32 and back. Every rounding is to_bf16's: nearest even, subnormals to zeros of their sign, NaN to 0x7fc0.
#pragma once
#include <gdn/cpu/simd.hpp>

namespace gdn {
inline namespace GDN_ISA {
namespace cpu {

[[gnu::noinline]] inline void widen(int rows, int columns, const bf16* from, long from_row, float* to, long to_row) {
  for (int r = 0; r < rows; ++r) {
    const bf16* source = from + r * from_row;
    float* target = to + r * to_row;
    int c = 0;
    for (; c + W <= columns; c += W) store(target + c, load(source + c));
    for (; c < columns; ++c) target[c] = to_f32(source[c]);
  }
}

[[gnu::noinline]] inline void narrow(int rows, int columns, const float* from, long from_row, bf16* to, long to_row) {
  for (int r = 0; r < rows; ++r) {
    const float* source = from + r * from_row;
    bf16* target = to + r * to_row;
    int c = 0;
    for (; c + W <= columns; c += W) store(target + c, load(source + c));
    for (; c < columns; ++c) target[c] = to_bf16(source[c]);
  }
}

// A tile rounded to bf16 and held as f32 (the `cast` of a kernel). May be in place.
[[gnu::noinline]] inline void round_to_bf16(int rows, int columns, const float* from, long from_row, float* to, long to_row) {
  for (int r = 0; r < rows; ++r) {
    const float* source = from + r * from_row;
    float* target = to + r * to_row;
    int c = 0;
    for (; c + W <= columns; c += W) store(target + c, from_bits(round_to_bf16(load(source + c))));
    for (; c < columns; ++c) target[c] = to_f32(to_bf16(source[c]));
  }
}

}  // namespace cpu
}  // namespace GDN_ISA
}  // namespace gdn

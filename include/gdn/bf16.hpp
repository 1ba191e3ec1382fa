// bfloat16 as a storage type. Arithmetic is always f32; every rounding to bf16 is a visible call.
#pragma once
#include <bit>
#include <cstdint>

namespace gdn {

using f32 = float;

struct bf16 {
  std::uint16_t bits = 0;
  friend bool operator==(bf16, bf16) = default;
};

// Nearest even. Subnormals become zeros of their sign before rounding, every NaN becomes 0x7fc0: what the TPU does.
constexpr bf16 to_bf16(f32 x) {
  const auto u = std::bit_cast<std::uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {0x7fc0};
  if ((u & 0x7f800000u) == 0) return {static_cast<std::uint16_t>((u >> 16) & 0x8000u)};
  return {static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

constexpr f32 to_f32(bf16 x) { return std::bit_cast<f32>(static_cast<std::uint32_t>(x.bits) << 16); }
constexpr f32 to_f32(f32 x) { return x; }

}  // namespace gdn

// A small use of the library, the same for all consumers: 2^x of a few x on the CPU machine's vectors, as one number.
#pragma once
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include <gdn/cpu/simd.hpp>
#include <gdn/kernels.hpp>
#include <gdn/portable/math.hpp>

struct Sample {
  const char* isa;
  std::uint32_t sum;
};

// Not inline: each translation unit shall have its own, compiled with its own flags.
[[maybe_unused]] static Sample sample() {
  std::array<float, 32> x{};
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = 0.37f * static_cast<float>(i) - 6.0f;
  for (std::size_t i = 0; i < x.size(); i += gdn::cpu::W) gdn::cpu::store(&x[i], gdn::portable::exp2(gdn::cpu::load(&x[i])));
  std::uint32_t sum = 0;
  for (float y : x) sum = 31 * sum + std::bit_cast<std::uint32_t>(y);
  return {gdn::cpu::isa_name, sum};
}

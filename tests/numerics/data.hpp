// Data of the primitives' tests, and a hash that must be the same on every instruction set.
#pragma once
#include <bit>
#include <cstdint>
#include <vector>

#include "../support/bits.hpp"
#include "../support/random.hpp"

namespace gdn::test {

// In [-1, 1), 24 random bits.
inline float signed_unit(Random& random) {
  return static_cast<float>(static_cast<std::int32_t>(random.next() >> 40) - (1 << 23)) * 0x1p-23f;
}

inline float any_pattern(Random& random) { return std::bit_cast<float>(static_cast<std::uint32_t>(random.next())); }

inline std::vector<float> signed_units(Random& random, std::size_t n, float scale = 1.0f) {
  std::vector<float> x(n);
  for (float& v : x) v = signed_unit(random) * scale;
  return x;
}

// Every class of number, and the neighbours of its borders.
inline std::vector<float> special_values() {
  std::vector<float> x;
  for (std::uint32_t u :
       {0x00000000u, 0x00000001u, 0x007fffffu, 0x00800000u, 0x00800001u, 0x00ffffffu, 0x01000000u, 0x3effffffu, 0x3f000000u,
        0x3f7fffffu, 0x3f800000u, 0x3f800001u, 0x40490fdbu, 0x7e7fffffu, 0x7e800000u, 0x7e800001u, 0x7f7fffffu, 0x7f800000u,
        0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0x3f808000u, 0x3f818000u, 0x7f7f7fffu, 0x7f7f8000u}) {
    x.push_back(std::bit_cast<float>(u));
    x.push_back(std::bit_cast<float>(u | 0x80000000u));
  }
  return x;
}

// FNV-1a over the bytes of each number, NaNs made equal.
class Hash {
 public:
  void add(float x) {
    std::uint32_t u = is_nan(x) ? 0x7fc00000u : bits_of(x);
    for (int i = 0; i < 4; ++i, u >>= 8) value_ = (value_ ^ (u & 255u)) * 1099511628211u;
  }
  void add(const std::vector<float>& x) {
    for (float v : x) add(v);
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 14695981039346656037u;
};

}  // namespace gdn::test

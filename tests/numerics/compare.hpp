// What the tests of primitives share: deterministic data, and comparison of arrays bit by bit.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <gdn/bf16.hpp>
#include <sstream>
#include <string>
#include <vector>

namespace gdn::test {

// splitmix64: the same numbers on every machine.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t bits() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  int below(int n) { return static_cast<int>(bits() % static_cast<std::uint64_t>(n)); }
  // In (-1, 1), 24 random bits.
  float uniform() { return static_cast<float>(static_cast<std::int32_t>(bits() >> 40) - (1 << 23)) * 0x1p-23f; }
  // Any bit pattern.
  float any() { return std::bit_cast<float>(static_cast<std::uint32_t>(bits())); }
  std::vector<float> array(std::size_t n, float scale = 1.0f) {
    std::vector<float> x(n);
    for (float& v : x) v = uniform() * scale;
    return x;
  }

 private:
  std::uint64_t state_;
};

inline bool same(float a, float b) { return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) || (a != a && b != b); }

// Distance in representable numbers; zeros of both signs are one step apart.
inline long long ulps(float a, float b) {
  const auto key = [](float x) {
    const auto i = std::bit_cast<std::int32_t>(x);
    return static_cast<long long>(i < 0 ? -static_cast<long long>(i & 0x7fffffff) - 1 : i);
  };
  return std::llabs(key(a) - key(b));
}

// Empty when all elements have the same bits (any NaN is any NaN), else a sentence about the first that does not.
inline std::string difference(const std::vector<float>& got, const std::vector<float>& want) {
  std::ostringstream out;
  if (got.size() != want.size()) {
    out << "sizes " << got.size() << " and " << want.size();
    return out.str();
  }
  std::size_t count = 0, first = 0;
  for (std::size_t i = got.size(); i-- > 0;)
    if (!same(got[i], want[i])) ++count, first = i;
  if (count == 0) return {};
  out << count << " of " << got.size() << " differ, first [" << first << "]: got " << got[first] << " want " << want[first] << std::hex
      << " (0x" << std::bit_cast<std::uint32_t>(got[first]) << ", 0x" << std::bit_cast<std::uint32_t>(want[first]) << std::dec << "), "
      << ulps(got[first], want[first]) << " ulp";
  return out.str();
}

// FNV-1a over the bit patterns, NaNs made equal: one number that must be the same on every instruction set.
class Hash {
 public:
  void add(float x) { add_bits(x != x ? 0x7fc00000u : std::bit_cast<std::uint32_t>(x)); }
  void add(const std::vector<float>& x) {
    for (float v : x) add(v);
  }
  void add_bits(std::uint32_t u) {
    for (int i = 0; i < 4; ++i, u >>= 8) value_ = (value_ ^ (u & 255u)) * 1099511628211u;
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 14695981039346656037u;
};

// Every class of number, and the neighbours of its borders.
inline std::vector<float> special_values() {
  std::vector<float> x;
  for (std::uint32_t u : {0x00000000u, 0x00000001u, 0x007fffffu, 0x00800000u, 0x00800001u, 0x00ffffffu, 0x01000000u, 0x3effffffu, 0x3f000000u,
                          0x3f7fffffu, 0x3f800000u, 0x3f800001u, 0x40490fdbu, 0x7e7fffffu, 0x7e800000u, 0x7e800001u, 0x7f7fffffu, 0x7f800000u,
                          0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0x3f808000u, 0x3f818000u, 0x7f7f7fffu, 0x7f7f8000u}) {
    x.push_back(std::bit_cast<float>(u));
    x.push_back(std::bit_cast<float>(u | 0x80000000u));
  }
  return x;
}

}  // namespace gdn::test

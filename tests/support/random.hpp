// Test data from a counter: equal seeds give equal bits with every compiler and libm, so a failure can be replayed anywhere.
#pragma once
#include <cstdint>
#include <vector>

namespace gdn::test {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  // splitmix64
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  // [0, 1), multiples of 2^-53.
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  double uniform(double low, double high) { return low + (high - low) * uniform(); }

  // Mean 0, variance 1, as a sum of twelve uniforms: no log or cos, whose bits differ between libms. Tails end at 6.
  double normal() {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += uniform();
    return sum;
  }

  // 0 .. count - 1
  int below(int count) { return static_cast<int>(uniform() * count); }

 private:
  std::uint64_t state_;
};

template <class T>
std::vector<T> normals(Random& random, std::size_t count) {
  std::vector<T> x(count);
  for (auto& value : x) value = static_cast<T>(random.normal());
  return x;
}

}  // namespace gdn::test

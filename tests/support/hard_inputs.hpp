// Eight families of inputs on which chunked delta rules lose digits, as core calls with scale = 1: q is already scaled, k has unit norm.
//
//   rand    decay e^-g with g log-uniform in [1e-3, 1]     same    one key and 10 % noise, beta 0.95
//   slow    g = -1e-3                                      mixed   one token in ten forgets nearly everything
//   strong  g = -8 |normal|                                wide    g down to -316: the state vanishes in one token
//   beta1   hardly any decay, beta 0.999                   repeat  four keys over and over, 5 % noise, beta 0.98
//
// read_hard_input reads the draws on which error bounds are stated (written by tests/oracle/hard_inputs.py: numpy's generator);
// hard_input draws from the same distributions with our own generator, for tests that run without Python.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <gdn/bf16.hpp>
#include <string>

#include "oracle.hpp"
#include "random.hpp"

namespace gdn::test {

inline constexpr std::array hard_kinds{"rand", "slow", "strong", "beta1", "repeat", "same", "mixed", "wide"};

// Errors (max_error against the recurrence, mean over draws 0 .. 7 of the files, default sizes) of the class P1 contract as
// p1_emulation.py --chain has them: out in f32, out stored as bf16, final state. A kernel may have 1.1 times as much.
struct HardBound {
  const char* kind;
  double out, out_bf16, state;
};

inline constexpr HardBound p1_bounds[] = {
    {"rand", 4.309e-3, 4.831e-3, 3.617e-3},   {"slow", 3.733e-3, 4.650e-3, 3.453e-3},   {"strong", 3.151e-3, 3.880e-3, 3.124e-3},
    {"beta1", 4.609e-3, 5.161e-3, 4.730e-3},  {"repeat", 1.405e-2, 1.412e-2, 1.932e-2}, {"same", 1.872e-2, 1.897e-2, 2.175e-2},
    {"mixed", 3.652e-3, 4.223e-3, 3.314e-3},  {"wide", 3.584e-3, 4.895e-3, 3.178e-3},
};

// Every draw in class PF, out in f32 and state.
inline double pf_bound(const std::string& kind) { return kind == "repeat" || kind == "same" ? 4e-6 : 1e-6; }

// Layout of a file: "GDNHARD1", four little-endian int32 (tokens, key heads, value heads, dim), then q, k, v, g, beta as f32.
inline CoreInput<f32> read_hard_input(const std::string& directory, const std::string& kind, int draw) {
  const auto path = directory + "/" + kind + "-" + std::to_string(draw) + ".bin";
  std::ifstream file(path, std::ios::binary);
  require(file.is_open(), "cannot open ", path, ": write the hard inputs first, with python3 tests/oracle/hard_inputs.py ", directory);
  char magic[8];
  std::int32_t n[4];
  file.read(magic, sizeof magic).read(reinterpret_cast<char*>(n), sizeof n);
  require(file && std::memcmp(magic, "GDNHARD1", 8) == 0, path, " is no file of hard inputs (it should begin with GDNHARD1)");

  const int T = n[0], Hk = n[1], Hv = n[2], D = n[3];
  CoreInput<f32> in;
  in.q = in.k = Array<f32>({T, Hk, D});
  in.v = Array<f32>({T, Hv, D});
  in.g = in.beta = Array<f32>({T, Hv});
  for (auto* x : {&in.q, &in.k, &in.v, &in.g, &in.beta}) {
    file.read(reinterpret_cast<char*>(x->data.data()), static_cast<std::streamsize>(x->size() * sizeof(f32)));
  }
  require(static_cast<bool>(file), path, " ends too early for ", T, " tokens, ", Hk, " and ", Hv, " heads of ", D);
  require(file.peek() == std::ifstream::traits_type::eof(), path, " holds more than its header says");
  return in;
}

namespace detail {

inline void to_unit_rows(Array<double>& x) {
  for (int t = 0; t < x.shape[0]; ++t) {
    for (int h = 0; h < x.shape[1]; ++h) l2norm(x.row(t, h), x.shape[2]);
  }
}

inline Array<f32> bf16_values(const Array<double>& x) {
  auto y = cast<f32>(x);
  for (auto& value : y.data) value = to_f32(to_bf16(value));
  return y;
}

}  // namespace detail

inline CoreInput<f32> hard_input(const std::string& kind, int draw = 0, int T = 256, int Hk = 2, int Hv = 8, int D = 128) {
  const auto known = std::find(hard_kinds.begin(), hard_kinds.end(), kind);
  require(known != hard_kinds.end(), "no family of hard inputs is called ", kind);
  Random random(static_cast<std::uint64_t>(known - hard_kinds.begin()) * 1000003u + static_cast<std::uint64_t>(draw));
  const auto normal = [&](std::vector<int> shape) {
    Array<double> x(shape);
    x.data = normals<double>(random, x.size());
    return x;
  };
  const auto each = [&](auto draw_one) {
    Array<double> x({T, Hv});
    for (auto& value : x.data) value = draw_one();
    return x;
  };
  const auto all = [&](double value) { return Array<double>({T, Hv}, value); };
  // Keys near `few` ones that take turns.
  const auto turns = [&](const Array<double>& few, double noise, Array<double> k) {
    for (int t = 0; t < T; ++t) {
      for (int i = 0; i < Hk * D; ++i) k.row(t)[i] = few.row(t % few.shape[0])[i] + noise * k.row(t)[i];
    }
    return k;
  };

  auto q = normal({T, Hk, D}), k = normal({T, Hk, D}), v = normal({T, Hv, D});
  auto g = each([&] { return -std::exp(random.uniform(std::log(1e-3), 0)); });
  auto beta = each([&] { return sigmoid(random.normal()); });
  if (kind == "slow") g = all(-1e-3);
  if (kind == "strong") g = each([&] { return -8 * std::abs(random.normal()); });
  if (kind == "beta1") g = all(-1e-4), beta = all(0.999);
  if (kind == "repeat") k = turns(normal({4, Hk, D}), 0.05, k), g = all(-1e-3), beta = all(0.98);
  if (kind == "same") k = turns(normal({1, Hk, D}), 0.1, k), g = all(-1e-2), beta = all(0.95);
  if (kind == "mixed") g = each([&] { return random.uniform() < 0.1 ? -20.0 : -1e-3; });
  if (kind == "wide") g = each([&] { return -316 * std::pow(random.uniform(), 4); });
  detail::to_unit_rows(q), detail::to_unit_rows(k);
  for (auto& value : q.data) value /= std::sqrt(static_cast<double>(D));

  CoreInput<f32> in;
  in.q = detail::bf16_values(q), in.k = detail::bf16_values(k), in.v = detail::bf16_values(v);
  in.g = cast<f32>(g), in.beta = cast<f32>(beta);
  return in;
}

}  // namespace gdn::test

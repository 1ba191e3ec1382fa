// Random calls of any shape, and ways to lay documents into a row.
#pragma once
#include <cmath>
#include <gdn/bf16.hpp>
#include <string>
#include <utility>
#include <vector>

#include "oracle.hpp"
#include "random.hpp"

namespace gdn::test {

template <class T>
Array<T> normal_array(Random& random, std::vector<int> shape, double scale = 1) {
  Array<T> x(std::move(shape));
  for (auto& value : x.data) value = static_cast<T>(scale * random.normal());
  return x;
}

template <class T>
Array<T> uniform_array(Random& random, std::vector<int> shape, double low, double high) {
  Array<T> x(std::move(shape));
  for (auto& value : x.data) value = static_cast<T>(random.uniform(low, high));
  return x;
}

struct Sizes {
  int T = 64, Hk = 1, Hv = 1, K = 128, V = 128;
};

// q, k, v and the initial state normal, g between -2.7 and -1e-3 (log-uniform), beta in (0,1); keys are normalised by the call.
template <class T = f32>
CoreInput<T> random_core(std::uint64_t seed, const Sizes& n, std::vector<int> ids = {}, bool with_state = true) {
  Random random(seed);
  CoreInput<T> in;
  in.q = normal_array<T>(random, {n.T, n.Hk, n.K}), in.k = normal_array<T>(random, {n.T, n.Hk, n.K});
  in.v = normal_array<T>(random, {n.T, n.Hv, n.V});
  in.g = uniform_array<T>(random, {n.T, n.Hv}, -7, 1);
  for (auto& g : in.g.data) g = -std::exp(g);
  in.beta = uniform_array<T>(random, {n.T, n.Hv}, 0, 1);
  if (with_state) in.h0 = normal_array<T>(random, {n.Hv, n.K, n.V});
  in.ids = std::move(ids), in.use_qk_norm = true;
  in.scale = static_cast<f32>(1 / std::sqrt(static_cast<double>(n.K)));
  return in;
}

template <class T = f32>
LayerInput<T> random_layer(std::uint64_t seed, const Sizes& n, std::vector<int> ids = {}, bool with_state = true, int taps = 4) {
  Random random(seed);
  const int D = 2 * n.Hk * n.K + n.Hv * n.V;
  LayerInput<T> in;
  in.key_heads = n.Hk, in.key_dim = n.K, in.value_heads = n.Hv, in.value_dim = n.V;
  in.qkv = normal_array<T>(random, {n.T, D});
  in.b = normal_array<T>(random, {n.T, n.Hv}), in.a = normal_array<T>(random, {n.T, n.Hv});
  in.conv_weights = normal_array<T>(random, {taps, D}, 0.5), in.conv_bias = normal_array<T>(random, {D}, 0.1);
  in.A_log = uniform_array<T>(random, {n.Hv}, -4, 2), in.dt_bias = normal_array<T>(random, {n.Hv});
  if (with_state) in.conv_state = normal_array<T>(random, {taps - 1, D}), in.h0 = normal_array<T>(random, {n.Hv, n.K, n.V});
  in.ids = std::move(ids);
  return in;
}

// Ids from runs of (id, length); ids <= 0 are padding.
inline std::vector<int> document_ids(const std::vector<std::pair<int, int>>& runs) {
  std::vector<int> ids;
  for (auto [id, length] : runs) ids.insert(ids.end(), static_cast<std::size_t>(length), id);
  return ids;
}

struct Layout {
  std::string name;
  int tokens;
  std::vector<int> ids;
};

inline std::vector<Layout> document_layouts() {
  const auto lay = [](std::string name, const std::vector<std::pair<int, int>>& runs) {
    const auto ids = document_ids(runs);
    return Layout{std::move(name), static_cast<int>(ids.size()), ids};
  };
  const auto in_turn = [&](std::string name, const std::vector<int>& lengths, int padding) {
    std::vector<std::pair<int, int>> runs;
    for (int length : lengths) runs.emplace_back(static_cast<int>(runs.size()) + 1, length);
    if (padding > 0) runs.emplace_back(0, padding);
    return lay(std::move(name), runs);
  };
  return {
      {"no ids", 150, {}},
      {"no token", 0, {}},
      lay("one document by ids", {{7, 150}}),
      in_turn("changes inside chunks", {64, 72, 45, 75}, 0),
      in_turn("six in one chunk, shorter than the taps", {1, 2, 3, 5, 24, 29}, 0),
      in_turn("changes at chunk ends", {64, 128}, 0),
      in_turn("padding behind", {40, 37, 31}, 20),
      in_turn("sixteen and padding", {1, 2, 3, 17, 41, 15, 29, 8, 22, 11, 19, 14, 25, 9, 18, 12}, 10),
      in_turn("more than 256", std::vector<int>(300, 1), 0),
      lay("padding in front and between", {{0, 6}, {5, 39}, {-1, 27}, {5, 50}, {0, 70}, {9, 8}}),
      lay("a whole chunk of padding inside", {{3, 20}, {0, 120}, {3, 20}}),
      lay("ids that come back", {{1, 30}, {2, 30}, {1, 30}, {2, 30}, {1, 30}}),
      lay("all padding", {{0, 70}}),
  };
}

}  // namespace gdn::test

// The chunked forward on one thread, D = 128: microseconds per token and head, GF/s of the dots it does, and the arena's high water.
//   core/<type>, layer/<type>: arguments are key heads, value heads, tokens
#include <benchmark/benchmark.h>

#include <random>

#include "gdn/kernels.hpp"

namespace {
using namespace gdn;

constexpr int D = 128, C = 64, taps = 4;

template <class Act> std::vector<Act> normals(std::int64_t n, f32 scale) {
  std::mt19937 random(1);
  std::normal_distribution<f32> normal(0, scale);
  std::vector<Act> x(static_cast<std::size_t>(n));
  for (Act& y : x) {
    if constexpr (std::is_same_v<Act, bf16>) y = to_bf16(normal(random));
    else y = normal(random);
  }
  return x;
}

// Dots of a chunk: k k^T and q k^T once per key head; k S, q S, kb r, M u, E r and the merges of M's blocks per value head.
void count(benchmark::State& state, std::int64_t Hk, std::int64_t Hv, std::int64_t T) {
  using benchmark::Counter;
  const double chunks = static_cast<double>(T) / C, n = static_cast<double>(state.iterations());
  const double per_key = 2. * 2 * C * C * D, per_value = 2. * (3. * C * D * D + 2. * C * C * D + 4. * 16 * 16 * 16 + 2. * 32 * 32 * 32);
  state.counters["us/token.head"] = Counter(n * static_cast<double>(T * Hv) / 1e6, Counter::kIsRate | Counter::kInvert);
  state.counters["GF/s"] = Counter(n * chunks * (static_cast<double>(Hk) * per_key + static_cast<double>(Hv) * per_value) / 1e9, Counter::kIsRate);
  state.counters["arena_MiB"] = static_cast<double>(cpu::arena().high_water_bytes()) / (1 << 20);
}

template <class Act> void core(benchmark::State& state) {
  const std::int64_t Hk = state.range(0), Hv = state.range(1), T = state.range(2);
  const auto q = normals<Act>(T * Hk * D, 1), k = q, v = normals<Act>(T * Hv * D, 1);
  const std::vector<f32> g(static_cast<std::size_t>(T * Hv), -0.05f), beta(g.size(), 0.5f);
  std::vector<Act> out(v.size());
  CoreArrays<Act> x;
  x.q = view(q, {1, T, Hk, D}), x.k = view(k, {1, T, Hk, D}), x.v = view(v, {1, T, Hv, D});
  x.g = view(g, {1, T, Hv}), x.beta = view(beta, {1, T, Hv}), x.out = view(out, {1, T, Hv, D});
  Cpu cpu(1);
  cpu::arena().reset_high_water();
  for (auto _ : state) {
    forward(cpu, x, {.use_qk_norm = true});
    benchmark::DoNotOptimize(out.data());
  }
  count(state, Hk, Hv, T);
}

template <class Act> void layer(benchmark::State& state) {
  const std::int64_t Hk = state.range(0), Hv = state.range(1), T = state.range(2), W = (2 * Hk + Hv) * D;
  const auto qkv = normals<Act>(T * W, 1), a = normals<Act>(T * Hv, 1);
  const auto weights = normals<f32>(taps * W, 0.5f), bias = normals<f32>(W, 0.1f), A_log = normals<f32>(Hv, 1), dt_bias = normals<f32>(Hv, 1);
  std::vector<Act> out(static_cast<std::size_t>(T * Hv * D));
  LayerArrays<Act> x;
  x.qkv = view(qkv, {1, T, W}), x.a = view(a, {1, T, Hv}), x.b = view(a, {1, T, Hv});
  x.conv_weights = view(weights, {taps, W}), x.conv_bias = view(bias, {W}), x.A_log = view(A_log, {Hv}), x.dt_bias = view(dt_bias, {Hv});
  x.out = view(out, {1, T, Hv, D});
  Cpu cpu(1);
  cpu::arena().reset_high_water();
  for (auto _ : state) {
    layer_forward(cpu, x, {.key_heads = static_cast<int>(Hk)});
    benchmark::DoNotOptimize(out.data());
  }
  count(state, Hk, Hv, T);
}

void shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"Hk", "Hv", "T"})->Args({8, 8, 512})->Args({2, 8, 512})->Unit(benchmark::kMillisecond);
}
BENCHMARK(core<f32>)->Name("core/f32")->Apply(shapes);
BENCHMARK(core<bf16>)->Name("core/bf16")->Apply(shapes);
BENCHMARK(layer<f32>)->Name("layer/f32")->Apply(shapes);
BENCHMARK(layer<bf16>)->Name("layer/bf16")->Apply(shapes);

}  // namespace

BENCHMARK_MAIN();

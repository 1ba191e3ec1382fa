// Convolution, l2norm and gates as calls of their own, one thread: GB/s of what is read and written, nanoseconds per token and head.
#include <benchmark/benchmark.h>

#include <random>

#include "gdn/kernels.hpp"

namespace {
using namespace gdn;

template <class T> std::vector<T> normals(std::int64_t n, f32 scale, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<f32> normal(0, scale);
  std::vector<T> x(static_cast<std::size_t>(n));
  for (T& y : x) {
    if constexpr (std::is_same_v<T, bf16>) y = to_bf16(normal(random));
    else y = normal(random);
  }
  return x;
}
void count(benchmark::State& state, double token_heads, double bytes) {
  using benchmark::Counter;
  const double n = static_cast<double>(state.iterations());
  state.counters["ns/token.head"] = Counter(n * token_heads / 1e9, Counter::kIsRate | Counter::kInvert);
  state.counters["GB/s"] = Counter(n * bytes / 1e9, Counter::kIsRate);
}
constexpr std::int64_t T = 512, H = 16;

template <class Act> void conv(benchmark::State& state) {
  auto x = normals<Act>(T * H * 128, 1, 1), y = x;
  auto w = normals<f32>(4 * H * 128, 0.5f, 2), bias = normals<f32>(H * 128, 0.1f, 3);
  ConvArrays<Act> a;
  a.x = view(std::as_const(x), {1, T, H * 128}), a.weights = view(std::as_const(w), {4, H * 128}), a.bias = view(std::as_const(bias), {H * 128});
  a.y = view(y, {1, T, H * 128});
  Cpu cpu(1);
  for (auto _ : state) causal_conv(cpu, a);
  count(state, T * H, static_cast<double>(2 * sizeof(Act) * x.size()));
}
BENCHMARK(conv<f32>)->Name("conv/f32");
BENCHMARK(conv<bf16>)->Name("conv/bf16");

template <class Act> void norm(benchmark::State& state) {
  auto x = normals<Act>(T * H * 128, 1, 1), y = x;
  Cpu cpu(1);
  for (auto _ : state) l2norm(cpu, NormArrays<Act>{view(std::as_const(x), {1, T, H, 128}), view(y, {1, T, H, 128})});
  count(state, T * H, static_cast<double>(2 * sizeof(Act) * x.size()));
}
BENCHMARK(norm<f32>)->Name("l2norm/f32");
BENCHMARK(norm<bf16>)->Name("l2norm/bf16");

void gate(benchmark::State& state) {
  auto a = normals<f32>(T * H, 1, 1), b = a, g = a, beta = a;
  const auto A_log = normals<f32>(H, 1, 2), dt_bias = normals<f32>(H, 1, 3);
  GateArrays<f32> x;
  x.a = view(std::as_const(a), {1, T, H}), x.b = view(std::as_const(b), {1, T, H});
  x.A_log = view(A_log, {H}), x.dt_bias = view(dt_bias, {H});
  x.g = view(g, {1, T, H}), x.beta = view(beta, {1, T, H});
  Cpu cpu(1);
  for (auto _ : state) gates(cpu, x);
  count(state, T * H, static_cast<double>(4 * sizeof(f32) * a.size()));
}
BENCHMARK(gate)->Name("gates/f32");

// 64 matrices.
template <InverseOrder O, Precision P> void inverse(benchmark::State& state) {
  auto N = normals<f32>(64 * 64 * 64, 0.1f, 1), M = N;
  Cpu cpu(1);
  for (auto _ : state) invert_unit_lower<64, O, P>(cpu, inverse_arrays(view(std::as_const(N), {64, 64, 64}), view(M, {64, 64, 64})));
  using benchmark::Counter;
  state.counters["us/matrix"] = Counter(static_cast<double>(state.iterations()) * 64 / 1e6, Counter::kIsRate | Counter::kInvert);
}
BENCHMARK(inverse<InverseOrder::merged_blocks, Precision::f32>)->Name("inverse/merged_blocks/f32");
BENCHMARK(inverse<InverseOrder::merged_blocks, Precision::bf16>)->Name("inverse/merged_blocks/bf16");
BENCHMARK(inverse<InverseOrder::right_looking, Precision::f32>)->Name("inverse/right_looking/f32");
BENCHMARK(inverse<InverseOrder::left_looking, Precision::f32>)->Name("inverse/left_looking/f32");

}  // namespace

BENCHMARK_MAIN();

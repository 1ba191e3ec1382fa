// Decoding and the token recurrence, D = 128: microseconds per token and head, and the bytes of state that move (read and written once).
//   decode/<heads>/<rows of the batch>: 32 heads are 2 MiB of state, 64 rows of them 128 MiB, which no cache holds
#include <benchmark/benchmark.h>

#include <random>

#include "gdn/kernels.hpp"

namespace {
using namespace gdn;

// Whole cache lines: vectors of the machine that lie across two cost up to 1.6 times as much.
template <class T> struct Lines {
  using value_type = T;
  T* allocate(std::size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), std::align_val_t(64))); }
  void deallocate(T* p, std::size_t) { ::operator delete(p, std::align_val_t(64)); }
  bool operator==(const Lines&) const { return true; }
};
using Floats = std::vector<f32, Lines<f32>>;

Floats normals(std::int64_t n, f32 scale, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<f32> normal(0, scale);
  Floats x(static_cast<std::size_t>(n));
  for (f32& y : x) y = normal(random);
  return x;
}
void count(benchmark::State& state, std::int64_t token_heads, int threads) {
  using benchmark::Counter;
  const double n = static_cast<double>(token_heads) * static_cast<double>(state.iterations());
  state.counters["us/token.head"] = Counter(n / 1e6, Counter::kIsRate | Counter::kInvert);
  state.counters["GB/s"] = Counter(n * 2 * 128 * 128 * sizeof(f32) / 1e9, Counter::kIsRate);
  state.counters["threads"] = threads;
}

struct Core {
  std::int64_t B, T, H;
  Floats q = normals(B * T * H * 128, 0.09f, 1), k = normals(B * T * H * 128, 0.09f, 2), v = normals(B * T * H * 128, 1, 3);
  Floats g = Floats(static_cast<std::size_t>(B * T * H), -0.01f), beta = Floats(g.size(), 0.5f);
  Floats state = normals(B * H * 128 * 128, 0.1f, 4), out = v;
  CoreArrays<f32> arrays() {
    CoreArrays<f32> x;
    x.q = view(q, {B, T, H, 128}), x.k = view(k, {B, T, H, 128}), x.v = view(v, {B, T, H, 128});
    x.g = view(g, {B, T, H}), x.beta = view(beta, {B, T, H}), x.out = view(out, {B, T, H, 128});
    x.final = view(state, {B, H, 128, 128});
    x.initial = x.final;
    return x;
  }
};
void decode_heads(benchmark::State& state) {
  Core x{state.range(1), 1, state.range(0)};
  Cpu cpu(static_cast<int>(state.range(2)));
  for (auto _ : state) decode(cpu, x.arrays());
  count(state, x.B * x.H, cpu.threads());
}
BENCHMARK(decode_heads)->Name("decode")->ArgsProduct({{32}, {1, 64}, {1, 2}})->UseRealTime();

void recurrent_heads(benchmark::State& state) {
  Core x{1, state.range(0), 8};
  Cpu cpu(1);
  for (auto _ : state) recurrent(cpu, x.arrays());
  count(state, x.T * x.H, 1);
}
BENCHMARK(recurrent_heads)->Name("recurrent")->Arg(512)->UseRealTime();

// 16 key heads and the given number of value heads, four taps.
void layer_decode_heads(benchmark::State& state) {
  const std::int64_t Hk = 16, H = state.range(0), B = state.range(1), D = (2 * Hk + H) * 128;
  auto qkv = normals(B * D, 1, 1), a = normals(B * H, 1, 2), b = normals(B * H, 1, 3), weights = normals(4 * D, 0.5f, 4), tail = normals(B * 3 * D, 1, 5);
  auto memory = normals(B * H * 128 * 128, 0.1f, 6), out = normals(B * H * 128, 1, 7);
  const Floats zeros(static_cast<std::size_t>(H));
  LayerArrays<f32> x;
  x.qkv = view(qkv, {B, 1, D}), x.a = view(a, {B, 1, H}), x.b = view(b, {B, 1, H}), x.conv_weights = view(weights, {4, D});
  x.A_log = view(zeros, {H}), x.dt_bias = view(zeros, {H});
  x.conv_final = view(tail, {B, 3, D}), x.final = view(memory, {B, H, 128, 128}), x.out = view(out, {B, 1, H, 128});
  x.conv_initial = x.conv_final, x.initial = x.final;
  LayerOptions o;
  o.key_heads = Hk;
  Cpu cpu(1);
  for (auto _ : state) layer_decode(cpu, x, o);
  count(state, B * H, 1);
}
BENCHMARK(layer_decode_heads)->Name("layer_decode")->Args({32, 1})->Args({64, 1})->UseRealTime();

// The step alone, on a state in the cache.
void step(benchmark::State& state) {
  Core x{1, 1, 1};
  const cpu::FlushGuard guard;
  const cpu::TokenStep s{.rows = 128, .columns = 128, .q = x.q.data(), .k = x.k.data(), .v = x.v.data(), .decay = 0.99f, .beta = 0.5f,
                         .from = x.state.data(), .from_row = 128, .to = x.state.data(), .to_row = 128, .out = x.out.data()};
  for (auto _ : state) cpu::token_step(s);
  count(state, 1, 1);
}
BENCHMARK(step)->Name("token_step")->UseRealTime();

}  // namespace

BENCHMARK_MAIN();

// Speed of the CPU primitives at the shapes of the kernels: GF/s of dots beside the peak of their instruction, ns of everything else.
// bench_primitives --benchmark_min_time=0.2 --benchmark_repetitions=5 --benchmark_report_aggregates_only; take the best, not the mean.
#include <benchmark/benchmark.h>
#include <gdn/cpu/convert.hpp>
#include <gdn/cpu/dot.hpp>
#include <gdn/cpu/environment.hpp>
#include <gdn/cpu/reduce.hpp>
#include <gdn/portable/math.hpp>

namespace {

using namespace gdn;
using namespace gdn::cpu;

// A tile of the arena with values in (-1, 1).
struct Tile {
  int rows, columns, pitch;
  Storage storage;
  Tile(int r, int c) : rows(r), columns(c), pitch(padded(c)), storage(static_cast<std::size_t>(r * padded(c))) {
    std::uint32_t state = 1;
    for (int i = 0; i < r * pitch; ++i)
      storage.data()[i] = static_cast<float>(static_cast<std::int32_t>(state = state * 1664525u + 1013904223u)) * 0x1p-31f;
  }
  float* data() const { return storage.data(); }
};

void report_flops(benchmark::State& state, double flops) {
  state.counters["GF/s"] = benchmark::Counter(flops * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

// 1000 steps of independent chains of multiply-adds in registers: what a dot can reach at most.
constexpr int chains = W == 16 ? 16 : 10;
template <class Factor>
[[gnu::noinline]] void multiply_adds(float* data) {
  const Factor x = [&] {
    if constexpr (std::is_same_v<Factor, F>)
      return load(data);
    else
      return Factor(bits(load(data)));
  }();
  F sum[chains];
  GDN_UNROLL
  for (int j = 0; j < chains; ++j) sum[j] = load(data + j * W);
  for (int i = 0; i < 1000; ++i) {
    GDN_UNROLL
    for (int j = 0; j < chains; ++j) sum[j] = fma(x, x, sum[j]);
  }
  GDN_UNROLL
  for (int j = 0; j < chains; ++j) store(data + j * W, sum[j]);
}
template <class Factor>
void peak(benchmark::State& state) {
  const FlushGuard guard;
  const Tile data(1, chains * W);
  for (auto _ : state) {
    multiply_adds<Factor>(data.data());
    benchmark::ClobberMemory();
  }
  report_flops(state, 1000.0 * chains * W * (std::is_same_v<Factor, F> ? 2 : 4));
}

void shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"m", "k", "n"});
  for (const auto& s :
       {std::array{64, 128, 128}, {64, 64, 128}, {64, 128, 64}, {128, 64, 128}, {64, 64, 64}, {32, 32, 32}, {16, 16, 16}, {63, 127, 65}})
    b->Args({s[0], s[1], s[2]});
}

struct Operands {
  int m, k, n;
  Tile a, b, c, x;
  explicit Operands(const benchmark::State& state)
      : m(static_cast<int>(state.range(0))),
        k(static_cast<int>(state.range(1))),
        n(static_cast<int>(state.range(2))),
        a(m, k),
        b(k, n),
        c(m, n),
        x(m, n) {}
  double flops() const { return 2.0 * m * n * k; }
  Gemm gemm() const {
    return {.m = m,
            .n = n,
            .k = k,
            .a = a.data(),
            .a_row = a.pitch,
            .a_col = 1,
            .b = b.data(),
            .b_row = b.pitch,
            .c = c.data(),
            .c_row = c.pitch};
  }
};

template <class G>
void run(benchmark::State& state, const G& g, double flops) {
  const FlushGuard guard;
  for (auto _ : state) {
    gemm(g);
    benchmark::ClobberMemory();
  }
  report_flops(state, flops);
}

void dot_f32(benchmark::State& state) {
  const Operands o(state);
  run(state, o.gemm(), o.flops());
}
void dot_f32_transposed_left(benchmark::State& state) {
  const Operands o(state);
  const Tile at(o.k, o.m);
  Gemm g = o.gemm();
  g.a = at.data();
  g.a_row = 1;
  g.a_col = at.pitch;
  run(state, g, o.flops());
}
void dot_f32_scaled_plus(benchmark::State& state) {
  const Operands o(state);
  const float s = 0.5f;
  Gemm g = o.gemm();
  g.finish = Finish::scaled_plus;
  g.x = o.x.data();
  g.x_row = o.x.pitch;
  g.s = &s;
  run(state, g, o.flops());
}
void dot_bf16(benchmark::State& state) {
  const Operands o(state);
  const Packed a = Packed::columns(o.m, o.k, o.a.data(), o.a.pitch), b = Packed::rows(o.k, o.n, o.b.data(), o.b.pitch);
  run(state, packed_gemm(o.m, o.n, o.k, a, b, o.c.data(), o.c.pitch), o.flops());
}
void dot_bf16_transposed_left(benchmark::State& state) {
  const Operands o(state);
  const Packed a = Packed::rows(o.k, o.m, Tile(o.k, o.m).data(), padded(o.m)), b = Packed::rows(o.k, o.n, o.b.data(), o.b.pitch);
  run(state, packed_gemm(o.m, o.n, o.k, a, b, o.c.data(), o.c.pitch), o.flops());
}

void sizes(benchmark::internal::Benchmark* b) { b->ArgNames({"rows", "columns"})->Args({64, 128})->Args({64, 64})->Args({128, 128}); }

// `call(tile, other)` on two tiles of the extents; bytes are of one.
template <class Call>
void rows(benchmark::State& state, Call call) {
  const FlushGuard guard;
  const int r = static_cast<int>(state.range(0)), c = static_cast<int>(state.range(1));
  const Tile x(r, c), y(r < c ? c : r, r < c ? c : r);
  for (auto _ : state) {
    call(x, y);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * r * c * 4);
}

void transposition(benchmark::State& state) {
  rows(state, [](const Tile& x, const Tile& y) { transpose(x.rows, x.columns, x.data(), x.pitch, y.data(), y.pitch); });
}
void packing_rows(benchmark::State& state) {
  rows(state, [](const Tile& x, const Tile& y) { pack_rows(x.rows, x.columns, x.data(), x.pitch, y.storage.words(), y.pitch); });
}
void packing_columns(benchmark::State& state) {
  rows(state, [](const Tile& x, const Tile& y) { pack_columns(x.rows, x.columns, x.data(), x.pitch, y.storage.words(), y.pitch); });
}
void packing_columns_transposed(benchmark::State& state) {
  rows(state,
       [](const Tile& x, const Tile& y) { pack_columns_transposed(x.rows, x.columns, x.data(), x.pitch, y.storage.words(), y.pitch); });
}
void packing_bf16_rows(benchmark::State& state) {
  rows(state, [](const Tile& x, const Tile& y) {
    pack_rows(x.rows, x.columns, reinterpret_cast<const bf16*>(x.data()), 2 * x.pitch, y.storage.words(), y.pitch);
  });
}
void narrowing(benchmark::State& state) {
  rows(state,
       [](const Tile& x, const Tile& y) { narrow(x.rows, x.columns, x.data(), x.pitch, reinterpret_cast<bf16*>(y.data()), y.pitch); });
}
void row_summing(benchmark::State& state) {
  rows(state, [](const Tile& x, const Tile& y) { row_sums(x.rows, x.columns, x.data(), x.pitch, y.data()); });
}
void prefix_summing(benchmark::State& state) {
  rows(state, [](const Tile& x, const Tile&) {
    for (int i = 0; i < x.rows; ++i) x.data()[i] = 0.5f;
    prefix_sums(x.rows, x.data());
  });
}

// Values that stay inside each function's interesting domain.
template <class Function>
void pointwise(benchmark::State& state, Function f) {
  rows(state, [&](const Tile& x, const Tile& y) {
    for (int r = 0; r < x.rows; ++r)
      for (int c = 0; c < x.columns; c += W) store(y.data() + r * y.pitch + c, f(load(x.data() + r * x.pitch + c)));
  });
}
void exp2_of_tile(benchmark::State& state) {
  pointwise(state, [](F x) { return portable::exp2(x); });
}
void exp_of_tile(benchmark::State& state) {
  pointwise(state, [](F x) { return portable::exp(x); });
}
void sigmoid_of_tile(benchmark::State& state) {
  pointwise(state, [](F x) { return portable::sigmoid(x); });
}
void softplus_of_tile(benchmark::State& state) {
  pointwise(state, [](F x) { return portable::softplus(x); });
}
void rsqrt_of_tile(benchmark::State& state) {
  pointwise(state, [](F x) { return portable::rsqrt(x * x); });
}

BENCHMARK(peak<F>)->Name("peak_f32");
BENCHMARK(peak<Pairs>)->Name("peak_bf16");
BENCHMARK(dot_f32)->Apply(shapes);
BENCHMARK(dot_f32_transposed_left)->Apply(shapes);
BENCHMARK(dot_f32_scaled_plus)->Apply(shapes);
BENCHMARK(dot_bf16)->Apply(shapes);
BENCHMARK(dot_bf16_transposed_left)->Apply(shapes);
BENCHMARK(transposition)->Apply(sizes);
BENCHMARK(packing_rows)->Apply(sizes);
BENCHMARK(packing_columns)->Apply(sizes);
BENCHMARK(packing_columns_transposed)->Apply(sizes);
BENCHMARK(packing_bf16_rows)->Apply(sizes);
BENCHMARK(narrowing)->Apply(sizes);
BENCHMARK(row_summing)->Apply(sizes);
BENCHMARK(prefix_summing)->Apply(sizes);
BENCHMARK(exp2_of_tile)->Apply(sizes);
BENCHMARK(exp_of_tile)->Apply(sizes);
BENCHMARK(sigmoid_of_tile)->Apply(sizes);
BENCHMARK(softplus_of_tile)->Apply(sizes);
BENCHMARK(rsqrt_of_tile)->Apply(sizes);

}  // namespace

BENCHMARK_MAIN();

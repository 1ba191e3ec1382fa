// Kernels of a few operations on tiles, run by the CPU machine and by the simulator from their text: equal bits, checked here.
//
//   const auto y = on_every_machine<Of<Row<16>, Lane<32>>>([](auto x) { return x + x; }, data);
#pragma once
#include <catch2/catch.hpp>
#include <array>
#include <cmath>
#include <tuple>
#include <vector>

#include <gdn/kernels.hpp>

#include "../kernels/replay.hpp"
#include "../support/bits.hpp"
#include "../support/random.hpp"

namespace gdn::test {

// An operand: [R, C] of T.
template <class R, class C, class T = f32> struct Of {
  using rows = R;
  using cols = C;
  using element = T;
  static constexpr int size = R::size * C::size;
};

// One head, one chunk: f of tiles, each an array of its own, and its result.
template <class F, class... A> struct TileCall {
  const char* name = "tiles";
  Extent extent{1, 8, 8, 1, 1};
  F f;
  std::tuple<View<const typename A::element, 4>...> in;
  View<f32, 4> out;

  template <class M> using Result = decltype(std::declval<F>()(std::declval<Tile<M, typename A::element, typename A::rows, typename A::cols>>()...));
  template <class M> struct Refs {
    std::tuple<Ref<M, typename A::element, typename A::rows, typename A::cols>...> in;
    Ref<M, f32, typename Result<M>::rows, typename Result<M>::cols> out;
  };
  template <class M> Refs<M> bind(M& m) const {
    gdn::detail::Binding<M> b{m};
    return bind(b, std::index_sequence_for<A...>{});
  }
  template <class M> void head(M&, const Refs<M>& r) const {
    std::apply([&](const auto&... x) { store(r.out, f(load(x)...)); }, r.in);
  }

 private:
  template <class M, std::size_t... I> Refs<M> bind(gdn::detail::Binding<M>& b, std::index_sequence<I...>) const {
    return {{b.template ref<typename A::element, typename A::rows, typename A::cols>(b.array("x" + std::to_string(I), Use::in, std::get<I>(in)),
                                                                                    Place::sequence, Use::in, Domain::value_head)...},
            b.template ref<f32, typename Result<M>::rows, typename Result<M>::cols>(b.array("out", Use::out, out), Place::sequence, Use::out,
                                                                                  Domain::value_head)};
  }
};

// A call made of two lambdas: bind(Binding<M>&) declares the arrays and gives the refs, head(m, refs) is the kernel's body.
template <class Bind, class Head> struct LambdaCall {
  const char* name;
  Extent extent;
  Bind declare;
  Head body;
  template <class M> auto bind(M& m) const {
    gdn::detail::Binding<M> b{m};
    return declare(b);
  }
  template <class M, class Refs> void head(M& m, const Refs& refs) const { body(m, refs); }
};
template <class Bind, class Head> LambdaCall(const char*, Extent, Bind, Head) -> LambdaCall<Bind, Head>;

template <class... A, class F> std::vector<f32> on_every_machine(F f, const std::vector<typename A::element>&... data) {
  using Call = TileCall<F, A...>;
  using Result = typename Call::template Result<Trace>;
  constexpr int R = Result::rows::size, C = Result::cols::size;
  std::vector<f32> cpu(R * C, 1e30f), simulated(R * C, 2e30f);
  auto call = [&](std::vector<f32>& out) {
    return Call{.f = f, .in = {view(data, {1, 1, A::rows::size, A::cols::size})...}, .out = view(out, {1, 1, R, C})};
  };
  Cpu(1).run(call(cpu));
  for (bool exact : {false, true}) {
    mosaic::Schedule schedule;
    schedule.exact_functions = exact;
    Simulate machine(schedule);
    simulate(machine, Emit::traced(call(simulated)));
    INFO((exact ? "exact" : "native") << " functions");
    CHECK(difference(cpu, simulated) == "");
  }
  return cpu;
}

// Data of n elements whose sums round at every step, over many magnitudes; 0 < spread: powers of two.
inline std::vector<f32> noise(std::uint64_t seed, int n, int spread = 6) {
  Random random(seed);
  std::vector<f32> x;
  for (int i = 0; i < n; i++) x.push_back(static_cast<f32>(std::ldexp(random.normal(), random.below(2 * spread + 1) - spread)));
  return x;
}

// Arithmetic of the contract, written again: subnormal operands and results are zeros of their sign.
inline f32 flushed(f32 x) { return std::abs(x) < 0x1p-126f ? std::copysign(0.f, x) : x; }
inline f32 fma_of(f32 a, f32 b, f32 c) { return flushed(std::fma(flushed(a), flushed(b), flushed(c))); }
inline f32 sum_of(f32 a, f32 b) { return flushed(flushed(a) + flushed(b)); }
inline f32 difference_of(f32 a, f32 b) { return flushed(flushed(a) - flushed(b)); }
inline f32 product_of(f32 a, f32 b) { return flushed(flushed(a) * flushed(b)); }
inline f32 bf16_of(f32 x) { return to_f32(to_bf16(x)); }

// a [m, k] times b [k, n]: +0 + the chain, k ascending from +0. (A chain that is flushed from below ends in -0.)
inline std::vector<f32> dot_of(const std::vector<f32>& a, const std::vector<f32>& b, int m, int k, int n) {
  std::vector<f32> y(static_cast<std::size_t>(m * n));
  for (int i = 0; i < m; i++)
    for (int j = 0; j < n; j++) {
      for (int l = 0; l < k; l++) y[i * n + j] = fma_of(a[i * k + l], b[l * n + j], y[i * n + j]);
      y[i * n + j] = sum_of(0.f, y[i * n + j]);
    }
  return y;
}
template <class F> std::vector<f32> each(std::vector<f32> x, F f) {
  for (f32& e : x) e = f(e);
  return x;
}

}  // namespace gdn::test

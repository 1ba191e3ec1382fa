// Convolution with SiLU, l2norm and gates as calls of their own: right answers, and bits on the CPU and in the simulator.
#include <gdn/calls/parts.hpp>

#include "../support/cases.hpp"
#include "traced.hpp"

using namespace gdn;
using namespace gdn::test;

namespace {

template <class Act> std::vector<Act> activations(const Array<f32>& x) {
  std::vector<Act> y;
  for (f32 v : x.data) y.push_back(activation<Act>(v));
  return y;
}

template <class Act, int C = 64, int W = 128, int T = 4> struct Conv {
  Array<f32> x, weights, bias, state;  // [B, T, D] [taps, D] [D] [B, taps - 1, D]
  std::vector<i32> ids;                // [B, T] or none
  std::vector<Act> y{}, final{};

  std::int64_t batch() const { return x.shape[0]; }
  std::int64_t tokens() const { return x.shape[1]; }
  std::int64_t channels() const { return x.shape[2]; }
  template <class Machine> void call(Machine& machine) {
    const auto in = activations<Act>(x), initial = activations<Act>(state);
    y.assign(in.size(), activation<Act>(unwritten)), final.assign(static_cast<std::size_t>(batch() * (T - 1) * channels()), activation<Act>(unwritten));
    ConvArrays<Act> a;
    a.x = view(in, {batch(), tokens(), channels()}), a.weights = view(weights.data.data(), {T, channels()});
    if (bias.given()) a.bias = view(bias.data.data(), {channels()});
    a.final = view(final, {batch(), T - 1, channels()});
    if (state.given()) final = initial, a.initial = a.final;  // in place
    if (!ids.empty()) a.ids = view(ids, {batch(), tokens()});
    a.y = view(y, {batch(), tokens(), channels()});
    causal_conv<C, W, T>(machine, a);
  }
  Outputs outputs() const {
    Outputs all;
    add_output(all, "y", y, true);
    add_output(all, "final", final, true);
    return all;
  }
};
template <class C> C random_conv(std::uint64_t seed, int B, int T, int D, int taps, std::vector<i32> ids, bool state = true) {
  Random random(seed);
  C c{normal_array<f32>(random, {B, T, D}), normal_array<f32>(random, {taps, D}, 0.5), normal_array<f32>(random, {D}, 0.1), {}, std::move(ids)};
  if (state) c.state = normal_array<f32>(random, {B, taps - 1, D});
  return c;
}

template <class Act> struct Norm {
  Array<f32> x;  // [B, T, H, 128]
  f32 scale = 1;
  bool in_place = false;
  std::vector<Act> y{};
  template <class Machine> void call(Machine& machine) {
    const auto in = activations<Act>(x);
    y = in_place ? in : std::vector<Act>(in.size(), activation<Act>(unwritten));
    NormArrays<Act> a;
    a.y = view(y, {x.shape[0], x.shape[1], x.shape[2], 128});
    a.x = in_place ? View<const Act, 4>(a.y) : view(in, {x.shape[0], x.shape[1], x.shape[2], 128});
    l2norm(machine, a, scale);
  }
  Outputs outputs() const {
    Outputs all;
    add_output(all, "y", y, true);
    return all;
  }
};

template <class Act> struct Gates {
  Array<f32> a, b, A_log, dt_bias;  // [B, T, H] [B, T, H] [H] [H]
  std::vector<i32> ids;
  std::vector<f32> g{}, beta{};
  template <class Machine> void call(Machine& machine) {
    const std::int64_t B = a.shape[0], T = a.shape[1], H = a.shape[2];
    const auto in_a = activations<Act>(a), in_b = activations<Act>(b);
    g.assign(a.size(), unwritten), beta.assign(a.size(), unwritten);
    GateArrays<Act> x;
    x.a = view(in_a, {B, T, H}), x.b = view(in_b, {B, T, H});
    x.A_log = view(A_log.data.data(), {H}), x.dt_bias = view(dt_bias.data.data(), {H});
    if (!ids.empty()) x.ids = view(ids, {B, T});
    x.g = view(g, {B, T, H}), x.beta = view(beta, {B, T, H});
    gates(machine, x);
  }
  Outputs outputs() const { return {{"g", g}, {"beta", beta}}; }
};
template <class Act> Gates<Act> random_gates(std::uint64_t seed, int B, int T, int H, std::vector<i32> ids = {}) {
  Random random(seed);
  return {normal_array<f32>(random, {B, T, H}, 3), normal_array<f32>(random, {B, T, H}, 3), uniform_array<f32>(random, {H}, -4, 2), normal_array<f32>(random, {H}), std::move(ids)};
}

template <class Call> void check(Call& call, const std::string& what, const std::vector<Schedule>& schedules = {Schedule::lifted()}) {
  INFO(what);
  const Outputs one = run(Cpu(1), call);
  CHECK(differences(one, run(Cpu(3), call)) == "");
  for (const Schedule& s : schedules) {
    INFO(described(s));
    CHECK(differences(one, run(Traced(s), call)) == "");
  }
}

}  // namespace

TEST_CASE("convolution: cases with a right answer") {
  for (const auto& c : conv_cases(128)) {
    Conv<f32> call{c.x, c.weights, c.bias, c.state, c.ids};
    call.x.shape.insert(call.x.shape.begin(), 1);
    if (call.state.given()) call.state.shape.insert(call.state.shape.begin(), 1);
    INFO(c.name);
    const Outputs found = run(Cpu(1), call);
    CHECK(miss(c.within, found[0].values, c.y) == "");
    CHECK(miss(exact(), found[1].values, c.new_state) == "");
    CHECK(differences(found, run(Traced(), call)) == "");
  }
}

TEST_CASE("convolution: documents laid into a row in many ways") {
  for (const auto& layout : document_layouts())
    for (bool state : {false, true}) {
      auto call = random_conv<Conv<f32>>(3, 1, layout.tokens, 128, 4, layout.ids, state);
      INFO(layout.name << (state ? ", state" : ""));
      const auto wide = [](Array<f32> x, std::vector<int> shape) {
        if (x.given()) x.shape = std::move(shape);
        return cast<double>(x);
      };
      const auto right = conv_silu(wide(call.x, {layout.tokens, 128}), cast<double>(call.weights), cast<double>(call.bias), wide(call.state, {3, 128}), layout.ids);
      const Outputs found = run(Cpu(1), call);
      CHECK(max_error(found[0].values, right.y) <= 1e-6);
      CHECK(miss(exact(), found[1].values, right.state) == "");
    }
}

TEMPLATE_TEST_CASE("convolution: CPU and simulator", "", bf16, f32) {
  for (int T : {1, 5, 64, 130}) {
    auto one = random_conv<Conv<TestType>>(4, 1, T, 256, 4, {}, T != 5);
    check(one, text("T ", T));
    auto ids = random_conv<Conv<TestType>>(5, 2, T, 256, 4, document_ids_of(2, T, 64));
    check(ids, text("documents, T ", T), {Schedule::lifted(), Schedule::lifted(1)});
  }
  auto small = random_conv<Conv<TestType, 16, 48, 2>>(6, 2, 40, 96, 2, document_ids_of(2, 40, 16));
  check(small, "16 tokens, 48 channels, 2 taps");
}

// The CPU's own form, against the lines that define it.
TEST_CASE("convolution: the CPU's loop is its definition") {
  using M = cpu::Machine;
  const cpu::FlushGuard guard;
  Random random(11);
  const auto tile = [](Array<f32>& x) { return cpu::Handle::view(x.shape[0], x.shape[1], x.data.data(), x.shape[1]); };
  const auto check_taps = [&]<int T, int W>(double scale) {
    auto x = normal_array<f32>(random, {16, W}, scale), tail = normal_array<f32>(random, {tail_rows, W}, scale);
    auto weights = normal_array<f32>(random, {T, W}), bias = normal_array<f32>(random, {1, W}, scale);
    std::vector<i32> words(16 + 16, 0);
    for (int t = 0; t < 16; t++) words[static_cast<std::size_t>(t)] = (3 << document_shift) | (t % 5 == 3 ? 0 : 1 | (random.uniform() < 0.7 ? 254 : 2 * static_cast<int>(random.uniform() * 128)));
    const Tile<M, f32, Chunk<16>, Lane<W>> a{tile(x)};
    const Tile<M, f32, Row<tail_rows>, Lane<W>> b{tile(tail)};
    const Tile<M, f32, Taps<T>, Lane<W>> c{tile(weights)};
    const RowVector<M, f32, Lane<W>> d{tile(bias)};
    const Column<M, i32, Chunk<16>> word{cpu::Handle::view(16, 1, reinterpret_cast<const float*>(words.data()), 1)};
    const Documents<M, Chunk<16>> documents{word, word, {}, {}, true};
    const auto same = [&](const auto& y, const auto& z) {
      std::size_t wrong = 0;
      for (int t = 0; t < 16; t++)
        for (int i = 0; i < W; i++) wrong += !same_bits(y.h.data()[t * y.h.pitch() + i], z.h.data()[t * z.h.pitch() + i]);
      CHECK(wrong == 0);
    };
    same(silu_of_short_conv(OneDocument{}, a, b, c), silu(short_conv(OneDocument{}, a, b, c)));
    same(silu_of_short_conv(OneDocument{}, a, b, c, d), silu(short_conv(OneDocument{}, a, b, c, d)));
    same(silu_of_short_conv(documents, a, b, c, d), silu(short_conv(documents, a, b, c, d)));
    same(silu_of_short_conv(documents, a, b, c), silu(short_conv(documents, a, b, c)));
  };
  for (double scale : {1., 1e-19}) check_taps.operator()<4, 128>(scale), check_taps.operator()<2, 48>(scale), check_taps.operator()<8, 16>(scale);
}

TEST_CASE("l2norm: cases with a right answer") {
  for (const auto& c : norm_cases()) {
    Norm<f32> call{Array<f32>({1, 3, 2, 128}, c.x)};
    INFO(c.name);
    const Outputs found = run(Cpu(1), call);
    CHECK(miss(c.y == 0 ? exact() : relative(1e-6), found[0].values, std::vector<double>(found[0].values.size(), c.y)) == "");
    CHECK(differences(found, run(Traced(), call)) == "");
  }
}

TEMPLATE_TEST_CASE("l2norm: CPU and simulator", "", bf16, f32) {
  Random random(8);
  for (int T : {1, 64, 70})
    for (bool in_place : {false, true}) {
      Norm<TestType> call{normal_array<f32>(random, {2, T, 3, 128}, 0.1), 0.25f, in_place};
      check(call, text("T ", T));
    }
}

TEST_CASE("gates: cases with a right answer") {
  for (const auto& c : gate_cases()) {
    Gates<f32> call{Array<f32>({1, 1, 1}, c.a), Array<f32>({1, 1, 1}, c.b), Array<f32>({1}, c.A_log), Array<f32>({1}, c.dt_bias), {}};
    INFO(c.name);
    const Outputs found = run(Cpu(1), call);
    CHECK(miss(c.g_within, found[0].values, std::vector<double>{c.g}) == "");
    CHECK(miss(c.beta_within, found[1].values, std::vector<double>{c.beta}) == "");
    CHECK(differences(found, run(Traced(), call)) == "");
  }
}

TEMPLATE_TEST_CASE("gates: CPU and simulator", "", bf16, f32) {
  for (int T : {1, 64, 70})
    for (int H : {1, 6, 64}) {
      auto plain = random_gates<TestType>(9, 2, T, H);
      check(plain, text("T ", T, ", ", H, " heads"));
    }
  auto padded = random_gates<TestType>(10, 1, 70, 4, document_ids_of(1, 70, 64));
  for (int t = 0; t < 70; t++)
    if (padded.ids[static_cast<std::size_t>(t)] <= 0)
      for (int h = 0; h < 4; h++) padded.a(0, t, h) = padded.b(0, t, h) = std::numeric_limits<f32>::quiet_NaN();
  check(padded, "padding");
  for (int t = 0; t < 70; t++)
    for (int h = 0; h < 4 && padded.ids[static_cast<std::size_t>(t)] <= 0; h++)
      CHECK((padded.g[static_cast<std::size_t>(4 * t + h)] == 0 && padded.beta[static_cast<std::size_t>(4 * t + h)] == 0));
}

TEST_CASE("parts: what is refused") {
  Cpu cpu(1);
  std::vector<f32> x(4 * 128), y(4 * 128), w(4 * 128);
  ConvArrays<f32> conv;
  CHECK_THROWS_WITH(causal_conv(cpu, conv), "causal_conv: x is missing");
  conv.x = view(std::as_const(x), {1, 4, 128}), conv.weights = view(std::as_const(w), {4, 128}), conv.y = view(x, {1, 4, 128});
  CHECK_THROWS_WITH(causal_conv(cpu, conv), "causal_conv: output y overlaps x; expected separate memory");
  conv.y = view(y, {1, 4, 128}), conv.weights.shape[0] = 3;
  CHECK_THROWS_WITH(causal_conv(cpu, conv), "causal_conv: weights has shape [3, 128]; expected [4, 128]");
  conv.x = view(std::as_const(x), {1, 8, 64});
  CHECK_THROWS_WITH(causal_conv(cpu, conv), "causal_conv: x has 64 channels; expected a multiple of 128");
  NormArrays<f32> norm;
  norm.x = view(std::as_const(x), {1, 2, 2, 128}), norm.y = view(x.data() + 1, {1, 2, 1, 128});
  CHECK_THROWS_WITH(l2norm(cpu, norm), "l2norm: y has shape [1, 2, 1, 128]; expected [1, 2, 2, 128]");
  GateArrays<f32> gate;
  CHECK_THROWS_WITH(gates(cpu, gate), "gates: a is missing");
}

TEST_CASE("gates: blocks of heads meet in the window of a token's heads") {
  auto call = random_gates<f32>(7, 2, 150, 6);
  const Outputs right = run(Cpu(1), call);
  for (int heads : {1, 2, 3}) CHECK(differences(right, run(Traced(Schedule::lifted(heads)), call)) == "");
}

TEST_CASE("parts: schedules for the forward's stages leave them lifted") {
  auto call = random_gates<f32>(1, 1, 64, 4);
  for (const Schedule& s : {Schedule::paired(), Schedule::skewed()}) {
    Traced machine(s);
    CHECK(differences(run(Cpu(1), call), run(machine, call)) == "");
    CHECK(machine.simulate.module.schedule == "lifted (one stage; the schedule has 3)");
  }
}

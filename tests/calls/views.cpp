// Views: results do not depend on where arrays lie, on the number of threads, or on whether an output takes the place of an input.
#include <Eigen/Core>
#include <span>

#include "../kernels/elsewhere.hpp"
#include "../kernels/same_bits.hpp"

using namespace gdn;
using namespace gdn::test;

namespace {

template <class Act, class G, class Machine> Outputs elsewhere(Machine& machine, Core<Act, G>& call, Placement placement) {
  auto a = call.arrays();
  Elsewhere<decltype(a)> e{placement, {}, {}};
  e.move(a.q), e.move(a.k), e.move(a.v), e.move(a.g), e.move(a.beta), e.move(a.initial), e.move(a.ids);
  e.results(a);
  forward<G>(machine, a, call.options);
  for (auto& f : e.back) f();
  return call.outputs();
}
template <class Act, class G, class Machine> Outputs elsewhere(Machine& machine, Layer<Act, G>& call, Placement placement) {
  auto a = call.arrays();
  Elsewhere<decltype(a)> e{placement, {}, {}};
  e.move(a.qkv), e.move(a.a), e.move(a.b), e.move(a.conv_weights), e.move(a.conv_bias), e.move(a.A_log), e.move(a.dt_bias);
  e.move(a.conv_initial), e.move(a.initial), e.move(a.ids);
  e.results(a), e.move_result(a.conv_final);
  layer_forward<G>(machine, a, {.key_heads = call.spec.key_heads});
  for (auto& f : e.back) f();
  return call.outputs();
}

template <class Call> void check_placements(const Spec& spec) {
  Call call(spec);
  const Outputs right = run(Cpu(2), call);
  for (Placement p : {Placement::padded, Placement::reversed, Placement::permuted}) {
    INFO(spec.name() << ", placement " << static_cast<int>(p));
    Cpu cpu(2);
    CHECK(differences(right, elsewhere(cpu, call, p)) == "");
    if (Call::C == 64) continue;
    Simulate simulate;
    CHECK(differences(right, elsewhere(simulate, call, p)) == "");
  }
}

}  // namespace

TEMPLATE_TEST_CASE("strides change nothing", "", bf16, f32) {
  const Spec large{.batch = 2, .tokens = 100, .key_heads = 2, .value_heads = 4, .documents = true, .initial = true};
  const Spec small{.batch = 2, .tokens = 37, .key_heads = 2, .value_heads = 4, .documents = true, .initial = true};
  check_placements<Core<TestType>>(large);
  check_placements<Layer<TestType>>(large);
  check_placements<Core<TestType, Small>>(small);
  check_placements<Layer<TestType, Small>>(small);
}

TEST_CASE("views of vectors, spans, pointers and Eigen's maps are the same") {
  const int T = 20, K = 32, V = 48;
  Core<f32, Small> call({.tokens = T, .value_heads = 1});
  const Outputs right = run(Cpu(1), call);
  auto a = call.arrays();
  const std::span<const f32> q(call.q);
  Eigen::MatrixXf wide = Eigen::MatrixXf::Zero(K + 7, T);  // a column per token
  wide.topRows(K) = Eigen::Map<const Eigen::MatrixXf>(call.k.data(), K, T);
  const Eigen::Map<Eigen::MatrixXf> v(call.v.data(), V, T);
  Eigen::Map<Eigen::VectorXf> out(call.out.data(), T * V);
  a.q = view(q, {1, T, 1, K});
  a.k = view(std::as_const(wide).data(), {1, T, 1, K}, {0, wide.outerStride(), 0, 1});
  a.v = view(v, {1, T, 1, V});
  a.g = view(std::as_const(call.g).data(), {1, T, 1});
  a.out = view(out, {1, T, 1, V});
  Cpu cpu(1);
  forward<Small>(cpu, a, call.options);
  CHECK(differences(right, call.outputs()) == "");
  CHECK_THROWS_WITH(view(call.q, {1, T + 1, 1, K}), "view: the array has 640 elements; shape [1, 21, 1, 32] needs 672");
}

TEMPLATE_TEST_CASE("outputs in the place of inputs", "", bf16, f32) {
  const Spec spec{.batch = 2, .tokens = 150, .key_heads = 2, .value_heads = 4, .documents = true, .initial = true};
  for (int threads : {1, 2}) {
    Cpu cpu(threads);
    {
      Core<TestType> call(spec);
      const Outputs right = run(cpu, call);
      auto a = call.arrays();
      a.out = view(call.v, {2, 150, 4, 128});
      a.final = view(call.initial, {2, 4, 128, 128});
      forward(cpu, a, call.options);
      call.out = call.v, call.final = call.initial;
      CHECK(differences(right, call.outputs()) == "");
    }
    {
      Layer<TestType> call(spec);
      const Outputs right = run(cpu, call);
      auto a = call.arrays();
      a.final = view(call.initial, {2, 4, 128, 128});
      a.conv_final = view(call.conv_initial, {2, 3, call.channels()});
      layer_forward(cpu, a, {.key_heads = 2});
      call.final = call.initial, call.conv_final = call.conv_initial;
      CHECK(differences(right, call.outputs()) == "");
    }
  }
}

TEMPLATE_TEST_CASE("any number of threads", "", bf16, f32) {
  const Spec spec{.batch = 2, .tokens = 150, .key_heads = 4, .value_heads = 8, .documents = true, .initial = true};
  Core<TestType> core(spec);
  Layer<TestType> layer(spec);
  const Outputs one = run(Cpu(1), core), all = run(Cpu(1), layer);
  for (int threads : {2, 3, 4, 16}) {
    CHECK(differences(one, run(Cpu(threads), core)) == "");
    CHECK(differences(all, run(Cpu(threads), layer)) == "");
  }
}

TEST_CASE("no tokens and no rows: states are passed on") {
  for (bool initial : {false, true})
    for (const Spec& spec : {Spec{.batch = 2, .tokens = 0, .initial = initial}, Spec{.batch = 0, .tokens = 64, .initial = initial}}) {
      Core<f32> core(spec);
      Layer<bf16> layer(spec);
      CHECK(run(Cpu(1), core)[1].values == (initial ? core.initial : std::vector<f32>(core.initial.size(), 0.f)));
      const Outputs found = run(Cpu(1), layer);
      CHECK(named(found, "final") == (initial ? layer.initial : std::vector<f32>(layer.initial.size(), 0.f)));
      Outputs conv;
      add_output(conv, "conv_final", initial ? layer.conv_initial : std::vector<bf16>(layer.conv_initial.size()), true);
      CHECK(named(found, "conv_final") == conv[0].values);
    }
}

TEST_CASE("rows of padding alone pass states on") {
  for (bool initial : {false, true}) {
    Layer<f32> call({.tokens = 100, .documents = true, .initial = initial});
    std::fill(call.ids.begin(), call.ids.end(), -3);
    const Outputs found = run(Cpu(1), call);
    CHECK(named(found, "final") == (initial ? call.initial : std::vector<f32>(call.initial.size(), 0.f)));
    CHECK(named(found, "conv_final") == (initial ? call.conv_initial : std::vector<f32>(call.conv_initial.size(), 0.f)));
    CHECK(zeros_in(named(found, "out")) == 1);
    for (const Schedule& s : placements()) CHECK(differences(found, run(Simulate(s), call)) == "");
  }
}

// The token recurrence and decoding: bits on the CPU, in the simulator, of the fused step and its definition, of one call and of many.
#include "recurrent.hpp"

using namespace gdn;
using namespace gdn::test;

namespace {

// The CPU with the token step as recurrent.hpp defines it.
struct Definition {
  template <class Call> struct ByTiles {
    const Call& call;
    const char* name = call.name;
    Extent extent = call.extent;
    template <class M> auto bind(M& m) const { return call.bind(m); }
    template <class M, class Refs> void head(M& m, const Refs& r) const {
      auto run = [&](const auto& document) {
        const auto x = core_inputs<Precision::f32, true>(m, document, r.core, call.options);
        store(r.core.forward.out, token_step_by_tiles(document, x, exp(x.g), r.state));
      };
      if (r.word) run(TokenDocument<M>{{}, load(r.word)});
      else run(OneDocument{});
    }
  };
  template <class Call> void run(const Call& call) { Cpu(1).run(ByTiles<Call>{call}); }
  template <class F> void check_data(F) const {}
};

template <class Act> std::vector<Spec> token_specs() {
  std::vector<Spec> all;
  for (int T : {1, 5, 65})
    for (bool documents : {false, true})
      for (bool initial : {false, true}) all.push_back({.tokens = T, .documents = documents, .initial = initial, .seed = static_cast<std::uint64_t>(T)});
  for (int ratio : {1, 2, 3})
    all.push_back({.batch = 2, .tokens = 9, .key_heads = 2, .value_heads = 2 * ratio, .documents = ratio == 2, .initial = true, .normalise = ratio != 1});
  all.push_back({.tokens = 7, .initial = true, .gates = false});
  for (double scale : {3e-12, 3e-13, 3e-14}) all.push_back({.tokens = 24, .documents = true, .initial = true, .scale = scale});
  return all;
}

}  // namespace

TEMPLATE_TEST_CASE("tokens: CPU and simulator", "", bf16, f32) {
  for (const Spec& s : token_specs<TestType>()) check_traced<Tokens<TestType>>(s);
  const Spec spec{.batch = 2, .tokens = 6, .key_heads = 4, .value_heads = 8, .documents = true, .initial = true};
  check_traced<Tokens<TestType>>(spec, {Schedule::lifted()}, {.parallel_order = 7, .late_windows = true});
}

TEMPLATE_TEST_CASE("tokens: the fused step is its definition", "", bf16, f32) {
  for (const Spec& s : token_specs<TestType>()) {
    INFO(s.name());
    Tokens<TestType> call(s);
    CHECK(differences(run(Cpu(1), call), run(Definition(), call)) == "");
  }
}

TEMPLATE_TEST_CASE("tokens: any number of threads", "", bf16, f32) {
  Tokens<TestType> call({.batch = 3, .tokens = 20, .key_heads = 2, .value_heads = 4, .documents = true, .initial = true});
  const Outputs one = run(Cpu(1), call);
  for (int threads : {2, 4}) CHECK(differences(one, run(Cpu(threads), call)) == "");
}

// B51: one call, or one call a token.
TEMPLATE_TEST_CASE("tokens: single ones have the bits of a row", "", bf16, f32) {
  for (bool initial : {false, true}) {
    const Spec spec{.batch = 2, .tokens = 65, .key_heads = 2, .value_heads = 4, .initial = initial};
    Tokens<TestType> row(spec);
    SingleTokens<TestType> single(spec);
    const Outputs right = run(Cpu(2), row);
    CHECK(differences(right, run(Cpu(2), single)) == "");
  }
  const Spec few{.batch = 2, .tokens = 3, .key_heads = 2, .value_heads = 4, .initial = true};
  Tokens<TestType> row(few);
  SingleTokens<TestType> single(few);
  CHECK(differences(run(Cpu(2), row), run(Traced(), single)) == "");
}

TEMPLATE_TEST_CASE("layer tokens: CPU and simulator", "", bf16, f32) {
  for (bool initial : {false, true}) {
    SingleLayerTokens<TestType> call({.batch = 2, .tokens = 4, .key_heads = 2, .value_heads = 4, .initial = initial});
    for (bool bias : {true, false}) {
      call.bias = bias;
      const Outputs cpu = run(Cpu(2), call);
      CHECK(differences(cpu, run(Traced(), call)) == "");
      call.in_place = false;  // B41
      CHECK(differences(cpu, run(Cpu(2), call)) == "");
      call.in_place = true;
    }
  }
}

TEST_CASE("tokens: a changed operation is noticed") {
  Tokens<f32> call({.tokens = 40, .documents = true, .initial = true});
  const Outputs right = run(Cpu(1), call);
  for (const char* op : {"arith.subf", "arith.mulf", "arith.select"}) {
    Traced machine;
    machine.simulate.text_of = [&](mosaic::Module m) {
      const std::string to = std::string(op) == "arith.select" ? "" : "arith.addf";
      if (!to.empty()) m.marked.replace(m.marked.rfind(op), 10, to);
      else m.marked.replace(m.marked.find("value = 2 : i32"), 15, "value = 4 : i32");  // the bit that begins a document
      return m.program();
    };
    INFO(op);
    CHECK(differences(right, run(machine, call)) != "");
  }
}

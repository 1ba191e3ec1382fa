// Claims of equal bits between calls of the forward: what is asked for, how a batch, a row or its documents are cut, changes nothing.
#include "same_bits.hpp"

using namespace gdn;
using namespace gdn::test;

namespace {

// n entries of dimension `dim` from `from` on.
template <class T, int Rank> View<T, Rank> part(View<T, Rank> v, int dim, std::int64_t from, std::int64_t n) {
  if (!v) return v;
  v.data += from * v.strides[static_cast<std::size_t>(dim)];
  v.shape[static_cast<std::size_t>(dim)] = n;
  return v;
}
template <class Act> CoreArrays<Act> rows_of_batch(CoreArrays<Act> a, std::int64_t from, std::int64_t n) {
  return {part(a.q, 0, from, n), part(a.k, 0, from, n), part(a.v, 0, from, n), part(a.g, 0, from, n), part(a.beta, 0, from, n), part(a.initial, 0, from, n),
          part(a.ids, 0, from, n), part(a.out, 0, from, n), part(a.final, 0, from, n), part(a.residual, 0, from, n),
          {part(a.residuals.t_inv, 0, from, n), part(a.residuals.chunk_states, 0, from, n)}};
}
template <class Act> LayerArrays<Act> rows_of_batch(LayerArrays<Act> a, std::int64_t from, std::int64_t n) {
  return {part(a.qkv, 0, from, n), part(a.b, 0, from, n), part(a.a, 0, from, n), a.conv_weights, a.conv_bias, a.A_log, a.dt_bias,
          part(a.conv_initial, 0, from, n), part(a.initial, 0, from, n), part(a.ids, 0, from, n), part(a.out, 0, from, n), part(a.conv_final, 0, from, n),
          part(a.final, 0, from, n), part(a.residual, 0, from, n), {part(a.residuals.t_inv, 0, from, n), part(a.residuals.chunk_states, 0, from, n)}};
}
// The first `chunks` chunks, and no residuals.
template <class Act> CoreArrays<Act> prefix(CoreArrays<Act> a, std::int64_t chunks) {
  const std::int64_t n = std::min(a.k.shape[1], 64 * chunks);
  return {part(a.q, 1, 0, n), part(a.k, 1, 0, n), part(a.v, 1, 0, n), part(a.g, 1, 0, n), part(a.beta, 1, 0, n), a.initial, part(a.ids, 1, 0, n), part(a.out, 1, 0, n), a.final, {}, {}};
}
template <class Act> LayerArrays<Act> prefix(LayerArrays<Act> a, std::int64_t chunks) {
  const std::int64_t n = std::min(a.qkv.shape[1], 64 * chunks);
  a.qkv = part(a.qkv, 1, 0, n), a.a = part(a.a, 1, 0, n), a.b = part(a.b, 1, 0, n), a.ids = part(a.ids, 1, 0, n), a.out = part(a.out, 1, 0, n);
  a.residual = {}, a.residuals = {};
  return a;
}
template <class Act> void forward_of(Cpu& cpu, const Core<Act>& call, const CoreArrays<Act>& a) { forward(cpu, a, call.options); }
template <class Act> void forward_of(Cpu& cpu, const Layer<Act>& call, const LayerArrays<Act>& a) {
  layer_forward(cpu, a, {.key_heads = call.spec.key_heads});
}
template <class Act> void states_of(Cpu& cpu, const Core<Act>& call, const CoreArrays<Act>& a) { forward_states(cpu, a, call.options); }
template <class Act> void states_of(Cpu& cpu, const Layer<Act>& call, const LayerArrays<Act>& a) {
  layer_forward_states(cpu, a, {.key_heads = call.spec.key_heads});
}

const Spec packed{.batch = 2, .tokens = 200, .key_heads = 2, .value_heads = 4, .documents = true, .initial = true};
const Spec plain{.tokens = 192, .key_heads = 1, .value_heads = 4};

// claim(call type, spec) for both calls, both activations, with documents and without.
template <class Claim> void for_all_calls(Claim claim) {
  for (const Spec& spec : {packed, plain}) {
    INFO(spec.name());
    claim.template operator()<Core<bf16>>(spec);
    claim.template operator()<Core<f32>>(spec);
    claim.template operator()<Layer<bf16>>(spec);
    claim.template operator()<Layer<f32>>(spec);
  }
}

// The layer of class P1 whose activations lie in memory as f32.
template <class G> struct Widened : gdn::detail::LayerCall<G, true, f32> {
  template <class M> void head(M& m, const typename gdn::detail::LayerCall<G, true, f32>::template Refs<M>& r) const {
    with_documents(r.documents, this->extent.tokens % this->extent.chunk != 0,
                   [&](const auto& documents) { layer_forward_head<Precision::bf16, true, G::inverse>(m, documents, r.layer, this->options); });
  }
};
template <class G, class Machine> Outputs widened(Machine&& machine, Layer<f32, G>& call) {
  using L = Layer<f32, G>;
  const Spec& s = call.spec;
  const LayerArrays<f32> x = call.arrays();
  const DocumentPlan plan = plan_documents(x.ids, s.batch, s.tokens, L::C, L::W, s.initial, tail_rows);
  machine.run(Widened<G>{{"layer_forward", x, {s.batch, s.tokens, L::C, s.key_heads, s.value_heads}, gdn::detail::query_options({}, true, L::K), plan}});
  return call.outputs();
}
Outputs rounded(Outputs all, const std::vector<std::string>& names) {
  for (Output& o : all)
    if (std::find(names.begin(), names.end(), o.name) != names.end())
      for (f32& x : o.values) x = to_f32(to_bf16(x));
  return all;
}

}  // namespace

TEST_CASE("J1: the states-only form has the states and t_inv of the whole one") {
  for_all_calls([]<class Call>(Spec spec) {
    Call whole(spec);
    spec.outputs = false;
    Call states(spec);
    const Outputs right = run(Cpu(2), whole);
    CHECK(differences(without(right, {"out"}), run(Cpu(2), states)) == "");
    spec.seed++;
    Call other(spec);
    CHECK(differences(without(right, {"out"}), run(Cpu(2), other)) != "");
  });
}

TEST_CASE("J2: activations may be widened in memory instead of where they are read") {
  for (Spec spec : {packed, plain}) {
    INFO(spec.name());
    Layer<bf16> narrow(spec);
    Layer<f32> wide(spec);
    const Outputs right = run(Cpu(2), narrow);
    const auto as_read = [&] { return rounded(widened(Cpu(2), wide), {"out", "residual"}); };
    CHECK(differences(right, as_read()) != "");  // of values that were not rounded
    for (const auto& [to, from] : {std::pair{&wide.qkv, &narrow.qkv}, {&wide.a, &narrow.a}, {&wide.b, &narrow.b}, {&wide.conv_initial, &narrow.conv_initial}})
      for (std::size_t i = 0; i < to->size(); i++) (*to)[i] = to_f32((*from)[i]);
    CHECK(differences(right, as_read()) == "");
    CHECK(differences(right, rounded(run(Cpu(2), wide), {"out", "residual"})) != "");  // dots in f32
    Simulate simulate(Schedule::skewed());
    CHECK(differences(right, rounded(widened(simulate, wide), {"out", "residual"})) == "");
  }
}

TEST_CASE("J4: what the memory of an output held does not matter, and all of it is written") {
  for_all_calls([]<class Call>(const Spec& spec) {
    Call zeros(spec), poison(spec);
    Cpu cpu(2);
    const auto a = zeros.arrays();
    std::fill(zeros.out.begin(), zeros.out.end(), typename decltype(zeros.out)::value_type{});
    std::fill(zeros.r.begin(), zeros.r.end(), typename decltype(zeros.r)::value_type{});
    for (auto* x : {&zeros.final, &zeros.t_inv, &zeros.chunk_states}) std::fill(x->begin(), x->end(), 0.f);
    forward_of(cpu, zeros, a);
    const Outputs right = run(cpu, poison);
    CHECK(differences(right, zeros.outputs()) == "");
    for (const Output& o : right) {
      INFO(o.name);
      CHECK(std::find(o.values.begin(), o.values.end(), unwritten) == o.values.end());
    }
    poison.arrays();  // nobody has written
    CHECK(std::find(poison.final.begin(), poison.final.end(), unwritten) != poison.final.end());
  });
}

TEST_CASE("J9: t_inv of a first pass that asks for nothing else is that of the second") {
  for_all_calls([]<class Call>(const Spec& spec) {
    Call first(spec), second(spec);
    Cpu cpu(2);
    auto a = first.arrays();
    a.out = {}, a.residual = {}, a.residuals.chunk_states = {};
    states_of(cpu, first, a);
    const Outputs right = run(cpu, second);
    CHECK(difference(first.t_inv, named(right, "t_inv")) == "");
    CHECK(difference(first.final, named(right, "final")) == "");
    CHECK(difference(first.chunk_states, named(right, "chunk_states")) != "");  // nobody asked
    // Nor does the whole form depend on what else is written.
    auto b = first.arrays();
    b.residual = {}, b.residuals = {}, b.final = {};
    forward_of(cpu, first, b);
    Outputs alone;
    add_output(alone, "out", first.out, true);
    CHECK(differences(alone, {right[0]}) == "");
  });
}

TEST_CASE("J13: a row of one document is a row without documents") {
  for (bool initial : {false, true})
    for_all_calls([=]<class Call>(Spec spec) {
      spec.documents = false, spec.initial = initial;
      Call none(spec);
      spec.documents = true;
      Call ones(spec), two(spec);
      std::fill(ones.ids.begin(), ones.ids.end(), 7);
      std::fill(two.ids.begin(), two.ids.end(), 7);
      two.ids[static_cast<std::size_t>(spec.tokens) - 1] = 8;
      const Outputs right = run(Cpu(2), none);
      CHECK(differences(right, run(Cpu(2), ones)) == "");
      CHECK(differences(right, run(Cpu(2), two)) != "");
    });
}

TEST_CASE("J14: rows of a batch are calls of their own") {
  for_all_calls([]<class Call>(Spec spec) {
    spec.batch = 2;
    Call together(spec), apart(spec);
    Cpu cpu(2);
    const Outputs right = run(cpu, together);
    const auto a = apart.arrays();
    forward_of(cpu, apart, rows_of_batch(a, 1, 1));
    CHECK(differences(right, apart.outputs()) != "");
    forward_of(cpu, apart, rows_of_batch(a, 0, 1));
    CHECK(differences(right, apart.outputs()) == "");
  });
}

TEST_CASE("J23: a chunk's state is the final state of the row before it") {
  for_all_calls([]<class Call>(Spec spec) {
    spec.batch = 1;
    Call whole(spec), before(spec);
    Cpu cpu(2);
    const Outputs right = run(cpu, whole);
    const auto& states = named(right, "chunk_states");
    const auto one = static_cast<std::ptrdiff_t>(whole.states());
    const auto a = before.arrays();
    for (int c = 1; c <= whole.chunks(); c++) {
      forward_of(cpu, before, prefix(a, c));
      const auto from = states.begin() + c * one;
      const std::vector<f32> expected = c < whole.chunks() ? std::vector<f32>(from, from + one) : named(right, "final");
      CHECK(difference(before.final, expected) == "");
      if (c == 1) CHECK(difference(before.final, std::vector<f32>(states.begin(), states.begin() + one)) != "");
    }
  });
}

TEST_CASE("B24: no decay given is a decay of 1") {
  for (const Spec& spec : {packed, plain}) {
    const auto check = [&]<class Act>(Act) {
      Core<Act> zero(spec);
      std::fill(zero.g.begin(), zero.g.end(), 0.f);
      Spec without_gates = spec;
      without_gates.gates = false;
      Core<Act> none(without_gates), some(spec);
      const Outputs right = run(Cpu(2), none);
      CHECK(differences(right, run(Cpu(2), zero)) == "");
      CHECK(differences(right, run(Cpu(2), some)) != "");
    };
    check(bf16{});
    check(f32{});
  }
}

TEST_CASE("heads may be computed in any order and company") {
  // Value heads 2 and 3 alone, with their key head, have the bits they have among others.
  const auto check = [&]<class Act>(Act) {
    Core<Act> all(packed), some(packed);
    Cpu cpu(2);
    const Outputs right = run(cpu, all);
    auto a = some.arrays();
    a.q = part(a.q, 2, 1, 1), a.k = part(a.k, 2, 1, 1), a.v = part(a.v, 2, 2, 2), a.g = part(a.g, 2, 2, 2), a.beta = part(a.beta, 2, 2, 2);
    a.initial = part(a.initial, 1, 2, 2), a.out = part(a.out, 2, 2, 2), a.final = part(a.final, 1, 2, 2), a.residual = part(a.residual, 2, 2, 2);
    a.residuals = {part(a.residuals.t_inv, 3, 2, 2), part(a.residuals.chunk_states, 2, 2, 2)};
    forward_of(cpu, some, a);
    const Outputs found = some.outputs();
    for (std::size_t i = 0; i < right.size(); i++) {
      long same = 0, written = 0;
      for (std::size_t j = 0; j < right[i].values.size(); j++) {
        if (found[i].values[j] == to_f32(activation<Act>(unwritten)) || found[i].values[j] == unwritten) continue;
        written++;
        same += same_bits(found[i].values[j], right[i].values[j]);
      }
      INFO(right[i].name);
      CHECK(same == written);
      CHECK(2 * written == static_cast<long>(right[i].values.size()));
    }
  };
  check(bf16{});
  check(f32{});
}

// J8, with the gates of a model. Only M differs, in its last bits, and P1 rounds it before it is used.
TEST_CASE("the order in which M is solved for does not show in the outputs") {
  using Right = Geometry<64, 128, 128, 4, InverseOrder::right_looking>;
  using Left = Geometry<64, 128, 128, 4, InverseOrder::left_looking>;
  Core<bf16, Right> right({.tokens = 256, .key_heads = 2, .value_heads = 4, .initial = true, .normalise = true});
  Core<bf16, Left> left(right.spec);
  Random random(8);
  for (int h = 0; h < 4; h++) {
    const double A = 16 * random.uniform();
    for (std::size_t t = 0; t < 256; t++) right.g[4 * t + static_cast<std::size_t>(h)] = static_cast<f32>(-A * std::log1p(std::exp(1 + random.normal())));
  }
  left.g = right.g;
  const Outputs a = run(Cpu(2), right), b = run(Cpu(2), left);
  double most = 0;
  for (std::size_t i = 0; i < named(a, "t_inv").size(); i++) most = std::max(most, std::abs(static_cast<double>(named(a, "t_inv")[i]) - named(b, "t_inv")[i]));
  CHECK(most > 0);
  CHECK(most <= 4e-8);
  long apart = 0;
  for (std::size_t i = 0; i < named(a, "out").size(); i++) {
    const f32 x = named(a, "out")[i], y = named(b, "out")[i];
    apart += std::abs(x - y) > 0x1p-7f * std::max(std::abs(x), std::abs(y));  // more than a unit of bf16's last place
  }
  CHECK(apart == 0);
  const auto equal = [&](const char* name) { return difference(named(a, name), named(b, name)) == ""; };
  WARN("out, final and chunk_states are equal: " << equal("out") << ", " << equal("final") << ", " << equal("chunk_states"));
}

// The core backward: claims of equal bits, small cases with right answers, and refusals.
#include "../kernels/traced.hpp"
#include "backward_claims.hpp"

using namespace gdn;
using namespace gdn::test;

namespace {

const Spec packed{.batch = 2, .tokens = 200, .key_heads = 2, .value_heads = 8, .documents = true, .initial = true, .normalise = true};
const Spec plain{.tokens = 192, .key_heads = 1, .value_heads = 3};

template <class Claim> void for_all_specs(Claim claim) {
  for (const Spec& spec : {packed, plain}) {
    INFO(spec.name());
    claim.template operator()<bf16>(spec);
    claim.template operator()<f32>(spec);
  }
}

template <class Act> void cut_batch(CoreArrays<Act>& x, CoreGradients<Act>& d, std::int64_t row) {
  const auto one = [&](auto&... v) { (cut(v, 0, row, 1), ...); };
  one(x.q, x.k, x.g, x.beta, x.initial, x.ids, x.residual, x.residuals.t_inv, x.residuals.chunk_states);
  one(d.d_out, d.d_final, d.dq, d.dk, d.dv, d.dg, d.dbeta, d.d_initial);
}
template <class Act> void cut_key_head(CoreArrays<Act>& x, CoreGradients<Act>& d, std::int64_t head, std::int64_t ratio) {
  const auto keys = [&](auto&... v) { (cut(v, 2, head, 1), ...); };
  const auto values = [&](int dim, auto&... v) { (cut(v, dim, head * ratio, ratio), ...); };
  keys(x.q, x.k, d.dq, d.dk);
  values(2, x.g, x.beta, x.residual, x.residuals.chunk_states, d.d_out, d.dv, d.dg, d.dbeta);
  values(1, x.initial, d.d_final, d.d_initial);
  values(3, x.residuals.t_inv);
}

}  // namespace

TEST_CASE("J5, B42: the gradients of arrays that lie elsewhere") {
  for_all_specs([]<class Act>(const Spec& spec) { check_elsewhere<CoreBackward<Act>>(spec); });
}

TEST_CASE("J6, J14: key heads and rows of a batch are calls of their own") {
  for_all_specs([]<class Act>(const Spec& spec) {
    CoreBackward<Act> call(spec);
    const Outputs right = run(Cpu(2), call);
    Cpu cpu(1);
    const auto all = call.gradients();
    for (int row = 0; row < spec.batch; row++)
      for (int head = 0; head < spec.key_heads; head++) {
        CHECK(differences(right, call.outputs()) != "");
        auto x = call.x;
        auto d = all;
        cut_batch(x, d, row);
        cut_key_head(x, d, head, spec.value_heads / spec.key_heads);
        backward(cpu, x, d, call.forward.options);
      }
    CHECK(differences(right, call.outputs()) == "");
  });
}

TEST_CASE("J7, B64: threads and repetition change nothing") {
  for_all_specs([]<class Act>(const Spec& spec) {
    CoreBackward<Act> call(spec);
    const Outputs right = run(Cpu(1), call);
    for (int threads : {1, 2, 3, 16}) CHECK(differences(right, run(Cpu(threads), call)) == "");
  });
}

TEST_CASE("J13: a row of one document is a row without documents") {
  for (bool initial : {false, true})
    for_all_specs([=]<class Act>(Spec spec) {
      spec.initial = initial;
      check_one_document<CoreBackward<Act>>(spec);
    });
}

TEST_CASE("B24: no decay given is a decay of 1") {
  for_all_specs([]<class Act>(Spec spec) {
    CoreBackward<Act> zero(spec);
    std::fill(zero.forward.g.begin(), zero.forward.g.end(), 0.f);
    zero.run_forward();
    spec.gates = false;
    CoreBackward<Act> none(spec);
    CHECK(differences(run(Cpu(2), none), without(run(Cpu(2), zero), {"dg"})) == "");
  });
}

TEST_CASE("B34, B36, B38: documents do not see each other, and nobody sees padding") {
  const auto check = [&]<class Act>(Act) {
    // 6 tokens of padding, a document of 70, padding, one of 60 behind it, and padding.
    const Spec spec{.tokens = 150, .key_heads = 1, .value_heads = 4, .documents = true, .initial = true, .normalise = true};
    const auto id = [](int t) { return t < 6 ? 0 : t < 76 ? 1 : t < 80 ? 0 : t < 140 ? 2 : 0; };
    CoreBackward<Act> call(spec);
    auto& f = call.forward;
    for (int t = 0; t < 150; t++) f.ids[static_cast<std::size_t>(t)] = id(t);
    call.run_forward();
    const Outputs right = run(Cpu(2), call);
    const auto change = [&](int document, auto change_one) {
      const auto rows = [&](auto& x) {
        const std::size_t width = x.size() / 150;
        for (std::size_t i = 0; i < x.size(); i++)
          if (id(static_cast<int>(i / width)) == document) x[i] = change_one(x[i]);
      };
      rows(f.q), rows(f.k), rows(f.v), rows(call.d_out);
      if (document == 0) rows(f.g), rows(f.beta);
    };
    const auto rows_of = [&](const Outputs& all, const char* name, int document) {
      const auto& x = named(all, name);
      const std::size_t width = x.size() / 150;
      std::vector<f32> some;
      for (std::size_t i = 0; i < x.size(); i++)
        if (id(static_cast<int>(i / width)) == document) some.push_back(x[i]);
      return some;
    };
    for (const char* name : {"dq", "dk", "dv", "dg", "dbeta"}) {
      INFO(name);
      const auto zero = rows_of(right, name, 0);
      CHECK(zeros_in(zero) == 1);
    }
    change(1, [](auto x) { return activation<decltype(x)>(1000 * static_cast<double>(to_f32(x))); });
    call.run_forward();
    const Outputs louder = run(Cpu(2), call);
    for (const char* name : {"dq", "dk", "dv", "dg", "dbeta"}) {
      INFO(name);
      CHECK(difference(rows_of(right, name, 2), rows_of(louder, name, 2)) == "");
      CHECK(difference(rows_of(right, name, 1), rows_of(louder, name, 1)) != "");
    }
    // What stands on padding may be anything.
    change(0, [](auto x) { return activation<decltype(x)>(std::numeric_limits<double>::quiet_NaN()); });
    call.run_forward();
    CHECK(differences(louder, run(Cpu(2), call)) == "");
    CHECK(differences(louder, run(Traced(), call)) == "");
  };
  check(bf16{});
  check(f32{});
}

TEST_CASE("B05: gates that forget everything") {
  CoreBackward<f32> call({.tokens = 64, .key_heads = 1, .value_heads = 1, .initial = true});
  auto& f = call.forward;
  for (f32 gate : {-200.f, -1e4f, -std::numeric_limits<f32>::infinity()}) {
    std::fill(f.g.begin(), f.g.end(), gate);
    call.final_cotangent = false;
    call.run_forward();
    const Outputs found = run(Cpu(1), call);
    // Every token alone: o = beta (q.k) v.
    std::vector<f32> dq, dk, dv, dbeta;
    for (std::size_t t = 0; t < 64; t++) {
      double qk = 0, v_do = 0;
      for (std::size_t i = 0; i < 128; i++) {
        qk += static_cast<double>(f.q[128 * t + i]) * f.k[128 * t + i];
        v_do += static_cast<double>(f.v[128 * t + i]) * call.d_out[128 * t + i];
      }
      for (std::size_t i = 0; i < 128; i++) {
        dq.push_back(static_cast<f32>(f.beta[t] * v_do * f.k[128 * t + i]));
        dk.push_back(static_cast<f32>(f.beta[t] * v_do * f.q[128 * t + i]));
        dv.push_back(static_cast<f32>(f.beta[t] * qk * call.d_out[128 * t + i]));
      }
      dbeta.push_back(static_cast<f32>(qk * v_do));
    }
    CHECK(relative_l2(named(found, "dq"), dq) <= 1e-6);
    CHECK(relative_l2(named(found, "dk"), dk) <= 1e-6);
    CHECK(relative_l2(named(found, "dv"), dv) <= 1e-6);
    CHECK(relative_l2(named(found, "dbeta"), dbeta) <= 1e-6);
    CHECK(zeros_in(named(found, "dg")) == 1);
    CHECK(zeros_in(named(found, "d_initial")) == 1);
  }
}

TEST_CASE("B28: rows of zeros under l2norm") {
  // One token, q = 0: o = 0, and dq is what is given to l2norm's derivative at 0, 1000 dy.
  CoreBackward<f32> call({.tokens = 1, .key_heads = 1, .value_heads = 1, .normalise = true});
  auto& f = call.forward;
  std::fill(f.q.begin(), f.q.end(), 0.f);
  f.beta[0] = 1, f.g[0] = 0;
  f.options.scale = 1;
  call.final_cotangent = false;
  call.run_forward();
  const Outputs found = run(Cpu(1), call);
  double v_do = 0, k_k = 1e-6;
  for (std::size_t i = 0; i < 128; i++) v_do += static_cast<double>(f.v[i]) * call.d_out[i], k_k += static_cast<double>(f.k[i]) * f.k[i];
  std::vector<f32> expected;
  for (std::size_t i = 0; i < 128; i++) expected.push_back(static_cast<f32>(1000 * v_do * f.k[i] / std::sqrt(k_k)));
  CHECK(relative_l2(named(found, "dq"), expected) <= 1e-6);
  CHECK(zeros_in(named(found, "dk")) == 1);
  std::fill(call.d_out.begin(), call.d_out.end(), 0.f);
  for (const Output& o : run(Cpu(1), call)) CHECK(zeros_in(o.values) == 1);
}

TEST_CASE("B39: no state reaches the first token of a document") {
  CoreBackward<f32> call({.tokens = 128, .value_heads = 2, .documents = true});
  for (int t = 0; t < 128; t++) call.forward.ids[static_cast<std::size_t>(t)] = 1 + (t >= 65);
  call.run_forward();
  const Outputs found = run(Cpu(1), call);
  const auto& dg = named(found, "dg");
  CHECK(zeros_in(dg) < 0.2);
  for (std::size_t i : {0, 1, 2 * 65, 2 * 65 + 1}) CHECK(dg[i] == 0);
}

TEST_CASE("B33: no tokens and no rows: the cotangent of the final state is that of the initial one") {
  for (bool cotangent : {false, true})
    for (const Spec& spec : {Spec{.batch = 2, .tokens = 0, .initial = true}, Spec{.batch = 0, .tokens = 64, .initial = true}}) {
      CoreBackward<f32> call(spec);
      call.final_cotangent = cotangent;
      CHECK(named(run(Cpu(1), call), "d_initial") == (cotangent ? call.d_final : std::vector<f32>(call.d_final.size(), 0.f)));
    }
  CoreBackward<bf16> padding({.tokens = 100, .documents = true, .initial = true});
  std::fill(padding.forward.ids.begin(), padding.forward.ids.end(), 0);
  padding.run_forward();
  const Outputs found = run(Cpu(1), padding);
  CHECK(named(found, "d_initial") == padding.d_final);
  CHECK(zeros_in(named(found, "dv")) == 1);
  CHECK(differences(found, run(Traced(), padding)) == "");
}

TEST_CASE("any part of the gradients may be asked for") {
  const auto check = [&]<class Act>(Act) {
    CoreBackward<Act> call(packed);
    const Outputs right = run(Cpu(2), call);
    for (std::size_t only = 0; only < right.size(); only++) {
      INFO(right[only].name);
      auto d = call.gradients();
      std::size_t i = 0;
      const auto keep = [&](auto&... v) { ((i++ == only ? void() : void(v = {})), ...); };
      keep(d.dq, d.dk, d.dv, d.dg, d.dbeta, d.d_initial);
      Cpu cpu(2);
      backward(cpu, call.x, d, call.forward.options);
      const Outputs found = call.outputs();
      for (std::size_t j = 0; j < right.size(); j++) CHECK((difference(found[j].values, right[j].values) == "") == (j == only));
    }
    // d_initial in the place of d_final.
    auto d = call.gradients();
    d.d_initial = view(call.d_final, {2, 8, 128, 128});
    Cpu cpu(2);
    backward(cpu, call.x, d, call.forward.options);
    call.d_initial = call.d_final;
    CHECK(differences(right, call.outputs()) == "");
  };
  check(bf16{});
  check(f32{});
}

TEST_CASE("the check of bits notices a changed operation") {
  CoreBackward<bf16> call({.tokens = 130, .documents = true, .initial = true});
  const Outputs right = run(Cpu(2), call);
  Traced machine;
  machine.simulate.text_of = [](mosaic::Module m) {
    m.marked.replace(m.marked.rfind("arith.subf"), 10, "arith.addf");
    return m.program();
  };
  CHECK(differences(right, run(machine, call)) != "");
}

TEST_CASE("backward: what is refused") {
  struct Refusal {
    void (*spoil)(CoreArrays<f32>&, CoreGradients<f32>&);
    const char* says;
  };
  const auto grow = [](auto& v, int dim) { v.shape[static_cast<std::size_t>(dim)]++; };
  static const auto more = grow;
  const Refusal all[] = {
      {[](auto& x, auto&) { x.q = {}; }, "backward: q is missing"},
      {[](auto& x, auto&) { x.k = {}; }, "backward: k is missing"},
      {[](auto& x, auto&) { x.beta = {}; }, "backward: beta is missing"},
      {[](auto& x, auto&) { x.residual = {}; }, "backward: residual is missing"},
      {[](auto& x, auto&) { x.residuals.t_inv = {}; }, "backward: t_inv is missing"},
      {[](auto& x, auto&) { x.residuals.chunk_states = {}; }, "backward: chunk_states is missing"},
      {[](auto&, auto& d) { d.d_out = {}; }, "backward: d_out is missing"},
      {[](auto& x, auto&) { x.k.shape[2] = 3; }, "backward: 4 value heads and 3 key heads; expected a multiple"},
      {[](auto& x, auto&) { more(x.k, 3); }, "backward: k has shape [2, 20, 2, 33]; expected [2, 20, 2, 32]"},
      {[](auto& x, auto&) { more(x.q, 1); }, "backward: q has shape [2, 21, 2, 32]; expected [2, 20, 2, 32]"},
      {[](auto& x, auto&) { more(x.g, 2); }, "backward: g has shape [2, 20, 5]; expected [2, 20, 4]"},
      {[](auto& x, auto&) { more(x.beta, 0); }, "backward: beta has shape [3, 20, 4]; expected [2, 20, 4]"},
      {[](auto& x, auto&) { more(x.ids, 1); }, "backward: ids has shape [2, 21]; expected [2, 20]"},
      {[](auto& x, auto&) { more(x.residual, 3); }, "backward: residual has shape [2, 20, 4, 49]; expected [2, 20, 4, 48]"},
      {[](auto& x, auto&) { more(x.residuals.t_inv, 1); }, "backward: t_inv has shape [2, 3, 16, 4, 16]; expected [2, 2, 16, 4, 16]"},
      {[](auto& x, auto&) { more(x.residuals.chunk_states, 4); }, "backward: chunk_states has shape [2, 2, 4, 32, 49]; expected [2, 2, 4, 32, 48]"},
      {[](auto& x, auto&) { more(x.initial, 1); }, "backward: initial has shape [2, 5, 32, 48]; expected [2, 4, 32, 48]"},
      {[](auto&, auto& d) { more(d.d_out, 3); }, "backward: d_out has shape [2, 20, 4, 49]; expected [2, 20, 4, 48]"},
      {[](auto&, auto& d) { more(d.d_final, 2); }, "backward: d_final has shape [2, 4, 33, 48]; expected [2, 4, 32, 48]"},
      {[](auto&, auto& d) { more(d.dq, 2); }, "backward: dq has shape [2, 20, 3, 32]; expected [2, 20, 2, 32]"},
      {[](auto&, auto& d) { more(d.dk, 3); }, "backward: dk has shape [2, 20, 2, 33]; expected [2, 20, 2, 32]"},
      {[](auto&, auto& d) { more(d.dv, 0); }, "backward: dv has shape [3, 20, 4, 48]; expected [2, 20, 4, 48]"},
      {[](auto&, auto& d) { more(d.dg, 1); }, "backward: dg has shape [2, 21, 4]; expected [2, 20, 4]"},
      {[](auto&, auto& d) { more(d.dbeta, 2); }, "backward: dbeta has shape [2, 20, 5]; expected [2, 20, 4]"},
      {[](auto&, auto& d) { more(d.d_initial, 3); }, "backward: d_initial has shape [2, 4, 32, 49]; expected [2, 4, 32, 48]"},
      {[](auto& x, auto&) { x.g = {}; }, "backward: dg is wanted, and g is missing"},
      {[](auto& x, auto&) { x.initial = {}; }, "backward: d_initial is wanted, and initial is missing"},
      {[](auto&, auto& d) { d.dq = {}, d.dk = {}, d.dv = {}, d.dg = {}, d.dbeta = {}, d.d_initial = {}; },
       "backward: no gradient is given; expected one of dq, dk, dv, dg, dbeta and d_initial"},
      {[](auto& x, auto& d) { d.dq.data = const_cast<f32*>(x.q.data); }, "backward: output dq overlaps q; expected separate memory"},
      {[](auto&, auto& d) { d.dk = d.dq; }, "backward: output dq overlaps dk; expected separate memory"},
      {[](auto&, auto& d) { d.dv.data = const_cast<f32*>(d.d_out.data); }, "backward: output dv overlaps d_out; expected separate memory"},
      {[](auto& x, auto& d) { d.dg.data = x.residuals.t_inv.data; }, "backward: output dg overlaps t_inv; expected separate memory"},
      {[](auto& x, auto& d) { d.dbeta.data = x.residual.data; }, "backward: output dbeta overlaps residual; expected separate memory"},
      {[](auto& x, auto& d) { d.d_initial.data = x.residuals.chunk_states.data; }, "backward: output d_initial overlaps chunk_states; expected separate memory"},
      {[](auto&, auto& d) { d.d_initial.data = const_cast<f32*>(d.d_final.data) + 4; }, "backward: output d_initial overlaps d_final; expected separate memory"},
      {[](auto& x, auto&) { const_cast<f32&>(x.g.data[20 * 4 + 7 * 4 + 2]) = 0.25f; },
       "backward: g[1, 7, 2] is 0.25; expected the natural logarithm of a decay, at most 0"},
  };
  const Spec spec{.batch = 2, .tokens = 20, .key_heads = 2, .value_heads = 4, .documents = true, .initial = true};
  CoreBackward<f32, Small> call(spec);
  for (const Refusal& r : all) {
    auto x = call.x;
    auto d = call.gradients();
    r.spoil(x, d);
    Cpu cpu(1);
    CHECK(message_of([&] { backward<Small>(cpu, x, d, call.forward.options); }) == r.says);
  }
  call.forward.g[20 * 4 + 7 * 4 + 2] = 0;
  Cpu cpu(1);
  CHECK(message_of([&] { backward<Small>(cpu, call.x, call.gradients(), call.forward.options); }) == "accepted");
}

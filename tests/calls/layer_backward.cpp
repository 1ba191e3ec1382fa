// The layer's backward: it is the core's between its own parts, claims of equal bits, and refusals.
#include "../kernels/traced.hpp"
#include "backward_claims.hpp"

using namespace gdn;
using namespace gdn::test;

namespace {

const Spec packed{.batch = 2, .tokens = 200, .key_heads = 2, .value_heads = 8, .documents = true, .initial = true};
const Spec plain{.tokens = 192, .key_heads = 1, .value_heads = 3};

template <class Claim> void for_all_specs(Claim claim) {
  for (const Spec& spec : {packed, plain}) {
    INFO(spec.name());
    claim.template operator()<bf16>(spec);
    claim.template operator()<f32>(spec);
  }
}

}  // namespace

TEST_CASE("layer_backward, J5: arrays that lie elsewhere") {
  for_all_specs([]<class Act>(const Spec& spec) { check_elsewhere<LayerBackward<Act>>(spec); });
}

TEST_CASE("layer_backward, J14, B64: rows of a batch are calls of their own; threads change nothing") {
  for_all_specs([]<class Act>(const Spec& spec) {
    LayerBackward<Act> call(spec);
    const Outputs right = run(Cpu(1), call);
    for (int threads : {1, 3, 16}) CHECK(differences(right, run(Cpu(threads), call)) == "");
    const auto all = call.gradients();
    for (int row = 0; row < spec.batch; row++) {
      CHECK(differences(right, call.outputs()) != "");
      auto x = call.x;
      auto d = all;
      const auto one = [&](auto&... v) { (cut(v, 0, row, 1), ...); };
      one(x.qkv, x.a, x.b, x.conv_initial, x.initial, x.ids, x.residual, x.residuals.t_inv, x.residuals.chunk_states, d.d_out, d.d_final, d.d_conv_final, d.dqkv);
      one(d.da, d.db, d.d_conv_weights, d.d_conv_bias, d.dA_log, d.ddt_bias, d.d_conv_initial, d.d_initial);
      Cpu cpu(2);
      layer_backward(cpu, x, d, call.options());
    }
    CHECK(differences(right, call.outputs()) == "");
  });
}

TEST_CASE("layer_backward, J13: a row of one document is a row without documents") {
  for (bool initial : {false, true})
    for_all_specs([=]<class Act>(Spec spec) {
      spec.initial = initial;
      check_one_document<LayerBackward<Act>>(spec);
    });
}

TEST_CASE("layer_backward, B34, B36: documents do not see each other, and nobody sees padding") {
  const auto check = [&]<class Act>(Act) {
    const Spec spec{.tokens = 150, .key_heads = 1, .value_heads = 4, .documents = true, .initial = true};
    const auto id = [](int t) { return t < 6 ? 0 : t < 63 ? 1 : t < 65 ? 0 : t < 140 ? 2 : 0; };
    LayerBackward<Act> call(spec);
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
      rows(f.qkv), rows(call.d_out);
      if (document == 0) rows(f.a), rows(f.b);
    };
    const auto rows_of = [&](const Outputs& all, const char* name, int document) {
      const auto& x = named(all, name);
      const std::size_t width = x.size() / 150;
      std::vector<f32> some;
      for (std::size_t i = 0; i < x.size(); i++)
        if (id(static_cast<int>(i / width)) == document) some.push_back(x[i]);
      return some;
    };
    for (const char* name : {"dqkv", "da", "db"}) CHECK(zeros_in(rows_of(right, name, 0)) == 1);
    change(1, [](auto x) { return activation<decltype(x)>(1000 * static_cast<double>(to_f32(x))); });
    call.run_forward();
    const Outputs louder = run(Cpu(2), call);
    for (const char* name : {"dqkv", "da", "db"}) {
      INFO(name);
      CHECK(difference(rows_of(right, name, 2), rows_of(louder, name, 2)) == "");
      CHECK(difference(rows_of(right, name, 1), rows_of(louder, name, 1)) != "");
    }
    change(0, [](auto x) { return activation<decltype(x)>(std::numeric_limits<double>::quiet_NaN()); });
    call.run_forward();
    CHECK(differences(louder, run(Cpu(2), call)) == "");
    CHECK(differences(louder, run(Traced(), call)) == "");
  };
  check(bf16{});
  check(f32{});
}

TEST_CASE("layer_backward: any part of the gradients may be asked for") {
  LayerBackward<bf16> call(packed);
  const Outputs right = run(Cpu(2), call);
  for (std::size_t only = 0; only < right.size(); only++) {
    INFO(right[only].name);
    auto d = call.gradients();
    std::size_t i = 0;
    const auto keep = [&](auto&... v) { ((i++ == only ? void() : void(v = {})), ...); };
    keep(d.dqkv, d.db, d.da, d.d_conv_weights, d.d_conv_bias, d.dA_log, d.ddt_bias, d.d_conv_initial, d.d_initial);
    Cpu cpu(2);
    layer_backward(cpu, call.x, d, call.options());
    const Outputs found = call.outputs();
    for (std::size_t j = 0; j < right.size(); j++) CHECK((difference(found[j].values, right[j].values) == "") == (j == only));
  }
}

TEST_CASE("layer_backward: without a bias, and without l2norm") {
  LayerBackward<f32> call({.tokens = 130, .initial = true});
  const Outputs with = run(Cpu(2), call);
  call.forward.bias = false;
  call.run_forward();
  const Outputs none = run(Cpu(2), call);
  CHECK(differences(without(with, {"d_conv_bias"}), none) != "");
  CHECK(differences(none, run(Traced(), call)) == "");
  const LayerOptions plain_rows{.key_heads = 1, .use_qk_norm = false, .scale = 0.25f};
  for (f32& w : call.forward.weights) w *= 0.1f;  // unnormalised keys of unit length would make the state grow
  const auto both = [&](auto&& machine) {
    Cpu cpu(2);
    call.x = call.forward.arrays();
    layer_forward(cpu, call.x, plain_rows);
    layer_backward(machine, call.x, call.gradients(), plain_rows);
    return call.outputs();
  };
  const Outputs cpu = both(Cpu(1));
  CHECK(differences(cpu, both(Traced())) == "");
  CHECK(zeros_in(named(cpu, "dqkv")) < 0.01);
}

TEST_CASE("layer_backward: no tokens, no rows") {
  for (const Spec& spec : {Spec{.batch = 2, .tokens = 0, .initial = true}, Spec{.batch = 0, .tokens = 64, .initial = true}}) {
    LayerBackward<bf16> call(spec);
    const Outputs found = run(Cpu(1), call);
    CHECK(named(found, "d_initial") == call.d_final);
    Outputs given;
    add_output(given, "d_conv_final", call.d_conv_final, true);
    CHECK(named(found, "d_conv_initial") == given[0].values);
    for (const char* name : {"d_conv_weights", "d_conv_bias", "dA_log", "ddt_bias"}) {
      const auto& x = named(found, name);
      CHECK(std::count(x.begin(), x.end(), 0.f) == static_cast<std::ptrdiff_t>(x.size()));
    }
  }
}

TEST_CASE("layer_backward: what is refused") {
  struct Refusal {
    void (*spoil)(LayerArrays<f32>&, LayerGradients<f32>&);
    const char* says;
  };
  static const auto more = [](auto& v, int dim) { v.shape[static_cast<std::size_t>(dim)]++; };
  const Refusal all[] = {
      {[](auto& x, auto&) { x.qkv = {}; }, "layer_backward: qkv is missing"},
      {[](auto& x, auto&) { x.b = {}; }, "layer_backward: b is missing"},
      {[](auto& x, auto&) { x.a = {}; }, "layer_backward: a is missing"},
      {[](auto& x, auto&) { x.conv_weights = {}; }, "layer_backward: conv_weights is missing"},
      {[](auto& x, auto&) { x.A_log = {}; }, "layer_backward: A_log is missing"},
      {[](auto& x, auto&) { x.dt_bias = {}; }, "layer_backward: dt_bias is missing"},
      {[](auto& x, auto&) { x.residual = {}; }, "layer_backward: residual is missing"},
      {[](auto& x, auto&) { x.residuals.t_inv = {}; }, "layer_backward: t_inv is missing"},
      {[](auto& x, auto&) { x.residuals.chunk_states = {}; }, "layer_backward: chunk_states is missing"},
      {[](auto&, auto& d) { d.d_out = {}; }, "layer_backward: d_out is missing"},
      {[](auto& x, auto&) { x.a.shape[2] = 3; }, "layer_backward: 3 value heads and 2 key heads; expected a multiple"},
      {[](auto& x, auto&) { more(x.qkv, 2); }, "layer_backward: qkv has shape [2, 20, 321]; expected [2, 20, 320]"},
      {[](auto& x, auto&) { more(x.conv_weights, 0); }, "layer_backward: conv_weights has shape [3, 320]; expected [2, 320]"},
      {[](auto& x, auto&) { more(x.conv_initial, 1); }, "layer_backward: conv_initial has shape [2, 2, 320]; expected [2, 1, 320]"},
      {[](auto& x, auto&) { more(x.residual, 3); }, "layer_backward: residual has shape [2, 20, 4, 49]; expected [2, 20, 4, 48]"},
      {[](auto&, auto& d) { more(d.d_out, 1); }, "layer_backward: d_out has shape [2, 21, 4, 48]; expected [2, 20, 4, 48]"},
      {[](auto&, auto& d) { more(d.d_final, 0); }, "layer_backward: d_final has shape [3, 4, 32, 48]; expected [2, 4, 32, 48]"},
      {[](auto&, auto& d) { more(d.dqkv, 2); }, "layer_backward: dqkv has shape [2, 20, 321]; expected [2, 20, 320]"},
      {[](auto&, auto& d) { more(d.db, 2); }, "layer_backward: db has shape [2, 20, 5]; expected [2, 20, 4]"},
      {[](auto&, auto& d) { more(d.da, 0); }, "layer_backward: da has shape [3, 20, 4]; expected [2, 20, 4]"},
      {[](auto&, auto& d) { more(d.d_conv_weights, 1); }, "layer_backward: d_conv_weights has shape [2, 3, 320]; expected [2, 2, 320]"},
      {[](auto&, auto& d) { more(d.d_conv_bias, 1); }, "layer_backward: d_conv_bias has shape [2, 321]; expected [2, 320]"},
      {[](auto&, auto& d) { more(d.dA_log, 1); }, "layer_backward: dA_log has shape [2, 5]; expected [2, 4]"},
      {[](auto&, auto& d) { more(d.ddt_bias, 0); }, "layer_backward: ddt_bias has shape [3, 4]; expected [2, 4]"},
      {[](auto&, auto& d) { more(d.d_conv_initial, 1); }, "layer_backward: d_conv_initial has shape [2, 2, 320]; expected [2, 1, 320]"},
      {[](auto&, auto& d) { more(d.d_conv_final, 2); }, "layer_backward: d_conv_final has shape [2, 1, 321]; expected [2, 1, 320]"},
      {[](auto&, auto& d) { more(d.d_initial, 3); }, "layer_backward: d_initial has shape [2, 4, 32, 49]; expected [2, 4, 32, 48]"},
      {[](auto& x, auto&) { x.conv_bias = {}; }, "layer_backward: d_conv_bias is wanted, and conv_bias is missing"},
      {[](auto& x, auto&) { x.conv_initial = {}; }, "layer_backward: d_conv_initial is wanted, and conv_initial is missing"},
      {[](auto& x, auto&) { x.initial = {}; }, "layer_backward: d_initial is wanted, and initial is missing"},
      {[](auto&, auto& d) {
         const auto given = d.d_out;
         d = {};
         d.d_out = given;
       },
       "layer_backward: no gradient is given; expected one of dqkv, db, da, d_conv_weights, d_conv_bias, dA_log, ddt_bias, d_conv_initial and d_initial"},
      {[](auto& x, auto& d) { d.dqkv.data = const_cast<f32*>(x.qkv.data); }, "layer_backward: output dqkv overlaps qkv; expected separate memory"},
      {[](auto&, auto& d) { d.da = d.db; }, "layer_backward: output db overlaps da; expected separate memory"},
      {[](auto& x, auto& d) { d.d_conv_weights.data = const_cast<f32*>(x.conv_weights.data); },
       "layer_backward: output d_conv_weights overlaps conv_weights; expected separate memory"},
      {[](auto&, auto& d) { d.d_conv_initial.data = const_cast<f32*>(d.d_conv_final.data) + 4; },
       "layer_backward: output d_conv_initial overlaps d_conv_final; expected separate memory"},
      {[](auto& x, auto& d) { d.dA_log.data = const_cast<f32*>(x.A_log.data); }, "layer_backward: output dA_log overlaps A_log; expected separate memory"},
  };
  const Spec spec{.batch = 2, .tokens = 20, .key_heads = 2, .value_heads = 4, .documents = true, .initial = true};
  LayerBackward<f32, Small> call(spec);
  Cpu cpu(1);
  for (const Refusal& r : all) {
    auto x = call.x;
    auto d = call.gradients();
    r.spoil(x, d);
    CHECK(message_of([&] { layer_backward<Small>(cpu, x, d, call.options()); }) == r.says);
  }
  CHECK(message_of([&] { layer_backward<Small>(cpu, call.x, call.gradients(), {}); }) == "layer_backward: options.key_heads is 0; expected the number of key heads");
  CHECK(message_of([&] { layer_backward<Small>(cpu, call.x, call.gradients(), call.options()); }) == "accepted");
}

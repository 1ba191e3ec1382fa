// The public bug reports that have a gradient (support/cases.hpp), and rows in parts: cotangents of states are handed back as states are on.
#include "../support/cases.hpp"
#include "backward_inputs.hpp"
#include "backward_oracle.hpp"
#include "traced.hpp"

using namespace gdn;
using namespace gdn::test;

namespace {

// The gradients of one document, or of documents side by side, against the recurrence in float64. Where l2norm's argument is along the
// cotangent next to nothing is left of it: there, relative to the gradients of the call.
std::string missed(const CoreCase& c, const FoundGradient<f32>& found, const CoreGradient& right) {
  const double within = std::max(1e-6, c.out_within.value);
  double largest = 0;
  const auto norm = [](const auto& x) {
    double sum = 0;
    for (auto e : x) sum = std::hypot(sum, static_cast<double>(e));
    return sum;
  };
  for (const auto* x : {&right.q, &right.k, &right.v}) largest = std::max(largest, norm(*x));
  std::string all;
  const auto compare = [&](const char* name, const std::vector<f32>& x, const Array<double>& y, double times = 1) {
    if (x.empty()) return;
    std::vector<double> error;
    for (std::size_t i = 0; i < x.size(); i++) error.push_back(x[i] - y[i]);
    const double size = std::max({norm(y), 1e-30, c.in.use_qk_norm ? largest : 0});
    if (!(norm(error) <= times * within * size)) all += text(name, ": error ", norm(error), " of ", size, "\n");
  };
  compare("dq", found.q, right.q), compare("dk", found.k, right.k), compare("dv", found.v, right.v);
  compare("dg", found.g, right.g, 2);  // a decay of 2^-40: its exponent is an f32
  compare("dbeta", found.beta, right.beta), compare("dh0", found.h0, right.h0);
  return all;
}
// 0 on padding, where the arguments may be anything.
CoreInput<double> without_padding(const CoreInput<f32>& in) {
  auto x = widen(in);
  for (auto* a : {&x.q, &x.k, &x.v, &x.g, &x.beta})
    for (double& e : a->data) e = std::isnan(e) ? 0 : e;
  return x;
}

}  // namespace

TEST_CASE("the cases backward") {
  int count = 0;
  for (const auto& c : core_cases({128, 128, 128})) {
    if (!c.cu.empty() || c.in.tokens() > 200) continue;  // longer ones cost the reference minutes
    INFO(c.name);
    const int T = c.in.tokens(), H = c.in.value_heads();
    Random random(3);
    const auto d_out = normal_array<f32>(random, {T, H, 128}), d_state = normal_array<f32>(random, {H, 128, 128});
    const auto found = gradient_call(c.in, d_out, d_state);
    CHECK(missed(c, found, recurrence_backward(without_padding(c.in), cast<double>(d_out), cast<double>(d_state))) == "");
    CHECK(missed(c, found, recurrence_backward(without_padding(c.in), cast<double>(d_out))) != "");
    const auto there = gradient_call<f32>(c.in, d_out, d_state, Traced());
    CHECK(difference(found.q, there.q) + difference(found.k, there.k) + difference(found.v, there.v) + difference(found.g, there.g) +
              difference(found.beta, there.beta) + difference(found.h0, there.h0) == "");
    count++;
  }
  CHECK(count >= 20);
}

TEST_CASE("B38: gradients of packed documents are those of each alone") {
  const std::pair<int, int> parts[] = {{0, 65}, {65, 128}};
  auto in = random_core<f32>(38, {128, 1, 2, 128, 128}, document_ids({{1, 65}, {2, 63}}), false);
  Random random(3);
  const auto d_out = normal_array<f32>(random, {128, 2, 128});
  const auto packed = gradient_call(in, d_out);
  FoundGradient<f32> alone;
  in.ids.clear();
  for (auto [first, last] : parts) {
    const auto one = gradient_call(tokens_of(in, first, last), rows(d_out, first, last));
    const auto add = [](std::vector<f32>& to, const std::vector<f32>& x) { to.insert(to.end(), x.begin(), x.end()); };
    add(alone.q, one.q), add(alone.k, one.k), add(alone.v, one.v), add(alone.g, one.g), add(alone.beta, one.beta);
  }
  CHECK(relative_l2(packed.q, alone.q) <= 1e-6);
  CHECK(relative_l2(packed.k, alone.k) <= 1e-6);
  CHECK(relative_l2(packed.v, alone.v) <= 1e-6);
  CHECK(relative_l2(packed.g, alone.g) <= 1e-6);
  CHECK(relative_l2(packed.beta, alone.beta) <= 1e-6);
  CHECK(relative_l2(gradient_call(in, d_out).k, alone.k) > 1e-2);
}

// A row of 200 tokens, backward in parts from the last to the first.
TEST_CASE("B22 backward: a layer's row in parts") {
  const Spec spec{.tokens = 200, .key_heads = 1, .value_heads = 2, .initial = true};
  LayerBackward<f32> whole(spec);
  const Outputs right = run(Cpu(2), whole);
  for (const std::vector<int>& cuts : {std::vector<int>{0, 64, 128, 200}, {0, 77, 200}, {0, 1, 3, 199, 200}}) {
    const bool at_chunks = cuts[1] == 64;
    INFO("cut at " << cuts[1]);
    LayerBackward<f32> row(spec);
    const auto all = row.gradients();
    const std::size_t n = cuts.size() - 1;
    struct Part {
      std::vector<f32> out, r, t_inv, states, final, conv_final;
    };
    std::vector<Part> parts(n);
    std::vector<LayerArrays<f32>> x(n, row.x);
    Cpu cpu(2);
    for (std::size_t i = 0; i < n; i++) {
      const std::int64_t from = cuts[i], length = cuts[i + 1] - from, N = (length + 63) / 64;
      cut(x[i].qkv, 1, from, length), cut(x[i].a, 1, from, length), cut(x[i].b, 1, from, length);
      const auto room = [](std::vector<f32>& to, auto... sizes) {
        to.resize(static_cast<std::size_t>((std::int64_t{1} * ... * sizes)));
        return view(to, {static_cast<std::int64_t>(sizes)...});
      };
      Part& p = parts[i];
      x[i].out = room(p.out, 1, length, 2, 128), x[i].residual = room(p.r, 1, length, 2, 128);
      x[i].residuals = {room(p.t_inv, 1, N, 64, 2, 64), room(p.states, 1, N, 2, 128, 128)};
      x[i].final = room(p.final, 1, 2, 128, 128), x[i].conv_final = room(p.conv_final, 1, 3, row.forward.channels());
      if (i > 0) x[i].initial = x[i - 1].final, x[i].conv_initial = x[i - 1].conv_final;
      layer_forward(cpu, x[i], row.options());
    }
    LayerGradients<f32> d = all;
    for (std::size_t i = n; i-- > 0;) {
      LayerGradients<f32> one = all;
      const std::int64_t from = cuts[i], length = cuts[i + 1] - from;
      cut(one.d_out, 1, from, length), cut(one.dqkv, 1, from, length), cut(one.da, 1, from, length), cut(one.db, 1, from, length);
      one.d_conv_weights = {}, one.d_conv_bias = {}, one.dA_log = {}, one.ddt_bias = {};  // sums of their own
      one.d_final = d.d_final, one.d_conv_final = d.d_conv_final;
      layer_backward(cpu, x[i], one, row.options());
      d.d_final = View<const f32, 4>(one.d_initial), d.d_conv_final = View<const f32, 3>(one.d_conv_initial);
    }
    for (const Output& o : row.outputs()) {
      if (o.name.starts_with("d_conv_w") || o.name.starts_with("d_conv_b") || o.name == "dA_log" || o.name == "ddt_bias") continue;
      INFO(o.name);
      if (at_chunks) CHECK(difference(o.values, named(right, o.name)) == "");
      else CHECK(relative_l2(o.values, named(right, o.name)) <= 1e-6);
    }
  }
}

// Gradients of documents by cumulative lengths: those of calls on each document alone, bit for bit, on the CPU and in the simulator.
#include "../support/oracle_backward.hpp"
#include "backward_inputs.hpp"
#include "traced.hpp"

using namespace gdn;
using namespace gdn::test;

namespace {

// One row of documents with states and gradients of their own. `Gradients` of the core or of the layer.
template <class A, class G> struct Row {
  using Act = A;
  static constexpr int C = G::chunk::size, K = G::key::size, V = G::value::size, W = G::taps::size, Hk = 2, H = 4, D = 2 * Hk * K + H * V;
  std::vector<i32> cu;
  std::int64_t n, T, N = 0;
  Random random{17};
  std::vector<Act> d_out, out, r;
  std::vector<f32> initial, final, d_final, d_initial, t_inv, chunk_states;

  explicit Row(std::vector<i32> lengths) : cu(std::move(lengths)), n(static_cast<std::int64_t>(cu.size()) - 1), T(cu.back()) {
    for (std::int64_t i = 0; i < n; i++) N += chunks(i);
    normal(d_out, T * H * V, 1), normal(initial, n * H * K * V, 1), normal(d_final, n * H * K * V, 1);
    room(out, T * H * V), room(r, T * H * V), room(final, n * H * K * V), room(t_inv, N * C * H * C), room(chunk_states, N * H * K * V);
  }
  i32 first(std::int64_t i) const { return cu[static_cast<std::size_t>(i)]; }
  i32 length(std::int64_t i) const { return first(i + 1) - first(i); }
  std::int64_t chunks(std::int64_t i) const { return (length(i) + C - 1) / C; }
  std::int64_t first_chunk(std::int64_t i) const { return i == 0 ? 0 : first_chunk(i - 1) + chunks(i - 1); }
  template <class T> void normal(std::vector<T>& x, std::int64_t count, double scale, double mean = 0) {
    for (std::int64_t i = 0; i < count; i++) x.push_back(activation<T>(mean + scale * random.normal()));
  }
  template <class T> static void room(std::vector<T>& x, std::int64_t count) { x.assign(static_cast<std::size_t>(count), activation<T>(unwritten)); }

  template <class Arrays> void common(Arrays& x) {
    x.initial = view(initial, {n, H, K, V}), x.out = view(out, {1, T, H, V}), x.final = view(final, {n, H, K, V}), x.residual = view(r, {1, T, H, V});
    x.residuals = {view(t_inv, {1, N, C, H, C}), view(chunk_states, {1, N, H, K, V})};
  }
  template <class Gradients> void common_gradients(Gradients& d) {
    room(d_initial, n * H * K * V);
    d.d_out = view(d_out, {1, T, H, V}), d.d_final = view(d_final, {n, H, K, V}), d.d_initial = view(d_initial, {n, H, K, V});
  }
  template <class Arrays, class Gradients, class... Tokens> void cut_common(std::int64_t i, Arrays& x, Gradients& d, Tokens&... tokens) const {
    (cut(tokens, 1, first(i), length(i)), ...);
    cut(x.out, 1, first(i), length(i)), cut(x.residual, 1, first(i), length(i)), cut(d.d_out, 1, first(i), length(i));
    cut(x.residuals.t_inv, 1, first_chunk(i), chunks(i)), cut(x.residuals.chunk_states, 1, first_chunk(i), chunks(i));
    cut(x.initial, 0, i, 1), cut(x.final, 0, i, 1), cut(d.d_final, 0, i, 1), cut(d.d_initial, 0, i, 1);
  }
  // Those rows of tokens, or entries of documents, that belong to document i.
  std::vector<f32> part(const std::vector<f32>& x, bool by_tokens, std::int64_t i) const {
    const auto width = static_cast<std::int64_t>(x.size()) / (by_tokens ? T : n);
    const std::int64_t from = by_tokens ? first(i) : i, to = by_tokens ? first(i + 1) : i + 1;
    return {x.begin() + from * width, x.begin() + to * width};
  }
  template <class T> void louder(std::vector<T>& x, std::int64_t i) const {
    const std::int64_t width = static_cast<std::int64_t>(x.size()) / this->T;
    for (std::int64_t k = first(i) * width; k < first(i + 1) * width; k++)
      x[static_cast<std::size_t>(k)] = activation<T>(1000 * static_cast<double>(to_f32(x[static_cast<std::size_t>(k)])));
  }
};

template <class A, class Geom> struct CoreRow : Row<A, Geom> {
  using Base = Row<A, Geom>;
  using Act = A;
  using G = Geom;
  using Base::C, Base::K, Base::V, Base::Hk, Base::H, Base::T, Base::n;
  static constexpr const char* name = "backward_documents";
  std::vector<Act> q, k, v, dq, dk, dv;
  std::vector<f32> g, beta, dg, dbeta;
  CoreArrays<Act> x;
  CoreOptions options{.use_qk_norm = true};

  explicit CoreRow(std::vector<i32> cu) : Base(std::move(cu)) {
    this->normal(q, T * Hk * K, 1), this->normal(k, T * Hk * K, 1), this->normal(v, T * H * V, 1);
    for (std::int64_t i = 0; i < T * H; i++) g.push_back(static_cast<f32>(-0.2 * this->random.uniform())), beta.push_back(static_cast<f32>(this->random.uniform()));
    this->common(x);
    x.q = view(q, {1, T, Hk, K}), x.k = view(k, {1, T, Hk, K}), x.v = view(v, {1, T, H, V}), x.g = view(g, {1, T, H}), x.beta = view(beta, {1, T, H});
    run_forward();
  }
  CoreRow(const CoreRow&) = delete;
  void run_forward() {
    Cpu cpu(2);
    forward_documents<G>(cpu, x, this->cu, options);
  }
  CoreGradients<Act> gradients() {
    CoreGradients<Act> d;
    this->common_gradients(d);
    this->room(dq, T * Hk * K), this->room(dk, T * Hk * K), this->room(dv, T * H * V), this->room(dg, T * H), this->room(dbeta, T * H);
    d.dq = view(dq, {1, T, Hk, K}), d.dk = view(dk, {1, T, Hk, K}), d.dv = view(dv, {1, T, H, V}), d.dg = view(dg, {1, T, H}), d.dbeta = view(dbeta, {1, T, H});
    return d;
  }
  Outputs outputs() const {
    Outputs all;
    add_output(all, "dq", dq, true), add_output(all, "dk", dk, true), add_output(all, "dv", dv, true);
    add_output(all, "dg", dg, true), add_output(all, "dbeta", dbeta, true), add_output(all, "d_initial", this->d_initial, true);
    return all;
  }
  template <class Machine> void call(Machine& machine) { backward_documents<G>(machine, x, gradients(), this->cu, options); }
  void call_alone(std::int64_t i, CoreArrays<Act> x, CoreGradients<Act> d) const {
    this->cut_common(i, x, d, x.q, x.k, x.v, x.g, x.beta, d.dq, d.dk, d.dv, d.dg, d.dbeta);
    Cpu cpu(1);
    backward<G>(cpu, x, d, options);
  }
  void change(std::int64_t i) { this->louder(q, i), this->louder(k, i), this->louder(v, i), this->louder(this->d_out, i); }
  void without_states(CoreArrays<Act>& x, CoreGradients<Act>& d) const { x.initial = {}, x.final = {}, d.d_final = {}, d.d_initial = {}; }
  // The worst relative error of document i.
  double error(const Outputs& found, std::int64_t i) const {
    const auto rows = [&](const auto& all, std::vector<int> shape) {
      std::vector<f32> values;
      for (auto e : all) values.push_back(to_f32(e));
      Array<double> x(shape);
      const std::vector<f32> some = this->part(values, true, i);
      std::copy(some.begin(), some.end(), x.data.begin());
      return x;
    };
    const auto states = [&](const std::vector<f32>& all) {
      Array<double> x({H, K, V});
      const std::vector<f32> some = this->part(all, false, i);
      std::copy(some.begin(), some.end(), x.data.begin());
      return x;
    };
    const int L = this->length(i);
    const CoreInput<double> in{rows(q, {L, Hk, K}), rows(k, {L, Hk, K}), rows(v, {L, H, V}), rows(g, {L, H}), rows(beta, {L, H}), states(this->initial), {},
                               1 / std::sqrt(static_cast<double>(K)), true};
    const CoreGradient right = recurrence_backward(in, rows(this->d_out, {L, H, V}), states(this->d_final));
    double worst = 0;
    const auto compare = [&](const char* name, const Array<double>& y) { worst = std::max(worst, relative_l2(this->part(named(found, name), true, i), y)); };
    compare("dq", right.q), compare("dk", right.k), compare("dv", right.v), compare("dg", right.g), compare("dbeta", right.beta);
    return std::max(worst, relative_l2(this->part(named(found, "d_initial"), false, i), right.h0));
  }
};

template <class A, class Geom> struct LayerRow : Row<A, Geom> {
  using Base = Row<A, Geom>;
  using Act = A;
  using G = Geom;
  using Base::C, Base::K, Base::V, Base::W, Base::Hk, Base::H, Base::D, Base::T, Base::n;
  static constexpr const char* name = "layer_backward_documents";
  std::vector<Act> qkv, a, b, conv_initial, conv_final, d_conv_final, dqkv, da, db, d_conv_initial;
  std::vector<f32> weights, bias, A_log, dt_bias, d_weights, d_bias, dA_log, ddt_bias;
  LayerArrays<Act> x;
  LayerOptions options{.key_heads = Hk};

  explicit LayerRow(std::vector<i32> cu) : Base(std::move(cu)) {
    this->normal(qkv, T * D, 1), this->normal(a, T * H, 1), this->normal(b, T * H, 1), this->normal(conv_initial, n * (W - 1) * D, 1);
    this->normal(weights, W * D, 0.5), this->normal(bias, D, 0.1), this->normal(A_log, H, 0.5, -3), this->normal(dt_bias, H, 1);
    this->normal(d_conv_final, n * (W - 1) * D, 1), this->room(conv_final, n * (W - 1) * D);
    this->common(x);
    x.qkv = view(qkv, {1, T, D}), x.a = view(a, {1, T, H}), x.b = view(b, {1, T, H}), x.conv_weights = view(weights, {W, D}), x.conv_bias = view(bias, {D});
    x.A_log = view(A_log, {H}), x.dt_bias = view(dt_bias, {H}), x.conv_initial = view(conv_initial, {n, W - 1, D}), x.conv_final = view(conv_final, {n, W - 1, D});
    run_forward();
  }
  LayerRow(const LayerRow&) = delete;
  void run_forward() {
    Cpu cpu(2);
    layer_forward_documents<G>(cpu, x, this->cu, options);
  }
  LayerGradients<Act> gradients() {
    LayerGradients<Act> d;
    this->common_gradients(d);
    this->room(dqkv, T * D), this->room(da, T * H), this->room(db, T * H), this->room(d_conv_initial, n * (W - 1) * D);
    this->room(d_weights, n * W * D), this->room(d_bias, n * D), this->room(dA_log, n * H), this->room(ddt_bias, n * H);
    d.d_conv_final = view(d_conv_final, {n, W - 1, D});
    d.dqkv = view(dqkv, {1, T, D}), d.da = view(da, {1, T, H}), d.db = view(db, {1, T, H}), d.d_conv_initial = view(d_conv_initial, {n, W - 1, D});
    d.d_conv_weights = view(d_weights, {n, W, D}), d.d_conv_bias = view(d_bias, {n, D}), d.dA_log = view(dA_log, {n, H}), d.ddt_bias = view(ddt_bias, {n, H});
    return d;
  }
  Outputs outputs() const {
    Outputs all;
    add_output(all, "dqkv", dqkv, true), add_output(all, "da", da, true), add_output(all, "db", db, true);
    add_output(all, "d_conv_weights", d_weights, true), add_output(all, "d_conv_bias", d_bias, true), add_output(all, "dA_log", dA_log, true);
    add_output(all, "ddt_bias", ddt_bias, true), add_output(all, "d_conv_initial", d_conv_initial, true), add_output(all, "d_initial", this->d_initial, true);
    return all;
  }
  template <class Machine> void call(Machine& machine) { layer_backward_documents<G>(machine, x, gradients(), this->cu, options); }
  void call_alone(std::int64_t i, LayerArrays<Act> x, LayerGradients<Act> d) const {
    this->cut_common(i, x, d, x.qkv, x.a, x.b, d.dqkv, d.da, d.db);
    const auto one = [&](auto&... v) { (cut(v, 0, i, 1), ...); };
    one(x.conv_initial, x.conv_final, d.d_conv_final, d.d_conv_initial, d.d_conv_weights, d.d_conv_bias, d.dA_log, d.ddt_bias);
    Cpu cpu(1);
    layer_backward<G>(cpu, x, d, options);
  }
  void change(std::int64_t i) { this->louder(qkv, i), this->louder(this->d_out, i); }
  void without_states(LayerArrays<Act>& x, LayerGradients<Act>& d) const {
    x.initial = {}, x.final = {}, d.d_final = {}, d.d_initial = {}, x.conv_initial = {}, x.conv_final = {}, d.d_conv_initial = {}, d.d_conv_final = {};
  }
};

using Four = Geometry<16, 32, 48>;
bool by_tokens(const std::string& output) {
  for (const char* name : {"dq", "dk", "dv", "dg", "dbeta", "dqkv", "da", "db"})
    if (output == name) return true;
  return false;
}

// Empty ones, shorter than the taps, of whole chunks and of parts.
const std::vector<i32> ragged{0, 0, 7, 7, 39, 64, 66, 67, 131, 131};
// As TPU kernels want them.
const std::vector<i32> aligned{0, 16, 16, 64, 80, 128, 139};

}  // namespace

TEMPLATE_PRODUCT_TEST_CASE("documents, backward: each is a call of its own", "", (CoreRow, LayerRow), ((bf16, Four), (f32, Four), (bf16, Head128))) {
  TestType row(ragged);
  for (bool states : {true, false}) {
    auto x = row.x;
    auto d = row.gradients();
    if (!states) {
      row.without_states(x, d);
      Cpu cpu(2);
      if constexpr (requires { x.qkv; }) layer_forward_documents<typename TestType::G>(cpu, x, row.cu, row.options);
      else forward_documents<typename TestType::G>(cpu, x, row.cu, row.options);
    }
    const auto together = [&](int threads) {
      auto fresh = row.gradients();
      if (!states) row.without_states(x, fresh);
      Cpu cpu(threads);
      if constexpr (requires { x.qkv; }) layer_backward_documents<typename TestType::G>(cpu, x, fresh, row.cu, row.options);
      else backward_documents<typename TestType::G>(cpu, x, fresh, row.cu, row.options);
      return row.outputs();
    };
    const Outputs right = together(2);
    for (int threads : {1, 16}) CHECK(differences(right, together(threads)) == "");
    d = row.gradients();
    if (!states) row.without_states(x, d);
    for (std::int64_t i = 0; i < row.n; i++) {
      if (row.length(i) > 0) CHECK(differences(right, row.outputs()) != "");
      row.call_alone(i, x, d);
    }
    CHECK(differences(right, row.outputs()) == "");
  }
}

TEMPLATE_PRODUCT_TEST_CASE("documents, backward: the simulator has the CPU's bits", "", (CoreRow, LayerRow), ((bf16, Four), (f32, Four))) {
  TestType row(aligned);
  const Outputs right = run(Cpu(2), row);
  CHECK(differences(right, run(Traced(), row)) == "");
  for (std::uint64_t order : {1, 7}) CHECK(differences(right, run(Traced(Schedule::lifted(), {.parallel_order = order, .late_windows = order == 7}), row)) == "");
}
TEMPLATE_PRODUCT_TEST_CASE("documents, backward: heads per grid step, and placements", "", (CoreRow, LayerRow), ((bf16, Head128), (f32, Head128))) {
  for (const std::vector<i32>& cu : {std::vector<i32>{0, 64, 64, 192, 250}, std::vector<i32>{0, 128}}) {
    TestType row(cu);
    const Outputs right = run(Cpu(2), row);
    for (int heads : {2, 4}) {
      INFO(heads);
      CHECK(differences(right, run(Traced(Schedule::lifted(heads)), row)) == "");
      CHECK(differences(right, run(Traced(Schedule::lifted(heads), {.late_windows = true}), row)) == "");
    }
    for (const Schedule& s : {Schedule::paired(), Schedule::skewed(), Schedule::fastest("backward", mosaic::Target::tpu7x)}) {
      Traced traced(s);
      CHECK(differences(right, run(traced, row)) == "");
      const bool layer = requires { row.x.qkv; };
      CHECK(traced.simulate.module.schedule.starts_with(layer ? "lifted" : s.name()));
    }
  }
}

TEMPLATE_PRODUCT_TEST_CASE("B34: documents by cumulative lengths do not see each other backward", "", (CoreRow, LayerRow), ((bf16, Four), (f32, Four))) {
  for (std::int64_t changed : {1, 4, 7}) {
    TestType row(ragged);
    const Outputs right = run(Cpu(2), row);
    row.change(changed);
    row.run_forward();
    const Outputs louder = run(Cpu(2), row);
    for (std::size_t o = 0; o < right.size(); o++)
      for (std::int64_t i = 0; i < row.n; i++) {
        INFO(right[o].name << " of document " << i);
        const bool tokens = by_tokens(right[o].name);
        if (row.length(i) > 0 || !tokens)
          CHECK((difference(row.part(right[o].values, tokens, i), row.part(louder[o].values, tokens, i)) == "") == (i != changed));
      }
  }
}

TEMPLATE_TEST_CASE("documents, backward: the gradients of each document", "", bf16, f32) {
  CoreRow<TestType, Four> row(ragged);
  const Outputs found = run(Cpu(2), row);
  double worst = 0;
  for (std::int64_t i = 0; i < row.n; i++) {
    INFO("document " << i);
    if (row.length(i) == 0) {
      CHECK(difference(row.part(named(found, "d_initial"), false, i), row.part(row.d_final, false, i)) == "");
      continue;
    }
    const double e = row.error(found, i);
    CHECK(e <= (std::is_same_v<TestType, f32> ? 1e-6 : 1.5e-2));
    worst = std::max(worst, e);
  }
  CHECK(worst > 1e-8);
}

TEST_CASE("documents, backward: cotangents of first states in the place of those of last ones; no gradient of a parameter from no tokens") {
  CoreRow<bf16, Four> row(ragged);
  const Outputs right = run(Cpu(2), row);
  auto d = row.gradients();
  d.d_initial = view(row.d_final, {row.n, row.H, row.K, row.V});
  Cpu cpu(2);
  backward_documents<Four>(cpu, row.x, d, row.cu, row.options);
  row.d_initial = row.d_final;
  CHECK(differences(right, row.outputs()) == "");

  LayerRow<f32, Four> layer(ragged);
  const Outputs all = run(Cpu(2), layer);
  for (const char* name : {"d_conv_weights", "d_conv_bias", "dA_log", "ddt_bias"})
    for (std::int64_t i = 0; i < layer.n; i++) CHECK((zeros_in(layer.part(named(all, name), false, i)) == 1) == (layer.length(i) == 0));
  // The last inputs of no token are those before it; those of one token, all but the first.
  const auto& d_before = named(all, "d_conv_initial");
  for (std::int64_t i = 0; i < layer.n; i++)
    CHECK((difference(layer.part(d_before, false, i), layer.part(layer.d_conv_final, false, i)) == "") == (layer.length(i) == 0));
  auto fresh = layer.gradients();
  fresh.d_conv_initial = view(layer.d_conv_final, {layer.n, 3, layer.D});
  layer_backward_documents<Four>(cpu, layer.x, fresh, layer.cu, layer.options);
  layer.d_conv_initial = layer.d_conv_final;
  CHECK(differences(all, layer.outputs()) == "");
}

TEMPLATE_PRODUCT_TEST_CASE("documents, backward: what is refused", "", (CoreRow, LayerRow), ((f32, Four))) {
  TestType row(ragged);
  const auto d = row.gradients();
  const auto message = [&](std::vector<i32> cu, auto change) {
    auto x = row.x;
    auto of = d;
    change(x, of);
    Cpu cpu(1);
    return message_of([&] {
      if constexpr (requires { x.qkv; }) layer_backward_documents<Four>(cpu, x, of, cu, row.options);
      else backward_documents<Four>(cpu, x, of, cu, row.options);
    });
  };
  const std::string name = text(TestType::name, ": ");
  const auto nothing = [](auto&, auto&) {};
  CHECK(message(ragged, nothing) == "accepted");
  CHECK(message({}, nothing) == name + "cumulative lengths start at -1; expected 0");
  CHECK(message({1, 131}, nothing) == name + "cumulative lengths start at 1; expected 0");
  CHECK(message({0, 9, 5, 131}, nothing) == name + "cu[2] is 5; expected at least cu[1] = 9");
  CHECK(message({0, 9}, nothing) == name + "cumulative lengths end at 9; expected the 131 tokens");
  CHECK(message({0, 0, 7, 7, 39, 64, 64, 64, 131, 131}, nothing) == name + "t_inv has shape [1, 11, 16, 4, 16]; expected [1, 10, 16, 4, 16]");
  CHECK(message(ragged, [](auto& x, auto&) { x.ids.given = true; }) == name + "ids are given too; expected cumulative lengths alone");
  CHECK(message(ragged, [](auto&, auto& d) { d.d_final.shape[0] = 1; }) == name + "d_final has shape [1, 4, 32, 48]; expected [9, 4, 32, 48]");
  CHECK(message(ragged, [](auto&, auto& d) { d.d_initial.shape[0]++; }) == name + "d_initial has shape [10, 4, 32, 48]; expected [9, 4, 32, 48]");
  CHECK(message(ragged, [](auto& x, auto&) { x.initial = {}; }) == name + "d_initial is wanted, and initial is missing");
  Emit emit;
  CHECK(message_of([&] { row.call(emit); }) == name + "chunk 1 starts at token 7; expected a multiple of 16 in a TPU kernel");
}

// Scans over a row's chunks: right answers by the token recurrence in float64, exact zeros and identities, how much class P3 and the tree
// lose over 256 chunks, rows cut in two, and bits on the CPU and in the simulator.
#include <gdn/calls/scans.hpp>

#include "../support/cases.hpp"
#include "traced.hpp"

using namespace gdn;
using namespace gdn::test;

namespace {

constexpr auto P3 = Precision::bf16x3, PF = Precision::f32;

struct Shape {
  int batch = 1, tokens = 64, key_heads = 1, value_heads = 2;
  bool documents = false, gates = true, d_final = false, normalise = false, continues = true;
  std::uint64_t seed = 1;
  std::string name() const {
    return text("B ", batch, " T ", tokens, " heads ", key_heads, "/", value_heads, documents ? ", documents" : "", gates ? "" : ", no gates",
                d_final ? ", d_final" : "", normalise ? ", norm" : "", continues ? "" : ", begins here");
  }
};

// Arguments of both scans. M is that of a forward call on the same arguments, or of one in f32.
template <class Act, class G = Head128> struct Cut {
  static constexpr int C = G::chunk::size, K = G::key::size, V = G::value::size;
  Shape s;
  std::vector<Act> q, k, d_out;
  std::vector<f32> g, beta, d_final, t_inv;
  std::vector<i32> ids;
  ScanOptions options;

  explicit Cut(const Shape& shape) : s(shape) {
    Random random(s.seed);
    const auto normal = [&](auto& x, std::int64_t n, double scale) {
      for (std::int64_t i = 0; i < n; i++) x.push_back(activation<typename std::decay_t<decltype(x)>::value_type>(scale * random.normal()));
    };
    const double unit = 1 / std::sqrt(static_cast<double>(K));
    normal(q, tokens() * s.key_heads * K, s.normalise ? 1 : unit), normal(k, tokens() * s.key_heads * K, s.normalise ? 1 : unit);
    normal(d_out, tokens() * s.value_heads * V, 1), normal(d_final, std::int64_t{s.batch} * s.value_heads * K * V, 1);
    for (std::int64_t i = 0; i < tokens() * s.value_heads; i++) {
      g.push_back(static_cast<f32>(-0.1 * random.uniform() * random.uniform()));
      beta.push_back(random.uniform() > 0.95 ? 0.f : static_cast<f32>(random.uniform()));
    }
    ids = document_ids_of(s.batch, s.tokens, C);
    options = {.use_qk_norm = s.normalise, .continues = s.continues};
  }
  std::int64_t tokens() const { return std::int64_t{s.batch} * s.tokens; }
  std::int64_t chunks() const { return (s.tokens + C - 1) / C; }
  View<const i32, 2> documents() const { return s.documents ? view(ids, {s.batch, s.tokens}) : View<const i32, 2>(); }

  void forward() { t_inv = forward_of(k); }
  template <class X> std::vector<f32> forward_of(const std::vector<X>& keys) const {
    const std::int64_t B = s.batch, T = s.tokens, Hk = s.key_heads, H = s.value_heads;
    std::vector<f32> inverse(static_cast<std::size_t>(B * chunks() * C * H * C));
    const std::vector<X> v(static_cast<std::size_t>(tokens() * H * V));
    CoreArrays<X> a;
    a.k = view(keys, {B, T, Hk, K}), a.v = view(v, {B, T, H, V}), a.beta = view(beta, {B, T, H});
    if (s.gates) a.g = view(g, {B, T, H});
    a.ids = documents();
    a.residuals.t_inv = view(inverse, {B, chunks(), C, H, C});
    Cpu cpu(2);
    forward_states<G>(cpu, a, {.use_qk_norm = s.normalise});
    return inverse;
  }
  void forward_in_f32() {
    std::vector<f32> wide;
    for (Act x : k) wide.push_back(to_f32(x));
    t_inv = forward_of(wide);
  }
  TransitionArrays<Act> transition_arrays(std::vector<f32>& phi) const {
    const std::int64_t B = s.batch, T = s.tokens, Hk = s.key_heads, H = s.value_heads;
    phi.assign(static_cast<std::size_t>(B * H * K * K), std::numeric_limits<f32>::quiet_NaN());
    TransitionArrays<Act> a;
    a.k = view(k, {B, T, Hk, K}), a.beta = view(beta, {B, T, H}), a.t_inv = view(t_inv, {B, chunks(), C, H, C}), a.ids = documents();
    if (s.gates) a.g = view(g, {B, T, H});
    a.phi = view(phi, {B, H, K, K});
    return a;
  }
  StateGradientArrays<Act> gradient_arrays(std::vector<f32>& d) const {
    const std::int64_t B = s.batch, T = s.tokens, Hk = s.key_heads, H = s.value_heads;
    d.assign(static_cast<std::size_t>(B * H * K * V), std::numeric_limits<f32>::quiet_NaN());
    StateGradientArrays<Act> a;
    a.q = view(q, {B, T, Hk, K}), a.k = view(k, {B, T, Hk, K}), a.d_out = view(d_out, {B, T, H, V}), a.beta = view(beta, {B, T, H});
    a.t_inv = view(t_inv, {B, chunks(), C, H, C}), a.ids = documents();
    if (s.gates) a.g = view(g, {B, T, H});
    if (s.d_final) a.d_final = view(d_final, {B, H, K, V});
    a.d_initial = view(d, {B, H, K, V});
    return a;
  }
};

// The two scans, and their trees, as calls of which check_machines asks the outputs.
template <Precision P, class Act, class G = Head128> struct Scans : Cut<Act, G> {
  std::vector<f32> phi{}, d_initial{};
  explicit Scans(const Shape& s) : Cut<Act, G>(s) { this->forward(); }
  template <class Machine> void call(Machine& machine) {
    transition<P, G>(machine, this->transition_arrays(phi), this->options);
    state_gradient<P, G>(machine, this->gradient_arrays(d_initial), this->options);
  }
  template <class Machine> void tree(Machine& machine) {
    transition_by_tree<P, G>(machine, this->transition_arrays(phi), this->options);
    state_gradient_by_tree<P, G>(machine, this->gradient_arrays(d_initial), this->options);
  }
  Outputs outputs() const { return {{"phi", phi}, {"d_initial", d_initial}}; }
};
template <class S> struct Tree : S {
  using S::S;
  template <class Machine> void call(Machine& machine) { this->tree(machine); }
};

// Token by token in float64: phi [B, H, K, K] and d_initial [B, H, K, V].
struct Right {
  std::vector<double> phi, d_initial;
};
template <class Act, class G> Right by_tokens(const Cut<Act, G>& r) {
  constexpr int K = Cut<Act, G>::K, V = Cut<Act, G>::V;
  const Shape& s = r.s;
  Right right;
  const double scale = r.options.scale ? *r.options.scale : 1 / std::sqrt(static_cast<double>(K));
  for (int b = 0; b < s.batch; b++) {
    const auto document = canonical_documents(s.documents ? std::vector<int>(r.ids.begin() + b * s.tokens, r.ids.begin() + (b + 1) * s.tokens) : std::vector<int>(), s.tokens);
    std::vector<char> begins(static_cast<std::size_t>(s.tokens));
    int running = s.continues ? 1 : 0;
    for (int t = 0; t < s.tokens; t++)
      if (document[static_cast<std::size_t>(t)] > 0) begins[static_cast<std::size_t>(t)] = document[static_cast<std::size_t>(t)] != running, running = document[static_cast<std::size_t>(t)];
    for (int h = 0; h < s.value_heads; h++) {
      const auto row = [&](const std::vector<Act>& x, int t, int heads, int head, int n, bool normalise) {
        std::vector<double> y;
        for (int i = 0; i < n; i++) y.push_back(to_f32(x[static_cast<std::size_t>(((b * s.tokens + t) * heads + head) * n + i)]));
        if (normalise) l2norm(y.data(), n);
        return y;
      };
      const auto at = [&](const std::vector<f32>& x, int t) { return static_cast<double>(x[static_cast<std::size_t>((b * s.tokens + t) * s.value_heads + h)]); };
      const auto decay = [&](int t) { return s.gates ? std::exp(at(r.g, t)) : 1.0; };
      // A <- f (A - beta k^T (k A)) with W columns, and f inside or outside, which is the same.
      const auto step = [&](std::vector<double>& A, int W, const std::vector<double>& k, double beta, double f) {
        std::vector<double> kA(static_cast<std::size_t>(W));
        for (int i = 0; i < K; i++)
          for (int j = 0; j < W; j++) kA[static_cast<std::size_t>(j)] += k[static_cast<std::size_t>(i)] * A[static_cast<std::size_t>(i * W + j)];
        for (int i = 0; i < K; i++)
          for (int j = 0; j < W; j++)
            A[static_cast<std::size_t>(i * W + j)] = f * (A[static_cast<std::size_t>(i * W + j)] - beta * k[static_cast<std::size_t>(i)] * kA[static_cast<std::size_t>(j)]);
      };
      const int key_head = h / (s.value_heads / s.key_heads);
      std::vector<double> A(K * K), D(K * V);
      for (int i = 0; i < K; i++) A[static_cast<std::size_t>(i * K + i)] = 1;
      for (int t = 0; t < s.tokens; t++) {
        if (document[static_cast<std::size_t>(t)] == 0) continue;
        if (begins[static_cast<std::size_t>(t)]) std::fill(A.begin(), A.end(), 0.0);
        step(A, K, row(r.k, t, s.key_heads, key_head, K, s.normalise), at(r.beta, t), decay(t));
      }
      if (s.d_final)
        for (int i = 0; i < K * V; i++) D[static_cast<std::size_t>(i)] = r.d_final[static_cast<std::size_t>((b * s.value_heads + h) * K * V + i)];
      for (int t = s.tokens - 1; t >= 0; t--) {
        if (document[static_cast<std::size_t>(t)] == 0) continue;
        const auto q = row(r.q, t, s.key_heads, key_head, K, s.normalise), d = row(r.d_out, t, s.value_heads, h, V, false);
        for (int i = 0; i < K; i++)
          for (int j = 0; j < V; j++) D[static_cast<std::size_t>(i * V + j)] += scale * q[static_cast<std::size_t>(i)] * d[static_cast<std::size_t>(j)];
        step(D, V, row(r.k, t, s.key_heads, key_head, K, s.normalise), at(r.beta, t), decay(t));
        if (begins[static_cast<std::size_t>(t)]) std::fill(D.begin(), D.end(), 0.0);
      }
      right.phi.insert(right.phi.end(), A.begin(), A.end());
      right.d_initial.insert(right.d_initial.end(), D.begin(), D.end());
    }
  }
  return right;
}
template <class A, class B> double error_of(const A& x, const B& right) {
  double error = 0, most = 0;
  for (std::size_t i = 0; i < right.size(); i++) {
    most = std::max(most, std::abs(static_cast<double>(right[i])));
    const double e = std::abs(static_cast<double>(x[i]) - static_cast<double>(right[i]));
    error = e <= error ? error : e;  // a NaN stays
  }
  return most > 0 ? error / most : error;
}
bool all_zero(const std::vector<f32>& x) { return std::all_of(x.begin(), x.end(), [](f32 v) { return v == 0; }); }

template <class Call> void check_machines(const Shape& s, const std::vector<Schedule>& schedules) {
  Call call(s);
  INFO(s.name());
  const Outputs one = run(Cpu(1), call);
  CHECK(differences(one, run(Cpu(3), call)) == "");
  for (const Schedule& schedule : schedules) {
    INFO(described(schedule));
    Traced machine(schedule);
    CHECK(differences(one, run(machine, call)) == "");
    CHECK(machine.simulate.module.schedule == (Call::C == 64 ? schedule.name() : "lifted"));  // no fallback in silence
  }
}

}  // namespace

TEST_CASE("scans: against the token recurrence, documents laid into a row in many ways") {
  for (const auto& layout : document_layouts())
    for (bool continues : {true, false}) {
      if (layout.tokens == 0) continue;
      const Shape s{.tokens = layout.tokens, .documents = !layout.ids.empty(), .d_final = continues, .continues = continues};
      Scans<PF, f32, Small> pf(s);
      Scans<P3, f32, Small> p3(s);
      for (auto* ids : {&pf.ids, &p3.ids}) *ids = std::vector<i32>(layout.ids.begin(), layout.ids.end());
      pf.forward(), p3.forward();
      const Right right = by_tokens(pf);
      INFO(layout.name << (continues ? "" : ", begins here"));
      for (const Outputs& found : {run(Cpu(2), pf), run(Cpu(2), p3)}) {
        CHECK(error_of(named(found, "phi"), right.phi) < 2e-5);
        CHECK(error_of(named(found, "d_initial"), right.d_initial) < 2e-5);
      }
      const Outputs exact = run(Cpu(2), pf);
      CHECK(error_of(named(exact, "phi"), right.phi) < 2e-6);
      CHECK(error_of(named(exact, "d_initial"), right.d_initial) < 2e-6);
      Tree<Scans<PF, f32, Small>> tree(s);
      tree.ids = pf.ids, tree.t_inv = pf.t_inv;
      const Outputs joined = run(Cpu(2), tree);
      CHECK(error_of(named(joined, "phi"), right.phi) < 2e-6);
      CHECK(error_of(named(joined, "d_initial"), right.d_initial) < 2e-6);
    }
}

TEST_CASE("scans: a batch, heads that share keys, norms, scales and no gates") {
  for (bool gates : {true, false})
    for (bool normalise : {true, false}) {
      Scans<PF, f32, Small> call({.batch = 2, .tokens = 50, .key_heads = 2, .value_heads = 4, .documents = true, .gates = gates, .d_final = true, .normalise = normalise});
      if (normalise) call.options.scale = 0.75f;
      INFO(call.s.name());
      const Right right = by_tokens(call);
      const Outputs found = run(Cpu(2), call);
      CHECK(error_of(named(found, "phi"), right.phi) < 1e-6);
      CHECK(error_of(named(found, "d_initial"), right.d_initial) < 1e-6);
    }
}

// I24, I28: 256 chunks of a row that remembers. What the factored scan loses in three bf16 passes is f32's own; the tree loses a hundred times as much.
TEST_CASE("scans: errors over 256 chunks, and the tree's") {
  Cut<bf16> row({.tokens = 16384, .value_heads = 1});
  Random random(3);
  for (auto& g : row.g) g = static_cast<f32>(-1e-4 * random.uniform());
  for (auto& b : row.beta) b = static_cast<f32>(0.01 * sigmoid(random.normal()));
  row.forward_in_f32();
  const Right right = by_tokens(row);
  Cpu cpu(2);
  std::vector<f32> x, y, tree, exact_tree;
  transition<P3>(cpu, row.transition_arrays(x), row.options), transition<PF>(cpu, row.transition_arrays(y), row.options);
  transition_by_tree<P3>(cpu, row.transition_arrays(tree), row.options), transition_by_tree<PF>(cpu, row.transition_arrays(exact_tree), row.options);
  INFO("m scan: P3 " << error_of(x, right.phi) << ", PF " << error_of(y, right.phi) << "; tree: P3 " << error_of(tree, right.phi) << ", PF " << error_of(exact_tree, right.phi));
  CHECK(error_of(x, right.phi) < 3e-6);
  CHECK(error_of(y, right.phi) < 3e-6);
  CHECK(error_of(exact_tree, right.phi) < 1.5e-5);
  CHECK(error_of(tree, right.phi) > 5e-5);
  CHECK(error_of(tree, right.phi) < 1e-3);
  state_gradient<P3>(cpu, row.gradient_arrays(x), row.options), state_gradient<PF>(cpu, row.gradient_arrays(y), row.options);
  state_gradient_by_tree<P3>(cpu, row.gradient_arrays(tree), row.options), state_gradient_by_tree<PF>(cpu, row.gradient_arrays(exact_tree), row.options);
  INFO("dh scan: P3 " << error_of(x, right.d_initial) << ", PF " << error_of(y, right.d_initial) << "; tree: P3 " << error_of(tree, right.d_initial) << ", PF "
                      << error_of(exact_tree, right.d_initial));
  CHECK(error_of(x, right.d_initial) < 5e-6);
  CHECK(error_of(y, right.d_initial) < 2e-6);
  CHECK(error_of(exact_tree, right.d_initial) < 5e-6);
  CHECK(error_of(tree, right.d_initial) > 1e-5);
  CHECK(error_of(tree, right.d_initial) < 4.8e-4);
}

// J10, J11: with the gates of a model nothing is left of a state, and nothing passes the end of a document: exact zeros, in every form.
TEST_CASE("scans: exact zeros") {
  Scans<P3, bf16> model({.tokens = 512, .value_heads = 2});
  Random random(4);
  const double A[] = {random.uniform(1, 16), random.uniform(1, 16)};
  for (std::size_t i = 0; i < model.g.size(); i++) model.g[i] = static_cast<f32>(-A[i % 2] * softplus(random.normal() + 1));
  model.forward();
  CHECK(all_zero(named(run(Cpu(2), model), "phi")));
  CHECK_FALSE(all_zero(named(run(Cpu(2), model), "d_initial")));
  Tree<Scans<P3, bf16>> tree(model.s);
  tree.g = model.g, tree.t_inv = model.t_inv;
  CHECK(all_zero(named(run(Cpu(2), tree), "phi")));

  for (const int end : {1, 63, 64, 65, 100, 149}) {  // the last token of the first document
    Scans<P3, bf16> call({.tokens = 150, .documents = true, .d_final = true}), other(call.s);
    for (int t = 0; t < 150; t++) call.ids[static_cast<std::size_t>(t)] = other.ids[static_cast<std::size_t>(t)] = t < end ? 1 : 2;
    call.forward();
    INFO("a document of " << end << " tokens ends");
    CHECK(all_zero(named(run(Cpu(2), call), "phi")));
    CHECK(all_zero(named(run(Traced(Schedule::skewed()), call), "phi")));
    // What lies behind the document has no part in the gradient of the state before it.
    const auto d = named(run(Cpu(2), call), "d_initial");
    other.t_inv = call.t_inv;
    for (std::size_t i = static_cast<std::size_t>(end) * 2 * 128; i < other.d_out.size(); i++) other.d_out[i] = to_bf16(7.f);
    for (f32& x : other.d_final) x = -3;
    CHECK(difference(std::span<const f32>(d), std::span<const f32>(named(run(Cpu(2), other), "d_initial"))) == "");
    other.s.documents = false;
    other.forward();
    CHECK_FALSE(all_zero(named(run(Cpu(2), other), "phi")));
    CHECK(difference(std::span<const f32>(d), std::span<const f32>(named(run(Cpu(2), other), "d_initial"))) != "");
  }
}

// B49: tokens without effect, and padding, pass on what comes to the bit. B48: a chain that bf16 would lose.
TEST_CASE("scans: identities, and a long chain") {
  for (int padding : {0, 1}) {
    Scans<P3, bf16> call({.tokens = 200, .documents = padding == 1, .d_final = true});
    for (f32& x : call.g) x = 0;
    for (f32& x : call.beta) x = 0;
    for (bf16& x : call.d_out) x = {0};
    for (i32& x : call.ids) x = 0;
    call.forward();
    for (const Outputs& found : {run(Cpu(2), call), run(Traced(Schedule::lifted()), call), run(Traced(Schedule::skewed()), call)}) {
      CHECK(difference(std::span<const f32>(named(found, "d_initial")), std::span<const f32>(call.d_final)) == "");
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < found[0].values.size(); i++) wrong += found[0].values[i] != (i / 128 % 128 == i % 128 ? 1.f : 0.f);
      CHECK(wrong == 0);
    }
  }
  Cut<bf16> row({.tokens = 16384, .value_heads = 1, .gates = false});
  std::fill(row.k.begin(), row.k.end(), bf16{});
  for (std::size_t t = 0; t < 16384; t++) row.k[t * 128] = to_bf16(1);
  std::fill(row.beta.begin(), row.beta.end(), 0x1p-12f);
  row.forward_in_f32();
  Cpu cpu(2);
  std::vector<f32> phi;
  transition<P3>(cpu, row.transition_arrays(phi), row.options);
  CHECK(std::abs(phi[0] / 0.01830670 - 1) < 1e-5);
  transition<Precision::bf16>(cpu, row.transition_arrays(phi), row.options);
  CHECK(std::abs(phi[0] / 0.01830670 - 1) > 1e-5);
  CHECK(phi[129] == 1);
}

// What the scans are for: a row cut in two, and its parts put together, is the row.
TEST_CASE("scans: a row cut in two") {
  for (bool documents : {false, true}) {
    Core<f32, Small> whole({.tokens = 80, .documents = documents, .initial = true});
    for (f32& g : whole.g) g = std::max(g, -0.2f);
    const Outputs right = run(Cpu(2), whole);
    const auto a = whole.arrays();
    const int cut = 48;
    const auto part = [&](auto v, int dim) {  // tokens from the cut on
      if (!v) return v;
      v.data += cut * v.strides[static_cast<std::size_t>(dim)], v.shape[static_cast<std::size_t>(dim)] -= cut;
      return v;
    };
    auto front = a;
    for (auto* v : {&front.q, &front.k}) v->shape[1] = cut;
    front.v.shape[1] = front.g.shape[1] = front.beta.shape[1] = front.out.shape[1] = cut;
    if (documents) front.ids.shape[1] = cut;
    front.residual = {}, front.residuals = {};
    std::vector<f32> s_front(2 * 32 * 48), s_back(s_front), inverse(2 * 16 * 2 * 16), phi(2 * 32 * 32);
    front.final = view(s_front, {1, 2, 32, 48});
    Cpu cpu(1);
    forward<Small>(cpu, front, whole.options);
    auto back = a;
    back.q = part(a.q, 1), back.k = part(a.k, 1), back.v = part(a.v, 1), back.g = part(a.g, 1), back.beta = part(a.beta, 1), back.out = part(a.out, 1), back.ids = part(a.ids, 1);
    const std::vector<f32> zeros(s_back.size());
    back.initial = view(zeros, {1, 2, 32, 48});  // the state is not known yet, but the document goes on
    back.final = view(s_back, {1, 2, 32, 48}), back.residual = {}, back.residuals = {view(inverse, {1, 2, 16, 2, 16}), {}};
    forward<Small>(cpu, back, whole.options);
    // The document goes on, if the token before the cut has its id.
    const bool continues = !documents || whole.ids[cut - 1] == whole.ids[cut] || whole.ids[cut] <= 0 || whole.ids[cut - 1] <= 0;
    CHECK(continues);
    transition<P3, Small>(cpu, TransitionArrays<f32>{back.k, back.g, back.beta, view(std::as_const(inverse), {1, 2, 16, 2, 16}), back.ids, view(phi, {1, 2, 32, 32})}, {.continues = continues});
    std::vector<double> joined;
    for (std::size_t h = 0; h < 2; h++)
      for (std::size_t i = 0; i < 32; i++)
        for (std::size_t j = 0; j < 48; j++) {
          double x = s_back[(h * 32 + i) * 48 + j];
          for (std::size_t l = 0; l < 32; l++) x += static_cast<double>(phi[(h * 32 + i) * 32 + l]) * s_front[(h * 32 + l) * 48 + j];
          joined.push_back(x);
        }
    CHECK(error_of(named(right, "final"), joined) < 1e-5);
    CHECK(all_zero(phi) == documents);
    if (!documents) CHECK(error_of(named(right, "final"), std::vector<double>(s_back.begin(), s_back.end())) > 1e-3);  // without the scan
  }
}

// Chunks in the wrong order, and documents not told, are errors of the size of the result.
TEST_CASE("scans: wrong order and missing documents are seen") {
  Scans<P3, f32, Small> call({.tokens = 96}), reversed(call.s);
  const auto turn = [](auto& x, std::size_t chunks) {
    const std::size_t size = x.size() / chunks;
    auto y = x;
    for (std::size_t c = 0; c < chunks; c++) std::copy_n(x.begin() + static_cast<std::ptrdiff_t>(c * size), size, y.begin() + static_cast<std::ptrdiff_t>((chunks - 1 - c) * size));
    x = y;
  };
  turn(reversed.k, 6), turn(reversed.q, 6), turn(reversed.d_out, 6), turn(reversed.g, 6), turn(reversed.beta, 6), turn(reversed.t_inv, 6);
  const Outputs a = run(Cpu(1), call), b = run(Cpu(1), reversed);
  for (std::size_t i : {0u, 1u}) CHECK(error_of(b[i].values, a[i].values) > 0.1);
}

TEMPLATE_TEST_CASE("scans: CPU and simulator", "", bf16, f32) {
  check_machines<Scans<P3, TestType>>({.batch = 2, .tokens = 200, .key_heads = 2, .value_heads = 4, .documents = true, .d_final = true, .normalise = true}, placements());
  check_machines<Scans<PF, TestType>>({.tokens = 130, .value_heads = 4}, placements());
  check_machines<Scans<P3, TestType>>({.tokens = 64, .value_heads = 2, .gates = false}, placements());
  check_machines<Scans<P3, TestType>>({.tokens = 300, .key_heads = 2, .value_heads = 8, .documents = true}, {Schedule::fastest("state_gradient", mosaic::Target::tpu7x)});
  check_machines<Scans<P3, TestType>>({.tokens = 128, .key_heads = 4, .value_heads = 8, .normalise = true}, {Schedule::lifted(2), Schedule::skewed(4), Schedule::fastest("transition", mosaic::Target::tpu7x)});
  check_machines<Scans<P3, TestType, Small>>({.batch = 2, .tokens = 40, .documents = true, .continues = false}, {Schedule::lifted()});
  check_machines<Tree<Scans<P3, TestType, Small>>>({.batch = 2, .tokens = 90, .documents = true, .d_final = true}, {Schedule::lifted()});
}
TEST_CASE("scans: what is refused, and nothing to do") {
  Cpu cpu(1);
  Scans<P3, f32, Small> call({.tokens = 40, .d_final = true});
  const auto m = [&](auto change) {
    auto a = call.transition_arrays(call.phi);
    change(a);
    transition<P3, Small>(cpu, a);
  };
  const auto dh = [&](auto change) {
    auto a = call.gradient_arrays(call.d_initial);
    change(a);
    state_gradient<P3, Small>(cpu, a);
  };
  CHECK_THROWS_WITH(m([](auto& a) { a.k = {}; }), "transition: k is missing");
  CHECK_THROWS_WITH(m([](auto& a) { a.t_inv = {}; }), "transition: t_inv is missing");
  CHECK_THROWS_WITH(m([](auto& a) { a.phi = {}; }), "transition: phi is missing");
  CHECK_THROWS_WITH(m([](auto& a) { a.t_inv.shape[1] = 2; }), "transition: t_inv has shape [1, 2, 16, 2, 16]; expected [1, 3, 16, 2, 16]");
  CHECK_THROWS_WITH(m([](auto& a) { a.phi.shape[3] = 48; }), "transition: phi has shape [1, 2, 32, 48]; expected [1, 2, 32, 32]");
  CHECK_THROWS_WITH(m([](auto& a) { a.k.shape[2] = 3; }), "transition: 2 value heads and 3 key heads; expected a multiple");
  CHECK_THROWS_WITH(m([](auto& a) { a.g = a.beta; }), Catch::Contains("expected the natural logarithm of a decay, at most 0"));
  CHECK_THROWS_WITH(m([](auto& a) { a.k.data = a.phi.data; }), "transition: output phi overlaps k; expected separate memory");
  CHECK_THROWS_WITH(dh([](auto& a) { a.q = {}; }), "state_gradient: q is missing");
  CHECK_THROWS_WITH(dh([](auto& a) { a.d_out = {}; }), "state_gradient: d_out is missing");
  CHECK_THROWS_WITH(dh([](auto& a) { a.d_final.shape[1] = 1; }), "state_gradient: d_final has shape [1, 1, 32, 48]; expected [1, 2, 32, 48]");
  CHECK_THROWS_WITH(dh([](auto& a) { a.d_out.data = a.d_initial.data; }), "state_gradient: output d_initial overlaps d_out; expected separate memory");
  // In place; and without a token.
  const auto right = named(run(Cpu(1), call), "d_initial");
  auto a = call.gradient_arrays(call.d_initial);
  call.d_initial = call.d_final, a.d_final = a.d_initial;
  state_gradient<P3, Small>(cpu, a);
  CHECK(difference(std::span<const f32>(right), std::span<const f32>(call.d_initial)) == "");
  Scans<P3, f32, Small> none({.tokens = 0, .d_final = true});
  Tree<Scans<P3, f32, Small>> no_tree(none.s);
  for (const Outputs& found : {run(Cpu(1), none), run(Cpu(1), no_tree)}) {
    CHECK(difference(std::span<const f32>(named(found, "d_initial")), std::span<const f32>(none.d_final)) == "");
    CHECK(found[0].values[0] == 1);
    CHECK(found[0].values[1] == 0);
  }
  Emit emit;
  CHECK_THROWS_WITH((transition_by_tree<P3, Small>(emit, call.transition_arrays(call.phi))),
                    "emit: 3 levels of a tree are as many kernels; expected chunk_transitions and join_chunks for each");
}

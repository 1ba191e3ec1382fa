// Rows cut over ranks: what all ranks make together is what one makes alone.
#include <catch2/catch.hpp>
#include <gdn/context/context.hpp>
#include <gdn/context/threads.hpp>

#include "../support/random_inputs.hpp"
#include "same_bits.hpp"

using namespace gdn;
using namespace gdn::test;
using context::Threads;

namespace {

using G = Geometry<16, 32, 48>;
constexpr int K = 32, V = 48, C = 16, B = 2, Hk = 1, H = 2, T = 256, N = T / C;

// A row of the core call with its gradients, and what a rank holds of each array.
struct Sequence {
  std::vector<f32> q, k, v, g, beta, d_out, initial, d_final;
  std::vector<f32> out, final, residual, t_inv, chunk_states, dq, dk, dv, dg, dbeta, d_initial;
  std::vector<i32> ids;
  explicit Sequence(std::vector<i32> documents) : ids(std::move(documents)) {
    Random random(11);
    auto normal = [&](auto& x, std::int64_t n, double scale) {
      for (std::int64_t i = 0; i < n; i++) x.push_back(static_cast<f32>(scale * random.normal()));
    };
    normal(q, B * T * Hk * K, 1), normal(k, B * T * Hk * K, 1), normal(v, B * T * H * V, 1), normal(d_out, B * T * H * V, 1);
    normal(initial, B * H * K * V, 1), normal(d_final, B * H * K * V, 1);
    for (int i = 0; i < B * T * H; i++) g.push_back(static_cast<f32>(-0.05 * random.uniform())), beta.push_back(static_cast<f32>(random.uniform()));
    for (auto* x : {&out, &residual, &dv}) x->resize(static_cast<std::size_t>(B * T * H * V));
    for (auto* x : {&dq, &dk}) x->resize(static_cast<std::size_t>(B * T * Hk * K));
    for (auto* x : {&dg, &dbeta}) x->resize(static_cast<std::size_t>(B * T * H));
    for (auto* x : {&final, &d_initial}) x->resize(static_cast<std::size_t>(B * H * K * V));
    t_inv.resize(static_cast<std::size_t>(B * N * C * H * C)), chunk_states.resize(static_cast<std::size_t>(B * N * H * K * V));
  }
  Outputs outputs() const {
    return {{"out", out}, {"final", final}, {"dq", dq}, {"dk", dk}, {"dv", dv}, {"dg", dg}, {"dbeta", dbeta}, {"d_initial", d_initial}};
  }
};
template <class V> V part(V v, int rank, int ranks) {
  v.shape[1] /= ranks;
  v.data += rank * v.shape[1] * v.strides[1];
  return v;
}
template <class Comm, class Machine> void run_part(Comm& c, Machine machine, Sequence& r, bool states) {
  auto mine = [&](auto v) { return part(v, c.rank(), c.size()); };
  std::vector<f32> final(r.final.size());
  CoreArrays<f32> x;
  x.q = mine(view(std::as_const(r.q), {B, T, Hk, K})), x.k = mine(view(std::as_const(r.k), {B, T, Hk, K})), x.v = mine(view(std::as_const(r.v), {B, T, H, V}));
  x.g = mine(view(std::as_const(r.g), {B, T, H})), x.beta = mine(view(std::as_const(r.beta), {B, T, H})), x.out = mine(view(r.out, {B, T, H, V}));
  x.residual = mine(view(r.residual, {B, T, H, V}));
  x.residuals = {mine(view(r.t_inv, {B, N, C, H, C})), mine(view(r.chunk_states, {B, N, H, K, V}))};
  if (!r.ids.empty()) x.ids = mine(view(std::as_const(r.ids), {B, T}));
  if (states) x.initial = view(std::as_const(r.initial), {B, H, K, V});
  x.final = view(final, {B, H, K, V});
  const CoreOptions o{.use_qk_norm = true};
  context::Rank rank = context::forward<G, Precision::f32>(c, machine, x, o);
  if (c.rank() == 0) r.final = final;
  CoreGradients<f32> d;
  d.d_out = mine(view(std::as_const(r.d_out), {B, T, H, V}));
  if (states) d.d_final = view(std::as_const(r.d_final), {B, H, K, V}), d.d_initial = view(r.d_initial, {B, H, K, V});
  d.dq = mine(view(r.dq, {B, T, Hk, K})), d.dk = mine(view(r.dk, {B, T, Hk, K})), d.dv = mine(view(r.dv, {B, T, H, V}));
  d.dg = mine(view(r.dg, {B, T, H})), d.dbeta = mine(view(r.dbeta, {B, T, H}));
  context::backward<G, Precision::f32>(c, machine, x, d, rank, o);
}
Outputs on_ranks(int ranks, Sequence r, bool states) {
  Threads::run(ranks, [&](Threads& c) { run_part(c, Cpu(1), r, states); });
  return r.outputs();
}
double worst(const Outputs& a, const Outputs& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); i++) {
    double d = 0, n = 0;
    for (std::size_t k = 0; k < a[i].values.size(); k++) d += std::pow(a[i].values[k] - b[i].values[k], 2), n += std::pow(b[i].values[k], 2);
    if (n > 0) most = std::max(most, std::sqrt(d / n));
  }
  return most;
}

// Documents that end at cuts, cross several, and padding that fills a part.
const std::vector<i32> no_documents, documents = document_ids({{1, 100}, {2, 28}, {3, 30}, {0, 40}, {3, 10}, {4, 48},
                                                               {0, 70}, {1, 60}, {2, 1}, {3, 61}, {0, 64}});

}  // namespace

TEST_CASE("context parallel: all ranks together are one") {
  for (const auto* ids : {&no_documents, &documents})
    for (bool states : {false, true}) {
      const Outputs alone = on_ranks(1, Sequence(*ids), states);
      for (int ranks : {2, 4, 8}) {
        INFO(ranks << " ranks" << (ids->empty() ? "" : ", documents") << (states ? ", states" : ""));
        const Outputs together = on_ranks(ranks, Sequence(*ids), states);
        CHECK(worst(together, alone) < 1e-6);
        CHECK(differences(together, on_ranks(ranks, Sequence(*ids), states)) == "");
      }
    }
}
TEST_CASE("context parallel: one rank is the plain call") {
  Sequence r(documents), plain = r;
  const Outputs one = on_ranks(1, r, true);
  CoreArrays<f32> x;
  x.q = view(std::as_const(plain.q), {B, T, Hk, K}), x.k = view(std::as_const(plain.k), {B, T, Hk, K}), x.v = view(std::as_const(plain.v), {B, T, H, V});
  x.g = view(std::as_const(plain.g), {B, T, H}), x.beta = view(std::as_const(plain.beta), {B, T, H}), x.out = view(plain.out, {B, T, H, V});
  x.ids = view(std::as_const(plain.ids), {B, T}), x.initial = view(std::as_const(plain.initial), {B, H, K, V});
  Cpu cpu(1);
  forward<G>(cpu, x, {.use_qk_norm = true});
  CHECK(difference(named(one, "out"), plain.out) == "");
}
TEST_CASE("context parallel: a rank that fails ends the others, with its reason") {
  auto message = [](auto f) {
    try {
      Threads::run(4, f);
    } catch (const std::exception& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK(message([](Threads& c) {
          f32 x = 0;
          if (c.rank() == 2) throw Error("out of memory");
          context::broadcast(c, 2, std::span(&x, 1));
        }) == "out of memory");
  CHECK(message([](Threads& c) {
          f32 x = 0;
          if (c.rank() > 0) c.exchange(-1, nullptr, 0, &x, sizeof x);
        }).ends_with("waits for rank 0, which has ended"));
  CHECK(message([](Threads& c) {
          std::vector<f32> x(2);
          if (c.rank() == 0) c.exchange(1, x.data(), -1, nullptr, 8);
          if (c.rank() == 1) c.exchange(-1, nullptr, 0, x.data(), 4);
        }) == "rank 1 expects 4 bytes from rank 0, which sent 8");
  CHECK(message([](Threads&) {}) == "");
}
TEST_CASE("context parallel: parts that do not fit are refused on every rank") {
  auto refusal = [](auto change) {
    Sequence r(no_documents);
    try {
      Threads::run(2, [&](Threads& c) {
        CoreArrays<f32> x;
        std::int64_t n = T / 2;
        change(c.rank(), n, x);
        x.q = view(std::as_const(r.q), {1, n, Hk, K}), x.k = view(std::as_const(r.k), {1, n, Hk, K}), x.v = view(std::as_const(r.v), {1, n, H, V});
        x.beta = view(std::as_const(r.beta), {1, n, H});
        std::vector<f32> out(r.out.size());
        x.out = view(out, {1, n, H, V});
        Cpu cpu(1);
        context::forward<G>(c, cpu, x);
      });
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK(refusal([](int, std::int64_t& n, auto&) { n = 100; }).ends_with("holds 100 tokens; expected a multiple of 16"));
  const std::string sizes = refusal([](int rank, std::int64_t& n, auto&) { n = rank ? 64 : 128; });
  CHECK(sizes.find("expected the same on all ranks") != std::string::npos);
  std::vector<f32> state(H * K * V);
  CHECK(refusal([&](int rank, std::int64_t&, auto& x) {
          if (rank) x.initial = view(std::as_const(state), {1, H, K, V});
        }) == "context::forward: initial is given on some ranks and missing on others; expected the same on all ranks");
  CHECK(refusal([](int, std::int64_t&, auto&) {}) == "");
}

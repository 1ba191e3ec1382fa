// Rows that are cut over ranks, for threads and for MPI: whole arrays, of which every rank computes its part.
#pragma once
#include <gdn/context/layer.hpp>
#include <gdn/context/threads.hpp>

#include "../support/random_inputs.hpp"
#include "inputs.hpp"

namespace gdn::test::context_parallel {

using G = Geometry<16, 32, 48>;
inline constexpr int K = 32, V = 48, C = 16, B = 2, Hk = 1, H = 2, T = 256, N = T / C, W = 4, D = 2 * Hk * K + H * V;

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
  std::vector<std::vector<f32>*> results() {
    return {&out, &final, &residual, &t_inv, &chunk_states, &dq, &dk, &dv, &dg, &dbeta, &d_initial};
  }
  Outputs outputs() const {
    return {{"out", out}, {"final", final}, {"dq", dq}, {"dk", dk}, {"dv", dv}, {"dg", dg}, {"dbeta", dbeta}, {"d_initial", d_initial}};
  }
};
template <class View> View part(View v, int rank, int ranks) {
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
  if (c.rank() == c.size() - 1) r.final = final;
  CoreGradients<f32> d;
  d.d_out = mine(view(std::as_const(r.d_out), {B, T, H, V}));
  if (states) d.d_final = view(std::as_const(r.d_final), {B, H, K, V}), d.d_initial = view(r.d_initial, {B, H, K, V});
  d.dq = mine(view(r.dq, {B, T, Hk, K})), d.dk = mine(view(r.dk, {B, T, Hk, K})), d.dv = mine(view(r.dv, {B, T, H, V}));
  d.dg = mine(view(r.dg, {B, T, H})), d.dbeta = mine(view(r.dbeta, {B, T, H}));
  context::backward<G, Precision::f32>(c, machine, x, d, rank, o);
}

// The same of the layer.
struct LayerSequence {
  std::vector<f32> qkv, a, b, weights, bias, A_log, dt_bias, conv_initial, initial, d_out, d_final, d_conv_final;
  std::vector<f32> out, final, conv_final, residual, t_inv, chunk_states, dqkv, da, db, d_weights, d_bias, dA_log, ddt_bias, d_conv_initial, d_initial;
  std::vector<i32> ids;
  explicit LayerSequence(std::vector<i32> documents) : ids(std::move(documents)) {
    Random random(12);
    auto normal = [&](auto& x, std::int64_t n, double scale, double mean = 0) {
      for (std::int64_t i = 0; i < n; i++) x.push_back(static_cast<f32>(mean + scale * random.normal()));
    };
    normal(qkv, B * T * D, 1), normal(a, B * T * H, 1), normal(b, B * T * H, 1), normal(weights, W * D, 0.5), normal(bias, D, 0.1);
    normal(A_log, H, 0.5, -4), normal(dt_bias, H, 0.5), normal(conv_initial, B * (W - 1) * D, 1), normal(initial, B * H * K * V, 1);
    normal(d_out, B * T * H * V, 1), normal(d_final, B * H * K * V, 1), normal(d_conv_final, B * (W - 1) * D, 1);
    auto room = [](auto& x, std::int64_t n) { x.resize(static_cast<std::size_t>(n)); };
    room(out, B * T * H * V), room(residual, B * T * H * V), room(final, B * H * K * V), room(d_initial, B * H * K * V);
    room(conv_final, B * (W - 1) * D), room(d_conv_initial, B * (W - 1) * D), room(t_inv, B * N * C * H * C), room(chunk_states, B * N * H * K * V);
    room(dqkv, B * T * D), room(da, B * T * H), room(db, B * T * H), room(d_weights, B * W * D), room(d_bias, B * D), room(dA_log, B * H), room(ddt_bias, B * H);
  }
  std::vector<std::vector<f32>*> results() {
    return {&out, &final, &conv_final, &residual, &t_inv, &chunk_states, &dqkv, &da, &db, &d_weights, &d_bias, &dA_log, &ddt_bias, &d_conv_initial, &d_initial};
  }
  Outputs outputs() const {
    return {{"out", out}, {"final", final}, {"conv_final", conv_final}, {"dqkv", dqkv}, {"da", da}, {"db", db}, {"d_conv_weights", d_weights},
            {"d_conv_bias", d_bias}, {"dA_log", dA_log}, {"ddt_bias", ddt_bias}, {"d_conv_initial", d_conv_initial}, {"d_initial", d_initial}};
  }
};
template <class Comm, class Machine> void run_part(Comm& c, Machine machine, LayerSequence& r, bool states) {
  auto mine = [&](auto v) { return part(v, c.rank(), c.size()); };
  LayerSequence own({});  // what every rank writes whole
  LayerArrays<f32> x;
  x.qkv = mine(view(std::as_const(r.qkv), {B, T, D})), x.a = mine(view(std::as_const(r.a), {B, T, H})), x.b = mine(view(std::as_const(r.b), {B, T, H}));
  x.conv_weights = view(std::as_const(r.weights), {W, D}), x.conv_bias = view(std::as_const(r.bias), {D});
  x.A_log = view(std::as_const(r.A_log), {H}), x.dt_bias = view(std::as_const(r.dt_bias), {H});
  x.out = mine(view(r.out, {B, T, H, V})), x.residual = mine(view(r.residual, {B, T, H, V}));
  x.residuals = {mine(view(r.t_inv, {B, N, C, H, C})), mine(view(r.chunk_states, {B, N, H, K, V}))};
  if (!r.ids.empty()) x.ids = mine(view(std::as_const(r.ids), {B, T}));
  if (states) x.initial = view(std::as_const(r.initial), {B, H, K, V}), x.conv_initial = view(std::as_const(r.conv_initial), {B, W - 1, D});
  x.final = view(own.final, {B, H, K, V}), x.conv_final = view(own.conv_final, {B, W - 1, D});
  const LayerOptions o{.key_heads = Hk};
  context::LayerRank<f32> rank = context::layer_forward<G, Precision::f32>(c, machine, x, o);
  LayerGradients<f32> d;
  d.d_out = mine(view(std::as_const(r.d_out), {B, T, H, V}));
  if (states) {
    d.d_final = view(std::as_const(r.d_final), {B, H, K, V}), d.d_conv_final = view(std::as_const(r.d_conv_final), {B, W - 1, D});
    d.d_initial = view(r.d_initial, {B, H, K, V}), d.d_conv_initial = view(r.d_conv_initial, {B, W - 1, D});
  }
  d.dqkv = mine(view(r.dqkv, {B, T, D})), d.da = mine(view(r.da, {B, T, H})), d.db = mine(view(r.db, {B, T, H}));
  d.d_conv_weights = view(own.d_weights, {B, W, D}), d.d_conv_bias = view(own.d_bias, {B, D}), d.dA_log = view(own.dA_log, {B, H}), d.ddt_bias = view(own.ddt_bias, {B, H});
  context::layer_backward<G, Precision::f32>(c, machine, x, d, rank, o);
  if (c.rank() == c.size() - 1) {
    r.final = own.final, r.conv_final = own.conv_final;
    r.d_weights = own.d_weights, r.d_bias = own.d_bias, r.dA_log = own.dA_log, r.ddt_bias = own.ddt_bias;
  }
}
template <class Row> Outputs on_ranks(int ranks, Row r, bool states) {
  context::Threads::run(ranks, [&](context::Threads& c) { run_part(c, Cpu(1), r, states); });
  return r.outputs();
}

// Documents that end at cuts, cross several, an id that comes again right before a cut, and padding that fills a part.
inline const std::vector<i32> no_documents, documents = document_ids({{1, 100}, {2, 28}, {3, 30}, {0, 40}, {3, 10}, {4, 48},
                                                                      {0, 70}, {1, 56}, {2, 1}, {1, 4}, {3, 61}, {0, 64}});

}  // namespace gdn::test::context_parallel

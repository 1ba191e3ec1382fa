// Backward calls with their memory: what a forward on the CPU left behind, random cotangents, and every gradient.
#pragma once
#include <gdn/calls/backward.hpp>

#include "inputs.hpp"

namespace gdn::test {

template <class Act, class G = Head128> struct CoreBackward {
  static constexpr int C = G::chunk::size, K = G::key::size, V = G::value::size;
  using Geometry = G;
  Spec spec;
  bool final_cotangent = true;
  Core<Act, G> forward;
  CoreArrays<Act> x;  // as the forward had it
  std::vector<Act> d_out, dq, dk, dv;
  std::vector<f32> d_final, dg, dbeta, d_initial;

  explicit CoreBackward(const Spec& s) : spec(s), forward(s) {
    Random random(s.seed + 1000);
    for (std::size_t i = 0; i < forward.v.size(); i++) d_out.push_back(activation<Act>(s.scale * random.normal()));
    for (std::int64_t i = 0; i < forward.states(); i++) d_final.push_back(static_cast<f32>(s.scale * random.normal()));
    run_forward();
  }
  CoreBackward(const CoreBackward&) = delete;
  // Again after a change of the forward's arguments.
  void run_forward() {
    Cpu cpu(2);
    x = forward.arrays();
    gdn::forward<G>(cpu, x, forward.options);
  }

  CoreGradients<Act> gradients() {
    const std::int64_t B = spec.batch, T = spec.tokens, Hk = spec.key_heads, H = spec.value_heads;
    const auto fresh = [](auto& x, std::int64_t n) { x.assign(static_cast<std::size_t>(n), activation<typename std::decay_t<decltype(x)>::value_type>(unwritten)); };
    fresh(dq, B * T * Hk * K), fresh(dk, B * T * Hk * K), fresh(dv, B * T * H * V), fresh(dg, B * T * H), fresh(dbeta, B * T * H);
    fresh(d_initial, forward.states());
    CoreGradients<Act> d;
    d.d_out = view(d_out, {B, T, H, V});
    if (final_cotangent) d.d_final = view(d_final, {B, H, K, V});
    d.dq = view(dq, {B, T, Hk, K}), d.dk = view(dk, {B, T, Hk, K}), d.dv = view(dv, {B, T, H, V});
    if (spec.gates) d.dg = view(dg, {B, T, H});
    d.dbeta = view(dbeta, {B, T, H});
    if (spec.initial) d.d_initial = view(d_initial, {B, H, K, V});
    return d;
  }
  Outputs outputs() const {
    Outputs all;
    add_output(all, "dq", dq, true), add_output(all, "dk", dk, true), add_output(all, "dv", dv, true);
    add_output(all, "dg", dg, spec.gates), add_output(all, "dbeta", dbeta, true), add_output(all, "d_initial", d_initial, spec.initial);
    return all;
  }
  template <class Machine> void call(Machine& machine) { backward<G>(machine, x, gradients(), forward.options); }
};

template <class Act, class G = Head128> struct LayerBackward {
  static constexpr int C = G::chunk::size, K = G::key::size, V = G::value::size, W = G::taps::size;
  using Geometry = G;
  Spec spec;
  bool final_cotangent = true;
  Layer<Act, G> forward;
  LayerArrays<Act> x;  // as the forward had it
  std::vector<Act> d_out, d_conv_final, dqkv, db, da, d_conv_initial;
  std::vector<f32> d_final, d_conv_weights, d_conv_bias, dA_log, ddt_bias, d_initial;

  explicit LayerBackward(const Spec& s) : spec(s), forward(s) {
    Random random(s.seed + 1000);
    for (std::int64_t i = 0; i < forward.tokens() * s.value_heads * V; i++) d_out.push_back(activation<Act>(s.scale * random.normal()));
    for (std::int64_t i = 0; i < forward.states(); i++) d_final.push_back(static_cast<f32>(s.scale * random.normal()));
    for (std::int64_t i = 0; i < s.batch * (W - 1) * forward.channels(); i++) d_conv_final.push_back(activation<Act>(s.scale * random.normal()));
    run_forward();
  }
  LayerBackward(const LayerBackward&) = delete;
  void run_forward() {
    Cpu cpu(2);
    x = forward.arrays();
    layer_forward<G>(cpu, x, options());
  }
  LayerOptions options() const { return {.key_heads = spec.key_heads}; }

  LayerGradients<Act> gradients() {
    const std::int64_t B = spec.batch, T = spec.tokens, H = spec.value_heads, D = forward.channels();
    const auto fresh = [](auto& x, std::int64_t n) { x.assign(static_cast<std::size_t>(n), activation<typename std::decay_t<decltype(x)>::value_type>(unwritten)); };
    fresh(dqkv, B * T * D), fresh(db, B * T * H), fresh(da, B * T * H), fresh(d_conv_initial, B * (W - 1) * D);
    fresh(d_conv_weights, B * W * D), fresh(d_conv_bias, B * D), fresh(dA_log, B * H), fresh(ddt_bias, B * H), fresh(d_initial, forward.states());
    LayerGradients<Act> d;
    d.d_out = view(d_out, {B, T, H, V});
    if (final_cotangent) d.d_final = view(d_final, {B, H, K, V}), d.d_conv_final = view(d_conv_final, {B, W - 1, D});
    d.dqkv = view(dqkv, {B, T, D}), d.db = view(db, {B, T, H}), d.da = view(da, {B, T, H});
    d.d_conv_weights = view(d_conv_weights, {B, W, D});
    if (forward.bias) d.d_conv_bias = view(d_conv_bias, {B, D});
    d.dA_log = view(dA_log, {B, H}), d.ddt_bias = view(ddt_bias, {B, H});
    if (spec.initial) d.d_conv_initial = view(d_conv_initial, {B, W - 1, D}), d.d_initial = view(d_initial, {B, H, K, V});
    return d;
  }
  Outputs outputs() const {
    Outputs all;
    add_output(all, "dqkv", dqkv, true), add_output(all, "db", db, true), add_output(all, "da", da, true);
    add_output(all, "d_conv_weights", d_conv_weights, true), add_output(all, "d_conv_bias", d_conv_bias, forward.bias);
    add_output(all, "dA_log", dA_log, true), add_output(all, "ddt_bias", ddt_bias, true);
    add_output(all, "d_conv_initial", d_conv_initial, spec.initial), add_output(all, "d_initial", d_initial, spec.initial);
    return all;
  }
  template <class Machine> void call(Machine& machine) { layer_backward<G>(machine, x, gradients(), options()); }
};

// n entries of dimension `dim` from `from` on.
template <class T, int Rank> void cut(View<T, Rank>& v, int dim, std::int64_t from, std::int64_t n) {
  if (!v) return;
  v.data += from * v.strides[static_cast<std::size_t>(dim)];
  v.shape[static_cast<std::size_t>(dim)] = n;
}

}  // namespace gdn::test

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

}  // namespace gdn::test

// Forward and backward on the inputs of the oracle, by the library on the CPU.
#pragma once
#include <gdn/calls/backward.hpp>

#include "../support/oracle_backward.hpp"
#include "oracle_calls.hpp"

namespace gdn::test {

template <class Act> struct FoundGradient {
  std::vector<Act> q, k, v;
  std::vector<f32> g, beta, h0;
};

// One row of a batch. What in.g and in.h0 do not give has no gradient. d_state not given: zero. The backward runs on `machine`.
template <class Act = f32, class Machine = Cpu>
FoundGradient<Act> gradient_call(const CoreInput<f32>& in, const Array<f32>& d_out, const Array<f32>& d_state = {}, Machine machine = Machine(2)) {
  const std::int64_t T = in.tokens(), Hk = in.key_heads(), H = in.value_heads(), D = 128, N = (T + 63) / 64;
  require(in.key_dim() == D && in.value_dim() == D, "gradient_call: heads of ", in.key_dim(), " and ", in.value_dim(), " channels; expected 128");
  const auto q = as<Act>(in.q), k = as<Act>(in.k), v = as<Act>(in.v), given = as<Act>(d_out);
  std::vector<Act> out(v.size()), r(v.size());
  std::vector<f32> t_inv(static_cast<std::size_t>(N * 64 * H * 64)), states(static_cast<std::size_t>(N * H * D * D));
  CoreArrays<Act> x;
  x.q = view(q, {1, T, Hk, D}), x.k = view(k, {1, T, Hk, D}), x.v = view(v, {1, T, H, D});
  if (in.g.given()) x.g = view(in.g.data, {1, T, H});
  x.beta = view(in.beta.data, {1, T, H});
  if (in.h0.given()) x.initial = view(in.h0.data, {1, H, D, D});
  if (!in.ids.empty()) x.ids = view(in.ids, {1, T});
  x.out = view(out, {1, T, H, D}), x.residual = view(r, {1, T, H, D});
  x.residuals = {view(t_inv, {1, N, 64, H, 64}), view(states, {1, N, H, D, D})};
  const CoreOptions options{.scale = static_cast<f32>(in.scale), .use_qk_norm = in.use_qk_norm};
  Cpu cpu(2);
  forward(cpu, x, options);

  FoundGradient<Act> to{std::vector<Act>(q.size()), std::vector<Act>(k.size()), std::vector<Act>(v.size()), {}, std::vector<f32>(in.beta.size()), {}};
  CoreGradients<Act> d;
  d.d_out = view(given, {1, T, H, D});
  if (d_state.given()) d.d_final = view(d_state.data, {1, H, D, D});
  d.dq = view(to.q, {1, T, Hk, D}), d.dk = view(to.k, {1, T, Hk, D}), d.dv = view(to.v, {1, T, H, D}), d.dbeta = view(to.beta, {1, T, H});
  if (in.g.given()) to.g.resize(in.g.size()), d.dg = view(to.g, {1, T, H});
  if (in.h0.given()) to.h0.resize(in.h0.size()), d.d_initial = view(to.h0, {1, H, D, D});
  backward(machine, x, d, options);
  return to;
}

struct GradientError {
  double q = 0, k = 0, v = 0, g = 0, beta = 0, h0 = 0;
  double worst() const { return std::max({q, k, v, g, beta, h0}); }
  void add_squares(const GradientError& e) {
    q += e.q * e.q, k += e.k * e.k, v += e.v * e.v, g += e.g * e.g, beta += e.beta * e.beta, h0 += e.h0 * e.h0;
  }
  GradientError roots_over(const GradientError& o) const {
    const auto root = [](double a, double b) { return a == 0 ? 0 : std::sqrt(a / b); };
    return {root(q, o.q), root(k, o.k), root(v, o.v), root(g, o.g), root(beta, o.beta), root(h0, o.h0)};
  }
};
// Relative, in the Euclidean norm; of what `a` has.
template <class A> GradientError gradient_error(const A& a, const CoreGradient& right) {
  const auto of = [](const auto& x, const Array<double>& y) { return std::size(x) == 0 ? 0.0 : relative_l2(x, y); };
  return {of(a.q, right.q), of(a.k, right.k), of(a.v, right.v), of(a.g, right.g), of(a.beta, right.beta), of(a.h0, right.h0)};
}

template <class Act> struct FoundLayerGradient {
  std::vector<Act> qkv, b, a, conv_state;
  std::vector<f32> conv_weights, conv_bias, A_log, dt_bias, h0;
};

template <class Act = f32>
FoundLayerGradient<Act> layer_gradient_call(const LayerInput<f32>& in, const Array<f32>& d_out, const Array<f32>& d_state = {}, const Array<f32>& d_conv = {}) {
  const std::int64_t T = in.tokens(), H = in.value_heads, D = in.channels(), N = (T + 63) / 64;
  const auto qkv = as<Act>(in.qkv), a = as<Act>(in.a), b = as<Act>(in.b), conv = as<Act>(in.conv_state), given = as<Act>(d_out), conv_given = as<Act>(d_conv);
  std::vector<Act> out(given.size()), r(given.size());
  std::vector<f32> t_inv(static_cast<std::size_t>(N * 64 * H * 64)), states(static_cast<std::size_t>(N * H * 128 * 128));
  LayerArrays<Act> x;
  x.qkv = view(qkv, {1, T, D}), x.a = view(a, {1, T, H}), x.b = view(b, {1, T, H});
  x.conv_weights = view(in.conv_weights.data, {4, D});
  if (in.conv_bias.given()) x.conv_bias = view(in.conv_bias.data, {D});
  x.A_log = view(in.A_log.data, {H}), x.dt_bias = view(in.dt_bias.data, {H});
  if (in.conv_state.given()) x.conv_initial = view(conv, {1, 3, D});
  if (in.h0.given()) x.initial = view(in.h0.data, {1, H, 128, 128});
  if (!in.ids.empty()) x.ids = view(in.ids, {1, T});
  x.out = view(out, {1, T, H, 128}), x.residual = view(r, {1, T, H, 128});
  x.residuals = {view(t_inv, {1, N, 64, H, 64}), view(states, {1, N, H, 128, 128})};
  const LayerOptions options{.key_heads = in.key_heads, .use_qk_norm = in.use_qk_norm};
  Cpu cpu(2);
  layer_forward(cpu, x, options);

  FoundLayerGradient<Act> to{std::vector<Act>(qkv.size()), std::vector<Act>(b.size()), std::vector<Act>(a.size()), std::vector<Act>(conv.size()),
                             std::vector<f32>(in.conv_weights.size()), std::vector<f32>(in.conv_bias.size()), std::vector<f32>(in.A_log.size()),
                             std::vector<f32>(in.dt_bias.size()), std::vector<f32>(in.h0.size())};
  LayerGradients<Act> d;
  d.d_out = view(given, {1, T, H, 128});
  if (d_state.given()) d.d_final = view(d_state.data, {1, H, 128, 128});
  if (d_conv.given()) d.d_conv_final = view(conv_given, {1, 3, D});
  d.dqkv = view(to.qkv, {1, T, D}), d.db = view(to.b, {1, T, H}), d.da = view(to.a, {1, T, H});
  d.d_conv_weights = view(to.conv_weights, {1, 4, D});
  if (in.conv_bias.given()) d.d_conv_bias = view(to.conv_bias, {1, D});
  d.dA_log = view(to.A_log, {1, H}), d.ddt_bias = view(to.dt_bias, {1, H});
  if (in.conv_state.given()) d.d_conv_initial = view(to.conv_state, {1, 3, D});
  if (in.h0.given()) d.d_initial = view(to.h0, {1, H, 128, 128});
  layer_backward(cpu, x, d, options);
  return to;
}

}  // namespace gdn::test

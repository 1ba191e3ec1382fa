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

// One row of a batch. What in.g and in.h0 do not give has no gradient. d_state not given: zero.
template <class Act = f32> FoundGradient<Act> gradient_call(const CoreInput<f32>& in, const Array<f32>& d_out, const Array<f32>& d_state = {}) {
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
  backward(cpu, x, d, options);
  return to;
}

struct GradientError {
  double q = 0, k = 0, v = 0, g = 0, beta = 0, h0 = 0;
  double worst() const { return std::max({q, k, v, g, beta, h0}); }
};
// Relative, in the Euclidean norm; of what `a` has.
template <class A> GradientError gradient_error(const A& a, const CoreGradient& right) {
  const auto of = [](const auto& x, const Array<double>& y) { return std::size(x) == 0 ? 0.0 : relative_l2(x, y); };
  return {of(a.q, right.q), of(a.k, right.k), of(a.v, right.v), of(a.g, right.g), of(a.beta, right.beta), of(a.h0, right.h0)};
}

}  // namespace gdn::test

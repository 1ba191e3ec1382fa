// What every backward is held against: reverse mode of the token recurrence of oracle.hpp in float64, as plain loops.
//
//   o = s q S      S = S' + k^T r      r = beta (v - k S')      S' = e^g S_before
//
// Given do and the cotangent of the final state; the gradient of a normalised row is that of x / sqrt(sum x^2 + 1e-6). Shares no code
// with the library.
#pragma once
#include "oracle.hpp"

namespace gdn::test {

struct CoreGradient {
  Array<double> q, k, v, g, beta, h0;
};

namespace detail {

// dx of y = x / sqrt(sum x^2 + 1e-6) from dy.
inline std::vector<double> l2norm_backward(const double* x, const std::vector<double>& dy) {
  double sum = 1e-6, along = 0;
  for (std::size_t i = 0; i < dy.size(); ++i) sum += x[i] * x[i], along += x[i] * dy[i];
  std::vector<double> dx(dy.size());
  for (std::size_t i = 0; i < dy.size(); ++i) dx[i] = dy[i] / std::sqrt(sum) - x[i] * along / (sum * std::sqrt(sum));
  return dx;
}

}  // namespace detail

// Gradients of sum(out . d_out) + sum(state . d_state); d_state not given: zero. Those of padding are 0.
inline CoreGradient recurrence_backward(const CoreInput<double>& in, const Array<double>& d_out, const Array<double>& d_state = {}) {
  detail::check_shapes(in);
  const int T = in.tokens(), Hv = in.value_heads(), K = in.key_dim(), V = in.value_dim(), per_key = Hv / in.key_heads();
  const auto document = canonical_documents(in.ids, T);
  CoreGradient to{Array<double>(in.q.shape), Array<double>(in.k.shape), Array<double>(in.v.shape), Array<double>(in.beta.shape),
                  Array<double>(in.beta.shape), Array<double>({Hv, K, V})};
  const auto KV = static_cast<std::size_t>(K * V);
  for (int h = 0; h < Hv; ++h) {
    const int j = h / per_key;
    std::vector<double> S(KV, 0.0), dS(KV, 0.0);
    if (in.h0.given()) std::copy(in.h0.row(h), in.h0.row(h) + KV, S.begin());
    if (d_state.given()) std::copy(d_state.row(h), d_state.row(h) + KV, dS.begin());
    int running = 1;
    std::vector<char> opens(static_cast<std::size_t>(T), 0);  // a document
    for (int t = 0; t < T; ++t) {
      if (document[t] == 0) continue;
      opens[t] = document[t] != running;
      running = document[t];
    }
    // The state before token t, as it finds it, into `before`; then that behind it.
    const auto step = [&](int t, double* before) {
      if (document[t] == 0) return;
      if (opens[t]) std::fill(S.begin(), S.end(), 0.0);
      if (before) std::copy(S.begin(), S.end(), before);
      const auto k = detail::head_row(in.k, t, j, in.use_qk_norm);
      const double decay = in.g.given() ? std::exp(in.g(t, h)) : 1.0;
      std::vector<double> kS(V, 0.0);
      for (int i = 0; i < K; ++i)
        for (int c = 0; c < V; ++c) kS[c] += k[i] * (S[i * V + c] *= decay);
      for (int i = 0; i < K; ++i)
        for (int c = 0; c < V; ++c) S[i * V + c] += k[i] * in.beta(t, h) * (in.v(t, h, c) - kS[c]);
    };
    // States are kept at the ends of blocks, and computed again inside them.
    constexpr int block = 64;
    std::vector<std::vector<double>> ends;
    for (int t = 0; t < T; ++t) {
      if (t % block == 0) ends.push_back(S);
      step(t, nullptr);
    }
    std::vector<double> states(block * KV);
    for (int t = T - 1; t >= 0; --t) {
      if (t == T - 1 || t % block == block - 1) {
        S = ends[static_cast<std::size_t>(t / block)];
        for (int u = t / block * block; u <= t; ++u) step(u, states.data() + static_cast<std::size_t>(u % block) * KV);
      }
      if (document[t] == 0) continue;
      const auto q = detail::head_row(in.q, t, j, in.use_qk_norm), k = detail::head_row(in.k, t, j, in.use_qk_norm);
      const double decay = in.g.given() ? std::exp(in.g(t, h)) : 1.0, beta = in.beta(t, h);
      const double* old = states.data() + static_cast<std::size_t>(t % block) * KV;
      const double* d_o = d_out.row(t, h);
      std::vector<double> e(V), dr(V, 0.0), dq(K, 0.0), dk(K, 0.0);
      for (int c = 0; c < V; ++c) {
        e[c] = in.v(t, h, c);
        for (int i = 0; i < K; ++i) e[c] -= k[i] * decay * old[i * V + c];
      }
      for (int i = 0; i < K; ++i)
        for (int c = 0; c < V; ++c) {
          dq[i] += in.scale * d_o[c] * (decay * old[i * V + c] + k[i] * beta * e[c]);
          dS[i * V + c] += in.scale * q[i] * d_o[c];
          dk[i] += dS[i * V + c] * beta * e[c];
          dr[c] += k[i] * dS[i * V + c];
        }
      double d_beta = 0, d_decay = 0;
      for (int c = 0; c < V; ++c) {
        d_beta += dr[c] * e[c];
        to.v(t, h, c) = beta * dr[c];
      }
      for (int i = 0; i < K; ++i)
        for (int c = 0; c < V; ++c) {
          dk[i] -= beta * dr[c] * decay * old[i * V + c];
          dS[i * V + c] -= k[i] * beta * dr[c];
          d_decay += dS[i * V + c] * old[i * V + c];
          dS[i * V + c] *= decay;
        }
      to.beta(t, h) = d_beta;
      to.g(t, h) = d_decay * decay;
      if (in.use_qk_norm) dq = detail::l2norm_backward(in.q.row(t, j), dq), dk = detail::l2norm_backward(in.k.row(t, j), dk);
      for (int i = 0; i < K; ++i) to.q(t, j, i) += dq[i], to.k(t, j, i) += dk[i];
      if (opens[t]) std::fill(dS.begin(), dS.end(), 0.0);
    }
    std::copy(dS.begin(), dS.end(), to.h0.row(h));
  }
  return to;
}

struct LayerGradient {
  Array<double> qkv, b, a, conv_weights, conv_bias, A_log, dt_bias, conv_state, h0;
  Array<double> A_log_size, dt_bias_size;  // sums of absolute values of what those of A_log and dt_bias are sums of
};

// Gradients of sum(out . d_out) + sum(state . d_state) + sum(conv_state . d_conv) of the fused layer.
inline LayerGradient fused_layer_backward(const LayerInput<double>& in, const Array<double>& d_out, const Array<double>& d_state = {},
                                          const Array<double>& d_conv = {}) {
  const int T = in.tokens(), Hk = in.key_heads, K = in.key_dim, Hv = in.value_heads, D = in.channels(), taps = in.taps(), halo = taps - 1;
  const auto core = core_of(in);
  const auto d = recurrence_backward(core, d_out, d_state);
  LayerGradient to{Array<double>({T, D}), Array<double>({T, Hv}), Array<double>({T, Hv}), Array<double>({taps, D}), Array<double>({D}),
                   Array<double>({Hv}), Array<double>({Hv}), Array<double>({halo, D}), d.h0,
                   Array<double>({Hv}), Array<double>({Hv})};
  const auto document = canonical_documents(in.ids, T);
  const bool packed = !in.ids.empty(), continues = in.conv_state.given();
  const auto doc = [&](int t) { return t >= 0 ? document[t] : continues ? 1 : 0; };
  for (int t = 0; t < T; ++t) {
    if (doc(t) == 0) continue;
    for (int c = 0; c < D; ++c) {
      const int at = c < Hk * K ? c : c < 2 * Hk * K ? c - Hk * K : c - 2 * Hk * K;
      const double dy = (c < Hk * K ? d.q : c < 2 * Hk * K ? d.k : d.v).row(t)[at];
      double z = in.conv_bias.given() ? in.conv_bias(c) : 0;
      const auto seen = [&](int from) { return !packed || doc(from) == doc(t); };
      const auto x = [&](int from) { return from >= 0 ? in.qkv(from, c) : continues ? in.conv_state(halo + from, c) : 0.0; };
      for (int j = 0; j < taps; ++j)
        if (seen(t + j - halo)) z += in.conv_weights(j, c) * x(t + j - halo);
      const double s = sigmoid(z), dz = dy * (s + z * s * (1 - s));
      to.conv_bias(c) += dz;
      for (int j = 0; j < taps; ++j) {
        const int from = t + j - halo;
        if (!seen(from)) continue;
        to.conv_weights(j, c) += dz * x(from);
        if (from >= 0) to.qkv(from, c) += dz * in.conv_weights(j, c);
        else to.conv_state(halo + from, c) += dz * in.conv_weights(j, c);
      }
    }
    for (int h = 0; h < Hv; ++h) {
      to.b(t, h) = d.beta(t, h) * core.beta(t, h) * (1 - core.beta(t, h));
      to.a(t, h) = -d.g(t, h) * std::exp(in.A_log(h)) * sigmoid(in.a(t, h) + in.dt_bias(h));
      to.A_log(h) += d.g(t, h) * core.g(t, h);
      to.dt_bias(h) += to.a(t, h);
      to.A_log_size(h) += std::abs(d.g(t, h) * core.g(t, h));
      to.dt_bias_size(h) += std::abs(to.a(t, h));
    }
  }
  // The new convolution state is a copy of the last inputs.
  int end = T - 1;
  while (packed && end >= 0 && doc(end) == 0) --end;
  for (int j = 0; d_conv.given() && j < halo; ++j) {
    const int from = end - halo + 1 + j;
    if (packed && doc(from) != doc(end)) continue;
    for (int c = 0; c < D; ++c) (from >= 0 ? to.qkv(from, c) : to.conv_state(halo + from, c)) += d_conv(j, c);
  }
  return to;
}

}  // namespace gdn::test

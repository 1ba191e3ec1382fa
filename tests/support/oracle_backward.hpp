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
    std::vector<double> before(static_cast<std::size_t>(T) * KV);  // the state before each token, as it finds it
    std::vector<double> S(KV, 0.0), dS(KV, 0.0);
    if (in.h0.given()) std::copy(in.h0.row(h), in.h0.row(h) + KV, S.begin());
    if (d_state.given()) std::copy(d_state.row(h), d_state.row(h) + KV, dS.begin());
    std::vector<int> opened(static_cast<std::size_t>(T), 0);
    int running = 1;
    for (int t = 0; t < T; ++t) {
      if (document[t] == 0) continue;
      opened[t] = document[t] != running;
      if (opened[t]) std::fill(S.begin(), S.end(), 0.0);
      running = document[t];
      std::copy(S.begin(), S.end(), before.begin() + static_cast<std::ptrdiff_t>(t * KV));
      const auto k = detail::head_row(in.k, t, j, in.use_qk_norm);
      const double decay = in.g.given() ? std::exp(in.g(t, h)) : 1.0;
      std::vector<double> kS(V, 0.0);
      for (int i = 0; i < K; ++i)
        for (int c = 0; c < V; ++c) kS[c] += k[i] * (S[i * V + c] *= decay);
      for (int i = 0; i < K; ++i)
        for (int c = 0; c < V; ++c) S[i * V + c] += k[i] * in.beta(t, h) * (in.v(t, h, c) - kS[c]);
    }
    for (int t = T - 1; t >= 0; --t) {
      if (document[t] == 0) continue;
      const auto q = detail::head_row(in.q, t, j, in.use_qk_norm), k = detail::head_row(in.k, t, j, in.use_qk_norm);
      const double decay = in.g.given() ? std::exp(in.g(t, h)) : 1.0, beta = in.beta(t, h);
      const double* old = before.data() + static_cast<std::size_t>(t) * KV;
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
      if (opened[t]) std::fill(dS.begin(), dS.end(), 0.0);
    }
    std::copy(dS.begin(), dS.end(), to.h0.row(h));
  }
  return to;
}

}  // namespace gdn::test

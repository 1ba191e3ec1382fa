// What every kernel is held against: the gated delta rule in float64, as plain loops.
//
//   S <- e^g S      S <- S + k^T beta (v - k S)      o = scale q S          token by token, row vectors
//
//   q, k [T,Hk,K]   v [T,Hv,V]   g (natural log), beta [T,Hv]   S [Hv,K,V]   value head h reads key head h / (Hv / Hk)
//
// One row of a batch; callers loop. Shares no code with the library.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <gdn/error.hpp>
#include <initializer_list>
#include <utility>
#include <vector>

namespace gdn::test {

// A dense row-major array. Without a shape it stands for an argument that was not given.
template <class T>
struct Array {
  std::vector<int> shape;
  std::vector<T> data;

  Array() = default;
  explicit Array(std::vector<int> extents, T fill = {}) : shape(std::move(extents)) {
    std::size_t count = 1;
    for (int n : shape) count *= static_cast<std::size_t>(n);
    data.assign(count, fill);
  }

  bool given() const { return !shape.empty(); }
  std::size_t size() const { return data.size(); }
  auto begin() const { return data.begin(); }
  auto end() const { return data.end(); }
  T& operator[](std::size_t i) { return data[i]; }
  const T& operator[](std::size_t i) const { return data[i]; }

  // All indices give an element, fewer the first element of what is left: x(t, h) is the start of a row.
  template <class... I>
  T& operator()(I... index) {
    return data[offset({static_cast<int>(index)...})];
  }
  template <class... I>
  const T& operator()(I... index) const {
    return data[offset({static_cast<int>(index)...})];
  }
  template <class... I>
  T* row(I... index) {
    return data.data() + offset({static_cast<int>(index)...});
  }
  template <class... I>
  const T* row(I... index) const {
    return data.data() + offset({static_cast<int>(index)...});
  }

 private:
  std::size_t offset(std::initializer_list<int> index) const {
    std::size_t at = 0;
    for (std::size_t axis = 0; axis < shape.size(); ++axis) {
      at = at * static_cast<std::size_t>(shape[axis]) + static_cast<std::size_t>(axis < index.size() ? index.begin()[axis] : 0);
    }
    return at;
  }
};

template <class To, class From>
Array<To> cast(const Array<From>& x) {
  Array<To> y;
  y.shape = x.shape;
  for (const auto& value : x.data) y.data.push_back(static_cast<To>(value));
  return y;
}

// Rows first .. last - 1 of the leading axis.
template <class T>
Array<T> rows(const Array<T>& x, int first, int last) {
  if (!x.given()) return x;
  auto shape = x.shape;
  shape[0] = last - first;
  Array<T> y(shape);
  const std::size_t width = x.shape[0] == 0 ? 0 : x.size() / static_cast<std::size_t>(x.shape[0]);
  for (std::size_t i = 0; i < y.size(); ++i) y[i] = x[static_cast<std::size_t>(first) * width + i];
  return y;
}

// ---------------------------------------------------------------------------------------------------- documents

// Ids as callers give them (<= 0: padding) become 0 on padding and 1, 2, 3, .. on documents. A valid token opens a new document when
// its id differs from that of the last valid token; padding does not split. No ids: one document.
inline std::vector<int> canonical_documents(const std::vector<int>& ids, int tokens) {
  if (ids.empty()) return std::vector<int>(static_cast<std::size_t>(tokens), 1);
  require(static_cast<int>(ids.size()) == tokens, "oracle: ", ids.size(), " document ids for ", tokens, " tokens");
  std::vector<int> document(ids.size(), 0);
  int last = 0, count = 0;
  for (std::size_t t = 0; t < ids.size(); ++t) {
    if (ids[t] <= 0) continue;
    if (ids[t] != last) ++count;
    last = ids[t];
    document[t] = count;
  }
  return document;
}

// ---------------------------------------------------------------------------------------------------- scalar functions

inline double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
inline double silu(double x) { return x * sigmoid(x); }
inline double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

// x * rsqrt(sum x^2 + 1e-6), in place.
inline void l2norm(double* x, int n) {
  double sum = 1e-6;
  for (int i = 0; i < n; ++i) sum += x[i] * x[i];
  for (int i = 0; i < n; ++i) x[i] *= 1 / std::sqrt(sum);
}

// g = -exp(A_log) softplus(a + dt_bias), and exactly 0 where softplus is: no inf * 0.
inline double log_decay(double A_log, double a, double dt_bias) {
  const double s = softplus(a + dt_bias);
  return s == 0 ? 0.0 : -std::exp(A_log) * s;
}

// ---------------------------------------------------------------------------------------------------- the core call

template <class T>
struct CoreInput {
  Array<T> q, k, v;      // [T,Hk,K] [T,Hk,K] [T,Hv,V]
  Array<T> g;            // [T,Hv], not given: no decay
  Array<T> beta;         // [T,Hv]
  Array<T> h0;           // [Hv,K,V], continues the first document; not given: zero
  std::vector<int> ids;  // [T], empty: one document
  double scale = 1;
  bool use_qk_norm = false;

  int tokens() const { return v.shape[0]; }
  int key_heads() const { return k.shape[1]; }
  int value_heads() const { return v.shape[1]; }
  int key_dim() const { return k.shape[2]; }
  int value_dim() const { return v.shape[2]; }
};

template <class T>
CoreInput<double> widen(const CoreInput<T>& in) {
  return {cast<double>(in.q),  cast<double>(in.k), cast<double>(in.v), cast<double>(in.g), cast<double>(in.beta),
          cast<double>(in.h0), in.ids,             in.scale,           in.use_qk_norm};
}

// Tokens first .. last - 1, with the same initial state.
template <class T>
CoreInput<T> tokens_of(const CoreInput<T>& in, int first, int last) {
  auto part = in;
  part.q = rows(in.q, first, last), part.k = rows(in.k, first, last), part.v = rows(in.v, first, last);
  part.g = rows(in.g, first, last), part.beta = rows(in.beta, first, last);
  if (!in.ids.empty()) part.ids.assign(in.ids.begin() + first, in.ids.begin() + last);
  return part;
}

struct CoreResult {
  Array<double> out;              // [T,Hv,V], 0 on padding
  Array<double> state;            // [Hv,K,V], of the last document
  Array<double> chunk_states;     // [N,Hv,K,V], before each chunk, of the document that is running there
  Array<double> document_states;  // [documents,Hv,K,V], at the end of each (recurrence only, when asked)
  Array<double> t_inv;            // [N,Hv,C,C], M; rows past the end are those of I (chunked only)
  Array<double> r;                // [T,Hv,V], M (v - gf . (k S)) (chunked only)
};

namespace detail {

template <class T>
void check_shapes(const CoreInput<T>& in) {
  const int T_ = in.tokens(), Hk = in.key_heads(), Hv = in.value_heads(), K = in.key_dim(), V = in.value_dim();
  const auto has = [](const Array<T>& x, std::vector<int> shape, const char* name) {
    require(x.shape == shape, "oracle: ", name, " has a wrong shape");
  };
  require(Hk > 0 && Hv % Hk == 0, "oracle: ", Hv, " value heads are no multiple of ", Hk, " key heads");
  has(in.q, {T_, Hk, K}, "q"), has(in.k, {T_, Hk, K}, "k"), has(in.v, {T_, Hv, V}, "v"), has(in.beta, {T_, Hv}, "beta");
  if (in.g.given()) has(in.g, {T_, Hv}, "g");
  if (in.h0.given()) has(in.h0, {Hv, K, V}, "h0");
}

inline int chunk_count(int tokens, int chunk) { return (tokens + chunk - 1) / chunk; }

// The row of key head j at token t as the rule reads it: normalised where asked.
inline std::vector<double> head_row(const Array<double>& x, int t, int j, bool norm) {
  const int K = x.shape[2];
  std::vector<double> row(x.row(t, j), x.row(t, j) + K);
  if (norm) l2norm(row.data(), K);
  return row;
}

}  // namespace detail

// The rule itself, token by token.
inline CoreResult recurrence(const CoreInput<double>& in, int chunk = 64, bool each_document = false) {
  detail::check_shapes(in);
  const int T = in.tokens(), Hv = in.value_heads(), K = in.key_dim(), V = in.value_dim(), per_key = Hv / in.key_heads();
  const auto document = canonical_documents(in.ids, T);
  int documents = 0;
  for (int d : document) documents = std::max(documents, d);

  CoreResult to;
  to.out = Array<double>({T, Hv, V});
  to.state = in.h0.given() ? in.h0 : Array<double>({Hv, K, V});
  to.chunk_states = Array<double>({detail::chunk_count(T, chunk), Hv, K, V});
  if (each_document) to.document_states = Array<double>({documents, Hv, K, V});
  for (int h = 0; h < Hv; ++h) {
    double* S = to.state.row(h);
    int running = 1;  // the initial state continues the first document
    for (int t = 0; t < T; ++t) {
      if (t % chunk == 0) std::copy(S, S + K * V, to.chunk_states.row(t / chunk, h));
      if (document[t] == 0) continue;
      if (document[t] != running) std::fill(S, S + K * V, 0.0);
      running = document[t];

      const auto q = detail::head_row(in.q, t, h / per_key, in.use_qk_norm), k = detail::head_row(in.k, t, h / per_key, in.use_qk_norm);
      const double* v = in.v.row(t, h);
      const double decay = in.g.given() ? std::exp(in.g(t, h)) : 1.0;
      std::vector<double> kS(V, 0.0);
      for (int i = 0; i < K; ++i) {
        for (int j = 0; j < V; ++j) kS[j] += k[i] * (S[i * V + j] *= decay);
      }
      double* o = to.out.row(t, h);
      for (int i = 0; i < K; ++i) {
        for (int j = 0; j < V; ++j) {
          S[i * V + j] += k[i] * in.beta(t, h) * (v[j] - kS[j]);
          o[j] += in.scale * q[i] * S[i * V + j];
        }
      }
      if (each_document) std::copy(S, S + K * V, to.document_states.row(running - 1, h));
    }
  }
  return to;
}

// Documents as offsets cu [documents + 1] with an initial state each, h0 [documents,Hv,K,V] or not given: every document is a call of
// its own. state is [documents,Hv,K,V]; an empty document hands its initial state on. Ids and h0 of `in` are not read.
inline CoreResult recurrence_by_document(const CoreInput<double>& in, const std::vector<int>& cu, const Array<double>& h0 = {}) {
  const int documents = static_cast<int>(cu.size()) - 1, Hv = in.value_heads(), K = in.key_dim(), V = in.value_dim();
  CoreResult to;
  to.out = Array<double>({in.tokens(), Hv, V});
  to.state = Array<double>({documents, Hv, K, V});
  for (int d = 0; d < documents; ++d) {
    auto one = tokens_of(in, cu[d], cu[d + 1]);
    one.ids.clear();
    one.h0 = h0.given() ? Array<double>({Hv, K, V}) : Array<double>();
    if (h0.given()) std::copy(h0.row(d), h0.row(d) + Hv * K * V, one.h0.data.begin());
    const auto result = recurrence(one);
    std::copy(result.out.begin(), result.out.end(), to.out.data.begin() + static_cast<std::ptrdiff_t>(cu[d]) * Hv * V);
    std::copy(result.state.begin(), result.state.end(), to.state.row(d));
  }
  return to;
}

// ---------------------------------------------------------------------------------------------------- the chunk form

// (I + N)^-1 by substitution: row i of X is e_i - sum over j < i of N_ij X_j. N [n,n], only its strict lower part is read.
inline Array<double> unit_lower_inverse(const Array<double>& N) {
  const int n = N.shape[0];
  Array<double> X({n, n});
  for (int i = 0; i < n; ++i) {
    X(i, i) = 1;
    for (int j = 0; j < i; ++j) {
      for (int c = 0; c <= j; ++c) X(i, c) -= N(i, j) * X(j, c);
    }
  }
  return X;
}

// Chunk by chunk, as the kernels do it:
//
//   G_ij = e^(g_j+1 + .. + g_i)   N = strict(G . k k^T) diag(beta)   M = (I + N)^-1   r = M (v - gf . (k S))
//   o = gf . (q S) + (causal(G . q k^T) diag(beta)) r                S' = glast S + (k (gb beta))^T r
//
// within documents: G_ij = 0 across them; gf, gb, glast are 0 on rows that do not read, do not reach, or do not connect the states.
// Exponents are summed over the rows between, not differences of prefix sums: nothing cancels, and g = -inf forgets.
inline CoreResult chunked(const CoreInput<double>& in, int chunk = 64) {
  detail::check_shapes(in);
  const int T = in.tokens(), Hv = in.value_heads(), K = in.key_dim(), V = in.value_dim(), C = chunk, per_key = Hv / in.key_heads();
  const int N_chunks = detail::chunk_count(T, C);
  const auto document = canonical_documents(in.ids, T);

  CoreResult to;
  to.out = Array<double>({T, Hv, V});
  to.r = Array<double>({T, Hv, V});
  to.state = in.h0.given() ? in.h0 : Array<double>({Hv, K, V});
  to.chunk_states = Array<double>({N_chunks, Hv, K, V});
  to.t_inv = Array<double>({N_chunks, Hv, C, C});
  for (int h = 0; h < Hv; ++h) {
    double* S = to.state.row(h);
    int running = 1;
    for (int n = 0; n < N_chunks; ++n) {
      const int first = n * C, rows_here = std::min(C, T - first);
      const auto doc = [&](int i) { return document[first + i]; };
      const auto beta = [&](int i) { return in.beta(first + i, h); };
      std::copy(S, S + K * V, to.chunk_states.row(n, h));

      int last = running;  // the document that is running at the end of the chunk
      for (int i = 0; i < rows_here; ++i) last = doc(i) > 0 ? doc(i) : last;

      // Sum of g over valid rows from .. upto - 1.
      const auto decay = [&](int from, int upto) {
        double sum = 0;
        for (int i = from; i < upto && in.g.given(); ++i) sum += doc(i) > 0 ? in.g(first + i, h) : 0.0;
        return std::exp(sum);
      };
      std::vector<std::vector<double>> q(rows_here), k(rows_here);
      for (int i = 0; i < rows_here; ++i) {
        q[i] = detail::head_row(in.q, first + i, h / per_key, in.use_qk_norm);
        k[i] = detail::head_row(in.k, first + i, h / per_key, in.use_qk_norm);
      }
      const auto dot = [K](const std::vector<double>& a, const std::vector<double>& b) {
        double sum = 0;
        for (int i = 0; i < K; ++i) sum += a[i] * b[i];
        return sum;
      };
      const auto times_S = [&](const std::vector<double>& a) {
        std::vector<double> y(V, 0.0);
        for (int i = 0; i < K; ++i) {
          for (int j = 0; j < V; ++j) y[j] += a[i] * S[i * V + j];
        }
        return y;
      };

      Array<double> N({C, C}), E({C, C});  // E = causal(G . q k^T) diag(beta)
      for (int i = 0; i < rows_here; ++i) {
        for (int j = 0; j <= i; ++j) {
          if (doc(i) == 0 || doc(i) != doc(j)) continue;
          const double G = decay(j + 1, i + 1);
          if (j < i) N(i, j) = G * dot(k[i], k[j]) * beta(j);
          E(i, j) = G * dot(q[i], k[j]) * beta(j);
        }
      }
      const auto M = unit_lower_inverse(N);
      std::copy(M.begin(), M.end(), to.t_inv.row(n, h));

      Array<double> u({C, V});  // v - gf . (k S)
      for (int i = 0; i < rows_here; ++i) {
        if (doc(i) == 0) continue;
        for (int j = 0; j < V; ++j) u(i, j) = in.v(first + i, h, j);
        if (doc(i) != running) continue;
        const auto kS = times_S(k[i]), qS = times_S(q[i]);
        const double gf = decay(0, i + 1);
        for (int j = 0; j < V; ++j) {
          u(i, j) -= gf * kS[j];
          to.out(first + i, h, j) = in.scale * gf * qS[j];
        }
      }
      for (int i = 0; i < rows_here; ++i) {
        for (int l = 0; l <= i; ++l) {
          for (int j = 0; j < V; ++j) to.r(first + i, h, j) += M(i, l) * u(l, j);
        }
      }
      for (int i = 0; i < rows_here; ++i) {
        for (int l = 0; l <= i; ++l) {
          for (int j = 0; j < V; ++j) to.out(first + i, h, j) += in.scale * E(i, l) * to.r(first + l, h, j);
        }
      }

      const double glast = last == running ? decay(0, rows_here) : 0.0;
      for (int i = 0; i < K * V; ++i) S[i] = last == running ? glast * S[i] : 0.0;
      for (int t = 0; t < rows_here; ++t) {
        if (doc(t) != last) continue;
        const double gb = decay(t + 1, rows_here);
        for (int i = 0; i < K; ++i) {
          for (int j = 0; j < V; ++j) S[i * V + j] += k[t][i] * gb * beta(t) * to.r(first + t, h, j);
        }
      }
      running = last;
    }
  }
  return to;
}

// ---------------------------------------------------------------------------------------------------- the fused layer

template <class T>
struct LayerInput {
  int key_heads = 0, key_dim = 0, value_heads = 0, value_dim = 0;
  Array<T> qkv;           // [T,D] before the convolution, D = q heads | k heads | v heads
  Array<T> b, a;          // [T,Hv]
  Array<T> conv_weights;  // [taps,D], the last tap multiplies the current token
  Array<T> conv_bias;     // [D] or not given
  Array<T> A_log, dt_bias;  // [Hv]
  Array<T> conv_state;    // [taps-1,D], oldest first; not given: zero
  Array<T> h0;            // [Hv,K,V] or not given
  std::vector<int> ids;   // [T], empty: one document
  bool use_qk_norm = true;

  int tokens() const { return qkv.shape[0]; }
  int channels() const { return qkv.shape[1]; }
  int taps() const { return conv_weights.shape[0]; }
};

template <class T>
LayerInput<double> widen(const LayerInput<T>& in) {
  return {in.key_heads, in.key_dim, in.value_heads, in.value_dim, cast<double>(in.qkv), cast<double>(in.b), cast<double>(in.a),
          cast<double>(in.conv_weights), cast<double>(in.conv_bias), cast<double>(in.A_log), cast<double>(in.dt_bias),
          cast<double>(in.conv_state), cast<double>(in.h0), in.ids, in.use_qk_norm};
}

struct ConvResult {
  Array<double> y;      // [T,D], silu(conv), 0 on padding
  Array<double> state;  // [taps-1,D]
};

// y_t = silu(sum over taps j of w_j x_(t+j-taps+1) + bias), where x before the row is the caller's state. With documents a tap counts
// only if its token is in the document of t; the caller's state is in the first one. The new state ends at the last valid token.
inline ConvResult conv_silu(const Array<double>& x, const Array<double>& weights, const Array<double>& bias = {},
                            const Array<double>& state = {}, const std::vector<int>& ids = {}) {
  const int T = x.shape[0], D = x.shape[1], taps = weights.shape[0], halo = taps - 1;
  const auto document = canonical_documents(ids, T);
  const auto value = [&](int t, int c) { return t >= 0 ? x(t, c) : state.given() ? state(halo + t, c) : 0.0; };  // t >= -halo
  const auto doc = [&](int t) { return t >= 0 ? document[t] : state.given() ? 1 : 0; };
  const bool packed = !ids.empty();

  ConvResult to{Array<double>({T, D}), Array<double>({halo, D})};
  for (int t = 0; t < T; ++t) {
    for (int c = 0; c < D; ++c) {
      if (doc(t) == 0) continue;
      double z = 0;
      for (int j = 0; j < taps; ++j) {
        const int from = t + j - halo;
        if (!packed || doc(from) == doc(t)) z += weights(j, c) * value(from, c);
      }
      to.y(t, c) = silu(bias.given() ? z + bias(c) : z);
    }
  }
  int end = T - 1;
  while (packed && end >= 0 && doc(end) == 0) --end;
  if (packed && end < 0 && !state.given()) return to;  // nothing valid
  for (int j = 0; j < halo; ++j) {
    const int from = end - halo + 1 + j;
    for (int c = 0; c < D; ++c) {
      if (from >= -halo && (!packed || doc(from) == doc(end))) to.state(j, c) = value(from, c);
    }
  }
  return to;
}

// The core call a layer makes: after convolution, SiLU and gates. conv_state receives the new convolution state.
inline CoreInput<double> core_of(const LayerInput<double>& in, Array<double>* conv_state = nullptr) {
  const int T = in.tokens(), Hk = in.key_heads, K = in.key_dim, Hv = in.value_heads, V = in.value_dim;
  require(in.channels() == 2 * Hk * K + Hv * V, "oracle: qkv has ", in.channels(), " channels, not ", 2 * Hk * K + Hv * V);
  const auto conv = conv_silu(in.qkv, in.conv_weights, in.conv_bias, in.conv_state, in.ids);
  if (conv_state) *conv_state = conv.state;

  CoreInput<double> core;
  core.q = Array<double>({T, Hk, K}), core.k = Array<double>({T, Hk, K}), core.v = Array<double>({T, Hv, V});
  core.g = Array<double>({T, Hv}), core.beta = Array<double>({T, Hv});
  core.h0 = in.h0, core.ids = in.ids, core.use_qk_norm = in.use_qk_norm, core.scale = 1 / std::sqrt(static_cast<double>(K));
  for (int t = 0; t < T; ++t) {
    const double* y = conv.y.row(t);
    std::copy(y, y + Hk * K, core.q.row(t));
    std::copy(y + Hk * K, y + 2 * Hk * K, core.k.row(t));
    std::copy(y + 2 * Hk * K, y + in.channels(), core.v.row(t));
    for (int h = 0; h < Hv; ++h) {
      core.g(t, h) = log_decay(in.A_log(h), in.a(t, h), in.dt_bias(h));
      core.beta(t, h) = sigmoid(in.b(t, h));
    }
  }
  return core;
}

struct LayerResult {
  CoreResult core;
  Array<double> conv_state;  // [taps-1,D]
};

inline LayerResult fused_layer(const LayerInput<double>& in, int chunk = 64) {
  LayerResult to;
  to.core = recurrence(core_of(in, &to.conv_state), chunk);
  return to;
}

}  // namespace gdn::test

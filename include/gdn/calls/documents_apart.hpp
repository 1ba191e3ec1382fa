// Documents of a row with a state of their own: each runs as a sequence by itself, from its initial to its final state, with the
// bits of a call on it alone. cu [n + 1] are cumulative lengths: document i is tokens cu[i] .. cu[i + 1] - 1; empty ones pass states on.
// B is 1; states are [n, ..]; chunks are counted document by document, N = sum of ceil(length / C).
#pragma once
#include "gdn/calls/forward.hpp"

namespace gdn {

namespace detail {

template <class T, int Rank> View<T, Rank> slice(View<T, Rank> v, int dim, std::int64_t from, std::int64_t n) {
  if (!v) return v;
  v.data += from * v.strides[dim];
  v.shape[dim] = n;
  return v;
}
inline std::int64_t check_lengths(const char* call, std::span<const i32> cu, std::int64_t batch, std::int64_t tokens) {
  require(batch == 1, call, ": ", batch, " rows with cumulative lengths; expected 1");
  require(!cu.empty() && cu.front() == 0, call, ": cumulative lengths start at ", cu.empty() ? -1 : cu.front(), "; expected 0");
  for (std::size_t i = 1; i < cu.size(); i++)
    require(cu[i] >= cu[i - 1], call, ": cu[", i, "] is ", cu[i], "; expected at least cu[", i - 1, "] = ", cu[i - 1]);
  require(cu.back() == tokens, call, ": cumulative lengths end at ", cu.back(), "; expected the ", tokens, " tokens");
  return static_cast<std::int64_t>(cu.size()) - 1;
}
// f(document, first token, tokens, first chunk, chunks)
template <class F> void each_document(std::span<const i32> cu, int C, F f) {
  std::int64_t chunk = 0;
  for (std::size_t i = 0; i + 1 < cu.size(); i++) {
    const std::int64_t n = cu[i + 1] - cu[i], chunks = (n + C - 1) / C;
    f(static_cast<std::int64_t>(i), static_cast<std::int64_t>(cu[i]), n, chunk, chunks);
    chunk += chunks;
  }
}
inline std::int64_t chunks_of(std::span<const i32> cu, int C) {
  std::int64_t n = 0;
  each_document(cu, C, [&](auto, auto, auto, auto, std::int64_t chunks) { n += chunks; });
  return n;
}
inline void check_chunks(const char* call, std::span<const i32> cu, int C, const Residuals& r) {
  const std::int64_t n = chunks_of(cu, C);
  require(!r.t_inv || r.t_inv.shape[1] == n, call, ": t_inv has ", r.t_inv.shape[1], " chunks; expected ", n);
  require(!r.chunk_states || r.chunk_states.shape[1] == n, call, ": chunk_states has ", r.chunk_states.shape[1], " chunks; expected ", n);
}
template <class T> void check_states(const char* call, const char* name, const View<T, 4>& v, std::int64_t documents) {
  require(!v || v.shape[0] == documents, call, ": ", name, " has ", v.shape[0], " states; expected one of each of the ", documents, " documents");
}

}  // namespace detail

template <class G = Head128, class Machine, class Act>
void forward_documents(Machine& machine, const CoreArrays<Act>& x, std::span<const i32> cu, const CoreOptions& options = {}) {
  using detail::slice;
  const char* call = "forward_documents";
  checks::given(call, "k", static_cast<bool>(x.k));
  const std::int64_t documents = detail::check_lengths(call, cu, x.k.shape[0], x.k.shape[1]);
  require(!x.ids, call, ": ids are given too; expected cumulative lengths alone");
  detail::check_states(call, "initial", x.initial, documents);
  detail::check_states(call, "final", x.final, documents);
  detail::check_chunks(call, cu, G::chunk::size, x.residuals);
  machine.check_repeats(documents);
  detail::each_document(cu, G::chunk::size, [&](std::int64_t i, std::int64_t from, std::int64_t n, std::int64_t chunk, std::int64_t chunks) {
    CoreArrays<Act> one{slice(x.q, 1, from, n), slice(x.k, 1, from, n), slice(x.v, 1, from, n), slice(x.g, 1, from, n),
                        slice(x.beta, 1, from, n), slice(x.initial, 0, i, 1), {}, slice(x.out, 1, from, n), slice(x.final, 0, i, 1),
                        slice(x.residual, 1, from, n), {slice(x.residuals.t_inv, 1, chunk, chunks), slice(x.residuals.chunk_states, 1, chunk, chunks)}};
    detail::core<G, true>(call, machine, one, options);
  });
}

template <class G = Head128, class Machine, class Act>
void layer_forward_documents(Machine& machine, const LayerArrays<Act>& x, std::span<const i32> cu, const LayerOptions& options) {
  using detail::slice;
  const char* call = "layer_forward_documents";
  checks::given(call, "qkv", static_cast<bool>(x.qkv));
  const std::int64_t documents = detail::check_lengths(call, cu, x.qkv.shape[0], x.qkv.shape[1]);
  require(!x.ids, call, ": ids are given too; expected cumulative lengths alone");
  detail::check_states(call, "initial", x.initial, documents);
  detail::check_states(call, "final", x.final, documents);
  detail::check_chunks(call, cu, G::chunk::size, x.residuals);
  machine.check_repeats(documents);
  detail::each_document(cu, G::chunk::size, [&](std::int64_t i, std::int64_t from, std::int64_t n, std::int64_t chunk, std::int64_t chunks) {
    LayerArrays<Act> one = x;
    one.qkv = slice(x.qkv, 1, from, n);
    one.a = slice(x.a, 1, from, n);
    one.b = slice(x.b, 1, from, n);
    one.conv_initial = slice(x.conv_initial, 0, i, 1);
    one.conv_final = slice(x.conv_final, 0, i, 1);
    one.initial = slice(x.initial, 0, i, 1);
    one.final = slice(x.final, 0, i, 1);
    one.out = slice(x.out, 1, from, n);
    one.residual = slice(x.residual, 1, from, n);
    one.residuals = {slice(x.residuals.t_inv, 1, chunk, chunks), slice(x.residuals.chunk_states, 1, chunk, chunks)};
    detail::layer<G, true>(call, machine, one, options);
  });
}

}  // namespace gdn

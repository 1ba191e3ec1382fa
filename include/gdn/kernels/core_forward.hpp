// The chunked gated delta rule from prepared q, k, v, g and beta.
#pragma once
#include "gdn/kernels/chunk_forward.hpp"
#include "gdn/kernels/short_conv.hpp"

namespace gdn {

template <class M, class C, class K, class V> struct CoreRefs {
  Ref<M, f32, C, K> q, k;
  Ref<M, f32, C, V> v;
  Ref<M, f32, C, One> g, beta;  // g absent: no decay
  ForwardRefs<M, C, K, V> forward;
};
struct QueryOptions {
  f32 scale = 1;
  bool normalise = false;  // l2norm of q and k
  // Without l2norm q is used as it is, in class P1 without a second rounding, and the output is scaled.
  QueryOptions of_query() const { return {normalise ? scale : 1.f, normalise}; }
  f32 of_output() const { return normalise ? 1.f : scale; }
};

// q or k of a chunk, as the rule reads it.
template <Precision P, class D, class M, class C, class K>
Tile<M, f32, C, K> prepared_key(const D& documents, const Ref<M, f32, C, K>& r, f32 scale, bool normalise) {
  auto t = valid_rows(documents, load(r));
  if (normalise) return as_operand<P>(l2_normalised(t, scale));
  return scale == 1.f ? t : t * scale;
}
// No decay: zeros made of beta, because sums of them within documents are values of a head, too.
template <class D, class M, class C> Column<M, f32, C> decay_or_none(const D& documents, const Ref<M, f32, C, One>& g, const Column<M, f32, C>& beta) {
  return g ? valid_rows(documents, load(g)) : map([](auto b) { return max(min(b, 0.f), 0.f); }, beta);
}
template <Precision P, bool Outputs, class D, class M, class C, class K, class V>
ForwardInputs<M, C, K, V> core_inputs(M& m, const D& documents, const CoreRefs<M, C, K, V>& x, const QueryOptions& options) {
  auto keys = m.per_key_head([&] {
    auto k = prepared_key<P>(documents, x.k, 1.f, options.normalise);
    if constexpr (Outputs) return Keys<M, C, K>{prepared_key<P>(documents, x.q, options.scale, options.normalise), k};
    else return Keys<M, C, K>{k, k};
  });
  auto v = valid_rows(documents, load(x.v));
  auto beta = valid_rows(documents, load(x.beta));
  return {keys, v, decay_or_none(documents, x.g, beta), beta};
}

template <Precision P, bool Outputs, InverseOrder O, class D, class M, class C, class K, class V>
void core_forward_head(M& m, const D& documents, const CoreRefs<M, C, K, V>& x, const QueryOptions& options) {
  const QueryOptions query = options.of_query();
  forward_head<P, Outputs, O>(m, documents, x.forward, [&] { return core_inputs<P, Outputs>(m, documents, x, query); }, options.of_output());
}

}  // namespace gdn

// The backward of the core call: cotangents of q, k, v, g, beta and of the initial state. Chunks run from the last to the first.
#pragma once
#include "gdn/kernels/chunk_backward.hpp"
#include "gdn/kernels/core_forward.hpp"

namespace gdn {

template <class M, class C, class K, class V> struct CoreBackwardRefs {
  Ref<M, f32, C, K> q, k;
  Ref<M, f32, C, One> g, beta;  // g absent: no decay
  BackwardRefs<M, C, K, V> chunk;
  Ref<M, f32, C, K> dq, dk;  // all that follow: absent when not asked for
  Ref<M, f32, C, V> dv;
  Ref<M, f32, C, One> dg, dbeta;
};

// q or k of a chunk as the rule reads it, and what l2norm multiplied it by, if it is asked for.
template <class M, class C, class K> struct PreparedKey {
  Tile<M, f32, C, K> x;
  Column<M, f32, C> factor;
};
template <Precision P, class D, class M, class C, class K>
PreparedKey<M, C, K> prepared_for_backward(const D& documents, const Ref<M, f32, C, K>& r, const QueryOptions& options) {
  if (!options.normalise) return {prepared_key<P>(documents, r, options.scale, false), {}};
  auto y = valid_rows(documents, load(r));
  auto factor = l2_factor(y, options.scale);
  return {as_operand<P>(y * factor), factor};
}
// The cotangent of what the array holds from that of the prepared q or k.
template <class D, class M, class C, class K>
Tile<M, f32, C, K> prepared_key_backward(const D& documents, const PreparedKey<M, C, K>& p, const Tile<M, f32, C, K>& d, const QueryOptions& options) {
  if (!options.normalise) return valid_rows(documents, scaled(d, options.scale));
  return valid_rows(documents, l2_normalised_backward(p.x, p.factor, d, options.scale));
}

template <Precision P, class D, class M, class C, class K, class V>
void core_backward_head(M& m, const D& documents, const CoreBackwardRefs<M, C, K, V>& x, const QueryOptions& options) {
  const QueryOptions of_q = options.of_query(), of_k{1.f, options.normalise};
  const f32 scale = options.of_output();
  struct Prepared {
    PreparedKey<M, C, K> q, k;
    BackwardKeys<M, C, K> keys;
    Column<M, f32, C> beta;
    BackwardScores<M, C, K> scores;
  };
  auto p = m.stage(0, [&] {
    auto [q, k, keys] = m.per_key_head([&] {
      auto k = prepared_for_backward<P>(documents, x.k, of_k);
      auto q = prepared_for_backward<P>(documents, x.q, of_q);
      return std::tuple{q, k, backward_keys<P>(documents, Keys<M, C, K>{q.x, k.x}, scale)};
    });
    auto beta = valid_rows(documents, load(x.beta));
    auto g = decay_or_none(documents, x.g, beta);
    return Prepared{q, k, keys, beta, backward_scores<P>(documents, keys, g, beta, load(x.chunk.t_inv))};
  });
  auto sums = m.stage(1, [&] {
    auto d = head_cotangents<P>(documents, x.chunk, p.keys, p.scores, p.beta, scale);
    if (x.dv) store(x.dv, valid_rows(documents, d.dv));
    if (x.dq || x.dk)
      with_head_sums(
          m,
          [&](const auto&... sums) {
            auto key = key_cotangents<P>(documents, p.keys.rows, KeySums<M, C, K>{sums...}, scale);
            if (x.dq) store(x.dq, prepared_key_backward(documents, p.q, key.dq, of_q));
            if (x.dk) store(x.dk, prepared_key_backward(documents, p.k, key.dk, of_k));
          },
          d.key.U, d.key.X, d.key.h, d.key.I);
    return d.gates;
  });
  m.stage(2, [&] {
    auto d = gate_cotangents(documents, sums, p.scores, p.beta, scale);
    if (x.dg) store(x.dg, valid_rows(documents, d.dg));
    if (x.dbeta) store(x.dbeta, valid_rows(documents, d.dbeta));
    return 0;
  });
}

}  // namespace gdn

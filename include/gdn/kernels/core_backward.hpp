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

// The cotangent of what the array holds from that of the prepared q or k.
template <class D, class M, class C, class K>
Tile<M, f32, C, K> prepared_key_backward(const D& documents, const Ref<M, f32, C, K>& r, const Tile<M, f32, C, K>& d, const QueryOptions& options) {
  auto raw = options.normalise ? l2_normalised_backward(valid_rows(documents, load(r)), d, options.scale) : d;
  return valid_rows(documents, raw);
}

template <Precision P, class D, class M, class C, class K, class V>
void core_backward_head(M& m, const D& documents, const CoreBackwardRefs<M, C, K, V>& x, const QueryOptions& options) {
  const QueryOptions query = options.of_query();
  struct Prepared {
    BackwardKeys<M, C, K> keys;
    Column<M, f32, C> beta;
    BackwardScores<M, C, K> scores;
  };
  auto p = m.stage(0, [&] {
    auto keys = m.per_key_head([&] {
      auto k = prepared_key<P>(documents, x.k, 1.f, query.normalise);
      return backward_keys<P>(documents, Keys<M, C, K>{prepared_key<P>(documents, x.q, query.scale, query.normalise), k});
    });
    auto beta = valid_rows(documents, load(x.beta));
    auto g = decay_or_none(documents, x.g, beta);
    return Prepared{keys, beta, backward_scores<P>(documents, keys, g, beta, load(x.chunk.t_inv), options.of_output())};
  });
  auto sums = m.stage(1, [&] {
    auto d = head_cotangents<P>(documents, x.chunk, p.keys, p.scores, p.beta, options.of_output());
    if (x.dv) store(x.dv, valid_rows(documents, d.dv));
    if (x.dq || x.dk)
      with_head_sums(
          m,
          [&](const auto& U, const auto& X, const auto& hq, const auto& hk) {
            auto key = key_cotangents<P>(p.keys.rows, U, X, hq, hk);
            if (x.dq) store(x.dq, prepared_key_backward(documents, x.q, key.dq, query));
            if (x.dk) store(x.dk, prepared_key_backward(documents, x.k, key.dk, {1.f, query.normalise}));
          },
          d.U, d.X, d.hq, d.hk);
    return d.sums;
  });
  m.stage(2, [&] {
    auto d = gate_cotangents(documents, sums, p.beta, p.scores.gl);
    if (x.dg) store(x.dg, valid_rows(documents, d.dg));
    if (x.dbeta) store(x.dbeta, valid_rows(documents, d.dbeta));
    return 0;
  });
}

}  // namespace gdn

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
};

template <Precision P, TileLike X> X as_operand(const X& x) {
  if constexpr (P == Precision::bf16) return rounded(x);
  else return x;
}

template <Precision P, bool Outputs, class D, class M, class C, class K, class V>
void core_forward_head(M& m, const D& documents, const CoreRefs<M, C, K, V>& x, const QueryOptions& options) {
  auto prepared = [&](const Ref<M, f32, C, K>& r, f32 scale) {
    auto t = valid_rows(documents, load(r));
    if (options.normalise) return as_operand<P>(l2_normalised(t, scale));
    return scale == 1.f ? t : t * scale;
  };
  forward_head<P, Outputs>(m, documents, x.forward, [&] {
    auto keys = m.per_key_head([&] {
      auto k = prepared(x.k, 1.f);
      if constexpr (Outputs) return Keys<M, C, K>{prepared(x.q, options.scale), k};
      else return Keys<M, C, K>{k, k};
    });
    auto v = valid_rows(documents, load(x.v));
    auto beta = valid_rows(documents, load(x.beta));
    auto g = x.g ? valid_rows(documents, load(x.g)) : zeros_like(beta);
    return ForwardInputs<M, C, K, V>{keys, v, g, beta};
  });
}

}  // namespace gdn

// The whole layer around the gated delta rule (Qwen3-Next): short convolution with SiLU, l2norm of q and k, gates, chunked forward.
//   q = l2norm(silu(conv(x_q))) scale      k = l2norm(silu(conv(x_k)))      v = silu(conv(x_v))
// With bf16 activations q, k and v are rounded to bf16, as a backward pass that starts from them needs it.
#pragma once
#include "gdn/kernels/core_forward.hpp"

namespace gdn {

// One of q, k, v before the convolution: T taps, W channels of a head.
template <class M, class C, class W, class T> struct ConvRefs {
  using Edge = Row<T::size - 1>;
  Ref<M, f32, C, W> x;
  Ref<M, f32, T, W> weights;
  Ref<M, f32, One, W> bias;         // absent: no bias
  Ref<M, f32, Row<tail_rows>, W> tail;  // carried
  Ref<M, f32, Edge, W> state;       // the last inputs of the row, written in the chunk that holds them; absent when not asked for
};
template <class M, class C, class K, class V, class T> struct LayerRefs {
  ConvRefs<M, C, K, T> q, k;
  ConvRefs<M, C, V, T> v;
  Ref<M, f32, C, One> a, b;
  Ref<M, f32, One, One> A_log, dt_bias;
  Ref<M, i32, One, One> edge_plan;
  ForwardRefs<M, C, K, V> forward;
};

template <class D, class M, class C, class W, class T>
Tile<M, f32, C, W> conv_silu(const D& documents, const ConvRefs<M, C, W, T>& r, const Ref<M, i32, One, One>& edge_plan) {
  auto x = rows_of_array(documents, load(r.x));
  auto tail = load(r.tail);
  if (r.state) store_rows(r.state, concat_rows(tail, x), edge_plan);
  store(r.tail, tail_of(x));
  if (!r.bias) return silu_of_short_conv(documents, x, tail, load(r.weights));
  return silu_of_short_conv(documents, x, tail, load(r.weights), load(r.bias));
}

// The gates of a head that has a, b, A_log and dt_bias; 0 on padding.
template <class D, class Refs> auto decay_of(const D& documents, const Refs& x) {
  return valid_rows(documents, decay_gate(valid_rows(documents, load(x.a)), load(x.A_log), load(x.dt_bias)));
}
template <class D, class Refs> auto beta_of(const D& documents, const Refs& x) {
  return valid_rows(documents, sigmoid(valid_rows(documents, load(x.b))));
}

// conv(r): a q, k or v of the head behind its convolution.
template <Precision P, bool Outputs, class D, class M, class Refs, class Conv>
auto layer_inputs(M& m, const D& documents, const Refs& x, const QueryOptions& options, Conv conv) {
  auto normalised = [&](const auto& y, f32 scale) { return as_operand<P>(options.normalise ? l2_normalised(y, scale) : y * scale); };
  auto keys = m.per_key_head([&] {
    auto k = normalised(conv(x.k), 1.f);
    using Pair = Keys<M, typename decltype(k)::rows, typename decltype(k)::cols>;
    if constexpr (!Outputs)
      if (!x.q.state) return Pair{k, k};
    return Pair{normalised(conv(x.q), options.scale), k};
  });
  auto v = as_operand<P>(conv(x.v));
  return ForwardInputs<M, typename decltype(v)::rows, typename decltype(keys.k)::cols, typename decltype(v)::cols>{
      keys, v, decay_of(documents, x), beta_of(documents, x)};
}

template <Precision P, bool Outputs, InverseOrder O, class D, class M, class C, class K, class V, class T>
void layer_forward_head(M& m, const D& documents, const LayerRefs<M, C, K, V, T>& x, const QueryOptions& options) {
  forward_head<P, Outputs, O>(m, documents, x.forward, [&] {
    return layer_inputs<P, Outputs>(m, documents, x, options, [&](const auto& r) { return conv_silu(documents, r, x.edge_plan); });
  });
}

}  // namespace gdn

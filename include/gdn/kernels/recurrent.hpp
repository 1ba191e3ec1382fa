// One token of the gated delta rule for one value head: the rule itself, for decoding and as the second opinion on chunks.
//   S' = e^g S      r = beta (v - k S')      S = S' + k^T r      o = q S
//   q, k [1, K]   v, r, o [1, V]   S [K, V]   g, beta scalars
// Products and sums are rounded each. Both dots are of class PF for bf16 activations too: on real states v - k S' is a small difference
// of large numbers. e^g is exp, not the exp2 of a rounded g log2 e: its error would come back at every token of a long row.
#pragma once
#include "gdn/kernels/layer_forward.hpp"

namespace gdn {

// What a token is to the running document. Padding gives 0 and leaves the state; the first token of a document finds zeros.
struct TokenWord {
  static constexpr i32 is_valid = 1, begins = 2;
};
template <class M> struct TokenDocument : TokenWord {
  Scalar<M, i32> word;
};
template <TileLike X> X begun(OneDocument, const X& S) { return S; }
template <class M, TileLike X> X begun(const TokenDocument<M>& d, const X& S) {
  return map([](auto w, auto s) { return where((w & TokenWord::begins) == TokenWord::begins, 0.f, s); }, d.word, S);
}
template <TileLike X> X if_valid(OneDocument, const X& next, const X&) { return next; }
template <class M, TileLike X> X if_valid(const TokenDocument<M>& d, const X& next, const X& before) {
  return map([](auto w, auto next, auto before) { return where((w & TokenWord::is_valid) == TokenWord::is_valid, next, before); }, d.word, next, before);
}

template <class M, class K, class V> using TokenInputs = ForwardInputs<M, One, K, V>;
// Where the state comes from and goes to: one carried ref, or two arrays (which may be one for the caller).
template <class M, class K, class V> struct TokenState {
  Ref<M, f32, K, V> from, to;
};

// o, and the state from `from` to `to`. `decay` is e^g.
template <class D, class M, class K, class V>
RowVector<M, f32, V> token_step_by_tiles(const D& document, const TokenInputs<M, K, V>& x, const Scalar<M, f32>& decay,
                                         const TokenState<M, K, V>& state) {
  auto before = load(state.from);
  auto S = decay * begun(document, before);
  auto r = map([](auto beta, auto v, auto kS) { return beta * (v - kS); }, x.beta, x.v, product<Precision::f32>(x.keys.k, S));
  auto next = map([](auto s, auto k, auto r) { return s + k * r; }, S, as_column(x.keys.k), r);
  auto o = dot<Precision::f32>(x.keys.q, next);
  store(state.to, if_valid(document, next, before));
  return if_valid(document, o, zeros_like(o));
}
template <class D, class M, class K, class V>
RowVector<M, f32, V> token_step(const D& document, const TokenInputs<M, K, V>& x, const Scalar<M, f32>& decay, const TokenState<M, K, V>& state) {
  if constexpr (requires { state.to.m->token_step(document, x, decay, state); }) return {state.to.m->token_step(document, x, decay, state)};
  else return token_step_by_tiles(document, x, decay, state);
}

template <class D, class M, class K, class V>
void token_head(const D& document, const TokenInputs<M, K, V>& x, const TokenState<M, K, V>& state, const Ref<M, f32, One, V>& out) {
  store(out, token_step(document, x, exp(x.g), state));
}

// A token before its convolution: `before` are the taps - 1 inputs before it, oldest first, and `after` those before the next one; one
// carried ref, or rows of arrays.
template <class M, class W, class T> struct TokenConvRefs {
  using Edge = Row<T::size - 1>;
  Ref<M, f32, One, W> x;
  Ref<M, f32, T, W> weights;
  Ref<M, f32, One, W> bias;  // absent: no bias
  Ref<M, f32, Edge, W> before, after;
};
template <class M, class K, class V, class T> struct TokenLayerRefs {
  TokenConvRefs<M, K, T> q, k;
  TokenConvRefs<M, V, T> v;
  Ref<M, f32, One, One> a, b, A_log, dt_bias;
};

template <class D, class M, class W, class T> RowVector<M, f32, W> conv_silu(const D& document, const TokenConvRefs<M, W, T>& r) {
  using Edge = typename TokenConvRefs<M, W, T>::Edge;
  const OneDocument one;
  auto x = load(r.x);
  auto before = begun(document, load(r.before));
  auto w = load(r.weights);
  auto y = r.bias ? silu_of_short_conv(one, x, before, w, load(r.bias)) : silu_of_short_conv(one, x, before, w);
  store(r.after, retyped<Tile<M, f32, Edge, W>>(rows<1, Edge::size>(concat_rows(before, x))));  // last: it may be `before` itself
  return y;
}
template <class D, class M, class K, class V, class T>
TokenInputs<M, K, V> token_inputs(M& m, const D& document, const TokenLayerRefs<M, K, V, T>& x, const QueryOptions& options) {
  return layer_inputs<Precision::f32, true>(m, OneDocument{}, x, options, [&](const auto& r) { return conv_silu(document, r); });
}

}  // namespace gdn

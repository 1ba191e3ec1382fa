// Token by token: the recurrence over rows of any length, and single tokens for decoding, whose states are read and written once.
// Shapes and options are those of calls/forward.hpp; a row may be begun in chunks and continued by tokens.
#pragma once
#include "gdn/calls/forward.hpp"
#include "gdn/kernels/recurrent.hpp"

namespace gdn {
namespace detail {

// One TokenWord a token, [B, T].
inline std::vector<i32> token_words(const View<const i32, 2>& ids, int batch, int tokens, bool continues) {
  const DocumentPlan plan = plan_documents(ids, batch, tokens, 1, 1, continues, tail_rows);
  std::vector<i32> words;
  for (int b = 0; b < batch; b++) {
    i32 running = continues ? 1 : 0;
    for (int t = 0; t < tokens; t++) {
      const i32 word = plan.word[static_cast<std::size_t>(b) * static_cast<std::size_t>(tokens) + static_cast<std::size_t>(t)];
      const i32 document = word >> document_shift;
      const bool valid = word & 1;
      words.push_back(!valid ? 0 : document == running ? TokenWord::is_valid : TokenWord::is_valid | TokenWord::begins);
      if (valid) running = document;
    }
  }
  return words;
}

// The state of a row is carried from token to token; a single token moves it from one array to the other.
template <class K, class V, class M>
TokenState<M, K, V> bind_token_state(Binding<M>& b, const View<const f32, 4>& initial, const View<f32, 4>& final, bool single) {
  const int before = b.array("initial_state", Use::in, initial), after = b.last_states("final_state", final, before);
  const auto from = b.template ref<f32, K, V>(before, Place::sequence, Use::in, Domain::value_head);
  const auto to = b.template ref<f32, K, V>(after, Place::sequence, Use::out, Domain::value_head);
  if (single) return {from, to};
  const auto state = b.template carried<K, V>("state", Domain::value_head, from.id, to.id);
  return {state, state};
}
// What the tokens of a call are to their rows or sequences.
struct TokenPlan {
  std::vector<i32> words;    // [B, T] of TokenWord; empty: all are valid and none begins
  std::vector<i32> turns;    // [T, Turn::entries] of sequences (calls/sequences.hpp), or empty
  std::vector<i32> limit{};  // [1]: so many of them are worked on; empty: all
  bool single = false;       // every token moves a state from one array to the other; otherwise states are carried
};
template <class M> Ref<M, i32, One, One> bind_token_plan(Binding<M>& b, const TokenPlan& p, const Extent& extent) {
  bind_turns(b, p.turns, p.limit);
  if (p.words.empty()) return {};
  const View<const i32, 2> word = view(p.words.data(), {extent.batch, extent.chunks()});
  return b.template ref<i32, One, One>(b.array("documents", Use::in, word), Place::scalars, Use::in, Domain::token);
}
template <class M, class F> void with_token(const Ref<M, i32, One, One>& word, F f) {
  if (word) f(TokenDocument<M>{{}, load(word)});
  else f(OneDocument{});
}

template <class G, class Act> struct RecurrentCall {
  using K = typename G::key;
  using V = typename G::value;
  const char* name;
  const CoreArrays<Act>& x;
  Extent extent;
  QueryOptions options;
  TokenPlan plan;

  template <class M> struct Refs {
    CoreRefs<M, One, K, V> core;
    TokenState<M, K, V> state;
    Ref<M, i32, One, One> word;
  };
  template <class M> Refs<M> bind(M& m) const {
    Binding<M> b{m, in_place(plan.turns, x)};
    Refs<M> r;
    r.core = bind_core<true, One, K, V>(b, x);
    r.word = bind_token_plan(b, plan, extent);
    r.core.forward.out = b.template ref<f32, One, V>(b.array("out", Use::out, x.out), Place::tokens, Use::out, Domain::value_head);
    r.state = bind_token_state<K, V>(b, x.initial, x.final, plan.single);
    return r;
  }
  template <class M> void head(M& m, const Refs<M>& r) const {
    with_token(r.word, [&](const auto& document) {
      token_head(document, core_inputs<Precision::f32, true>(m, document, r.core, options), r.state, r.core.forward.out);
    });
  }
};

template <class G, class Act> struct LayerTokensCall {
  using K = typename G::key;
  using V = typename G::value;
  using T = typename G::taps;
  const char* name;
  const LayerArrays<Act>& x;
  Extent extent;
  QueryOptions options;
  TokenPlan plan;

  template <class M> struct Refs {
    TokenLayerRefs<M, K, V, T> layer;
    TokenState<M, K, V> state;
    Ref<M, f32, One, V> out;
    Ref<M, i32, One, One> word;
  };
  template <class M> Refs<M> bind(M& m) const {
    Binding<M> b{m, in_place(plan.turns, x)};
    Refs<M> r;
    const int qkv = b.array("qkv", Use::in, x.qkv), weights = b.array("conv_weights", Use::in, x.conv_weights), bias = bind_bias(b, x.conv_bias);
    const int before = b.array("conv_initial", Use::in, x.conv_initial), after = b.last_states("conv_final", x.conv_final, before);
    auto conv = [&]<class W>(TokenConvRefs<M, W, T>& c, const char* tail, Domain domain, int column) {
      using Edge = typename TokenConvRefs<M, W, T>::Edge;
      c.x = b.template ref<f32, One, W>(qkv, Place::tokens, Use::in, domain, column);
      c.weights = b.template ref<f32, T, W>(weights, Place::weights, Use::in, domain, column);
      c.bias = b.template ref<f32, One, W>(bias, Place::weights, Use::in, domain, column);
      c.before = b.template ref<f32, Edge, W>(before, Place::edge_rows, Use::in, domain, column);
      c.after = b.template ref<f32, Edge, W>(after, Place::edge_rows, Use::out, domain, column);
      if (!plan.single) c.before = c.after = b.template carried<Edge, W>(tail, domain, c.before.id, c.after.id);
    };
    const int key_columns = extent.key_heads * K::size;
    conv(r.layer.q, "q_tail", Domain::key_head, 0);
    conv(r.layer.k, "k_tail", Domain::key_head, key_columns);
    conv(r.layer.v, "v_tail", Domain::value_head, 2 * key_columns);
    bind_gates<One>(b, x, r.layer);
    r.out = b.template ref<f32, One, V>(b.array("out", Use::out, x.out), Place::tokens, Use::out, Domain::value_head);
    r.word = bind_token_plan(b, plan, extent);
    r.state = bind_token_state<K, V>(b, x.initial, x.final, plan.single);
    return r;
  }
  template <class M> void head(M& m, const Refs<M>& r) const {
    with_token(r.word, [&](const auto& document) { token_head(document, token_inputs(m, document, r.layer, options), r.state, r.out); });
  }
};

template <class Act> void no_residuals(const char* call, const View<Act, 4>& residual, const Residuals& r) {
  require(!residual && !r.t_inv && !r.chunk_states, call, ": residual, t_inv and chunk_states are of the chunked form; expected them absent");
}
inline void check_single(const char* call, std::int64_t tokens, bool ids) {
  require(tokens == 1, call, ": ", tokens, " tokens; expected 1");
  require(!ids, call, ": ids are given; expected none, a single token continues its row");
}

template <class G, class Machine, class Act>
void recurrent(const char* call, Machine& machine, const CoreArrays<Act>& x, const CoreOptions& o) {
  no_residuals(call, x.residual, x.residuals);
  check_core<G, true>(call, x);
  const std::int64_t B = x.k.shape[0], T = x.k.shape[1], Hk = x.k.shape[2], H = x.v.shape[2];
  machine.check_data([&] { checks::no_growth(call, x.g); });
  if (T == 0 || B == 0) return pass_on(x.initial, x.final);
  RecurrentCall<G, Act> c{call, x, {static_cast<int>(B), static_cast<int>(T), 1, static_cast<int>(Hk), static_cast<int>(H)},
                          query_options(o.scale, o.use_qk_norm, G::key::size), {}};
  c.plan.single = T == 1 && x.initial && x.final;
  if (x.ids) c.plan.words = token_words(x.ids, c.extent.batch, c.extent.tokens, static_cast<bool>(x.initial));
  machine.run(c);
}

}  // namespace detail

// What `forward` computes, token by token, with f32 dots for bf16 activations too. The chunk of G is not used.
template <class G = Head128, class Machine, class Act>
void recurrent(Machine& machine, const CoreArrays<Act>& x, const CoreOptions& options = {}) {
  detail::recurrent<G>("recurrent", machine, x, options);
}
// One token (T = 1) of each of B rows. Both states must be given; `final` may be `initial`.
template <class G = Head128, class Machine, class Act>
void decode(Machine& machine, const CoreArrays<Act>& x, const CoreOptions& options = {}) {
  checks::given("decode", "initial", static_cast<bool>(x.initial));
  checks::given("decode", "final", static_cast<bool>(x.final));
  detail::check_single("decode", x.k.shape[1], static_cast<bool>(x.ids));
  detail::recurrent<G>("decode", machine, x, options);
}
// One token of each of B rows through the whole layer: convolution, SiLU, l2norm, gates, token step. All four states must be given;
// each final one may be its initial one.
template <class G = Head128, class Machine, class Act>
void layer_decode(Machine& machine, const LayerArrays<Act>& x, const LayerOptions& o) {
  constexpr const char* call = "layer_decode";
  checks::given(call, "conv_initial", static_cast<bool>(x.conv_initial));
  checks::given(call, "conv_final", static_cast<bool>(x.conv_final));
  checks::given(call, "initial", static_cast<bool>(x.initial));
  checks::given(call, "final", static_cast<bool>(x.final));
  detail::no_residuals(call, x.residual, x.residuals);
  detail::check_layer<G, true>(call, x, o);
  detail::check_single(call, x.qkv.shape[1], static_cast<bool>(x.ids));
  const std::int64_t B = x.qkv.shape[0];
  if (B == 0) return;
  machine.run(detail::LayerTokensCall<G, Act>{call, x, {static_cast<int>(B), 1, 1, o.key_heads, static_cast<int>(x.a.shape[2])},
                                              detail::query_options(o.scale, o.use_qk_norm, G::key::size), {.words = {}, .turns = {}, .single = true}});
}

}  // namespace gdn

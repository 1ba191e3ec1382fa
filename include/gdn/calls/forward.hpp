// Forward calls: the chunked gated delta rule on prepared inputs (core), and the whole layer with convolution and gates.
//
// The machine given to a call decides what happens: Cpu runs it on the arrays, Emit writes the TPU kernel, Simulate runs that text on the
// arrays. Shapes: B rows of a batch, T tokens, Hk key heads, Hv value heads (a multiple of Hk; head h uses key head h / (Hv / Hk)),
// K and V channels, N = ceil(T / C) chunks of C tokens. Activations are bf16 (class P1) or f32 (class PF).
#pragma once
#include <optional>

#include "gdn/calls/checks.hpp"
#include "gdn/calls/documents.hpp"
#include "gdn/kernels/core_forward.hpp"
#include "gdn/kernels/layer_forward.hpp"

namespace gdn {

// Sizes a call is compiled for: C tokens a chunk, K and V channels, taps of the convolution; and how M is computed. Orders but the
// default are second opinions, not tuned.
template <int C, int K, int V, int Conv = 4, InverseOrder Order = InverseOrder::merged_blocks> struct Geometry {
  using chunk = Chunk<C>;
  using key = Key<K>;
  using value = Val<V>;
  using taps = Taps<Conv>;
  static constexpr InverseOrder inverse = Order;
};
using Head128 = Geometry<64, 128, 128>;

// What a forward call may write beside its outputs; absent views are not computed.
struct Residuals {
  View<f32, 5> t_inv;         // [B, N, C, Hv, C]: row i, column j of M = (I + N)^-1 of head h at [b, n, i, h, j]
  View<f32, 5> chunk_states;  // [B, N, Hv, K, V]: the state before each chunk
};

template <class Act> struct CoreArrays {
  View<const Act, 4> q;         // [B, T, Hk, K]; absent in the states-only form
  View<const Act, 4> k;         // [B, T, Hk, K]
  View<const Act, 4> v;         // [B, T, Hv, V]
  View<const f32, 3> g;         // [B, T, Hv], natural log of the decay, <= 0 (-inf forgets); absent: no decay
  View<const f32, 3> beta;      // [B, T, Hv]
  View<const f32, 4> initial;   // [B, Hv, K, V]; absent: zeros
  View<const i32, 2> ids;       // [B, T], documents (calls/documents.hpp); absent: one document
  View<Act, 4> out;             // [B, T, Hv, V]; may be v itself
  View<f32, 4> final;           // [B, Hv, K, V]; may be `initial` itself
  View<Act, 4> residual;        // [B, T, Hv, V]: r, absent when not wanted
  Residuals residuals;
};
struct CoreOptions {
  std::optional<f32> scale = {};  // of q; default K^-0.5
  bool use_qk_norm = false;    // l2norm of q and k first
};

template <class Act> struct LayerArrays {
  View<const Act, 3> qkv;           // [B, T, D], D = 2 Hk K + Hv V: q heads, k heads, v heads, before the convolution
  View<const Act, 3> b, a;          // [B, T, Hv]: beta = sigmoid(b), g = -exp(A_log) softplus(a + dt_bias)
  View<const f32, 2> conv_weights;  // [taps, D], the last tap multiplies the current token
  View<const f32, 1> conv_bias;     // [D] or absent
  View<const f32, 1> A_log, dt_bias;  // [Hv]
  View<const Act, 3> conv_initial;  // [B, taps - 1, D], the inputs before the row, oldest first; absent: zeros
  View<const f32, 4> initial;       // [B, Hv, K, V]
  View<const i32, 2> ids;           // [B, T]
  View<Act, 4> out;                 // [B, T, Hv, V]
  View<Act, 3> conv_final;          // [B, taps - 1, D]; may be conv_initial itself
  View<f32, 4> final;               // [B, Hv, K, V]
  View<Act, 4> residual;
  Residuals residuals;
};
struct LayerOptions {
  int key_heads = 0;           // Hk; Hv is the width of `a`
  bool use_qk_norm = true;
  std::optional<f32> scale = {};
};

namespace detail {

template <class Act> inline constexpr Precision precision_of = std::is_same_v<Act, bf16> ? Precision::bf16 : Precision::f32;

// Declares the arrays of a call on a machine. An absent view declares nothing.
template <class M> struct Binding {
  M& m;
  bool in_place = false;  // last states go where the first ones were read
  template <class T, int Rank> int array(std::string name, Use use, const View<T, Rank>& v) { return v ? m.array(any_view(std::move(name), use, v)) : -1; }
  // The array that takes the last states, which were read from `initial`.
  template <class T, int Rank> int last_states(std::string name, const View<T, Rank>& v, int initial) {
    if (!v) return -1;
    AnyView a = any_view(std::move(name), Use::out, v);
    if (in_place) a.info.updates = initial;
    return m.array(std::move(a));
  }
  template <class T, class R, class C>
  Ref<M, T, R, C> ref(int array, Place place, Use use, Domain domain, int first_column = 0, int offset = 0, int first_row = 0) {
    if (array < 0) return {};
    const ArrayInfo& a = m.info(array);
    return m.template declare<T, R, C>({.name = a.name, .place = place, .use = use, .element = a.element, .domain = domain, .array = array,
                                        .first_column = first_column, .first_row = first_row, .offset = offset});
  }
  Ref<M, i32, One, One> plan(int array, int per_chunk) {
    return m.template declare<i32, One, One>({.name = m.info(array).name, .place = Place::scalars, .use = Use::in, .element = Element::i32,
                                              .domain = Domain::token, .array = array, .per_chunk = per_chunk});
  }
  template <class R, class C> Ref<M, f32, R, C> carried(std::string name, Domain domain, int initial = -1, int final = -1, bool identity = false) {
    return m.template declare<f32, R, C>({.name = std::move(name), .place = Place::carried, .use = Use::in, .element = Element::f32,
                                          .domain = domain, .initial = initial, .identity = identity, .final = final});
  }
};

// What the core and the layer have in common: documents, states, residuals.
template <class M, class C, class K, class V, class Act>
ForwardRefs<M, C, K, V> bind_forward(Binding<M>& b, const View<Act, 4>& out, const View<const f32, 4>& initial, const View<f32, 4>& final,
                                     const View<Act, 4>& residual, const Residuals& r) {
  ForwardRefs<M, C, K, V> x;
  x.out = b.template ref<f32, C, V>(b.array("out", Use::out, out), Place::tokens, Use::out, Domain::value_head);
  const int before = b.array("initial_state", Use::in, initial), after = b.last_states("final_state", final, before);
  const auto from = b.template ref<f32, K, V>(before, Place::sequence, Use::in, Domain::value_head);
  const auto to = b.template ref<f32, K, V>(after, Place::sequence, Use::out, Domain::value_head);
  x.state = b.template carried<K, V>("state", Domain::value_head, from.id, to.id);
  x.t_inv = b.template ref<f32, C, C>(b.array("t_inv", Use::out, r.t_inv), Place::tokens, Use::out, Domain::value_head);
  x.chunk_states = b.template ref<f32, K, V>(b.array("chunk_states", Use::out, r.chunk_states), Place::chunk_state, Use::out, Domain::value_head);
  x.residual = b.template ref<f32, C, V>(b.array("residual", Use::out, residual), Place::tokens, Use::out, Domain::value_head);
  return x;
}
template <class M, class C> struct DocumentRefs {
  Ref<M, i32, C, One> word;
  Ref<M, i32, One, One> before, last;
};
// Slots of a pool that no sequence names stay what they are, so the pool's own memory is updated.
template <class Arrays> bool in_place(const std::vector<i32>& turns, const Arrays& x) {
  return !turns.empty() && x.initial && x.final && static_cast<const void*>(x.initial.data) == x.final.data;
}
template <class M> void bind_turns(Binding<M>& b, const std::vector<i32>& turns, const std::vector<i32>& limit) {
  if (turns.empty()) return;
  const View<const i32, 2> table = view(turns.data(), {static_cast<std::int64_t>(turns.size()) / Turn::entries, Turn::entries});
  b.template ref<i32, One, One>(b.array("turns", Use::in, table), Place::turns, Use::in, Domain::token);
  if (!limit.empty()) b.template ref<i32, One, One>(b.array("limit", Use::in, view(limit, {1})), Place::limit, Use::in, Domain::token);
}
template <class M, class C> DocumentRefs<M, C> bind_documents(Binding<M>& b, const DocumentPlan& p) {
  bind_turns(b, p.turns, p.limit);
  if (p.word.empty()) return {};
  const View<const i32, 3> word = view(p.word.data(), {p.batch, p.chunks, p.chunk});
  const View<const i32, 2> boundary = view(p.boundary.data(), {p.batch, p.chunks + 1});
  const int scalars = b.array("boundary", Use::in, boundary);
  return {b.template ref<i32, C, One>(b.array("documents", Use::in, word), Place::words, Use::in, Domain::token),
          b.template ref<i32, One, One>(scalars, Place::scalars, Use::in, Domain::token, 0, 0),
          b.template ref<i32, One, One>(scalars, Place::scalars, Use::in, Domain::token, 0, 1)};
}
template <class M, class C, class F> void with_documents(const DocumentRefs<M, C>& r, bool ragged, F f) {
  if (r.word) f(documents_of(load(r.word), load(r.before), load(r.last), ragged));
  else f(OneDocument{});
}

template <bool Outputs, class C, class K, class V, class M, class Act> CoreRefs<M, C, K, V> bind_core(Binding<M>& b, const CoreArrays<Act>& x) {
  CoreRefs<M, C, K, V> r;
  if constexpr (Outputs) r.q = b.template ref<f32, C, K>(b.array("q", Use::in, x.q), Place::tokens, Use::in, Domain::key_head);
  r.k = b.template ref<f32, C, K>(b.array("k", Use::in, x.k), Place::tokens, Use::in, Domain::key_head);
  r.v = b.template ref<f32, C, V>(b.array("v", Use::in, x.v), Place::tokens, Use::in, Domain::value_head);
  r.g = b.template ref<f32, C, One>(b.array("g", Use::in, x.g), Place::tokens, Use::in, Domain::value_head);
  r.beta = b.template ref<f32, C, One>(b.array("beta", Use::in, x.beta), Place::tokens, Use::in, Domain::value_head);
  return r;
}

template <class G, bool Outputs, class Act> struct CoreCall {
  using C = typename G::chunk;
  using K = typename G::key;
  using V = typename G::value;
  static constexpr Precision P = precision_of<Act>;
  const char* name;
  const CoreArrays<Act>& x;
  Extent extent;
  QueryOptions options;
  DocumentPlan plan;  // empty: one document

  template <class M> struct Refs {
    CoreRefs<M, C, K, V> core;
    DocumentRefs<M, C> documents;
  };
  template <class M> Refs<M> bind(M& m) const {
    Binding<M> b{m, in_place(plan.turns, x)};
    Refs<M> r;
    r.core = bind_core<Outputs, C, K, V>(b, x);
    r.documents = bind_documents<M, C>(b, plan);
    r.core.forward = bind_forward<M, C, K, V>(b, x.out, x.initial, x.final, x.residual, x.residuals);
    return r;
  }
  template <class M> void head(M& m, const Refs<M>& r) const {
    with_documents(r.documents, extent.turns || extent.tokens % extent.chunk != 0,
                   [&](const auto& documents) { core_forward_head<P, Outputs, G::inverse>(m, documents, r.core, options); });
  }
};

template <class M> int bind_bias(Binding<M>& b, const View<const f32, 1>& bias) {
  if (!bias) return -1;
  return b.array("conv_bias", Use::in, View<const f32, 2>(bias.data, {1, bias.shape[0]}, {0, bias.strides[0]}));
}
// The gates' inputs of a layer: a, b, A_log, dt_bias.
template <class C, class M, class Refs, class Arrays> void bind_gates(Binding<M>& b, const Arrays& x, Refs& r) {
  r.a = b.template ref<f32, C, One>(b.array("a", Use::in, x.a), Place::tokens, Use::in, Domain::value_head);
  r.b = b.template ref<f32, C, One>(b.array("b", Use::in, x.b), Place::tokens, Use::in, Domain::value_head);
  r.A_log = b.template ref<f32, One, One>(b.array("A_log", Use::in, x.A_log), Place::per_head, Use::in, Domain::value_head);
  r.dt_bias = b.template ref<f32, One, One>(b.array("dt_bias", Use::in, x.dt_bias), Place::per_head, Use::in, Domain::value_head);
}

template <class G, bool Outputs, class Act> struct LayerCall {
  using C = typename G::chunk;
  using K = typename G::key;
  using V = typename G::value;
  using T = typename G::taps;
  static constexpr Precision P = precision_of<Act>;
  const char* name;
  const LayerArrays<Act>& x;
  Extent extent;
  QueryOptions options;
  DocumentPlan plan;

  template <class M> struct Refs {
    LayerRefs<M, C, K, V, T> layer;
    DocumentRefs<M, C> documents;
  };
  template <class M> Refs<M> bind(M& m) const {
    Binding<M> b{m, in_place(plan.turns, x)};
    Refs<M> r;
    const int qkv = b.array("qkv", Use::in, x.qkv), weights = b.array("conv_weights", Use::in, x.conv_weights);
    const int bias = bind_bias(b, x.conv_bias);
    const int from = b.array("conv_initial", Use::in, x.conv_initial), to = b.last_states("conv_final", x.conv_final, from);
    auto conv = [&]<class W>(ConvRefs<M, C, W, T>& c, const char* tail, Domain domain, int column) {
      using Edge = typename ConvRefs<M, C, W, T>::Edge;
      c.x = b.template ref<f32, C, W>(qkv, Place::tokens, Use::in, domain, column);
      c.weights = b.template ref<f32, T, W>(weights, Place::weights, Use::in, domain, column);
      c.bias = b.template ref<f32, One, W>(bias, Place::weights, Use::in, domain, column);
      const auto initial = b.template ref<f32, Edge, W>(from, Place::edge_rows, Use::in, domain, column);
      c.tail = b.template carried<Row<tail_rows>, W>(tail, domain, initial.id);
      c.state = b.template ref<f32, Edge, W>(to, Place::edge_rows, Use::out, domain, column);
    };
    const int key_columns = extent.key_heads * K::size;
    if (Outputs || x.conv_final) conv(r.layer.q, "q_tail", Domain::key_head, 0);
    conv(r.layer.k, "k_tail", Domain::key_head, key_columns);
    conv(r.layer.v, "v_tail", Domain::value_head, 2 * key_columns);
    bind_gates<C>(b, x, r.layer);
    if (x.conv_final) {
      const View<const i32, 2> edge = view(plan.edge.data(), {extent.batch, static_cast<std::int64_t>(plan.edge.size()) / extent.batch});
      r.layer.edge_plan = b.plan(b.array("conv_plan", Use::in, edge), plan.turns.empty() ? 0 : T::size);
    }
    r.documents = bind_documents<M, C>(b, plan);
    r.layer.forward = bind_forward<M, C, K, V>(b, x.out, x.initial, x.final, x.residual, x.residuals);
    return r;
  }
  template <class M> void head(M& m, const Refs<M>& r) const {
    with_documents(r.documents, extent.turns || extent.tokens % extent.chunk != 0,
                   [&](const auto& documents) { layer_forward_head<P, Outputs, G::inverse>(m, documents, r.layer, options); });
  }
};

inline void check_heads(const char* call, std::int64_t key_heads, std::int64_t value_heads) {
  require(key_heads > 0 && value_heads % key_heads == 0, call, ": ", value_heads, " value heads and ", key_heads,
          " key heads; expected a multiple");
}
// Outputs without a token: states pass on. Shapes alone have nothing to pass.
template <class T, int Rank> void pass_on(const View<const T, Rank>& from, const View<T, Rank>& to) {
  if (!to || !to.data || (from && static_cast<const void*>(from.data) == to.data)) return;
  const std::int64_t n = count(to.shape);
  for (std::int64_t i = 0; i < n; i++) {
    std::int64_t rest = i, source = 0, target = 0;
    for (int d = Rank - 1; d >= 0; d--) {
      if (from) source += rest % to.shape[d] * from.strides[d];
      target += rest % to.shape[d] * to.strides[d];
      rest /= to.shape[d];
    }
    to.data[target] = from ? from.data[source] : T{};
  }
}

// How many states and chunks a call has, where these are not those of its rows.
struct Counts {
  std::int64_t states, chunks;
};
template <class G, class Act>
void check_residuals(const char* call, const View<Act, 4>& residual, const Residuals& r, std::int64_t B, std::int64_t T, std::int64_t H,
                     const std::optional<Counts>& counts = {}) {
  constexpr int C = G::chunk::size, K = G::key::size, V = G::value::size;
  const std::int64_t N = counts ? counts->chunks : (T + C - 1) / C;
  checks::optional_shape(call, "t_inv", r.t_inv, {B, N, C, H, C});
  checks::optional_shape(call, "chunk_states", r.chunk_states, {B, N, H, K, V});
  checks::optional_shape(call, "residual", residual, {B, T, H, V});
}

template <class G, bool Outputs, class Act> void check_core(const char* call, const CoreArrays<Act>& x, const std::optional<Counts>& counts = {}) {
  constexpr int K = G::key::size, V = G::value::size;
  checks::given(call, "k", static_cast<bool>(x.k));
  checks::given(call, "v", static_cast<bool>(x.v));
  checks::given(call, "beta", static_cast<bool>(x.beta));
  if constexpr (Outputs) {
    checks::given(call, "q", static_cast<bool>(x.q));
    checks::given(call, "out", static_cast<bool>(x.out));
  }
  const std::int64_t B = x.k.shape[0], T = x.k.shape[1], Hk = x.k.shape[2], H = x.v.shape[2], states = counts ? counts->states : B;
  check_heads(call, Hk, H);
  checks::shape(call, "k", x.k, {B, T, Hk, K});
  checks::shape(call, "v", x.v, {B, T, H, V});
  if constexpr (Outputs) {
    checks::shape(call, "q", x.q, {B, T, Hk, K});
    checks::shape(call, "out", x.out, {B, T, H, V});
  }
  checks::optional_shape(call, "g", x.g, {B, T, H});
  checks::shape(call, "beta", x.beta, {B, T, H});
  checks::optional_shape(call, "ids", x.ids, {B, T});
  checks::optional_shape(call, "initial", x.initial, {states, H, K, V});
  checks::optional_shape(call, "final", x.final, {states, H, K, V});
  check_residuals<G>(call, x.residual, x.residuals, B, T, H, counts);
  checks::no_overlap(call, std::array{checks::span_of("q", x.q, false), checks::span_of("k", x.k, false), checks::span_of("v", x.v, false),
                                      checks::span_of("g", x.g, false), checks::span_of("beta", x.beta, false),
                                      checks::span_of("ids", x.ids, false),
                                      checks::span_of("initial", x.initial, false), checks::span_of("out", x.out, true),
                                      checks::span_of("final", x.final, true), checks::span_of("t_inv", x.residuals.t_inv, true),
                                      checks::span_of("chunk_states", x.residuals.chunk_states, true), checks::span_of("residual", x.residual, true)},
                     [](std::string_view o, std::string_view i) { return (o == "out" && i == "v") || (o == "final" && i == "initial"); });
}
inline QueryOptions query_options(const std::optional<f32>& scale, bool normalise, int K) {
  return {scale.value_or(1.f / std::sqrt(static_cast<f32>(K))), normalise};
}

template <class G, bool Outputs, class Machine, class Act>
void core(const char* call, Machine& machine, const CoreArrays<Act>& x, const CoreOptions& o) {
  check_core<G, Outputs>(call, x);
  constexpr int C = G::chunk::size;
  const std::int64_t B = x.k.shape[0], T = x.k.shape[1], Hk = x.k.shape[2], H = x.v.shape[2];
  machine.check_data([&] { checks::no_growth(call, x.g); });
  if (T == 0 || B == 0) return pass_on(x.initial, x.final);
  CoreCall<G, Outputs, Act> c{call, x, {static_cast<int>(B), static_cast<int>(T), C, static_cast<int>(Hk), static_cast<int>(H)},
                              query_options(o.scale, o.use_qk_norm, G::key::size), {}};
  if (x.ids || T % C) c.plan = plan_documents(x.ids, c.extent.batch, c.extent.tokens, C, 0, static_cast<bool>(x.initial), tail_rows);
  machine.run(c);
}

// What the layer's forward and backward read; `states` of each kind.
template <class G, class Act>
void check_layer_inputs(const char* call, const LayerArrays<Act>& x, const LayerOptions& o, std::int64_t states) {
  constexpr int K = G::key::size, V = G::value::size, W = G::taps::size;
  const std::int64_t B = x.qkv.shape[0], T = x.qkv.shape[1], Hk = o.key_heads, H = x.a.shape[2], D = 2 * Hk * K + H * V;
  checks::shape(call, "qkv", x.qkv, {B, T, D});
  checks::shape(call, "a", x.a, {B, T, H});
  checks::shape(call, "b", x.b, {B, T, H});
  checks::shape(call, "conv_weights", x.conv_weights, {W, D});
  checks::optional_shape(call, "conv_bias", x.conv_bias, {D});
  checks::shape(call, "A_log", x.A_log, {H});
  checks::shape(call, "dt_bias", x.dt_bias, {H});
  checks::optional_shape(call, "conv_initial", x.conv_initial, {states, W - 1, D});
  checks::optional_shape(call, "ids", x.ids, {B, T});
  checks::optional_shape(call, "initial", x.initial, {states, H, K, V});
}
template <class G, bool Outputs, class Act>
void check_layer(const char* call, const LayerArrays<Act>& x, const LayerOptions& o, const std::optional<Counts>& counts = {}) {
  constexpr int K = G::key::size, V = G::value::size, W = G::taps::size;
  checks::given(call, "qkv", static_cast<bool>(x.qkv));
  checks::given(call, "b", static_cast<bool>(x.b));
  checks::given(call, "a", static_cast<bool>(x.a));
  checks::given(call, "conv_weights", static_cast<bool>(x.conv_weights));
  checks::given(call, "A_log", static_cast<bool>(x.A_log));
  checks::given(call, "dt_bias", static_cast<bool>(x.dt_bias));
  if constexpr (Outputs) checks::given(call, "out", static_cast<bool>(x.out));
  require(o.key_heads > 0, call, ": options.key_heads is ", o.key_heads, "; expected the number of key heads");
  const std::int64_t B = x.qkv.shape[0], T = x.qkv.shape[1], Hk = o.key_heads, H = x.a.shape[2], D = 2 * Hk * K + H * V;
  const std::int64_t states = counts ? counts->states : B;
  check_heads(call, Hk, H);
  check_layer_inputs<G>(call, x, o, states);
  checks::optional_shape(call, "conv_final", x.conv_final, {states, W - 1, D});
  checks::optional_shape(call, "final", x.final, {states, H, K, V});
  if constexpr (Outputs) checks::shape(call, "out", x.out, {B, T, H, V});
  check_residuals<G>(call, x.residual, x.residuals, B, T, H, counts);
  checks::no_overlap(call, std::array{checks::span_of("qkv", x.qkv, false), checks::span_of("a", x.a, false), checks::span_of("b", x.b, false),
                                      checks::span_of("conv_weights", x.conv_weights, false), checks::span_of("conv_bias", x.conv_bias, false),
                                      checks::span_of("A_log", x.A_log, false), checks::span_of("dt_bias", x.dt_bias, false),
                                      checks::span_of("ids", x.ids, false), checks::span_of("conv_initial", x.conv_initial, false),
                                      checks::span_of("initial", x.initial, false), checks::span_of("out", x.out, true),
                                      checks::span_of("conv_final", x.conv_final, true), checks::span_of("final", x.final, true),
                                      checks::span_of("t_inv", x.residuals.t_inv, true), checks::span_of("chunk_states", x.residuals.chunk_states, true),
                                      checks::span_of("residual", x.residual, true)},
                     [](std::string_view o, std::string_view i) {
                       return (o == "conv_final" && i == "conv_initial") || (o == "final" && i == "initial");
                     });
}

template <class G, bool Outputs, class Machine, class Act>
void layer(const char* call, Machine& machine, const LayerArrays<Act>& x, const LayerOptions& o) {
  check_layer<G, Outputs>(call, x, o);
  constexpr int C = G::chunk::size, W = G::taps::size;
  const std::int64_t B = x.qkv.shape[0], T = x.qkv.shape[1], Hk = o.key_heads, H = x.a.shape[2];
  if (T == 0 || B == 0) {
    pass_on(x.initial, x.final);
    return pass_on(x.conv_initial, x.conv_final);
  }
  LayerCall<G, Outputs, Act> c{call, x, {static_cast<int>(B), static_cast<int>(T), C, static_cast<int>(Hk), static_cast<int>(H)},
                               query_options(o.scale, o.use_qk_norm, G::key::size), {}};
  c.plan = plan_documents(x.ids, c.extent.batch, c.extent.tokens, C, W, x.initial || x.conv_initial, tail_rows);
  if (!x.ids && T % C == 0) c.plan.word.clear();
  machine.run(c);
}

}  // namespace detail

// out, final state and residuals of the gated delta rule:  S' = e^g S + k^T beta (v - k e^g S),  o = q scale S'.
template <class G = Head128, class Machine, class Act>
void forward(Machine& machine, const CoreArrays<Act>& x, const CoreOptions& options = {}) {
  detail::core<G, true>("forward", machine, x, options);
}
// The same without q and out: final state, t_inv and chunk states have the bits of `forward`.
template <class G = Head128, class Machine, class Act>
void forward_states(Machine& machine, const CoreArrays<Act>& x, const CoreOptions& options = {}) {
  detail::core<G, false>("forward_states", machine, x, options);
}
template <class G = Head128, class Machine, class Act>
void layer_forward(Machine& machine, const LayerArrays<Act>& x, const LayerOptions& options) {
  detail::layer<G, true>("layer_forward", machine, x, options);
}
template <class G = Head128, class Machine, class Act>
void layer_forward_states(Machine& machine, const LayerArrays<Act>& x, const LayerOptions& options) {
  detail::layer<G, false>("layer_forward_states", machine, x, options);
}

}  // namespace gdn

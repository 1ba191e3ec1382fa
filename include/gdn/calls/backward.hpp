// Backward calls: gradients of the forward calls, from the cotangents of their outputs and from what they left behind.
//
// The arrays of the forward call are handed in as they were, with residual, t_inv and chunk_states as it wrote them; its outputs are not
// read. Machines, shapes and classes are those of calls/forward.hpp.
#pragma once
#include "gdn/calls/forward.hpp"
#include "gdn/kernels/layer_backward.hpp"

namespace gdn {

// Cotangents of what `forward` returned, and the gradients wanted; absent ones are not computed. On padding gradients are 0.
template <class Act> struct CoreGradients {
  View<const Act, 4> d_out;    // [B, T, Hv, V]
  View<const f32, 4> d_final;  // [B, Hv, K, V], of the state after the row; absent: zeros
  View<Act, 4> dq, dk;         // [B, T, Hk, K], summed over the value heads of a key head
  View<Act, 4> dv;             // [B, T, Hv, V]
  View<f32, 3> dg;             // [B, T, Hv]; needs g
  View<f32, 3> dbeta;          // [B, T, Hv]
  View<f32, 4> d_initial;      // [B, Hv, K, V]; needs initial
};

// The same for `layer_forward`. Gradients of parameters are sums over the tokens of a row; those of the rows of a batch stand side by
// side, and their sum is the gradient.
template <class Act> struct LayerGradients {
  View<const Act, 4> d_out;      // [B, T, Hv, V]
  View<const f32, 4> d_final;    // [B, Hv, K, V]; absent: zeros
  View<const Act, 3> d_conv_final;  // [B, taps - 1, D]; absent: zeros
  View<Act, 3> dqkv;             // [B, T, D]; an emitted kernel returns it in its three parts, dq, dk and dv
  View<Act, 3> db, da;           // [B, T, Hv]
  View<f32, 3> d_conv_weights;   // [B, taps, D]
  View<f32, 2> d_conv_bias;      // [B, D]; needs conv_bias
  View<f32, 2> dA_log, ddt_bias; // [B, Hv]
  View<Act, 3> d_conv_initial;   // [B, taps - 1, D]; needs conv_initial
  View<f32, 4> d_initial;        // [B, Hv, K, V]; needs initial
};

namespace detail {

template <class M, class C, class K, class V, class Act>
BackwardRefs<M, C, K, V> bind_backward(Binding<M>& b, const View<const Act, 4>& d_out, const View<const f32, 4>& d_final,
                                       const View<f32, 4>& d_initial, const View<Act, 4>& residual, const Residuals& r) {
  BackwardRefs<M, C, K, V> x;
  x.d_out = b.template ref<f32, C, V>(b.array("d_out", Use::in, d_out), Place::tokens, Use::in, Domain::value_head);
  x.residual = b.template ref<f32, C, V>(b.array("residual", Use::in, residual), Place::tokens, Use::in, Domain::value_head);
  x.t_inv = b.template ref<f32, C, C>(b.array("t_inv", Use::in, r.t_inv), Place::tokens, Use::in, Domain::value_head);
  x.chunk_states = b.template ref<f32, K, V>(b.array("chunk_states", Use::in, r.chunk_states), Place::chunk_state, Use::in, Domain::value_head);
  const auto from = b.template ref<f32, K, V>(b.array("d_final", Use::in, d_final), Place::sequence, Use::in, Domain::value_head);
  const auto to = b.template ref<f32, K, V>(b.array("d_initial", Use::out, d_initial), Place::sequence, Use::out, Domain::value_head);
  x.d_state = b.template carried<K, V>("d_state", Domain::value_head, from.id, to.id);
  return x;
}

template <class G, class Act> struct CoreBackwardCall {
  using C = typename G::chunk;
  using K = typename G::key;
  using V = typename G::value;
  static constexpr Precision P = precision_of<Act>;
  const char* name;
  const CoreArrays<Act>& x;
  const CoreGradients<Act>& d;
  Extent extent;
  QueryOptions options;
  DocumentPlan plan;  // empty: one document

  template <class M> struct Refs {
    CoreBackwardRefs<M, C, K, V> core;
    DocumentRefs<M, C> documents;
  };
  template <class M> Refs<M> bind(M& m) const {
    Binding<M> b{m};
    Refs<M> r;
    auto& c = r.core;
    c.q = b.template ref<f32, C, K>(b.array("q", Use::in, x.q), Place::tokens, Use::in, Domain::key_head);
    c.k = b.template ref<f32, C, K>(b.array("k", Use::in, x.k), Place::tokens, Use::in, Domain::key_head);
    c.g = b.template ref<f32, C, One>(b.array("g", Use::in, x.g), Place::tokens, Use::in, Domain::value_head);
    c.beta = b.template ref<f32, C, One>(b.array("beta", Use::in, x.beta), Place::tokens, Use::in, Domain::value_head);
    r.documents = bind_documents<M, C>(b, plan);
    c.chunk = bind_backward<M, C, K, V>(b, d.d_out, d.d_final, d.d_initial, x.residual, x.residuals);
    c.dq = b.template ref<f32, C, K>(b.array("dq", Use::out, d.dq), Place::tokens, Use::out, Domain::key_head);
    c.dk = b.template ref<f32, C, K>(b.array("dk", Use::out, d.dk), Place::tokens, Use::out, Domain::key_head);
    c.dv = b.template ref<f32, C, V>(b.array("dv", Use::out, d.dv), Place::tokens, Use::out, Domain::value_head);
    c.dg = b.template ref<f32, C, One>(b.array("dg", Use::out, d.dg), Place::tokens, Use::out, Domain::value_head);
    c.dbeta = b.template ref<f32, C, One>(b.array("dbeta", Use::out, d.dbeta), Place::tokens, Use::out, Domain::value_head);
    return r;
  }
  template <class M> void head(M& m, const Refs<M>& r) const {
    with_documents(r.documents, extent.turns || extent.tokens % extent.chunk != 0,
                   [&](const auto& documents) { core_backward_head<P>(m, documents, r.core, options); });
  }
};

// What every backward reads, and the gradient of a state that nobody gave.
template <class G, class Act>
void check_backward(const char* call, const View<const Act, 4>& d_out, const View<const f32, 4>& d_final, const View<f32, 4>& d_initial,
                    const View<const f32, 4>& initial, const View<Act, 4>& residual, const Residuals& r, std::int64_t B, std::int64_t T,
                    std::int64_t H, const std::optional<Counts>& counts) {
  constexpr int K = G::key::size, V = G::value::size;
  const std::int64_t states = counts ? counts->states : B;
  check_residuals<G>(call, residual, r, B, T, H, counts);
  checks::shape(call, "d_out", d_out, {B, T, H, V});
  checks::optional_shape(call, "d_final", d_final, {states, H, K, V});
  checks::optional_shape(call, "initial", initial, {states, H, K, V});
  checks::optional_shape(call, "d_initial", d_initial, {states, H, K, V});
  require(!d_initial || initial, call, ": d_initial is wanted, and initial is missing");
}

template <class G, class Act>
void check_core_backward(const char* call, const CoreArrays<Act>& x, const CoreGradients<Act>& d, const std::optional<Counts>& counts = {}) {
  constexpr int K = G::key::size, V = G::value::size;
  for (auto [name, given] : {std::pair{"q", x.q.given}, {"k", x.k.given}, {"beta", x.beta.given}, {"residual", x.residual.given},
                             {"t_inv", x.residuals.t_inv.given}, {"chunk_states", x.residuals.chunk_states.given}, {"d_out", d.d_out.given}})
    checks::given(call, name, given);
  const std::int64_t B = x.k.shape[0], T = x.k.shape[1], Hk = x.k.shape[2], H = d.d_out.shape[2];
  check_heads(call, Hk, H);
  checks::shape(call, "k", x.k, {B, T, Hk, K});
  checks::shape(call, "q", x.q, {B, T, Hk, K});
  checks::optional_shape(call, "g", x.g, {B, T, H});
  checks::shape(call, "beta", x.beta, {B, T, H});
  checks::optional_shape(call, "ids", x.ids, {B, T});
  check_backward<G>(call, d.d_out, d.d_final, d.d_initial, x.initial, x.residual, x.residuals, B, T, H, counts);
  checks::optional_shape(call, "dq", d.dq, {B, T, Hk, K});
  checks::optional_shape(call, "dk", d.dk, {B, T, Hk, K});
  checks::optional_shape(call, "dv", d.dv, {B, T, H, V});
  checks::optional_shape(call, "dg", d.dg, {B, T, H});
  checks::optional_shape(call, "dbeta", d.dbeta, {B, T, H});
  require(d.dq || d.dk || d.dv || d.dg || d.dbeta || d.d_initial, call,
          ": no gradient is given; expected one of dq, dk, dv, dg, dbeta and d_initial");
  require(!d.dg || x.g, call, ": dg is wanted, and g is missing");
  checks::no_overlap(call, std::array{checks::span_of("q", x.q, false), checks::span_of("k", x.k, false), checks::span_of("g", x.g, false),
                                      checks::span_of("beta", x.beta, false), checks::span_of("ids", x.ids, false),
                                      checks::span_of("residual", x.residual, false), checks::span_of("t_inv", x.residuals.t_inv, false),
                                      checks::span_of("chunk_states", x.residuals.chunk_states, false), checks::span_of("d_out", d.d_out, false),
                                      checks::span_of("d_final", d.d_final, false), checks::span_of("dq", d.dq, true),
                                      checks::span_of("dk", d.dk, true), checks::span_of("dv", d.dv, true), checks::span_of("dg", d.dg, true),
                                      checks::span_of("dbeta", d.dbeta, true),
                                      checks::span_of("d_initial", d.d_initial, true)},
                     [](std::string_view o, std::string_view i) { return o == "d_initial" && i == "d_final"; });
}

template <class G, class Act> struct LayerBackwardCall {
  using C = typename G::chunk;
  using K = typename G::key;
  using V = typename G::value;
  using T = typename G::taps;
  static constexpr Precision P = precision_of<Act>;
  const char* name;
  const LayerArrays<Act>& x;
  const LayerGradients<Act>& d;
  Extent extent;
  QueryOptions options;
  DocumentPlan plan;
  std::vector<i32> last_inputs = rows_of_last_inputs(plan, T::size);

  template <class M> struct Refs {
    LayerBackwardRefs<M, C, K, V, T> layer;
    DocumentRefs<M, C> documents;
  };
  template <class M> Refs<M> bind(M& m) const {
    Binding<M> b{m};
    Refs<M> r;
    const int qkv = b.array("qkv", Use::in, x.qkv), weights = b.array("conv_weights", Use::in, x.conv_weights);
    const int bias = bind_bias(b, x.conv_bias), before = b.array("conv_initial", Use::in, x.conv_initial);
    const int d_weights = b.array("d_conv_weights", Use::out, d.d_conv_weights), d_before = b.array("d_conv_initial", Use::out, d.d_conv_initial);
    const int d_bias = b.array("d_conv_bias", Use::out, with_dimension(d.d_conv_bias)), d_last = b.array("d_conv_final", Use::in, d.d_conv_final);
    if (d.d_conv_final) {
      const View<const i32, 2> rows = view(last_inputs.data(), {extent.batch, (T::size - 1) * plan.chunks});
      const int array = b.array("last_inputs", Use::in, rows);
      for (int j = 0; j + 1 < T::size; j++)
        r.layer.last[static_cast<std::size_t>(j)] = b.template ref<i32, One, One>(array, Place::scalars, Use::in, Domain::token, 0, j * plan.chunks);
    }
    auto conv = [&]<class W>(ConvBackwardRefs<M, C, W, T>& c, const std::string& part, Domain domain, int column, int heads) {
      using Edge = Row<T::size - 1>;
      c.x = b.template ref<f32, C, W>(qkv, Place::tokens, Use::in, domain, column);
      const auto initial = b.template ref<f32, Edge, W>(before, Place::edge_rows, Use::in, domain, column);
      c.before = m.template declare<f32, Row<tail_rows>, W>({.name = "qkv", .place = Place::before, .use = Use::in, .element = element_of<Act>,
                                                             .domain = domain, .array = qkv, .first_column = column, .initial = initial.id});
      c.weights = b.template ref<f32, T, W>(weights, Place::weights, Use::in, domain, column);
      c.bias = b.template ref<f32, One, W>(bias, Place::weights, Use::in, domain, column);
      c.dx = b.template ref<f32, C, W>(b.array("d" + part, Use::out, columns_of(d.dqkv, column, heads, W::size)), Place::tokens, Use::out, domain);
      c.d_final = b.template ref<f32, Edge, W>(d_last, Place::edge_rows, Use::in, domain, column);
      const auto to = b.template ref<f32, Edge, W>(d_before, Place::edge_rows, Use::out, domain, column);
      c.d_before = b.template carried<Row<tail_rows>, W>(part + "_d_before", domain, -1, to.id);
      auto summed = [&]<class R>(Ref<M, f32, R, W>& sum, int array, const char* what) {
        const auto total = b.template ref<f32, R, W>(array, Place::edge_rows, Use::out, domain, column);
        if (total) sum = b.template carried<R, W>(part + what, domain, -1, total.id);
      };
      summed(c.d_weights, d_weights, "_d_weights");
      summed(c.d_bias, d_bias, "_d_bias");
    };
    const int key_columns = extent.key_heads * K::size;
    conv(r.layer.q, "q", Domain::key_head, 0, extent.key_heads);
    conv(r.layer.k, "k", Domain::key_head, key_columns, extent.key_heads);
    conv(r.layer.v, "v", Domain::value_head, 2 * key_columns, extent.value_heads);
    bind_gates<C>(b, x, r.layer);
    r.documents = bind_documents<M, C>(b, plan);
    r.layer.chunk = bind_backward<M, C, K, V>(b, d.d_out, d.d_final, d.d_initial, x.residual, x.residuals);
    r.layer.db = b.template ref<f32, C, One>(b.array("db", Use::out, d.db), Place::tokens, Use::out, Domain::value_head);
    r.layer.da = b.template ref<f32, C, One>(b.array("da", Use::out, d.da), Place::tokens, Use::out, Domain::value_head);
    auto parameter = [&](Ref<M, f32, One, One>& sum, const char* name, const View<f32, 2>& v) {
      const int array = b.array(name, Use::out, with_dimension(with_dimension(v, 2), 2));
      const auto total = b.template ref<f32, One, One>(array, Place::sequence, Use::out, Domain::value_head);
      if (total) sum = b.template carried<One, One>(std::string(name) + "_sum", Domain::value_head, -1, total.id);
    };
    parameter(r.layer.dA_log, "dA_log", d.dA_log);
    parameter(r.layer.ddt_bias, "ddt_bias", d.ddt_bias);
    return r;
  }
  template <class M> void head(M& m, const Refs<M>& r) const {
    with_documents(r.documents, extent.turns || extent.tokens % extent.chunk != 0,
                   [&](const auto& documents) { layer_backward_head<P>(m, documents, r.layer, options); });
  }

 private:
  // The same view with a dimension of one entry more, before dimension `at`.
  template <class E, int Rank> static View<E, Rank + 1> with_dimension(const View<E, Rank>& v, int at = 1) {
    if (!v) return {};
    View<E, Rank + 1> w(v.data, {}, {});
    for (int i = 0; i <= Rank; i++) {
      w.shape[static_cast<std::size_t>(i)] = i == at ? 1 : v.shape[static_cast<std::size_t>(i > at ? i - 1 : i)];
      w.strides[static_cast<std::size_t>(i)] = i == at ? 0 : v.strides[static_cast<std::size_t>(i > at ? i - 1 : i)];
    }
    return w;
  }
  // Heads of a row: [B, T, heads, W].
  static View<Act, 4> columns_of(const View<Act, 3>& v, int column, int heads, int W) {
    if (!v) return {};
    return {v.data + column * v.strides[2], {v.shape[0], v.shape[1], heads, W}, {v.strides[0], v.strides[1], W * v.strides[2], v.strides[2]}};
  }
};

template <class G, class Act>
void check_layer_backward(const char* call, const LayerArrays<Act>& x, const LayerGradients<Act>& d, const LayerOptions& o,
                          const std::optional<Counts>& counts = {}) {
  constexpr int K = G::key::size, V = G::value::size, W = G::taps::size;
  for (auto [name, given] : {std::pair{"qkv", x.qkv.given}, {"b", x.b.given}, {"a", x.a.given}, {"conv_weights", x.conv_weights.given},
                             {"A_log", x.A_log.given}, {"dt_bias", x.dt_bias.given}, {"residual", x.residual.given},
                             {"t_inv", x.residuals.t_inv.given},
                             {"chunk_states", x.residuals.chunk_states.given}, {"d_out", d.d_out.given}})
    checks::given(call, name, given);
  require(o.key_heads > 0, call, ": options.key_heads is ", o.key_heads, "; expected the number of key heads");
  const std::int64_t B = x.qkv.shape[0], T = x.qkv.shape[1], Hk = o.key_heads, H = x.a.shape[2], D = 2 * Hk * K + H * V;
  const std::int64_t states = counts ? counts->states : B;
  check_heads(call, Hk, H);
  check_layer_inputs<G>(call, x, o, states);
  check_backward<G>(call, d.d_out, d.d_final, d.d_initial, x.initial, x.residual, x.residuals, B, T, H, counts);
  checks::optional_shape(call, "dqkv", d.dqkv, {B, T, D});
  checks::optional_shape(call, "db", d.db, {B, T, H});
  checks::optional_shape(call, "da", d.da, {B, T, H});
  checks::optional_shape(call, "d_conv_weights", d.d_conv_weights, {states, W, D});
  checks::optional_shape(call, "d_conv_bias", d.d_conv_bias, {states, D});
  checks::optional_shape(call, "dA_log", d.dA_log, {states, H});
  checks::optional_shape(call, "ddt_bias", d.ddt_bias, {states, H});
  checks::optional_shape(call, "d_conv_initial", d.d_conv_initial, {states, W - 1, D});
  checks::optional_shape(call, "d_conv_final", d.d_conv_final, {states, W - 1, D});
  require(d.dqkv || d.db || d.da || d.d_conv_weights || d.d_conv_bias || d.dA_log || d.ddt_bias || d.d_conv_initial || d.d_initial, call,
          ": no gradient is given; expected one of dqkv, db, da, d_conv_weights, d_conv_bias, dA_log, ddt_bias, d_conv_initial and d_initial");
  require(!d.d_conv_bias || x.conv_bias, call, ": d_conv_bias is wanted, and conv_bias is missing");
  require(!d.d_conv_initial || x.conv_initial, call, ": d_conv_initial is wanted, and conv_initial is missing");
  checks::no_overlap(call, std::array{checks::span_of("qkv", x.qkv, false), checks::span_of("a", x.a, false), checks::span_of("b", x.b, false),
                                      checks::span_of("conv_weights", x.conv_weights, false), checks::span_of("conv_bias", x.conv_bias, false),
                                      checks::span_of("A_log", x.A_log, false), checks::span_of("dt_bias", x.dt_bias, false),
                                      checks::span_of("ids", x.ids, false), checks::span_of("conv_initial", x.conv_initial, false),
                                      checks::span_of("residual", x.residual, false), checks::span_of("t_inv", x.residuals.t_inv, false),
                                      checks::span_of("chunk_states", x.residuals.chunk_states, false), checks::span_of("d_out", d.d_out, false),
                                      checks::span_of("d_final", d.d_final, false), checks::span_of("d_conv_final", d.d_conv_final, false),
                                      checks::span_of("dqkv", d.dqkv, true),
                                      checks::span_of("db", d.db, true), checks::span_of("da", d.da, true),
                                      checks::span_of("d_conv_weights", d.d_conv_weights, true), checks::span_of("d_conv_bias", d.d_conv_bias, true),
                                      checks::span_of("dA_log", d.dA_log, true), checks::span_of("ddt_bias", d.ddt_bias, true),
                                      checks::span_of("d_conv_initial", d.d_conv_initial, true), checks::span_of("d_initial", d.d_initial, true)},
                     [](std::string_view o, std::string_view i) {
                       return (o == "d_initial" && i == "d_final") || (o == "d_conv_initial" && i == "d_conv_final");
                     });
}

inline Extent backward_extent(std::int64_t B, std::int64_t T, int C, std::int64_t Hk, std::int64_t H) {
  return {.batch = static_cast<int>(B), .tokens = static_cast<int>(T), .chunk = C, .key_heads = static_cast<int>(Hk),
          .value_heads = static_cast<int>(H), .descending = true};
}

}  // namespace detail

// Gradients of sum(out . d_out) + sum(final . d_final), out and final those of `forward` on the same arrays and options.
template <class G = Head128, class Machine, class Act>
void backward(Machine& machine, const CoreArrays<Act>& x, const CoreGradients<Act>& d, const CoreOptions& o = {}) {
  constexpr const char* call = "backward";
  constexpr int C = G::chunk::size;
  detail::check_core_backward<G>(call, x, d);
  const std::int64_t B = x.k.shape[0], T = x.k.shape[1];
  machine.check_data([&] { checks::no_growth(call, x.g); });
  if (T == 0 || B == 0) return detail::pass_on(d.d_final, d.d_initial);
  detail::CoreBackwardCall<G, Act> c{call, x, d, detail::backward_extent(B, T, C, x.k.shape[2], d.d_out.shape[2]),
                                     detail::query_options(o.scale, o.use_qk_norm, G::key::size), {}};
  if (x.ids || T % C) c.plan = plan_documents(x.ids, c.extent.batch, c.extent.tokens, C, 0, static_cast<bool>(x.initial), tail_rows);
  machine.run(c);
}

// Gradients of sum(out . d_out) + sum(final . d_final) + sum(conv_final . d_conv_final) of what `layer_forward` gives on the same arrays
// and options.
template <class G = Head128, class Machine, class Act>
void layer_backward(Machine& machine, const LayerArrays<Act>& x, const LayerGradients<Act>& d, const LayerOptions& o) {
  constexpr const char* call = "layer_backward";
  constexpr int C = G::chunk::size, W = G::taps::size;
  detail::check_layer_backward<G>(call, x, d, o);
  const std::int64_t B = x.qkv.shape[0], T = x.qkv.shape[1];
  if (T == 0 || B == 0) {
    for (auto zero : {d.dA_log, d.ddt_bias, d.d_conv_bias}) detail::pass_on({}, zero);
    detail::pass_on({}, d.d_conv_weights);
    detail::pass_on(d.d_conv_final, d.d_conv_initial);
    return detail::pass_on(d.d_final, d.d_initial);
  }
  const Extent extent = detail::backward_extent(B, T, C, o.key_heads, x.a.shape[2]);
  DocumentPlan plan = plan_documents(x.ids, extent.batch, extent.tokens, C, W, x.initial || x.conv_initial, tail_rows);
  if (!x.ids && T % C == 0) plan.word.clear();
  machine.run(detail::LayerBackwardCall<G, Act>{call, x, d, extent, detail::query_options(o.scale, o.use_qk_norm, G::key::size), plan});
}

}  // namespace gdn

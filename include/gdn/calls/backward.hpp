// Backward calls: gradients of the forward calls, from the cotangents of their outputs and from what they left behind.
//
// The arrays of the forward call are handed in as they were, with residual, t_inv and chunk_states as it wrote them; its outputs are not
// read. Machines, shapes and classes are those of calls/forward.hpp.
#pragma once
#include "gdn/calls/forward.hpp"
#include "gdn/kernels/core_backward.hpp"

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

namespace detail {

template <class M, class C, class K, class V, class Act>
BackwardRefs<M, C, K, V> bind_backward(Binding<M>& b, const View<const Act, 4>& d_out, const View<const f32, 4>& d_final, const View<f32, 4>& d_initial,
                                       const View<Act, 4>& residual, const Residuals& r) {
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
    with_documents(r.documents, extent.tokens % extent.chunk != 0, [&](const auto& documents) { core_backward_head<P>(m, documents, r.core, options); });
  }
};

// What every backward reads, and the gradient of a state that nobody gave.
template <class G, class Act>
void check_backward(const char* call, const View<const Act, 4>& d_out, const View<const f32, 4>& d_final, const View<f32, 4>& d_initial,
                    const View<const f32, 4>& initial, const View<Act, 4>& residual, const Residuals& r, std::int64_t B, std::int64_t T, std::int64_t H) {
  constexpr int K = G::key::size, V = G::value::size;
  check_residuals<G>(call, residual, r, B, T, H);
  checks::shape(call, "d_out", d_out, {B, T, H, V});
  checks::optional_shape(call, "d_final", d_final, {B, H, K, V});
  checks::optional_shape(call, "initial", initial, {B, H, K, V});
  checks::optional_shape(call, "d_initial", d_initial, {B, H, K, V});
  require(!d_initial || initial, call, ": d_initial is wanted, and initial is missing");
}

template <class G, class Act> void check_core_backward(const char* call, const CoreArrays<Act>& x, const CoreGradients<Act>& d) {
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
  check_backward<G>(call, d.d_out, d.d_final, d.d_initial, x.initial, x.residual, x.residuals, B, T, H);
  checks::optional_shape(call, "dq", d.dq, {B, T, Hk, K});
  checks::optional_shape(call, "dk", d.dk, {B, T, Hk, K});
  checks::optional_shape(call, "dv", d.dv, {B, T, H, V});
  checks::optional_shape(call, "dg", d.dg, {B, T, H});
  checks::optional_shape(call, "dbeta", d.dbeta, {B, T, H});
  require(d.dq || d.dk || d.dv || d.dg || d.dbeta || d.d_initial, call, ": no gradient is given; expected one of dq, dk, dv, dg, dbeta and d_initial");
  require(!d.dg || x.g, call, ": dg is wanted, and g is missing");
  checks::no_overlap(call, std::array{checks::span_of("q", x.q, false), checks::span_of("k", x.k, false), checks::span_of("g", x.g, false),
                                      checks::span_of("beta", x.beta, false), checks::span_of("ids", x.ids, false),
                                      checks::span_of("residual", x.residual, false), checks::span_of("t_inv", x.residuals.t_inv, false),
                                      checks::span_of("chunk_states", x.residuals.chunk_states, false), checks::span_of("d_out", d.d_out, false),
                                      checks::span_of("d_final", d.d_final, false), checks::span_of("dq", d.dq, true), checks::span_of("dk", d.dk, true),
                                      checks::span_of("dv", d.dv, true), checks::span_of("dg", d.dg, true), checks::span_of("dbeta", d.dbeta, true),
                                      checks::span_of("d_initial", d.d_initial, true)},
                     [](std::string_view o, std::string_view i) { return o == "d_initial" && i == "d_final"; });
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

}  // namespace gdn

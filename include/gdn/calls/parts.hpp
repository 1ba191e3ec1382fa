// Parts of the layer as calls of their own: causal convolution with SiLU, l2norm of rows, gates. C tokens are worked on at a time.
#pragma once
#include "gdn/calls/forward.hpp"
#include "gdn/kernels/parts.hpp"

namespace gdn {

template <class Act> struct ConvArrays {
  View<const Act, 3> x;        // [B, T, D]
  View<const f32, 2> weights;  // [taps, D], the last tap multiplies the current token
  View<const f32, 1> bias;     // [D] or absent
  View<const Act, 3> initial;  // [B, taps - 1, D], the inputs before the row, oldest first; absent: zeros
  View<const i32, 2> ids;      // [B, T], documents; absent: one document
  View<Act, 3> y;              // [B, T, D], 0 on padding
  View<Act, 3> final;          // [B, taps - 1, D]; may be `initial` itself; absent: not wanted
};
template <class Act> struct NormArrays {
  View<const Act, 4> x;  // [B, T, H, W]
  View<Act, 4> y;        // [B, T, H, W]; may be x itself
};
template <class Act> struct GateArrays {
  View<const Act, 3> a, b;            // [B, T, H]
  View<const f32, 1> A_log, dt_bias;  // [H]
  View<const i32, 2> ids;             // [B, T]
  View<f32, 3> g, beta;               // [B, T, H], 0 on padding
};

namespace detail {

inline Extent part_extent(std::int64_t batch, std::int64_t tokens, int chunk, std::int64_t heads) {
  return {static_cast<int>(batch), static_cast<int>(tokens), chunk, static_cast<int>(heads), static_cast<int>(heads)};
}
// The documents a call reads: none if every row is valid and whole.
inline DocumentPlan part_plan(const View<const i32, 2>& ids, const Extent& x, int taps, bool continues) {
  DocumentPlan p = plan_documents(ids, x.batch, x.tokens, x.chunk, taps, continues, tail_rows);
  if (!ids && x.tokens % x.chunk == 0) p.word.clear();
  return p;
}

// W channels are a head.
template <int Tokens, int Channels, int TapCount, class Act> struct ConvCall {
  using C = Chunk<Tokens>;
  using W = Lane<Channels>;
  using T = Taps<TapCount>;
  const char* name;
  const ConvArrays<Act>& x;
  Extent extent;
  DocumentPlan plan;

  template <class M> struct Refs {
    ConvRefs<M, C, W, T> conv;
    Ref<M, f32, C, W> y;
    Ref<M, i32, One, One> edge_plan;
    DocumentRefs<M, C> documents;
  };
  template <class M> Refs<M> bind(M& m) const {
    Binding<M> b{m};
    Refs<M> r;
    using Edge = typename ConvRefs<M, C, W, T>::Edge;
    constexpr Domain heads = Domain::value_head;
    r.conv.x = b.template ref<f32, C, W>(b.array("x", Use::in, x.x), Place::tokens, Use::in, heads);
    r.conv.weights = b.template ref<f32, T, W>(b.array("weights", Use::in, x.weights), Place::weights, Use::in, heads);
    r.conv.bias = b.template ref<f32, One, W>(bind_bias(b, x.bias), Place::weights, Use::in, heads);
    const auto initial = b.template ref<f32, Edge, W>(b.array("initial", Use::in, x.initial), Place::edge_rows, Use::in, heads);
    r.conv.tail = b.template carried<Row<tail_rows>, W>("tail", heads, initial.id);
    r.conv.state = b.template ref<f32, Edge, W>(b.array("final", Use::out, x.final), Place::edge_rows, Use::out, heads);
    r.y = b.template ref<f32, C, W>(b.array("y", Use::out, x.y), Place::tokens, Use::out, heads);
    if (x.final) {
      const View<const i32, 2> edge = view(plan.edge.data(), {extent.batch, T::size});
      r.edge_plan = b.template ref<i32, One, One>(b.array("plan", Use::in, edge), Place::scalars, Use::in, Domain::token);
    }
    r.documents = bind_documents<M, C>(b, plan);
    return r;
  }
  template <class M> void head(M&, const Refs<M>& r) const {
    with_documents(r.documents, extent.tokens % C::size != 0, [&](const auto& documents) { conv_head(documents, r.conv, r.edge_plan, r.y); });
  }
};

template <int Tokens, int Width, class Act> struct NormCall {
  using C = Chunk<Tokens>;
  using W = Lane<Width>;
  const char* name;
  const NormArrays<Act>& x;
  Extent extent;
  f32 scale;
  DocumentPlan plan;

  template <class M> struct Refs {
    Ref<M, f32, C, W> x, y;
    DocumentRefs<M, C> documents;
  };
  template <class M> Refs<M> bind(M& m) const {
    Binding<M> b{m};
    return {b.template ref<f32, C, W>(b.array("x", Use::in, x.x), Place::tokens, Use::in, Domain::value_head),
            b.template ref<f32, C, W>(b.array("y", Use::out, x.y), Place::tokens, Use::out, Domain::value_head), bind_documents<M, C>(b, plan)};
  }
  template <class M> void head(M&, const Refs<M>& r) const {
    with_documents(r.documents, true, [&](const auto& documents) { l2norm_head(documents, r.x, r.y, scale); });
  }
};

template <int Tokens, class Act> struct GateCall {
  using C = Chunk<Tokens>;
  const char* name;
  const GateArrays<Act>& x;
  Extent extent;
  DocumentPlan plan;

  template <class M> struct Refs {
    GateRefs<M, C> gates;
    DocumentRefs<M, C> documents;
  };
  template <class M> Refs<M> bind(M& m) const {
    Binding<M> b{m};
    Refs<M> r;
    bind_gates<C>(b, x, r.gates);
    r.gates.g = b.template ref<f32, C, One>(b.array("g", Use::out, x.g), Place::tokens, Use::out, Domain::value_head);
    r.gates.beta = b.template ref<f32, C, One>(b.array("beta", Use::out, x.beta), Place::tokens, Use::out, Domain::value_head);
    r.documents = bind_documents<M, C>(b, plan);
    return r;
  }
  template <class M> void head(M&, const Refs<M>& r) const {
    with_documents(r.documents, true, [&](const auto& documents) { gates_head(documents, r.gates); });
  }
};

}  // namespace detail

// y_t = silu(sum over taps j of w_j x_(t - (taps - 1 - j)) + bias), W channels at a time.
template <int C = 64, int W = 128, int TapCount = 4, class Machine, class Act> void causal_conv(Machine& machine, const ConvArrays<Act>& x) {
  static_assert(C >= tail_rows && C % tail_rows == 0, "causal_conv<C>: C must be a multiple of 8");
  constexpr const char* call = "causal_conv";
  checks::given(call, "x", static_cast<bool>(x.x));
  checks::given(call, "weights", static_cast<bool>(x.weights));
  checks::given(call, "y", static_cast<bool>(x.y));
  const std::int64_t B = x.x.shape[0], T = x.x.shape[1], D = x.x.shape[2];
  require(D % W == 0, call, ": x has ", D, " channels; expected a multiple of ", W);
  checks::shape(call, "weights", x.weights, {TapCount, D});
  checks::optional_shape(call, "bias", x.bias, {D});
  checks::optional_shape(call, "initial", x.initial, {B, TapCount - 1, D});
  checks::optional_shape(call, "ids", x.ids, {B, T});
  checks::shape(call, "y", x.y, {B, T, D});
  checks::optional_shape(call, "final", x.final, {B, TapCount - 1, D});
  checks::no_overlap(call, std::array{checks::span_of("x", x.x, false), checks::span_of("weights", x.weights, false),
                                      checks::span_of("bias", x.bias, false), checks::span_of("initial", x.initial, false),
                                      checks::span_of("y", x.y, true), checks::span_of("final", x.final, true)},
                     [](std::string_view o, std::string_view i) { return o == "final" && i == "initial"; });
  if (T == 0 || B == 0 || D == 0) return detail::pass_on(x.initial, x.final);
  const Extent extent = detail::part_extent(B, T, C, D / W);
  machine.run(detail::ConvCall<C, W, TapCount, Act>{call, x, extent, detail::part_plan(x.ids, extent, TapCount, static_cast<bool>(x.initial))});
}

// y = x rsqrt(sum x^2 + 1e-6) scale, row by row.
template <int W = 128, int C = 64, class Machine, class Act> void l2norm(Machine& machine, const NormArrays<Act>& x, f32 scale = 1) {
  constexpr const char* call = "l2norm";
  checks::given(call, "x", static_cast<bool>(x.x));
  checks::given(call, "y", static_cast<bool>(x.y));
  const std::int64_t B = x.x.shape[0], T = x.x.shape[1], H = x.x.shape[2];
  checks::shape(call, "x", x.x, {B, T, H, W});
  checks::shape(call, "y", x.y, {B, T, H, W});
  checks::no_overlap(call, std::array{checks::span_of("x", x.x, false), checks::span_of("y", x.y, true)}, [](auto, auto) { return true; });
  if (count(x.x.shape) == 0) return;
  const Extent extent = detail::part_extent(B, T, C, H);
  machine.run(detail::NormCall<C, W, Act>{call, x, extent, scale, detail::part_plan({}, extent, 0, false)});
}

// g = -exp(A_log) softplus(a + dt_bias), beta = sigmoid(b)
template <int C = 64, class Machine, class Act> void gates(Machine& machine, const GateArrays<Act>& x) {
  constexpr const char* call = "gates";
  for (auto [name, given] : {std::pair{"a", x.a.given}, {"b", x.b.given}, {"A_log", x.A_log.given}, {"dt_bias", x.dt_bias.given},
                             {"g", x.g.given}, {"beta", x.beta.given}})
    checks::given(call, name, given);
  const std::int64_t B = x.a.shape[0], T = x.a.shape[1], H = x.a.shape[2];
  checks::shape(call, "b", x.b, {B, T, H});
  checks::shape(call, "A_log", x.A_log, {H});
  checks::shape(call, "dt_bias", x.dt_bias, {H});
  checks::optional_shape(call, "ids", x.ids, {B, T});
  checks::shape(call, "g", x.g, {B, T, H});
  checks::shape(call, "beta", x.beta, {B, T, H});
  checks::no_overlap(call, std::array{checks::span_of("a", x.a, false), checks::span_of("b", x.b, false), checks::span_of("A_log", x.A_log, false),
                                      checks::span_of("dt_bias", x.dt_bias, false), checks::span_of("g", x.g, true), checks::span_of("beta", x.beta, true)},
                     [](auto, auto) { return false; });
  if (count(x.a.shape) == 0) return;
  const Extent extent = detail::part_extent(B, T, C, H);
  machine.run(detail::GateCall<C, Act>{call, x, extent, detail::part_plan(x.ids, extent, 1, false)});
}

}  // namespace gdn

// The gated RMSNorm of a layer's output (Qwen3-Next's RMSNormGated): y = RMSNorm(x) w silu(z) per head, and its gradients.
#pragma once
#include "gdn/calls/parts.hpp"
#include "gdn/calls/rows.hpp"
#include "gdn/kernels/gated_norm.hpp"

namespace gdn {

template <class Act> struct GatedNormArrays {
  View<const Act, 4> x, z;  // [B, T, H, W]
  View<const f32, 1> w;     // [W], the same for all heads
  View<Act, 4> y;           // [B, T, H, W]; may be x or z itself
  View<f32, 3> inverse{};   // [B, T, H], 1 / sqrt(sum x^2 + W epsilon) of each row, for the backward; absent: not wanted
};
template <class Act> struct GatedNormBackwardArrays {
  View<const Act, 4> x, z, dy;   // [B, T, H, W]
  View<const f32, 1> w;          // [W]
  View<Act, 4> dx, dz;           // [B, T, H, W]
  View<f32, 3> dw;               // [B, H, W]: sums over the tokens of a row; sum_heads makes the gradient of w of them
  View<const f32, 3> inverse{};  // [B, T, H], as gated_norm wrote it for the same x and epsilon; absent: made again, with the same bits
};

namespace detail {

// Of either direction, by its arrays.
template <int Tokens, int Width, class Arrays> struct GatedNormCall {
  static constexpr bool gradients = requires(const Arrays& a) { a.dy; };
  using C = Chunk<Tokens>;
  using W = Lane<Width>;
  const char* name;
  const Arrays& x;
  Extent extent;
  f32 epsilon;
  DocumentPlan plan;

  template <class M> struct Refs {
    std::conditional_t<gradients, GatedNormBackwardRefs<M, C, W>, GatedNormRefs<M, C, W>> norm;
    DocumentRefs<M, C> documents;
  };
  template <class M> Refs<M> bind(M& m) const {
    Binding<M> b{m};
    Refs<M> r;
    const auto rows = [&](const char* array, const auto& v, Use use) { return bind_row_tiles<norm_rows, M, C, W>(b, b.array(array, use, v), use); };
    r.norm.x = rows("x", x.x, Use::in);
    r.norm.z = rows("z", x.z, Use::in);
    if constexpr (gradients) r.norm.dy = rows("dy", x.dy, Use::in);
    const View<const f32, 2> weights(x.w.data, {1, Width}, {0, x.w.strides[0]});
    r.norm.w = b.template ref<f32, One, W>(b.array("w", Use::in, weights), Place::weights, Use::in, Domain::token);
    const int inverse = b.array("inverse", gradients ? Use::in : Use::out, x.inverse);
    if constexpr (gradients) {
      r.norm.inverse = b.template ref<f32, C, One>(inverse, Place::tokens, Use::in, Domain::value_head);
      r.norm.dx = rows("dx", x.dx, Use::out);
      r.norm.dz = rows("dz", x.dz, Use::out);
      const View<f32, 4> dw(x.dw.data, {x.dw.shape[0], x.dw.shape[1], 1, Width}, {x.dw.strides[0], x.dw.strides[1], 0, x.dw.strides[2]});
      const auto sums = b.template ref<f32, One, W>(b.array("dw", Use::out, dw), Place::sequence, Use::out, Domain::value_head);
      r.norm.dw = b.template carried<One, W>("dw_so_far", Domain::value_head, -1, sums.id);
    } else {
      r.norm.y = rows("y", x.y, Use::out);
      r.norm.inverse = bind_row_tiles<norm_rows, M, C, One>(b, inverse, Use::out);
    }
    r.documents = bind_documents<M, C>(b, plan);
    return r;
  }
  template <class M> void head(M&, const Refs<M>& r) const {
    with_documents(r.documents, true, [&](const auto& documents) {
      if constexpr (gradients) gated_norm_backward_head(documents, r.norm, epsilon);
      else gated_norm_head(documents, r.norm, epsilon);
    });
  }
};

template <int W, int C, class Act> void check_gated_norm(const char* call, const auto& x, std::initializer_list<std::pair<const char*, View<const Act, 4>>> rows) {
  static_assert(C > 0 && C % norm_rows == 0, "gated_norm<W, C>: C must be a multiple of 8");
  for (const auto& [name, v] : rows) checks::given(call, name, static_cast<bool>(v));
  checks::given(call, "w", static_cast<bool>(x.w));
  const auto& n = x.x.shape;
  for (const auto& [name, v] : rows) checks::shape(call, name, v, {n[0], n[1], n[2], W});
  checks::shape(call, "w", x.w, {W});
  checks::optional_shape(call, "inverse", x.inverse, {n[0], n[1], n[2]});
}

}  // namespace detail

// y = x rsqrt(mean x^2 + epsilon) w silu(z), row by row.
template <int W = 128, int C = 64, class Machine, class Act>
void gated_norm(Machine& machine, const GatedNormArrays<Act>& x, f32 epsilon = 1e-6f) {
  constexpr const char* call = "gated_norm";
  detail::check_gated_norm<W, C, Act>(call, x, {{"x", x.x}, {"z", x.z}, {"y", x.y}});
  checks::no_overlap(call, std::array{checks::span_of("x", x.x, false), checks::span_of("z", x.z, false), checks::span_of("w", x.w, false),
                                      checks::span_of("y", x.y, true), checks::span_of("inverse", x.inverse, true)},
                     [](std::string_view o, std::string_view i) { return o == "y" && i != "w"; });
  if (count(x.x.shape) == 0) return;
  const Extent extent = detail::part_extent(x.x.shape[0], x.x.shape[1], C, x.x.shape[2]);
  machine.run(detail::GatedNormCall<C, W, GatedNormArrays<Act>>{call, x, extent, epsilon, detail::part_plan({}, extent, 0, false)});
}
// The gradients of gated_norm from dy. Sums of dw are taken chunk by chunk of C tokens, so C is part of their order.
template <int W = 128, int C = 256, class Machine, class Act>
void gated_norm_backward(Machine& machine, const GatedNormBackwardArrays<Act>& x, f32 epsilon = 1e-6f) {
  constexpr const char* call = "gated_norm_backward";
  detail::check_gated_norm<W, C, Act>(call, x, {{"x", x.x}, {"z", x.z}, {"dy", x.dy}, {"dx", x.dx}, {"dz", x.dz}});
  checks::given(call, "dw", static_cast<bool>(x.dw));
  checks::shape(call, "dw", x.dw, {x.x.shape[0], x.x.shape[2], W});
  checks::no_overlap(call, std::array{checks::span_of("x", x.x, false), checks::span_of("z", x.z, false), checks::span_of("dy", x.dy, false),
                                      checks::span_of("w", x.w, false), checks::span_of("inverse", x.inverse, false),
                                      checks::span_of("dx", x.dx, true), checks::span_of("dz", x.dz, true), checks::span_of("dw", x.dw, true)}, [](auto, auto) { return false; });
  if (count(x.x.shape) == 0) {
    for (std::int64_t b = 0; b < x.dw.shape[0]; b++)
      for (std::int64_t h = 0; h < x.dw.shape[1]; h++)
        for (int i = 0; i < W; i++) x.dw.data[b * x.dw.strides[0] + h * x.dw.strides[1] + i * x.dw.strides[2]] = 0;
    return;
  }
  const Extent extent = detail::part_extent(x.x.shape[0], x.x.shape[1], C, x.x.shape[2]);
  machine.run(detail::GatedNormCall<C, W, GatedNormBackwardArrays<Act>>{call, x, extent, epsilon, detail::part_plan({}, extent, 0, false)});
}

// Gradients of what all heads share, from one sum per row of a batch and head: +0, then rows ascending, and the heads of a row ascending.
inline void sum_heads(const View<const f32, 3>& sums, const View<f32, 1>& gradient) {
  checks::shape("sum_heads", "gradient", gradient, {sums.shape[2]});
  for (std::int64_t i = 0; i < sums.shape[2]; i++) {
    f32 total = 0;
    for (std::int64_t b = 0; b < sums.shape[0]; b++)
      for (std::int64_t h = 0; h < sums.shape[1]; h++) total += sums.data[b * sums.strides[0] + h * sums.strides[1] + i * sums.strides[2]];
    gradient.data[i * gradient.strides[0]] = total;
  }
}

}  // namespace gdn

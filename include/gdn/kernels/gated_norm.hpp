// The gated RMSNorm behind the gated delta rule (Qwen3-Next), per head, in f32 with one rounding at the store:
//   y = (x inv) w silu(z)      inv = rsqrt(sum x^2 / W + epsilon)
// and its gradients, with n = x inv, s = sigmoid(z), a = z s, t = dy a:
//   dx = inv (t w - n sum (t n) (w / W))      dz = (dy (n w)) (s + a (1 - s))      dw = sum over tokens and heads of t n
//   dw is kept as one sum per row of the batch and head: chunk by chunk ascending, each chunk's own sum (sum_rows) added to those before.
#pragma once
#include "gdn/kernels/documents.hpp"
#include "gdn/ops.hpp"

namespace gdn {

template <class M, class C, class W> struct GatedNormRefs {
  Ref<M, f32, C, W> x, z, y;
  Ref<M, f32, One, W> w;
};
template <class M, class C, class W> struct GatedNormBackwardRefs {
  Ref<M, f32, C, W> x, z, dy, dx, dz;
  Ref<M, f32, One, W> w, dw;  // dw: carried
};

// 1 over the root mean square of each row.
template <TileLike A> auto inverse_rms(const A& x, f32 epsilon) {
  return map([epsilon](auto s) { return rsqrt(s * (1.f / A::cols::size) + epsilon); }, sum_cols(x * x));
}

template <class D, class M, class C, class W> void gated_norm_head(const D& documents, const GatedNormRefs<M, C, W>& r, f32 epsilon) {
  auto x = rows_of_array(documents, load(r.x));
  auto z = rows_of_array(documents, load(r.z));
  store(r.y, map([](auto x, auto inverse, auto w, auto z) { return x * inverse * w * (z * sigmoid(z)); }, x, inverse_rms(x, epsilon), load(r.w), z));
}

template <class D, class M, class C, class W> void gated_norm_backward_head(const D& documents, const GatedNormBackwardRefs<M, C, W>& r, f32 epsilon) {
  auto x = rows_of_array(documents, load(r.x));
  auto z = rows_of_array(documents, load(r.z));
  auto dy = rows_of_array(documents, load(r.dy));
  auto w = load(r.w);
  auto inverse = inverse_rms(x, epsilon);
  auto n = x * inverse;
  auto s = sigmoid(z);
  store(r.dz, map([](auto dy, auto n, auto w, auto z, auto s) { return dy * (n * w) * (s + z * s * (1.f - s)); }, dy, n, w, z, s));
  auto t = map([](auto dy, auto z, auto s) { return dy * (z * s); }, dy, z, s);
  auto tn = t * n;
  store(r.dw, load(r.dw) + sum_rows(tn));
  auto along = sum_cols(tn * (w * (1.f / W::size)));
  store(r.dx, map([](auto inverse, auto t, auto w, auto n, auto along) { return inverse * (t * w - n * along); }, inverse, t, w, n, along));
}

}  // namespace gdn

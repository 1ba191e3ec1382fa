// The gated RMSNorm behind the gated delta rule (Qwen3-Next), per head, in f32 with one rounding at the store. With v = sqrt(W) w:
//   y = x inv v silu(z)      inv = rsqrt(sum x^2 + W epsilon)
// and its gradients, with n = x inv, s = sigmoid(z), a = z s, t = dy a, e = dy (n v), q = e a:
//   dx = inv (t v - n sum q)      dz = q + s (e - q)      dw = sqrt(W) (sum over tokens and heads of t n)
//   dz is e (s + a (1 - s)) with one operation less; where z > 0 it costs up to 2 |z| + 4 roundings of e.
//   dw is kept as one sum per row of the batch and head: chunk by chunk ascending, each chunk's own sum added to those before. That is the
//   sum_rows of 8 rows, into which the chunk's tiles of 8 rows were added in their order, times sqrt(W).
#pragma once
#include <cmath>

#include "gdn/kernels/documents.hpp"
#include "gdn/kernels/rows.hpp"

namespace gdn {

// What is in work at a time.
inline constexpr int norm_rows = 8;

template <class M, class C, class W> struct GatedNormRefs {
  RowTiles<norm_rows, M, C, W> x, z, y;
  Ref<M, f32, One, W> w;
  RowTiles<norm_rows, M, C, One> inverse;  // may be absent
};
template <class M, class C, class W> struct GatedNormBackwardRefs {
  RowTiles<norm_rows, M, C, W> x, z, dy, dx, dz;
  Ref<M, f32, One, W> w, dw;    // dw: carried
  Ref<M, f32, C, One> inverse;  // as the forward wrote it; absent: made again
};

template <class W> f32 root_of_width() { return static_cast<f32>(std::sqrt(static_cast<double>(W::size))); }
template <TileLike A> auto inverse_norm(const A& x, f32 epsilon) {
  return map([epsilon](auto s) { return rsqrt(s + A::cols::size * epsilon); }, sum_cols(x * x));
}

template <class D, class M, class C, class W> void gated_norm_head(const D& documents, const GatedNormRefs<M, C, W>& r, f32 epsilon) {
  constexpr int N = norm_rows;
  auto v = load(r.w) * root_of_width<W>();
  for_row_tiles<N, C>([&](auto i, auto first) {
    auto x = rows_of_array<first>(documents, load(r.x[i]));
    auto z = rows_of_array<first>(documents, load(r.z[i]));
    auto inverse = inverse_norm(x, epsilon);
    if (r.inverse[i]) store(r.inverse[i], inverse);
    store(r.y[i], map([](auto x, auto inverse, auto v, auto z) { return x * inverse * v * (z * sigmoid(z)); }, x, inverse, v, z));
  });
}

template <class D, class M, class C, class W> void gated_norm_backward_head(const D& documents, const GatedNormBackwardRefs<M, C, W>& r, f32 epsilon) {
  constexpr int N = norm_rows;
  auto v = load(r.w) * root_of_width<W>();
  Column<M, f32, C> given;
  if (r.inverse) given = rows_of_array(documents, load(r.inverse));
  Tile<M, f32, Row<N>, W> sum;
  for_row_tiles<N, C>([&](auto i, auto first) {
    auto x = rows_of_array<first>(documents, load(r.x[i]));
    auto z = rows_of_array<first>(documents, load(r.z[i]));
    auto dy = rows_of_array<first>(documents, load(r.dy[i]));
    auto inverse = r.inverse ? retyped<Column<M, f32, Row<N>>>(rows<first, N>(given)) : inverse_norm(x, epsilon);
    auto n = x * inverse;
    auto s = sigmoid(z);
    auto a = z * s;
    auto t = dy * a;
    auto e = dy * (n * v);
    auto q = e * a;
    sum = i == 0 ? t * n : sum + t * n;
    store(r.dz[i], map([](auto q, auto s, auto e) { return q + s * (e - q); }, q, s, e));
    store(r.dx[i], map([](auto inverse, auto t, auto v, auto n, auto along) { return inverse * (t * v - n * along); }, inverse, t, v, n, sum_cols(q)));
  });
  store(r.dw, load(r.dw) + sum_rows(sum) * root_of_width<W>());
}

}  // namespace gdn

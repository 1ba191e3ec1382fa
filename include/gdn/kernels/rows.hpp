// Work on the rows of a buffer that are there, up to a limit that only the device knows: what a mixture of experts does between its
// matrix products. Row by row, in f32, with one rounding at the store:
//   SiLU-GLU         y = silu(g) u
//   its gradient     du = d a      dg = t s + (t g) (s (1 - s))      s = sigmoid(g), a = g s, t = d u; every zero is +0
//   unsort gradient  dx = w g      dw = sum over columns of g x
#pragma once
#include <array>

#include "gdn/ops.hpp"

namespace gdn {

// The rows of a window in tiles of N, one after the other: what is in work at a time fits the registers.
template <int N, class M, class R, class W> using RowTiles = std::array<Ref<M, f32, Row<N>, W>, static_cast<std::size_t>(R::size / N)>;

// `limit` counts from the window's first row on; absent, all rows are there.
template <class M> using RowLimit = Ref<M, i32, One, One>;

// body(keep), where keep<first>(x) are the rows of x, of which the first stands at row `first` of the window: as they are where the
// window is full, else with zeros from the limit on, by a select, since memory behind the limit may hold anything.
template <class R, class M, class F> void on_rows_there(M& m, const RowLimit<M>& limit, F body) {
  const auto all = [](auto, const auto& x) { return x; };
  if (!limit) return body(all);
  const auto there = load(limit);
  when(m, there, [](auto n) { return n >= R::size; }, [&] { body(all); });
  when(m, there, [](auto n) { return n < R::size; }, [&] {
    body([&](auto first, const auto& x) {
      return map_ij([](auto i, auto, auto n, auto x) { return where(i + decltype(first)::value < n, x, 0.f); }, there, x);
    });
  });
}
template <int N, class R, class F> void for_row_tiles(F f) {
  unroll<R::size / N>([&](auto i) { f(i, std::integral_constant<i32, i * N>{}); });
}

template <int N, class M, class R, class W> struct GluRefs {
  RowTiles<N, M, R, W> gate, up, y;
  RowLimit<M> limit;
};
template <int N, class M, class R, class W> void glu_rows_head(M& m, const GluRefs<N, M, R, W>& r) {
  on_rows_there<R>(m, r.limit, [&](auto keep) {
    for_row_tiles<N, R>([&](auto i, auto first) {
      auto g = keep(first, load(r.gate[i]));
      auto u = keep(first, load(r.up[i]));
      store(r.y[i], map([](auto g, auto u) { return g * sigmoid(g) * u; }, g, u));
    });
  });
}

template <int N, class M, class R, class W> struct GluBackwardRefs {
  RowTiles<N, M, R, W> gate, up, dy, d_gate, d_up;
  RowLimit<M> limit;
};
template <int N, class M, class R, class W> void glu_rows_backward_head(M& m, const GluBackwardRefs<N, M, R, W>& r) {
  // As a sum of two gradients padded with zeros would have it: -0 + 0 is +0.
  constexpr auto positive = [](auto x) { return where(x == 0.f, 0.f, x); };
  on_rows_there<R>(m, r.limit, [&](auto keep) {
    for_row_tiles<N, R>([&](auto i, auto first) {
      auto g = keep(first, load(r.gate[i]));
      auto u = keep(first, load(r.up[i]));
      auto d = keep(first, load(r.dy[i]));
      auto s = sigmoid(g);
      auto du = map([=](auto d, auto g, auto s) { return positive(d * (g * s)); }, d, g, s);
      auto dg = map([=](auto d, auto u, auto g, auto s) {
        auto t = d * u;
        return positive(t * s + t * g * (s * (1.f - s)));
      }, d, u, g, s);
      store(r.d_gate[i], dg);
      store(r.d_up[i], du);
    });
  });
}

// x: the rows that were summed with weights w; g: the gradient of each row's sum. One weight a row.
template <int N, class M, class R, class W> struct UnsortBackwardRefs {
  RowTiles<N, M, R, W> g, x, dx;
  Ref<M, f32, R, One> w, dw;
  RowLimit<M> limit;
};
template <int N, class M, class R, class W> void unsort_rows_backward_head(M& m, const UnsortBackwardRefs<N, M, R, W>& r) {
  on_rows_there<R>(m, r.limit, [&](auto keep) {
    auto w = keep(std::integral_constant<i32, 0>{}, load(r.w));
    std::array<Column<M, f32, Row<N>>, static_cast<std::size_t>(R::size / N)> dots;
    for_row_tiles<N, R>([&](auto i, auto first) {
      auto g = keep(first, load(r.g[i]));
      store(r.dx[i], g * retyped<Column<M, f32, Row<N>>>(rows<first, N>(w)));
      dots[i] = sum_cols(g * keep(first, load(r.x[i])));
    });
    store(r.dw, stacked<Column<M, f32, R>>(dots));
  });
}

}  // namespace gdn

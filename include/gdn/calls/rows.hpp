// Rows of a mixture of experts: SiLU-GLU and its gradient, and the gradient of a weighted unsort, on the rows that are there.
//
// `limit` [1] is the number of rows that are there. It is read by the device: an emitted kernel fetches, works on and writes whole blocks
// of `Rows` rows up to the one with row limit - 1 (block 0, if limit is 0). In that block, rows from the limit on become zeros; rows of
// later blocks keep what they held and must not be read. Without a limit all rows are there.
#pragma once
#include "gdn/calls/forward.hpp"
#include "gdn/kernels/rows.hpp"

namespace gdn {

template <class Act> struct GluArrays {
  View<const Act, 2> fused;  // [rows, 2 W]: gate, then up
  View<const i32, 1> limit;  // [1] or absent
  View<Act, 2> y;            // [rows, W]
};
template <class Act> struct GluBackwardArrays {
  View<const Act, 2> fused;  // [rows, 2 W]
  View<const Act, 2> dy;     // [rows, W]
  View<const i32, 1> limit;  // [1] or absent
  View<Act, 2> d_fused;      // [rows, 2 W]: of gate, then of up
};
template <class Act> struct UnsortBackwardArrays {
  View<const Act, 2> g;      // [rows, W]: the gradient of the sum each row went into
  View<const Act, 2> x;      // [rows, W]: the rows
  View<const f32, 1> w;      // [rows]: their weights
  View<const i32, 1> limit;  // [1] or absent
  View<Act, 2> dx;           // [rows, W]
  View<f32, 1> dw;           // [rows]
};

namespace detail {

template <class T> View<T, 3> one_row(const View<T, 2>& v) { return {v.data, {1, v.shape[0], v.shape[1]}, {0, v.strides[0], v.strides[1]}}; }
template <class T> View<T, 2> one_row(const View<T, 1>& v) { return {v.data, {1, v.shape[0]}, {0, v.strides[0]}}; }

template <int N, class M, class R, class W> RowTiles<N, M, R, W> bind_row_tiles(Binding<M>& b, int array, Use use, int column = 0) {
  RowTiles<N, M, R, W> all;
  for (std::size_t i = 0; i < all.size(); i++)
    all[i] = b.template ref<f32, Row<N>, W>(array, Place::tokens, use, Domain::value_head, column, 0, static_cast<int>(i) * N);
  return all;
}
// Arrays of rows on a machine.
template <int N, class R, class M> struct RowBinding {
  Binding<M> b;
  template <class W> RowTiles<N, M, R, W> tiles(int array, Use use, int column = 0) {
    return bind_row_tiles<N, M, R, W>(b, array, use, column);
  }
  template <class W, class T> RowTiles<N, M, R, W> tiles(const char* name, Use use, const View<T, 2>& v) {
    return tiles<W>(b.array(name, use, one_row(v)), use);
  }
  template <class T> Ref<M, f32, R, One> column(const char* name, Use use, const View<T, 1>& v, Domain domain) {
    return b.template ref<f32, R, One>(b.array(name, use, one_row(v)), Place::words, use, domain);
  }
  RowLimit<M> limit(const View<const i32, 1>& v) {
    return b.template ref<i32, One, One>(b.array("limit", Use::in, v), Place::limit, Use::in, Domain::token);
  }
};

// What the calls have in common: the limit, and the block rows that are worked on in tiles of 16, the height of a bf16 tile.
inline constexpr int row_tile = 16;
template <int Rows> struct RowCall {
  using R = Row<Rows>;
  static constexpr int N = row_tile;
  const char* name;
  Extent extent;
  View<const i32, 1> limit;
  i32 all = 0;
  RowCall(const char* name, std::int64_t rows, const View<const i32, 1>& given)
      : name(name), extent{1, static_cast<int>(rows), Rows, 1, 1}, limit(given), all(extent.tokens) {}
  RowCall(const RowCall&) = delete;
  // A last block that reaches beyond the arrays needs a limit too.
  View<const i32, 1> effective_limit() const { return limit || all % Rows == 0 ? limit : View<const i32, 1>(&all, {1}, {1}); }
};

template <int Rows, int Width, class Act> struct GluCall : RowCall<Rows> {
  using typename RowCall<Rows>::R;
  using RowCall<Rows>::N;
  using W = Lane<Width>;
  const GluArrays<Act>& x;
  template <class M> GluRefs<N, M, R, W> bind(M& m) const {
    RowBinding<N, R, M> b{{m}};
    const int fused = b.b.array("fused", Use::in, one_row(x.fused));
    GluRefs<N, M, R, W> r;
    r.gate = b.template tiles<W>(fused, Use::in);
    r.up = b.template tiles<W>(fused, Use::in, Width);
    r.y = b.template tiles<W>("y", Use::out, x.y);
    r.limit = b.limit(this->effective_limit());
    return r;
  }
  template <class M> void head(M& m, const GluRefs<N, M, R, W>& r) const { glu_rows_head(m, r); }
};
template <int Rows, int Width, class Act> struct GluBackwardCall : RowCall<Rows> {
  using typename RowCall<Rows>::R;
  using RowCall<Rows>::N;
  using W = Lane<Width>;
  const GluBackwardArrays<Act>& x;
  template <class M> GluBackwardRefs<N, M, R, W> bind(M& m) const {
    RowBinding<N, R, M> b{{m}};
    const int fused = b.b.array("fused", Use::in, one_row(x.fused));
    GluBackwardRefs<N, M, R, W> r;
    r.gate = b.template tiles<W>(fused, Use::in);
    r.up = b.template tiles<W>(fused, Use::in, Width);
    r.dy = b.template tiles<W>("dy", Use::in, x.dy);
    const int d_fused = b.b.array("d_fused", Use::out, one_row(x.d_fused));
    r.d_gate = b.template tiles<W>(d_fused, Use::out);
    r.d_up = b.template tiles<W>(d_fused, Use::out, Width);
    r.limit = b.limit(this->effective_limit());
    return r;
  }
  template <class M> void head(M& m, const GluBackwardRefs<N, M, R, W>& r) const { glu_rows_backward_head(m, r); }
};
template <int Rows, int Width, class Act> struct UnsortBackwardCall : RowCall<Rows> {
  using typename RowCall<Rows>::R;
  using RowCall<Rows>::N;
  using W = Lane<Width>;
  const UnsortBackwardArrays<Act>& x;
  template <class M> UnsortBackwardRefs<N, M, R, W> bind(M& m) const {
    RowBinding<N, R, M> b{{m}};
    UnsortBackwardRefs<N, M, R, W> r;
    r.g = b.template tiles<W>("g", Use::in, x.g);
    r.x = b.template tiles<W>("x", Use::in, x.x);
    r.w = b.column("w", Use::in, x.w, Domain::token);
    r.dx = b.template tiles<W>("dx", Use::out, x.dx);
    r.dw = b.column("dw", Use::out, x.dw, Domain::value_head);
    r.limit = b.limit(this->effective_limit());
    return r;
  }
  template <class M> void head(M& m, const UnsortBackwardRefs<N, M, R, W>& r) const { unsort_rows_backward_head(m, r); }
};

// Returns whether there is anything to do.
template <class Machine> bool check_limit(Machine& machine, const char* call, const View<const i32, 1>& limit, std::int64_t rows) {
  if (rows == 0) return false;
  checks::optional_shape(call, "limit", limit, {1});
  if (limit)
    machine.check_data([&] {
      require(*limit.data >= 0 && *limit.data <= rows, call, ": limit is ", *limit.data, "; expected 0 to the ", rows, " rows there are");
    });
  return true;
}
template <int Rows> constexpr bool block_of_rows = Rows >= 128 && Rows % 128 == 0;

}  // namespace detail

// y = silu(gate) up, rounded once. Kernels work on blocks of `Rows` rows.
template <int W, int Rows = 256, class Machine, class Act> void glu_rows(Machine& machine, const GluArrays<Act>& x) {
  static_assert(detail::block_of_rows<Rows>, "glu_rows<W, Rows>: Rows must be a multiple of 128");
  constexpr const char* call = "glu_rows";
  checks::given(call, "fused", static_cast<bool>(x.fused));
  checks::given(call, "y", static_cast<bool>(x.y));
  const std::int64_t rows = x.fused.shape[0];
  checks::shape(call, "fused", x.fused, {rows, 2 * W});
  checks::shape(call, "y", x.y, {rows, W});
  checks::no_overlap(call, std::array{checks::span_of("fused", x.fused, false), checks::span_of("limit", x.limit, false), checks::span_of("y", x.y, true)},
                     [](auto, auto) { return false; });
  if (detail::check_limit(machine, call, x.limit, rows)) machine.run(detail::GluCall<Rows, W, Act>{{call, rows, x.limit}, x});
}
// The gradient of glu_rows, as one buffer [of gate | of up]. What is 0 is stored as +0.
template <int W, int Rows = 256, class Machine, class Act> void glu_rows_backward(Machine& machine, const GluBackwardArrays<Act>& x) {
  static_assert(detail::block_of_rows<Rows>, "glu_rows_backward<W, Rows>: Rows must be a multiple of 128");
  constexpr const char* call = "glu_rows_backward";
  checks::given(call, "fused", static_cast<bool>(x.fused));
  checks::given(call, "dy", static_cast<bool>(x.dy));
  checks::given(call, "d_fused", static_cast<bool>(x.d_fused));
  const std::int64_t rows = x.fused.shape[0];
  checks::shape(call, "fused", x.fused, {rows, 2 * W});
  checks::shape(call, "dy", x.dy, {rows, W});
  checks::shape(call, "d_fused", x.d_fused, {rows, 2 * W});
  checks::no_overlap(call, std::array{checks::span_of("fused", x.fused, false), checks::span_of("dy", x.dy, false),
                                      checks::span_of("limit", x.limit, false), checks::span_of("d_fused", x.d_fused, true)},
                     [](auto, auto) { return false; });
  if (detail::check_limit(machine, call, x.limit, rows)) machine.run(detail::GluBackwardCall<Rows, W, Act>{{call, rows, x.limit}, x});
}
// Of rows that were summed with weights: dx = w g, rounded once, and dw = g . x in f32, in the order of sum_cols.
template <int W, int Rows = 128, class Machine, class Act> void unsort_rows_backward(Machine& machine, const UnsortBackwardArrays<Act>& x) {
  static_assert(detail::block_of_rows<Rows>, "unsort_rows_backward<W, Rows>: Rows must be a multiple of 128");
  constexpr const char* call = "unsort_rows_backward";
  for (auto [name, given] : {std::pair{"g", x.g.given}, {"x", x.x.given}, {"w", x.w.given}, {"dx", x.dx.given}, {"dw", x.dw.given}})
    checks::given(call, name, given);
  const std::int64_t rows = x.g.shape[0];
  checks::shape(call, "g", x.g, {rows, W});
  checks::shape(call, "x", x.x, {rows, W});
  checks::shape(call, "w", x.w, {rows});
  checks::shape(call, "dx", x.dx, {rows, W});
  checks::shape(call, "dw", x.dw, {rows});
  checks::no_overlap(call, std::array{checks::span_of("g", x.g, false), checks::span_of("x", x.x, false), checks::span_of("w", x.w, false),
                                      checks::span_of("limit", x.limit, false), checks::span_of("dx", x.dx, true), checks::span_of("dw", x.dw, true)},
                     [](auto, auto) { return false; });
  if (detail::check_limit(machine, call, x.limit, rows)) machine.run(detail::UnsortBackwardCall<Rows, W, Act>{{call, rows, x.limit}, x});
}

}  // namespace gdn

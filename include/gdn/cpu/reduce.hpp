// Sums over rows, over columns, and prefix sums, each in the one order of the contract.
//   sum:        pad with +0 to the next power of two n; then for n / 2, n / 4, .. 1: x_i <- x_i + x_(i + n/2)
//   prefix sum: for s = 1, 2, 4, .. below the length: x_i <- x_i + (i >= s ? x_(i - s) : +0), all i at once
#pragma once
#include <bit>
#include <cstdint>
#include <gdn/cpu/arena.hpp>
#include <gdn/cpu/simd.hpp>
#include <gdn/cpu/transpose.hpp>

namespace gdn {
inline namespace GDN_ISA {
namespace cpu {

namespace detail {

// A row of n = V W lanes, n a power of two, folded to W lanes.
template <int V>
GDN_INLINE F fold_row(const float* x) {
  F v[V];
  GDN_UNROLL
  for (int i = 0; i < V; ++i) v[i] = load(x + i * W);
  GDN_UNROLL
  for (int half = V / 2; half > 0; half /= 2) {
    GDN_UNROLL
    for (int i = 0; i < half; ++i) v[i] = v[i] + v[i + half];
  }
  return v[0];
}

// The same for any length: +0 stands where the row has ended. x has `columns` lanes, n >= W is the padded length.
inline F fold_ragged_row(const float* x, int columns, int n, float* scratch) {
  for (int half = n / 2; half >= W; half /= 2) {
    const int length = columns < n ? columns : n;
    for (int i = 0; i < half; i += W) {
      const int low = length - i, high = length - (i + half);
      const F a = low >= W ? load(x + i) : low > 0 ? load(x + i, first_lanes(low)) : F(0.0f);
      const F b = high >= W ? load(x + i + half) : high > 0 ? load(x + i + half, first_lanes(high)) : F(0.0f);
      store(scratch + i, a + b);
    }
    x = scratch;
    n = half;
    columns = half;
  }
  return columns >= W ? load(x) : load(x, first_lanes(columns));
}

// Lanes of `height` vectors folded: lane i of the result is the sum of vector i.
GDN_INLINE F fold_lanes(F (&x)[W]) {
  transpose_block(x);
  GDN_UNROLL
  for (int half = W / 2; half > 0; half /= 2) {
    GDN_UNROLL
    for (int i = 0; i < half; ++i) x[i] = x[i] + x[i + half];
  }
  return x[0];
}

}  // namespace detail

// sums[r * step] = sum over the lanes of row r.
[[gnu::noinline]] inline void row_sums(int rows, int columns, const float* x, long x_row, float* sums, long step = 1) {
  const int n = static_cast<int>(std::bit_ceil(static_cast<unsigned>(columns)));
  if (n < W) {  // fewer lanes than a vector: the padding must not join the sum
    for (int r = 0; r < rows; ++r) {
      float v[W] = {};
      for (int i = 0; i < columns; ++i) v[i] = x[r * x_row + i];
      for (int half = n / 2; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) v[i] = v[i] + v[i + half];
      sums[r * step] = v[0];
    }
    return;
  }
  const Storage scratch(static_cast<std::size_t>(n));
  for (int r = 0; r < rows; r += W) {
    const int height = rows - r < W ? rows - r : W;
    F v[W];
    for (int i = 0; i < W; ++i) {
      const float* row = x + (i < height ? r + i : r) * x_row;
      switch (columns == n ? n / W : 0) {
        case 1: v[i] = detail::fold_row<1>(row); break;
        case 2: v[i] = detail::fold_row<2>(row); break;
        case 4: v[i] = detail::fold_row<4>(row); break;
        case 8: v[i] = detail::fold_row<8>(row); break;
        case 16: v[i] = detail::fold_row<16>(row); break;
        default: v[i] = detail::fold_ragged_row(row, columns, n, scratch.data());
      }
    }
    float out[W];
    store(out, detail::fold_lanes(v));
    for (int i = 0; i < height; ++i) sums[(r + i) * step] = out[i];
  }
}

// sums[c] = sum over the rows of column c.
[[gnu::noinline]] inline void column_sums(int rows, int columns, const float* x, long x_row, float* sums) {
  const int n = static_cast<int>(std::bit_ceil(static_cast<unsigned>(rows)));
  const Storage scratch(static_cast<std::size_t>(n) * W);
  float* v = scratch.data();
  for (int c = 0; c < columns; c += W) {
    const Lanes lanes = first_lanes(columns - c < W ? columns - c : W);
    for (int r = 0; r < n; ++r) store(v + r * W, r < rows ? load(x + r * x_row + c, lanes) : F(0.0f));
    for (int half = n / 2; half > 0; half /= 2)
      for (int r = 0; r < half; ++r) store(v + r * W, load(v + r * W) + load(v + (r + half) * W));
    store(sums + c, load(v), lanes);
  }
}

// In place, along memory. With ids the addend is +0 also where ids[i] != ids[i - s]: sums that start anew at every document.
[[gnu::noinline]] inline void prefix_sums(int n, float* x, const std::int32_t* ids = nullptr) {
  for (int s = 1; s < n; s *= 2) {
    // From the end: what is read below has not been written in this step.
    int i = n;
    for (; i - W >= s; i -= W) {
      const int at = i - W;
      F addend = load(x + at - s);
      if (ids) addend = select(load(ids + at) == load(ids + at - s), addend, F(0.0f));
      store(x + at, load(x + at) + addend);
    }
    for (--i; i >= 0; --i) x[i] = x[i] + (i >= s && (!ids || ids[i] == ids[i - s]) ? x[i - s] : 0.0f);
  }
}

// In place, down the rows of each column. ids are of rows.
[[gnu::noinline]] inline void prefix_sums_down(int rows, int columns, float* x, long x_row, const std::int32_t* ids = nullptr) {
  for (int s = 1; s < rows; s *= 2)
    for (int r = rows - 1; r >= 0; --r) {
      const bool joined = r >= s && (!ids || ids[r] == ids[r - s]);
      float* row = x + r * x_row;
      const float* above = row - (joined ? s * x_row : 0);
      int c = 0;
      for (; c + W <= columns; c += W) store(row + c, load(row + c) + (joined ? load(above + c) : F(0.0f)));
      for (; c < columns; ++c) row[c] = row[c] + (joined ? above[c] : 0.0f);
    }
}

}  // namespace cpu
}  // namespace GDN_ISA
}  // namespace gdn

// Short convolution with SiLU of a tile, row by row, without the history, products and sums in memory that its definition
// (kernels/short_conv.hpp, silu of short_conv) makes one after the other.
#pragma once
#include <cstring>
#include <gdn/cpu/several.hpp>

namespace gdn {
inline namespace GDN_ISA {
namespace cpu {

struct ShortConv {
  int rows, columns, taps;  // columns a multiple of W, at most 8 taps
  const float* x;
  long x_row;
  const float* tail;        // the rows before x
  long tail_row;
  int tail_rows;
  const float* weights;
  long weights_row;
  const float* bias;          // or null
  const std::int32_t* words;  // of the rows, bit d: the token d before counts, bit 0: the row does; null: all do
  float* out;
  long out_row;
};

namespace detail {
struct ConvRow {
  const float* tap[8];
  bool counts[8];
  bool whole;  // all taps count
};
// Columns [c, c + k W). n: the taps, or 0 where some do not count.
template <int n, int k> GDN_INLINE void silu_of_columns(const ShortConv& s, const ConvRow& row, int c, float* out) {
  Floats<k> z;
  GDN_UNROLL
  for (int i = 0; i < k; i++) {
    const int at = c + i * W;
    const auto term = [&](int j) __attribute__((always_inline)) { return load(row.tap[j] + at) * load(s.weights + j * s.weights_row + at); };
    F sum(0.f);
    if constexpr (n > 0) {
      sum = term(0);
      GDN_UNROLL
      for (int j = 1; j < n; j++) sum = sum + term(j);
    } else {
      sum = row.counts[0] ? term(0) : sum;
      for (int j = 1; j < s.taps; j++) sum = sum + (row.counts[j] ? term(j) : F(0.f));
    }
    z.v[i] = s.bias ? sum + load(s.bias + at) : sum;
  }
  const Floats<k> y = z * portable::sigmoid(z);
  GDN_UNROLL
  for (int i = 0; i < k; i++) store(out + c + i * W, y.v[i]);
}
template <int n> GDN_INLINE void silu_of_row(const ShortConv& s, const ConvRow& row, float* out) {
  constexpr int side = side_by_side;
  int c = 0;
  for (; c + side * W <= s.columns; c += side * W) silu_of_columns<n, side>(s, row, c, out);
  for (; c < s.columns; c += W) silu_of_columns<n, 1>(s, row, c, out);
}
}  // namespace detail

[[gnu::noinline]] inline void silu_of_short_conv(const ShortConv& s) {
  detail::ConvRow row;
  for (int r = 0; r < s.rows; r++) {
    const std::int32_t word = s.words ? s.words[r] : -1;
    float* out = s.out + r * s.out_row;
    row.whole = true;
    for (int j = 0; j < s.taps; j++) {
      const int distance = s.taps - 1 - j, from = r - distance;
      row.tap[j] = from >= 0 ? s.x + from * s.x_row : s.tail + (s.tail_rows + from) * s.tail_row;
      row.counts[j] = word >> distance & 1;
      row.whole &= row.counts[j];
    }
    if (!(word & 1)) std::memset(out, 0, sizeof(float) * static_cast<unsigned>(s.columns));  // silu(0)
    else if (row.whole && s.taps == 4) detail::silu_of_row<4>(s, row, out);
    else detail::silu_of_row<0>(s, row, out);
  }
}

}  // namespace cpu
}  // namespace GDN_ISA
}  // namespace gdn

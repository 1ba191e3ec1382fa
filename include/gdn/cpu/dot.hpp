// Matrix products of tiles, one function for all shapes, forms and finishes:
//   c_ij = finish(+0 + chain), chain = fma over k ascending of a_ik b_kj, from +0, round to nearest even, subnormals flushed.
// The leading +0 turns a chain that flushed to -0 into +0, so that zeros added to k at either end change nothing. An element depends
// on its row, its column and the order of k alone: no blocking, vector width or instruction set changes a bit.
//
// Two types of operands: f32, and bf16 packed in pairs along k, as 32-bit words with the even k in the high half; an odd k ends in a
// pair with +0. Run inside a FlushGuard: vdpbf16ps flushes always, the other instructions only there.
#pragma once
#include <cstdint>
#include <gdn/cpu/arena.hpp>
#include <gdn/cpu/simd.hpp>
#include <gdn/cpu/transpose.hpp>
#include <type_traits>

namespace gdn {
inline namespace GDN_ISA {
namespace cpu {

// What becomes of the dot product d. Every product and every sum is rounded.
enum class Finish {
  none,          // d
  plus,          // x + d
  minus,         // x - d
  times,         // x d
  scaled_plus,   // s x + d
  minus_scaled,  // x - s d
};

// The part of an operand outside of which the caller promises zeros, with the other operand finite: those k are skipped.
enum class Part { full, lower, upper };  // lower: zero right of the diagonal; upper: zero left of it

template <class Word>
struct GemmOf {
  int m, n, k;                        // c is [m, n]; k counts elements, also of packed operands
  const Word* a;                      // a_ik = a[i a_row + k a_col]; packed: k counts pairs
  long a_row, a_col;
  const Word* b;                      // b_kj = b[k b_row + j]; packed: k counts pairs
  long b_row;
  float* c;                           // c_ij = c[i c_row + j]; may be x itself, in place, but no part of a or b
  long c_row;
  Finish finish = Finish::none;
  const float* x = nullptr;           // x_ij = x[i x_row + j], or x[i x_row] for a column, stretched along its row
  long x_row = 0;
  bool x_is_column = false;
  const float* s = nullptr;           // s_i = s[i s_row]; s_row = 0: one scalar
  long s_row = 0;
  Part a_part = Part::full, b_part = Part::full;
  bool c_lower = false;               // blocks entirely right of c's diagonal are not computed; what they hold is not defined
};
using Gemm = GemmOf<float>;
using PackedGemm = GemmOf<std::uint32_t>;

namespace detail {

// Register blocks: enough independent sums to hide the latency of the multiply-add, few enough to stay in registers.
// tall x vectors in the interior, half for the next rows, then single rows `wide` vectors at a time.
template <class Word>
struct Blocks {
#if GDN_AVX512
  static constexpr int tall = 8, half = 4, vectors = 2, wide = 8;
#elif GDN_AVX2
  static constexpr int tall = std::is_same_v<Word, float> ? 6 : 4, half = 4, vectors = 2, wide = std::is_same_v<Word, float> ? 8 : 4;
#elif GDN_SSE2
  static constexpr int tall = 2, half = 2, vectors = 2, wide = 2;
#else
  static constexpr int tall = 8, half = 4, vectors = 2, wide = 8;
#endif
};

GDN_INLINE F broadcast(float x) { return x; }
GDN_INLINE Pairs broadcast(std::uint32_t x) { return Pairs(I(x)); }
GDN_INLINE F factors(const float* p) { return load(p); }
GDN_INLINE Pairs factors(const std::uint32_t* p) { return Pairs(load(p)); }
GDN_INLINE F factors(const float* p, Lanes n) { return load(p, n); }
GDN_INLINE Pairs factors(const std::uint32_t* p, Lanes n) { return Pairs(load(p, n)); }

// One row of finished products. `edge`: V is 1 and only the lanes `n` exist.
template <bool edge, int V, class Word>
GDN_INLINE void finish_row(const GemmOf<Word>& g, int i, int j, Lanes n, F (&d)[V]) {
  float* c = g.c + i * g.c_row + j;
  if (g.finish != Finish::none) {
    F x[V];
    const float* px = g.x + i * g.x_row;
    if (g.x_is_column) {
      GDN_UNROLL
      for (int v = 0; v < V; ++v) x[v] = F(*px);
    } else {
      GDN_UNROLL
      for (int v = 0; v < V; ++v) x[v] = edge ? load(px + j, n) : load(px + j + v * W);
    }
    switch (g.finish) {
      case Finish::none:
      case Finish::plus:
        GDN_UNROLL
        for (int v = 0; v < V; ++v) d[v] = x[v] + d[v];
        break;
      case Finish::minus:
        GDN_UNROLL
        for (int v = 0; v < V; ++v) d[v] = x[v] - d[v];
        break;
      case Finish::times:
        GDN_UNROLL
        for (int v = 0; v < V; ++v) d[v] = x[v] * d[v];
        break;
      case Finish::scaled_plus: {
        const F s = F(g.s[i * g.s_row]);
        GDN_UNROLL
        for (int v = 0; v < V; ++v) d[v] = s * x[v] + d[v];
        break;
      }
      case Finish::minus_scaled: {
        const F s = F(g.s[i * g.s_row]);
        GDN_UNROLL
        for (int v = 0; v < V; ++v) d[v] = x[v] - s * d[v];
        break;
      }
    }
  }
  GDN_UNROLL
  for (int v = 0; v < V; ++v) {
    if (edge)
      store(c, d[v], n);
    else
      store(c + v * W, d[v]);
  }
}

// The sums of R rows from i on, V vectors of columns from j on (`edge`: one vector, of which the lanes `n` exist).
template <int R, int V, bool edge, class Word>
GDN_INLINE void sum_block(const GemmOf<Word>& g, int i, int j, Lanes n, F (&sum)[R][V]) {
  int first = 0, last = g.k;
  if (g.a_part == Part::lower && last > i + R) last = i + R;
  if (g.a_part == Part::upper) first = i;
  if (g.b_part == Part::upper && last > j + V * W) last = j + V * W;
  if (g.b_part == Part::lower && first < j) first = j;
  if constexpr (!std::is_same_v<Word, float>) {
    first /= 2;
    last = (last + 1) / 2;
  }
  const long a_row = g.a_row, a_col = g.a_col, b_row = g.b_row;
  const Word* a = g.a + i * a_row + first * a_col;
  const Word* b = g.b + j + first * b_row;
  GDN_UNROLL
  for (int r = 0; r < R; ++r) {
    GDN_UNROLL
    for (int v = 0; v < V; ++v) sum[r][v] = F(0.0f);
  }
  for (int k = first; k < last; ++k, a += a_col, b += b_row) {
    decltype(factors(b)) y[V];
    GDN_UNROLL
    for (int v = 0; v < V; ++v) y[v] = edge ? factors(b, n) : factors(b + v * W);
    GDN_UNROLL
    for (int r = 0; r < R; ++r) {
      const auto x = broadcast(a[r * a_row]);
      GDN_UNROLL
      for (int v = 0; v < V; ++v) sum[r][v] = fma(x, y[v], sum[r][v]);
    }
  }
  GDN_UNROLL
  for (int r = 0; r < R; ++r) {
    GDN_UNROLL
    for (int v = 0; v < V; ++v) sum[r][v] = F(0.0f) + sum[r][v];
  }
}
template <int R, int V, bool edge, class Word>
GDN_INLINE void block(const GemmOf<Word>& g, int i, int j, Lanes n) {
  F sum[R][V];
  sum_block<R, V, edge>(g, i, j, n, sum);
  GDN_UNROLL
  for (int r = 0; r < R; ++r) finish_row<edge>(g, i + r, j, n, sum[r]);
}

// All rows but the last few (from `end` on), at the columns from j on.
template <int V, bool edge, class Word>
GDN_INLINE void block_column(const GemmOf<Word>& g, int end, int j, Lanes n) {
  using B = Blocks<Word>;
  int i = 0;
  if (g.c_lower) {
    i = (j < end ? j : end) / B::tall * B::tall;
    if constexpr (V > 1)  // rows of which only the first vector reaches the diagonal
      for (; i + B::tall <= end && i + B::tall <= j + W; i += B::tall) block<B::tall, 1, edge>(g, i, j, n);
  }
  for (; i + B::tall <= end; i += B::tall) block<B::tall, V, edge>(g, i, j, n);
  if constexpr (B::half < B::tall)
    for (; i < end; i += B::half) block<B::half, V, edge>(g, i, j, n);
}

template <class Word>
[[gnu::noinline]] void gemm(const GemmOf<Word>& g) {
  using B = Blocks<Word>;
  const int single = g.m - (g.m % B::tall) % B::half;  // the first row of the last few
  const Lanes whole = first_lanes(W);
  if (single > 0) {
    int j = 0;
    for (; j + B::vectors * W <= g.n; j += B::vectors * W) block_column<B::vectors, false>(g, single, j, whole);
    for (; j < g.n; j += W) block_column<1, true>(g, single, j, first_lanes(g.n - j < W ? g.n - j : W));
  }
  for (int i = single; i < g.m; ++i) {
    const int columns = g.c_lower && i < g.n ? i + 1 : g.n;
    int j = 0;
    for (; j + B::wide * W <= columns; j += B::wide * W) block<1, B::wide, false>(g, i, j, whole);
    for (; j < columns; j += W) block<1, 1, true>(g, i, j, first_lanes(g.n - j < W ? g.n - j : W));
  }
}

}  // namespace detail

// c = finish(dot(a, b)) for f32 operands (precision PF).
inline void gemm(const Gemm& g) { detail::gemm(g); }

// c = finish(dot(a, b)) for packed operands (precision P1).
inline void gemm(const PackedGemm& g) { detail::gemm(g); }

// Products that are worked on while they are in registers: each(i, j, d) gets element (i, j) and the W - 1 to the right of it, once.
// c and the finish are not read; n is a multiple of W. Where c_lower leaves products out, d is anything. done(i, j, rows, columns) follows
// on every block of elements, an even number of rows but for the last ones of an odd m: for work that hides behind the sums of the next
// block, which leave the load and store units idle.
template <class Word, class Each, class Done>
[[gnu::noinline]] void gemm_each(const GemmOf<Word>& g, Each each, Done done) {
  using B = detail::Blocks<Word>;
  constexpr int R = B::tall, V = B::vectors;
  const Lanes whole = first_lanes(W);
  auto in_memory = [&](int i, int rows, int j, int columns) {
    if (rows == 0 || columns == 0) return;
    const Storage sums(static_cast<std::size_t>(rows * columns));
    GemmOf<Word> part = g;
    part.m = rows;
    part.n = columns;
    if (g.a_part == Part::lower && part.k > i + rows) part.k = i + rows;
    part.a_part = Part::full;
    part.c_lower = false;
    part.finish = Finish::none;
    part.a += i * g.a_row;
    part.b += j;
    part.c = sums.data();
    part.c_row = columns;
    gemm(part);
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < columns; c += W) each(i + r, j + c, load(part.c + r * columns + c));
    done(i, j, rows, columns);
  };
  const int rows = g.m / R * R, columns = g.n / (V * W) * (V * W);
  for (int j = 0; j < columns; j += V * W) {
    int i = 0;
    if (g.c_lower) {
      const int above = (j < rows ? j : rows) / R * R;
      for (; i < above; ++i)
        for (int v = 0; v < V; ++v) each(i, j + v * W, F(0.0f));
      if (above > 0) done(0, j, above, V * W);
      while (i + R <= rows && i + R <= j + W) i += R;  // rows of which only the first vector reaches the diagonal
      in_memory(above, i - above, j, W);
      for (int r = above; r < i; ++r)
        for (int v = 1; v < V; ++v) each(r, j + v * W, F(0.0f));
      if (i > above) done(above, j + W, i - above, (V - 1) * W);
    }
    for (; i < rows; i += R) {
      F sum[R][V];
      detail::sum_block<R, V, false>(g, i, j, whole, sum);
      GDN_UNROLL
      for (int r = 0; r < R; ++r) {
        GDN_UNROLL
        for (int v = 0; v < V; ++v) each(i + r, j + v * W, sum[r][v]);
      }
      done(i, j, R, V * W);
    }
  }
  in_memory(rows, g.m - rows, 0, columns);
  in_memory(0, g.m, columns, g.n - columns);
}

// c = finish(d) for products d that have been computed already; of g, only m, n, c and what the finish needs is read.
[[gnu::noinline]] inline void finish(const Gemm& g, const float* d, long d_row) {
  for (int i = 0; i < g.m; ++i)
    for (int j = 0; j < g.n; j += W) {
      const Lanes n = first_lanes(g.n - j < W ? g.n - j : W);
      F row[1] = {load(d + i * d_row + j, n)};
      detail::finish_row<true>(g, i, j, n, row);
    }
}

// Precision P3: c = finish((a b + a b_low) + a_low b), three packed dots and two sums. g has the high parts; the low parts have
// the same strides.
[[gnu::noinline]] inline void gemm_p3(const PackedGemm& g, const std::uint32_t* a_low, const std::uint32_t* b_low) {
  const int pitch = padded(g.n);
  const Storage sums(static_cast<std::size_t>(g.m) * static_cast<std::size_t>(pitch));
  PackedGemm pass = g;
  pass.c = sums.data();
  pass.c_row = pitch;
  pass.finish = Finish::none;
  gemm(pass);
  pass.finish = Finish::plus;
  pass.x = sums.data();
  pass.x_row = pitch;
  pass.x_is_column = false;
  pass.b = b_low;
  gemm(pass);
  pass.a = a_low;
  pass.b = g.b;
  if (g.finish == Finish::none) {
    pass.c = g.c;
    pass.c_row = g.c_row;
    return gemm(pass);
  }
  gemm(pass);
  Gemm last{.m = g.m, .n = g.n, .k = 0, .a = nullptr, .a_row = 0, .a_col = 0, .b = nullptr, .b_row = 0, .c = g.c, .c_row = g.c_row};
  last.finish = g.finish;
  last.x = g.x;
  last.x_row = g.x_row;
  last.x_is_column = g.x_is_column;
  last.s = g.s;
  last.s_row = g.s_row;
  finish(last, sums.data(), pitch);
}

// ---- packing, from f32 or bf16

// Which bf16 of an f32 is packed: the nearest one, or the nearest one to what that leaves.
enum class Piece { high, low };  // high = bf16(x), low = bf16(x - high)

namespace detail {

template <class T>
GDN_INLINE F load_up_to(const T* p, int n) {
  return n >= W ? load(p) : n > 0 ? load_first(p, n) : F(0.0f);
}

// bf16 in the upper half of each lane. A bf16 source is exact: its high piece is itself, its low piece is zero.
template <class T>
GDN_INLINE F piece_of(F x, Piece piece) {
  return piece == Piece::high ? x : x - (std::is_same_v<T, float> ? from_bits(round_to_bf16(x)) : x);
}

// Words of (even, odd).
template <class T>
GDN_INLINE I pair_rows(F even, F odd) {
#if defined(__AVX512BF16__) && GDN_AVX512
  static constexpr std::uint32_t order[16] = {16u << 16 | 0,  17u << 16 | 1,  18u << 16 | 2,  19u << 16 | 3, 20u << 16 | 4,  21u << 16 | 5,
                                              22u << 16 | 6,  23u << 16 | 7,  24u << 16 | 8,  25u << 16 | 9, 26u << 16 | 10, 27u << 16 | 11,
                                              28u << 16 | 12, 29u << 16 | 13, 30u << 16 | 14, 31u << 16 | 15};
  return _mm512_permutexvar_epi16(load(order), (__m512i)_mm512_cvtne2ps_pbh(even, odd));
#else
  if constexpr (std::is_same_v<T, float>) return round_to_bf16(even) | shift_right<16>(round_to_bf16(odd));
  return bits(even) | shift_right<16>(bits(odd));
#endif
}

// Words of the pairs among the 2 W lanes of (first, second).
template <class T>
GDN_INLINE I pair_lanes(F first, F second) {
#if defined(__AVX512BF16__) && GDN_AVX512
  return _mm512_rol_epi32((__m512i)_mm512_cvtne2ps_pbh(second, first), 16);
#else
  I a = bits(first), b = bits(second);
  if constexpr (std::is_same_v<T, float>) {
    a = round_to_bf16(first);
    b = round_to_bf16(second);
  }
  return even_lanes(a, b) | shift_right<16>(odd_lanes(a, b));
#endif
}

template <class T>
[[gnu::noinline]] void pack_rows(int k, int n, const T* from, long from_row, Piece piece, std::uint32_t* to, long to_row) {
  for (int t = 0; 2 * t < k; ++t) {
    const T* even = from + 2 * t * from_row;
    const T* odd = even + from_row;
    const bool both = 2 * t + 1 < k;
    int j = 0;
    if (both && piece == Piece::high)
      for (; j + W <= n; j += W) store(to + t * to_row + j, pair_rows<T>(load(even + j), load(odd + j)));
    for (; j < n; j += W) {
      const int left = n - j;
      const F x = piece_of<T>(load_up_to(even + j, left), piece);
      const F y = both ? piece_of<T>(load_up_to(odd + j, left), piece) : F(0.0f);
      const I words = pair_rows<T>(x, y);
      if (left >= W)
        store(to + t * to_row + j, words);
      else
        store(to + t * to_row + j, words, first_lanes(left));
    }
  }
}

// An even number of rows and whole vectors.
GDN_INLINE void pack_block(int rows, int columns, const float* from, long from_row, std::uint32_t* to, long to_row) {
  for (int t = 0; 2 * t < rows; ++t, from += 2 * from_row, to += to_row)
    for (int j = 0; j < columns; j += W) store(to + j, pair_rows<float>(load(from + j), load(from + from_row + j)));
}

template <class T>
GDN_INLINE I pack_lanes(const T* from, int left, Piece piece) {
  return pair_lanes<T>(piece_of<T>(load_up_to(from, left), piece), piece_of<T>(load_up_to(from + W, left - W), piece));
}

GDN_INLINE I whole_pair_lanes(const float* from) { return pair_lanes<float>(load(from), load(from + W)); }
// In memory the pair is there already, with its halves exchanged. Subnormals stay what they are: the dot takes them for zeros.
GDN_INLINE I whole_pair_lanes(const bf16* from) {
  std::uint32_t words[W];
  std::memcpy(words, static_cast<const void*>(from), sizeof words);
  const I x = load(words);
  return shift_left<16>(x) | shift_right<16>(x);
}

template <class T>
[[gnu::noinline]] void pack_columns(int m, int k, const T* from, long from_row, Piece piece, std::uint32_t* to, long to_row) {
  const int pairs = (k + 1) / 2;
  for (int i = 0; i < m; ++i) {
    const T* line = from + i * from_row;
    int t = 0;
    if (piece == Piece::high)
      for (; 2 * (t + W) <= k; t += W) store(to + i * to_row + t, whole_pair_lanes(line + 2 * t));
    for (; t < pairs; t += W) {
      const I words = pack_lanes(line + 2 * t, k - 2 * t, piece);
      if (pairs - t >= W)
        store(to + i * to_row + t, words);
      else
        store(to + i * to_row + t, words, first_lanes(pairs - t));
    }
  }
}

template <class T>
[[gnu::noinline]] void pack_columns_transposed(int m, int k, const T* from, long from_row, Piece piece, std::uint32_t* to, long to_row) {
  const int pairs = (k + 1) / 2;
  for (int i = 0; i < m; i += W) {
    const int height = m - i < W ? m - i : W;
    for (int t = 0; t < pairs; t += W) {
      const int width = pairs - t < W ? pairs - t : W;
      const T* source = from + i * from_row + 2 * t;
      std::uint32_t* target = to + t * to_row + i;
      F x[W];
      if (height == W && width == W && k - 2 * t >= 2 * W) {
        GDN_UNROLL
        for (int r = 0; r < W; ++r)
          x[r] = from_bits(piece == Piece::high ? whole_pair_lanes(source + r * from_row) : pack_lanes(source + r * from_row, 2 * W, piece));
        transpose_block(x);
        GDN_UNROLL
        for (int r = 0; r < W; ++r) store(target + r * to_row, bits(x[r]));
      } else {
        const Lanes down = first_lanes(height);
        for (int r = 0; r < W; ++r) x[r] = r < height ? from_bits(pack_lanes(source + r * from_row, k - 2 * t, piece)) : F(0.0f);
        transpose_block(x);
        for (int r = 0; r < width; ++r) store(target + r * to_row, bits(x[r]), down);
      }
    }
  }
}

}  // namespace detail

// from [k, n], pairs of rows -> to [(k + 1) / 2, n]. The right operand x of dot(.., x), the left one of dot(transposed(x), ..).
inline void pack_rows(int k, int n, const float* from, long from_row, std::uint32_t* to, long to_row, Piece piece = Piece::high) {
  detail::pack_rows(k, n, from, from_row, piece, to, to_row);
}
inline void pack_rows(int k, int n, const bf16* from, long from_row, std::uint32_t* to, long to_row, Piece piece = Piece::high) {
  detail::pack_rows(k, n, from, from_row, piece, to, to_row);
}
// from [m, k], pairs of columns -> to [m, (k + 1) / 2]. The left operand x of dot(x, ..).
inline void pack_columns(int m, int k, const float* from, long from_row, std::uint32_t* to, long to_row, Piece piece = Piece::high) {
  detail::pack_columns(m, k, from, from_row, piece, to, to_row);
}
inline void pack_columns(int m, int k, const bf16* from, long from_row, std::uint32_t* to, long to_row, Piece piece = Piece::high) {
  detail::pack_columns(m, k, from, from_row, piece, to, to_row);
}
// from [m, k], pairs of columns -> to [(k + 1) / 2, m]. The right operand of dot(.., transposed(x)), and also the left one of dot(x, ..).
inline void pack_columns_transposed(int m, int k, const float* from, long from_row, std::uint32_t* to, long to_row,
                                    Piece piece = Piece::high) {
  detail::pack_columns_transposed(m, k, from, from_row, piece, to, to_row);
}
inline void pack_columns_transposed(int m, int k, const bf16* from, long from_row, std::uint32_t* to, long to_row,
                                    Piece piece = Piece::high) {
  detail::pack_columns_transposed(m, k, from, from_row, piece, to, to_row);
}

// A packed operand with its memory, for operands that several dots share. The pair t of line i (a row of a left operand, a column of a
// right one) is words()[i * line + t * pair].
class Packed {
 public:
  Packed() = default;

  // Pairs of rows of x [rows, columns]: for dot(.., x) and dot(transposed(x), ..).
  static Packed empty_rows(int rows, int columns) { return Packed((rows + 1) / 2, columns, true); }
  std::uint32_t* empty_words() const { return storage_.words(); }
  template <class T>
  static Packed rows(int rows, int columns, const T* x, long x_row, Piece piece = Piece::high) {
    Packed p = empty_rows(rows, columns);
    pack_rows(rows, columns, x, x_row, p.storage_.words(), p.pair, piece);
    return p;
  }
  // Pairs of columns: for dot(x, ..) only.
  template <class T>
  static Packed columns(int rows, int columns, const T* x, long x_row, Piece piece = Piece::high) {
    Packed p(rows, (columns + 1) / 2, false);
    pack_columns(rows, columns, x, x_row, p.storage_.words(), p.line, piece);
    return p;
  }
  // Pairs of columns: for dot(.., transposed(x)) and dot(x, ..).
  template <class T>
  static Packed columns_transposed(int rows, int columns, const T* x, long x_row, Piece piece = Piece::high) {
    Packed p((columns + 1) / 2, rows, true);
    pack_columns_transposed(rows, columns, x, x_row, p.storage_.words(), p.pair, piece);
    return p;
  }

  explicit operator bool() const { return static_cast<bool>(storage_); }
  const std::uint32_t* words() const { return storage_.words(); }
  // Only these can be right operands.
  bool lines_adjacent() const { return line == 1; }

  long line = 0, pair = 0;

 private:
  Packed(int height, int width, bool pairs_down)
      : line(pairs_down ? 1 : padded(width)),
        pair(pairs_down ? padded(width) : 1),
        storage_(static_cast<std::size_t>(height) * static_cast<std::size_t>(padded(width))) {}
  Storage storage_;
};

// A packed gemm of a [m, k] and b [k, n] into c; finish and promises are added by the caller.
inline PackedGemm packed_gemm(int m, int n, int k, const Packed& a, const Packed& b, float* c, long c_row) {
  return {.m = m, .n = n, .k = k, .a = a.words(), .a_row = a.line, .a_col = a.pair,
          .b = b.words(), .b_row = b.pair, .c = c, .c_row = c_row};
}

}  // namespace cpu
}  // namespace GDN_ISA
}  // namespace gdn

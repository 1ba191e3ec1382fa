// M = (I + N)^-1 for strictly lower triangular N [C, C]: 16x16 diagonal blocks exactly in f32, then block sizes double.
//   [X 0; B Y]^-1 = [X' 0; 0 - Y' (B X') Y'],  X' = X^-1, Y' = Y^-1
// In class P1 the last B is hi + lo, as in P3: B X' = hi X' + lo X'. Where keys are nearly equal so are its entries, and X' takes differences.
// Right-looking: row j is final before it is subtracted from the rows below, each product and each difference rounded.
#pragma once
#include "gdn/ops.hpp"

namespace gdn {

inline constexpr int solve_block = 16;

constexpr int log2_of(int n) { return n <= 1 ? 0 : 1 + log2_of(n / 2); }

// The inverses of the diagonal blocks of I + N, side by side [16, C]. In this form column j of all blocks is one lane pattern.
template <TileLike A> auto invert_diagonal_blocks(const A& N) {
  using M = typename A::machine;
  if constexpr (requires { M::invert_diagonal_blocks(N); }) {
    return Tile<M, f32, slice_t<typename A::rows, 0, solve_block>, typename A::cols>{M::invert_diagonal_blocks(N)};
  } else {
    return invert_diagonal_blocks_by_rows(N);
  }
}
// The definition. Two halves of 8 rows, because that is the height of a vector register on the TPU.
template <TileLike A> auto invert_diagonal_blocks_by_rows(const A& N) {
  auto D = diagonal_blocks<solve_block>(N);
  auto I = map_ij([](auto i, auto j, auto x) { return where(i == (j & (solve_block - 1)), 1.f, x); }, zeros_like(D));
  auto upper = rows<0, 8>(I);
  auto lower = rows<8, 8>(I);
  auto D_upper = rows<0, 8>(D);
  auto D_lower = rows<8, 8>(D);
  unroll<8>([&](auto j) {
    auto x = row<j>(upper);
    if constexpr (j < 7) upper = upper - block_column<solve_block, j>(D_upper) * x;  // 0 on and above the diagonal: final rows stay
    lower = lower - block_column<solve_block, j>(D_lower) * x;
  });
  unroll<7>([&](auto j) { lower = lower - block_column<solve_block, 8 + j>(D_lower) * row<j>(lower); });
  return concat_rows(upper, lower);
}

// The side-by-side blocks at their places on the diagonal of [C, C].
template <class C, TileLike X> auto on_diagonal(const X& blocks) {
  auto at = [&](auto b) {
    return map_ij([](auto, auto j, auto x) { return where((j >> log2_of(solve_block)) == decltype(b)::value, x, 0.f); }, blocks);
  };
  return [&]<int... B>(std::integer_sequence<int, B...>) {
    return retyped<Tile<typename X::machine, f32, C, C>>(concat_rows(at(std::integral_constant<int, B>{})...));
  }(std::make_integer_sequence<int, C::size / solve_block>{});
}

namespace detail {
// Block rows 1, 3, .. of height S; and its inverse, with zero block rows 0, 2, ..
template <int S, int B = 0, TileLike A> auto odd_blocks(const A& a) {
  auto x = rows<(2 * B + 1) * S, S>(a);
  if constexpr (2 * S * (B + 1) >= A::rows::size) return x;
  else return concat_rows(x, odd_blocks<S, B + 1>(a));
}
template <int S, int B = 0, TileLike A> auto spread_odd(const A& a) {
  auto x = rows<B * S, S>(a);
  auto block = concat_rows(zeros_like(x), x);
  if constexpr (S * (B + 1) >= A::rows::size) return block;
  else return concat_rows(block, spread_odd<S, B + 1>(a));
}
// B X', one on top of the other: X' goes to the matrix unit once.
template <Precision P, TileLike L, TileLike A> L of_two_parts(const L& left, const A& M) {
  constexpr int n = L::rows::size;
  auto both = dot<P>(concat_rows(left, left - rounded(left)), M);
  return retyped<L>(rows<0, n>(both)) + retyped<L>(rows<n, n>(both));
}
}  // namespace detail

// All pairs of neighbouring SxS inverses on the diagonal of M become inverses of their 2Sx2S blocks.
template <Precision P, int S, TileLike A> A merge_blocks(const A& N, const A& M) {
  auto left = map_ij([](auto i, auto j, auto x) { return where((j >> log2_of(S)) == (i >> log2_of(S)) + (i >> log2_of(S)), x, 0.f); },
                     detail::odd_blocks<S>(N));
  constexpr bool last = 2 * S == A::rows::size;
  auto BX = [&] {
    if constexpr (P == Precision::bf16 && last) return detail::of_two_parts<P>(left, M);
    else return dot<P>(left, M);
  }();
  auto YBX = dot<P>(detail::odd_blocks<S>(M), retyped<A>(detail::spread_odd<S>(BX)));
  return M - retyped<A>(detail::spread_odd<S>(YBX));  // x - 0 stays x
}
template <Precision P, int S = solve_block, TileLike A> A merge_all_blocks(const A& N, const A& M) {
  if constexpr (S >= A::rows::size) return M;
  else return merge_all_blocks<P, 2 * S>(N, merge_blocks<P, S>(N, M));
}

// M from the inverses of its diagonal blocks.
template <Precision P, TileLike A, TileLike X> A inverse_from_blocks(const A& N, const X& blocks) {
  using Machine = typename A::machine;
  if constexpr (requires { Machine::template inverse_from_blocks<P>(N, blocks); }) return {Machine::template inverse_from_blocks<P>(N, blocks)};
  else return merge_all_blocks<P>(N, on_diagonal<typename A::rows>(blocks));
}
template <Precision P, TileLike A> A unit_lower_inverse(const A& N) { return inverse_from_blocks<P>(N, invert_diagonal_blocks(N)); }

}  // namespace gdn

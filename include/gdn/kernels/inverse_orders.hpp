// (I + N)^-1 for strictly lower triangular N [C, C] in the orders of its literature. The forward's own is unit_lower_inverse.hpp.
//   By block rows of 16, each after those above it:  R = I_b - N_b M, one dot;  (I + D) X = R  with the diagonal block D, in f32:
//     right-looking  x_j is final, then r_i <- r_i - d_ij x_j for all i > j:  x_i = ((r_i - d_i0 x_0) - d_i1 x_1) - ..
//     left-looking   x_i = r_i - ((+0 + d_i0 x_0) + d_i1 x_1 + ..)            products and sums are rounded each
#pragma once
#include "gdn/kernels/unit_lower_inverse.hpp"

namespace gdn {

enum class InverseOrder { merged_blocks, right_looking, left_looking };

namespace detail {

// The rows of a in blocks of B; stacked() is the way back.
template <int B, TileLike A> auto block_rows(const A& a) {
  using Block = Tile<typename A::machine, f32, Row<B>, typename A::cols>;
  return [&]<int... I>(std::integer_sequence<int, I...>) {
    return std::array<Block, sizeof...(I)>{retyped<Block>(rows<B * I, B>(a))...};
  }(std::make_integer_sequence<int, A::rows::size / B>{});
}

// X of (I + D) X = R, from the columns of D. Final rows are kept by a select: r - 0 x could change the sign of a zero.
template <InverseOrder O, TileLike D, TileLike R> R solved(const D& transposed, const R& right) {
  const auto column = [&](auto j) { return retyped<Column<typename R::machine, f32, typename R::rows>>(as_column(row<j>(transposed))); };
  if constexpr (O == InverseOrder::right_looking) {
    R x = right;
    unroll<solve_block - 1>([&](auto j) {
      constexpr i32 J = j;
      x = map_ij([](auto i, auto, auto r, auto d, auto x) { return where(i > J, r - d * x, r); }, x, column(j), row<j>(x));
    });
    return x;
  } else {
    R sum = zeros_like(right);
    unroll<solve_block - 1>([&](auto j) {
      constexpr i32 J = j;
      auto x = row<j>(right) - row<j>(sum);
      sum = map_ij([](auto i, auto, auto s, auto d, auto x) { return where(i > J, s + d * x, s); }, sum, column(j), x);
    });
    return right - sum;
  }
}

}  // namespace detail

template <InverseOrder O, Precision P, TileLike A> A inverse_by_block_rows(const A& N) {
  auto n = detail::block_rows<solve_block>(N);
  auto d = detail::block_rows<solve_block>(transpose(diagonal_blocks<solve_block>(N)));
  auto x = n;
  for (auto& block : x) block = zeros_like(block);
  for (std::size_t b = 0; b < n.size(); b++) {
    const i32 first = solve_block * static_cast<i32>(b);
    auto I = map_ij([first](auto i, auto j, auto zero) { return where(i + first == j, 1.f, zero); }, x[b]);
    auto above = map_ij([first](auto, auto j, auto n) { return where(j < first, n, 0.f); }, n[b]);
    x[b] = detail::solved<O>(d[b], b == 0 ? I : I - dot<P>(above, stacked<A>(x)));
  }
  return stacked<A>(x);
}

template <InverseOrder O, Precision P, TileLike A> A unit_lower_inverse(const A& N) {
  if constexpr (O == InverseOrder::merged_blocks) return unit_lower_inverse<P>(N);
  else return inverse_by_block_rows<O, P>(N);
}

// An inverse as a kernel of its own: N is read strictly below its diagonal, M is whole.
template <class M, class C> struct InverseRefs {
  Ref<M, f32, C, C> N, inverse;
};
// The forward's order has the forward's stages, so that its schedules fit.
template <InverseOrder O, Precision P, class M, class C> void inverse_head(M& m, const InverseRefs<M, C>& x) {
  if constexpr (O == InverseOrder::merged_blocks) {
    auto N = m.stage(0, [&] { return tril<-1>(load(x.N)); });
    auto blocks = m.stage(0, [&] { return invert_diagonal_blocks(N); });
    auto inverse = m.stage(1, [&] { return inverse_from_blocks<P>(N, blocks); });
    m.stage(2, [&] { return store(x.inverse, inverse), 0; });
  } else {
    store(x.inverse, unit_lower_inverse<O, P>(tril<-1>(load(x.N))));
  }
}

}  // namespace gdn

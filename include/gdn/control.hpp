// Control flow of kernels. What a machine decides is a Scalar<M, i32>, never a C++ condition: `if (x)` does not compile on any machine,
// so a kernel that runs on the CPU can also be traced.
#pragma once
#include <utility>

#include "gdn/tile.hpp"

namespace gdn {

// f(std::integral_constant<int, 0>), .., f(N - 1): known while compiling, written out.
template <int N, class F> void unroll(F f) {
  [&]<int... I>(std::integer_sequence<int, I...>) { (f(std::integral_constant<int, I>{}), ...); }(std::make_integer_sequence<int, N>{});
}

// body(), if predicate(x) holds; predicate is a lambda as map's. There is no else: write two. Values go out by way of refs.
template <class M, class P, class F> void when(M& m, const Scalar<M, i32>& x, P predicate, F body) { m.when(x, predicate, body); }

// body(i) for the scalars i = 0 .. n - 1 in order. State goes from one pass to the next in a carried ref.
template <class M, class F> void loop(M& m, int n, F body) { m.loop(n, body); }

}  // namespace gdn

// Tiles: immutable 2-D values of a machine. Refs: the arrays a kernel reads and writes, seen per head and chunk.
#pragma once
#include <concepts>
#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>

#include "gdn/axes.hpp"
#include "gdn/bf16.hpp"

namespace gdn {

using i32 = std::int32_t;

// T is f32 or i32. bf16 exists in memory and in the operands of a dot only.
template <class M, class T, Axis R, Axis C> struct Tile {
  using machine = M;
  using element = T;
  using rows = R;
  using cols = C;
  typename M::handle h;
};
template <class M, class T, Axis R> using Column = Tile<M, T, R, One>;
template <class M, class T, Axis C> using RowVector = Tile<M, T, One, C>;
template <class M, class T> using Scalar = Tile<M, T, One, One>;

namespace detail {
template <class X> struct is_tile : std::false_type {};
template <class M, class T, class R, class C> struct is_tile<Tile<M, T, R, C>> : std::true_type {};
template <class X, class...> struct first { using type = X; };
}  // namespace detail

template <class X> concept TileLike = detail::is_tile<std::remove_cvref_t<X>>::value;

// How a dot reads its operands (README, numeric contract).
enum class Precision {
  bf16,    // P1: both operands rounded once to bf16
  bf16x3,  // P3: hi and lo parts in bf16, (hi.hi + hi.lo) + lo.hi
  f32,     // PF: f32 operands
};

// One array as the kernel sees it: a window [R, C] that moves with the head and the chunk. The machine knows where it lies.
template <class M, class T, Axis R, Axis C> struct Ref {
  using machine = M;
  using element = T;
  using rows = R;
  using cols = C;
  M* m = nullptr;
  int id = -1;
  explicit operator bool() const { return m != nullptr; }
};

template <class M, class T, class R, class C> Tile<M, T, R, C> load(const Ref<M, T, R, C>& r) { return {r.m->template load<T, R, C>(r.id)}; }
template <class M, class T, class R, class C> void store(const Ref<M, T, R, C>& r, const Tile<M, T, R, C>& x) {
  r.m->template store<T, R, C>(r.id, x.h);
}

// In the chunk that plan[0] names, row i of r becomes row plan[1 + i] of `history`, or zeros where that is negative. The plan is a row
// of scalars [1 + rows of r].
template <class M, class T, class R, class C, class H>
void store_rows(const Ref<M, T, R, C>& r, const Tile<M, f32, H, C>& history, const Ref<M, i32, One, One>& plan) {
  r.m->template store_rows<T, R, C>(r.id, history, plan.id);
}

}  // namespace gdn

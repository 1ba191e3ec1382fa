// Axes: a name and an extent. Two axes of equal length are different types, so a mixed-up operand does not compile.
#pragma once
#include <concepts>
#include <type_traits>

namespace gdn {

struct One {
  static constexpr int size = 1;
};
template <int N> struct Chunk { static constexpr int size = N; };  // tokens of one chunk
template <int N> struct Key { static constexpr int size = N; };    // channels of a key head
template <int N> struct Val { static constexpr int size = N; };    // channels of a value head
template <int N> struct Taps { static constexpr int size = N; };   // weights of the short convolution
template <int N> struct Row { static constexpr int size = N; };
template <int N> struct Lane { static constexpr int size = N; };

template <class A> concept Axis = requires { { A::size } -> std::convertible_to<int>; };

// N entries of A from Begin on, and two axes one after the other. Slices of slices and neighbours fold back to the plain name.
template <Axis A, int Begin, int N> struct Slice { static constexpr int size = N; };
template <Axis A, Axis B> struct Cat { static constexpr int size = A::size + B::size; };

namespace detail {

template <class A, int B, int N> struct slice_of {
  static_assert(B >= 0 && N > 0 && B + N <= A::size, "rows<begin, n>(a): the slice must lie inside the axis");
  using type = std::conditional_t<B == 0 && N == A::size, A, Slice<A, B, N>>;
};
template <class A, int B0, int N0, int B, int N> struct slice_of<Slice<A, B0, N0>, B, N> {
  static_assert(B >= 0 && N > 0 && B + N <= N0, "rows<begin, n>(a): the slice must lie inside the axis");
  using type = typename slice_of<A, B0 + B, N>::type;
};
template <class X, class Y, int B, int N> struct slice_of<Cat<X, Y>, B, N> {
  static_assert(B >= 0 && N > 0 && B + N <= X::size + Y::size, "rows<begin, n>(a): the slice must lie inside the axis");
  using type = std::conditional_t<B == 0 && N == X::size, X,
                                  std::conditional_t<B == X::size && N == Y::size, Y, Slice<Cat<X, Y>, B, N>>>;
};

template <class A, class B> struct cat_of { using type = Cat<A, B>; };
template <class A, int B0, int N0, int N1> struct cat_of<Slice<A, B0, N0>, Slice<A, B0 + N0, N1>> {
  using type = typename slice_of<A, B0, N0 + N1>::type;
};

// A wrong pair keeps a usable type: one error, not a cascade.
template <class A, class B> struct join {
  using type = A;
  static constexpr bool ok = std::is_same_v<A, B>;
};
template <class A> requires (!std::is_same_v<A, One>) struct join<A, One> {
  using type = A;
  static constexpr bool ok = true;
};
template <class A> requires (!std::is_same_v<A, One>) struct join<One, A> {
  using type = A;
  static constexpr bool ok = true;
};

template <class A, class...> struct join_all {
  using type = A;
  static constexpr bool ok = true;
};
template <class A, class B, class... Rest> struct join_all<A, B, Rest...> {
  using next = join_all<typename join<A, B>::type, Rest...>;
  using type = typename next::type;
  static constexpr bool ok = join<A, B>::ok && next::ok;
};

}  // namespace detail

template <class A, int Begin, int N> using slice_t = typename detail::slice_of<A, Begin, N>::type;
template <class A, class B> using cat_t = typename detail::cat_of<A, B>::type;

}  // namespace gdn

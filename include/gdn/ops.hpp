// Every operation a kernel is written with. Each has one meaning, stated here, that all machines keep to the bit.
#pragma once
#include <array>
#include <tuple>
#include <utility>

#include "gdn/control.hpp"
#include "gdn/tile.hpp"

namespace gdn {

// ---- map: f once per element. One stretches. f gets vectors of elements (CPU) or symbols (tracing); it may use
// + - * and the functions below, comparisons, where(condition, a, b), and, on i32, & and >>.
//   exp2 exp log1p rsqrt reciprocal sigmoid softplus abs min max: one portable definition each, see portable/math.hpp.

// A dot that is not finished: `map` takes it as an operand and works on its elements as they are completed.
//   lower_only: elements above the diagonal are unspecified; the map must discard them with a select.
template <Precision P, class A, class B> struct Product {
  using machine = typename A::machine;
  using element = f32;
  using rows = typename A::rows;
  using cols = typename B::cols;
  static constexpr Precision precision = P;
  A a;
  B b;
  bool a_lower = false;
  bool lower_only = false;
};

namespace detail {
template <class X> struct is_product : std::false_type {};
template <Precision P, class A, class B> struct is_product<Product<P, A, B>> : std::true_type {};
}  // namespace detail
template <class X> concept ProductLike = detail::is_product<std::remove_cvref_t<X>>::value;

// A map that is not finished: `map` takes it as an operand and works it out in its own pass, and the result is again not finished. It
// becomes a tile where one is needed; each time anew, so it is for values that are used once. Machines that trace finish it at once.
template <class M, class T, class R, class C, class F, class... X> struct Unfinished {
  using machine = M;
  using element = T;
  using rows = R;
  using cols = C;
  F f;                 // of (i, j, elements of x...)
  std::tuple<X...> x;  // tiles and products
  operator Tile<M, T, R, C>() const {
    return {std::apply([&](const X&... x) { return M::template map<true, T, R, C>(f, x...); }, x)};
  }
};
namespace detail {
template <class X> struct is_unfinished : std::false_type {};
template <class... A> struct is_unfinished<Unfinished<A...>> : std::true_type {};
template <class M> concept Fusing = requires { requires M::fuses_maps; };
}  // namespace detail
template <class X> concept UnfinishedLike = detail::is_unfinished<std::remove_cvref_t<X>>::value;
template <class X> concept Operand = TileLike<X> || ProductLike<X> || UnfinishedLike<X>;

namespace detail {
template <bool Indexed, class F> struct WithIndices {
  F f;
  template <class I, class... E> [[gnu::always_inline]] auto operator()(I i, I j, E... e) const {
    if constexpr (Indexed) return f(i, j, e...);
    else return f(e...);
  }
};
// An operand as a function of the elements of its own operands, and how many they are.
template <class F, int N> struct Part {
  F f;
};
struct Self {
  template <class I, class E> [[gnu::always_inline]] auto operator()(I, I, E e) const { return e; }
};
template <class R, class C, Operand X> auto opened(const X& x) {
  if constexpr (!UnfinishedLike<X>) return std::pair{Part<Self, 1>{}, std::tuple<X>(x)};
  else if constexpr (std::is_same_v<typename X::rows, R> && std::is_same_v<typename X::cols, C>)
    return std::pair{Part<decltype(x.f), std::tuple_size_v<decltype(x.x)>>{x.f}, x.x};
  else return std::pair{Part<Self, 1>{}, std::tuple<Tile<typename X::machine, typename X::element, typename X::rows, typename X::cols>>(x)};
}
template <class F, class... P> struct Composed;
template <class F, class... G, int... N> struct Composed<F, Part<G, N>...> {
  F f;
  std::tuple<Part<G, N>...> parts;
  template <class I, class... E> [[gnu::always_inline]] auto operator()(I i, I j, E... e) const {
    return call(std::index_sequence_for<G...>{}, i, j, std::tuple<E...>(e...));
  }

 private:
  static constexpr int begin_of(std::size_t part) {
    int at = 0, k = 0;
    ((at += k++ < static_cast<int>(part) ? N : 0), ...);
    return at;
  }
  template <std::size_t... K, class I, class E> [[gnu::always_inline]] auto call(std::index_sequence<K...>, I i, I j, const E& e) const {
    return f(i, j, of_part<begin_of(K)>(std::get<K>(parts).f, std::make_integer_sequence<int, N>{}, i, j, e)...);
  }
  template <int Begin, class H, int... K, class I, class E>
  [[gnu::always_inline]] static auto of_part(const H& g, std::integer_sequence<int, K...>, I i, I j, const E& e) {
    return g(i, j, std::get<Begin + K>(e)...);
  }
};

template <class M, bool Indexed, class... X> struct Result {
  using R = join_all<One, typename X::rows...>;
  using C = join_all<One, typename X::cols...>;
  static_assert(R::ok && C::ok, "map(f, x...): every operand has the same axes, or One where it is stretched");
  using rows = typename R::type;
  using cols = typename C::type;
};
template <bool Indexed, class F, class... X> auto unfinished_map(F f, const X&... x) {
  using M = typename first<X...>::type::machine;
  using A = Result<M, Indexed, X...>;
  using T = typename M::template result_element<Indexed, F, typename X::element...>;
  auto make = [&]<class... P, class... Y>(const std::pair<P, Y>&... part) {
    Composed<WithIndices<Indexed, F>, P...> g{{f}, {part.first...}};
    return std::apply(
        [&]<class... Z>(const Z&... z) { return Unfinished<M, T, typename A::rows, typename A::cols, decltype(g), Z...>{g, {z...}}; },
        std::tuple_cat(part.second...));
  };
  return make(opened<typename A::rows, typename A::cols>(x)...);
}
template <bool Indexed, class F, class... X> auto mapped(F f, const X&... x) {
  if constexpr ((UnfinishedLike<X> || ...)) {
    return unfinished_map<Indexed>(f, x...);
  } else {
    using M = typename first<X...>::type::machine;
    using A = Result<M, Indexed, X...>;
    using R = typename A::rows;
    using C = typename A::cols;
    using T = typename M::template result_element<Indexed, F, typename X::element...>;
    return Tile<M, T, R, C>{M::template map<Indexed, T, R, C>(f, x...)};
  }
}
}  // namespace detail

template <class F, Operand... X> auto map(F f, const X&... x) { return detail::mapped<false>(f, x...); }
// f(i, j, elements...): also the row and column index, as i32.
template <class F, Operand... X> auto map_ij(F f, const X&... x) { return detail::mapped<true>(f, x...); }
template <class F, Operand... X> auto unfinished(F f, const X&... x) {
  if constexpr (detail::Fusing<typename detail::first<X...>::type::machine>) return detail::unfinished_map<false>(f, x...);
  else return map(f, x...);
}

namespace detail {
inline constexpr auto plus = [](auto x, auto y) { return x + y; };
inline constexpr auto minus = [](auto x, auto y) { return x - y; };
inline constexpr auto times = [](auto x, auto y) { return x * y; };
}  // namespace detail
template <class M, class R, class C, class F, class... X> void store(const Ref<M, f32, R, C>& r, const Unfinished<M, f32, R, C, F, X...>& x) {
  std::apply([&](const X&... operands) { r.m->template store_map<R, C>(r.id, x.f, operands...); }, x.x);
}

template <Operand A, Operand B> auto operator+(const A& a, const B& b) { return map(detail::plus, a, b); }
template <Operand A, Operand B> auto operator-(const A& a, const B& b) { return map(detail::minus, a, b); }
template <Operand A, Operand B> auto operator*(const A& a, const B& b) { return map(detail::times, a, b); }
template <class M, class T, class R, class C> auto operator*(const Tile<M, T, R, C>& a, f32 s) { return map([s](auto x) { return x * s; }, a); }
template <TileLike A> auto exp2(const A& a) { return map([](auto x) { return exp2(x); }, a); }
template <TileLike A> auto exp(const A& a) { return map([](auto x) { return exp(x); }, a); }
template <TileLike A> auto rsqrt(const A& a) { return map([](auto x) { return rsqrt(x); }, a); }
template <TileLike A> auto sigmoid(const A& a) { return map([](auto x) { return sigmoid(x); }, a); }
template <TileLike A> auto softplus(const A& a) { return map([](auto x) { return softplus(x); }, a); }
// silu(x) = x * sigmoid(x), rounded once each.
template <TileLike A> auto silu(const A& a) { return map([](auto x) { return x * sigmoid(x); }, a); }

// Keeps i - j >= -k ("on or below the k-th diagonal") by a select; the rest is +0.
template <int K = 0, Operand A> auto tril(const A& a) {
  return map_ij([](auto i, auto j, auto x) { return where(i >= j + -K, x, 0.f); }, a);
}
template <TileLike A> A zeros_like(const A& a) { return {A::machine::filled(a, 0.f)}; }

// ---- dot: out[i,j] = +0 + chain over k ascending of fma(a[i,k], b[k,j], acc), from acc = +0, FTZ and DAZ.
// An element depends on its row of a, its column of b and k alone.
template <class X> struct Lower { X x; };  // the caller's promise: x is lower triangular and the other operand finite
template <TileLike X> Lower<X> lower(const X& x) { return {x}; }

template <Precision P, TileLike A, TileLike B> Product<P, A, B> product(const A& a, const B& b) {
  static_assert(std::is_same_v<typename A::cols, typename B::rows>, "dot(a, b): a's columns and b's rows must be the same axis");
  return {a, b};
}
template <Precision P, TileLike A, TileLike B> Product<P, A, B> product(const Lower<A>& a, const B& b) {
  auto p = product<P>(a.x, b);
  p.a_lower = true;
  return p;
}
// The product of which only the lower triangle, diagonal included, is wanted.
template <Precision P, TileLike A, TileLike B> Product<P, A, B> lower_product(const A& a, const B& b) {
  auto p = product<P>(a, b);
  p.lower_only = true;
  return p;
}
template <Precision P, class A, class B> auto dot(const A& a, const B& b) {
  auto p = product<P>(a, b);
  using D = decltype(p);
  return Tile<typename D::machine, f32, typename D::rows, typename D::cols>{D::machine::dot(p)};
}

// ---- structure: moves, no arithmetic
template <int Begin, int N, TileLike A> auto rows(const A& a) {
  using M = typename A::machine;
  return Tile<M, typename A::element, slice_t<typename A::rows, Begin, N>, typename A::cols>{M::template rows<Begin, N>(a)};
}
template <int I, TileLike A> auto row(const A& a) {
  using M = typename A::machine;
  static_assert(I >= 0 && I < A::rows::size, "row<i>(a): i must lie inside the rows of a");
  return Tile<M, typename A::element, One, typename A::cols>{M::template rows<I, 1>(a)};
}
template <TileLike A> auto last_row(const A& a) { return row<A::rows::size - 1>(a); }
template <TileLike A> A concat_rows(const A& a) { return a; }
template <TileLike A, TileLike B, TileLike... Rest> auto concat_rows(const A& a, const B& b, const Rest&... rest) {
  static_assert(std::is_same_v<typename A::cols, typename B::cols>, "concat_rows(a, b): both must have the same columns");
  using M = typename A::machine;
  return concat_rows(Tile<M, f32, cat_t<typename A::rows, typename B::rows>, typename A::cols>{M::concat_rows(a, b)}, rest...);
}
// a and b side by side.
template <TileLike A, TileLike B> auto concat_cols(const A& a, const B& b) {
  static_assert(std::is_same_v<typename A::rows, typename B::rows>, "concat_cols(a, b): both must have the same rows");
  using M = typename A::machine;
  return Tile<M, f32, typename A::rows, cat_t<typename A::cols, typename B::cols>>{M::concat_cols(a, b)};
}
template <TileLike A> auto transpose(const A& a) {
  using M = typename A::machine;
  return Tile<M, typename A::element, typename A::cols, typename A::rows>{M::transpose(a)};
}
template <class M, class T, class R> auto as_row(const Tile<M, T, R, One>& a) { return Tile<M, T, One, R>{M::transpose(a)}; }
template <class M, class T, class C> auto as_column(const Tile<M, T, One, C>& a) { return Tile<M, T, C, One>{M::transpose(a)}; }
// The same values under other axes of the same extents.
template <TileLike T, TileLike A> T retyped(const A& a) {
  static_assert(T::rows::size == A::rows::size && T::cols::size == A::cols::size, "retyped<T>(a): the extents must be those of a");
  return {a.h};
}
// The blocks one on top of the other.
template <TileLike A, TileLike Block, std::size_t N> A stacked(const std::array<Block, N>& x) {
  return [&]<std::size_t... I>(std::index_sequence<I...>) { return retyped<A>(concat_rows(x[I]...)); }(std::make_index_sequence<N>{});
}
// The BxB blocks of the diagonal side by side: out[i, B b + j] = a[B b + i, B b + j].
template <int B, TileLike A> auto diagonal_blocks(const A& a) {
  static_assert(A::rows::size == A::cols::size && A::rows::size % B == 0, "diagonal_blocks<B>(a): a must be square and a multiple of B");
  using M = typename A::machine;
  return Tile<M, f32, slice_t<typename A::rows, 0, B>, typename A::cols>{M::template diagonal_blocks<B>(a)};
}
// Column J of every block of B columns, stretched over its block: out[i, B b + l] = a[i, B b + J].
template <int B, int J, TileLike A> A block_column(const A& a) {
  static_assert(A::cols::size % B == 0 && J >= 0 && J < B, "block_column<B, J>(a): columns must be a multiple of B, and J inside a block");
  return {A::machine::template block_column<B, J>(a)};
}
// Rounds to bf16 and widens again.
template <TileLike A> A rounded(const A& a) { return {A::machine::rounded(a)}; }

// ---- reduce, each in one fixed order
// Row sums: columns padded with +0 to a power of two n; then elements i and i + n/2 are added, n halved, until one is left; +0 + that.
template <TileLike A> auto sum_cols(const A& a) {
  using M = typename A::machine;
  return Tile<M, f32, typename A::rows, One>{M::sum_cols(a)};
}
// Column sums, in the same order over the rows.
template <TileLike A> auto sum_rows(const A& a) {
  using M = typename A::machine;
  return Tile<M, f32, One, typename A::cols>{M::sum_rows(a)};
}
template <TileLike A> auto sum_all(const A& a) { return sum_cols(sum_rows(a)); }
// Inclusive prefix sums of a column by doubling, for s = 1, 2, 4, ..: x_i <- x_i + (i >= s ? x_(i-s) : +0).
template <class M, class R> Column<M, f32, R> cumsum(const Column<M, f32, R>& x) { return {M::cumsum(x)}; }
// The same within runs of equal ids: the addend is +0 also where id_(i-s) differs from id_i.
template <class M, class R> Column<M, f32, R> cumsum_within(const Column<M, i32, R>& id, const Column<M, f32, R>& x) { return {M::cumsum_within(id, x)}; }

// Sums of a column's entries from each one on, x_i <- x_i + (i + s < n ? x_(i+s) : +0) for s = 1, 2, 4, .., and of those before each one:
// the prefix sums of the column moved down by one entry, +0 first.
template <class M, class R> Column<M, f32, R> sums_from(const Column<M, f32, R>& x) { return {M::sums_from(x)}; }
template <class M, class R> Column<M, f32, R> sums_before(const Column<M, f32, R>& x) { return {M::sums_before(x)}; }
// body(s...) once per key head, where s are the sums of x over its value heads: with n the next power of two of their number, heads i
// and i + n/2 are added (a head without a partner stays), n is halved, until one is left.
template <class M, class F, TileLike... X> void with_head_sums(M& m, F body, const X&... x) { m.with_head_sums(body, x...); }

}  // namespace gdn

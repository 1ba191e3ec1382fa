// The caller's arrays: a pointer, a shape and strides in elements. Nothing is copied.
//   view(p, {B, T, H, K})                      row-major memory behind a pointer
//   view(p, {B, T, H, K}, {s0, s1, s2, s3})    any strides
//   view(x, {B, T, H, K})                      std::vector, std::span, Eigen::Map: anything with data() and size(), of enough elements
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "gdn/arrays.hpp"
#include "gdn/bf16.hpp"
#include "gdn/error.hpp"

namespace gdn {

template <int Rank> using Sizes = std::array<std::int64_t, static_cast<std::size_t>(Rank)>;

template <std::size_t N> std::array<std::int64_t, N> row_major(const std::array<std::int64_t, N>& shape) {
  std::array<std::int64_t, N> s{};
  std::int64_t n = 1;
  for (std::size_t i = N; i-- > 0;) {
    s[i] = n;
    n *= shape[i];
  }
  return s;
}
template <std::size_t N> std::int64_t count(const std::array<std::int64_t, N>& shape) {
  std::int64_t n = 1;
  for (auto d : shape) n *= d;
  return n;
}
template <std::size_t N> std::string written(const std::array<std::int64_t, N>& shape) {
  std::string s = "[";
  for (std::size_t i = 0; i < N; i++) s += (i ? ", " : "") + std::to_string(shape[i]);
  return s + "]";
}

template <class T, int Rank> struct View {
  T* data = nullptr;
  Sizes<Rank> shape{}, strides{};
  bool given = false;

  View() = default;
  View(T* p, const Sizes<Rank>& n, const Sizes<Rank>& s) : data(p), shape(n), strides(s), given(true) {}
  template <class U> requires(std::is_same_v<const U, T> && !std::is_const_v<U>)
  View(const View<U, Rank>& v) : data(v.data), shape(v.shape), strides(v.strides), given(v.given) {}
  explicit operator bool() const { return given; }
};

template <class T, std::size_t N> View<T, static_cast<int>(N)> view(T* p, const std::int64_t (&shape)[N]) {
  Sizes<static_cast<int>(N)> n;
  std::copy(shape, shape + N, n.begin());
  return {p, n, row_major(n)};
}
template <class T, std::size_t N> View<T, static_cast<int>(N)> view(T* p, const std::int64_t (&shape)[N], const std::int64_t (&strides)[N]) {
  Sizes<static_cast<int>(N)> n, s;
  std::copy(shape, shape + N, n.begin());
  std::copy(strides, strides + N, s.begin());
  return {p, n, s};
}
template <class X, std::size_t N> requires requires(X& x) { x.data(); x.size(); }
auto view(X& x, const std::int64_t (&shape)[N]) {
  auto v = view(x.data(), shape);
  require(static_cast<std::int64_t>(x.size()) >= count(v.shape), "view: the array has ", x.size(), " elements; shape ", written(v.shape),
          " needs ", count(v.shape));
  return v;
}

template <class T> inline constexpr Element element_of = std::is_same_v<std::remove_const_t<T>, bf16>  ? Element::bf16
                                                        : std::is_same_v<std::remove_const_t<T>, f32> ? Element::f32
                                                                                                      : Element::i32;

// A view without its type: what machines get.
struct AnyView {
  ArrayInfo info;
  void* data = nullptr;
  std::vector<std::int64_t> strides;
};
template <class T, int Rank> AnyView any_view(std::string name, Use use, const View<T, Rank>& v) {
  AnyView a{{std::move(name), use, element_of<T>, std::vector<int>(v.shape.begin(), v.shape.end())},
            const_cast<std::remove_const_t<T>*>(v.data), std::vector<std::int64_t>(v.strides.begin(), v.strides.end())};
  return a;
}

}  // namespace gdn

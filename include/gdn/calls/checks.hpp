// What the calls ask of their arguments. Every refusal names the argument, what it is, and what was expected.
#pragma once
#include <cmath>
#include <span>

#include "gdn/calls/view.hpp"

namespace gdn::checks {

template <class T, int Rank> void shape(const char* call, const char* name, const View<T, Rank>& v, const Sizes<Rank>& expected) {
  if (v.shape == expected) return;
  throw Error(text(call, ": ", name, " has shape ", written(v.shape), "; expected ", written(expected)));
}
template <class T, int Rank> void optional_shape(const char* call, const char* name, const View<T, Rank>& v, const Sizes<Rank>& expected) {
  if (v) shape(call, name, v, expected);
}
inline void given(const char* call, const char* name, bool is) { require(is, call, ": ", name, " is missing"); }

// First and last byte a view reaches; empty views reach nothing.
struct Span {
  const char* name;
  std::uintptr_t begin = 0, end = 0;
  const void* data;
  bool output;
  const std::int64_t* strides = nullptr;
  int rank = 0;
  bool is_the_view_of(const Span& o) const { return data == o.data && rank == o.rank && std::equal(strides, strides + rank, o.strides); }
};
template <class T, int Rank> Span span_of(const char* name, const View<T, Rank>& v, bool output) {
  Span s{name, 0, 0, v.data, output, v.strides.data(), Rank};
  if (!v || v.data == nullptr || count(v.shape) == 0) return s;
  std::int64_t low = 0, high = 0;
  for (int i = 0; i < Rank; i++) (v.strides[i] < 0 ? low : high) += (v.shape[i] - 1) * v.strides[i];
  s.begin = reinterpret_cast<std::uintptr_t>(v.data + low);
  s.end = reinterpret_cast<std::uintptr_t>(v.data + high + 1);
  return s;
}
// An output may not share memory with another array, unless it is the very view of the input that `partner` names.
template <class Spans, class Same> void no_overlap(const char* call, const Spans& all, Same may_be_the_same) {
  for (std::size_t i = 0; i < all.size(); i++)
    for (std::size_t j = 0; j < all.size(); j++) {
      const Span &o = all[i], &x = all[j];
      if (i == j || !o.output || (x.output && j < i)) continue;
      if (o.begin == o.end || x.begin == x.end || o.end <= x.begin || x.end <= o.begin) continue;
      const bool same = !x.output && o.begin == x.begin && o.end == x.end && o.is_the_view_of(x) && may_be_the_same(o.name, x.name);
      require(same, call, ": output ", o.name, " overlaps ", x.name, "; expected separate memory");
    }
}
// g is a logarithm of a decay: positive values grow the state, which is nearly always a decay passed where its logarithm was meant.
template <class T> void no_growth(const char* call, const View<const T, 3>& g) {
  if (!g) return;
  for (std::int64_t b = 0; b < g.shape[0]; b++)
    for (std::int64_t t = 0; t < g.shape[1]; t++)
      for (std::int64_t h = 0; h < g.shape[2]; h++) {
        const f32 x = to_f32(g.data[b * g.strides[0] + t * g.strides[1] + h * g.strides[2]]);
        require(!(x > 0), call, ": g[", b, ", ", t, ", ", h, "] is ", x, "; expected the natural logarithm of a decay, at most 0");
      }
}

}  // namespace gdn::checks

// Copies of a call's arrays that lie elsewhere in memory: gaps, reversed dimensions, other orders.
#pragma once
#include <functional>
#include <memory>

#include "inputs.hpp"

namespace gdn::test {

enum class Placement {
  padded,    // gaps behind every row of every dimension
  reversed,  // every dimension backwards, the channels too
  permuted,  // the last dimension is the slowest
};

// f(element of a, element of b), all indices of two views of one shape.
template <class A, class B, int Rank, class F> void each_pair(const View<A, Rank>& a, const View<B, Rank>& b, F f) {
  for (std::int64_t i = 0; i < count(a.shape); i++) {
    std::int64_t rest = i, x = 0, y = 0;
    for (int d = Rank - 1; d >= 0; d--) {
      x += rest % a.shape[d] * a.strides[d], y += rest % a.shape[d] * b.strides[d];
      rest /= a.shape[d];
    }
    f(a.data[x], b.data[y]);
  }
}

// A copy of what a view shows, placed otherwise, in memory that is otherwise unwritten.
template <class T, int Rank> struct Copy {
  std::vector<T> memory;
  View<T, Rank> view;
  Copy(const View<const T, Rank>& from, Placement placement) {
    auto extent = from.shape;
    std::array<int, Rank> order;  // fastest first
    for (int d = 0; d < Rank; d++) order[d] = placement == Placement::permuted ? d : Rank - 1 - d;
    if (placement == Placement::padded)
      for (auto& n : extent) n += 3;
    std::int64_t size = 1;
    Sizes<Rank> strides;
    for (int d : order) strides[d] = size, size *= extent[d];
    memory.assign(static_cast<std::size_t>(size), static_cast<T>(T{}));
    T* first = memory.data();
    if (placement == Placement::reversed)
      for (int d = 0; d < Rank; d++) first += (from.shape[d] - 1) * strides[d], strides[d] = -strides[d];
    view = {first, from.shape, strides};
    each_pair(from, view, [](const T& x, T& y) { y = x; });
  }
};

// Runs `call` on copies of all its arrays, and brings the results back.
template <class Arrays> struct Elsewhere {
  Placement placement;
  std::vector<std::shared_ptr<void>> kept;
  std::vector<std::function<void()>> back;
  template <class T, int Rank> void move(View<const T, Rank>& v) {
    if (!v) return;
    auto copy = std::make_shared<Copy<T, Rank>>(v, placement);
    v = copy->view;
    kept.push_back(copy);
  }
  template <class T, int Rank> void move_result(View<T, Rank>& v) {
    if (!v) return;
    auto copy = std::make_shared<Copy<T, Rank>>(View<const T, Rank>(v), placement);
    back.push_back([copy, home = v] { each_pair(copy->view, home, [](const T& x, T& y) { y = x; }); });
    v = copy->view;
  }
  template <class A> void results(A& a) {
    move_result(a.out), move_result(a.final), move_result(a.residual), move_result(a.residuals.t_inv), move_result(a.residuals.chunk_states);
  }
};

}  // namespace gdn::test

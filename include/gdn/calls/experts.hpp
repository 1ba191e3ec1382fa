// Around the matrix products of a mixture of experts, on the CPU: slots sorted by expert, rows moved there and back, and the router's choice.
//
// T tokens have `top` slots each; slot j is choice j % top of token j / top, and expert[j] its expert. Sorted by expert, stably, slot
// order[i] stands at place i, and slot j at place[j]. A device holds the places first .. first + limit - 1 in a buffer, row i of it being
// place first + i; slots outside are somebody else's or were dropped. The order that the sort returns is all its gradient needs: nothing is
// sorted twice. The work on rows is exact but for one rounding at each store; sums over a token's slots go +0, then slots ascending.
#pragma once
#include <algorithm>
#include <vector>

#include "gdn/calls/rows.hpp"
#include "gdn/cpu/machine.hpp"

namespace gdn {

struct ExpertSortArrays {
  View<const i32, 1> expert;  // [slots], 0 .. experts - 1
  View<i32, 1> order;         // [slots], the slot at each place
  View<i32, 1> place;         // [slots], the place of each slot; absent: not wanted
  View<i32, 1> sizes;         // [experts], slots of each expert
};
// The part of the sorted slots that a buffer holds.
struct HeldRows {
  std::int64_t first = 0, limit = 0;
};
template <class Act> struct SortRowsArrays {
  View<const Act, 2> x;      // [T, W]
  View<const i32, 1> order;  // [slots]
  View<Act, 2> sorted;       // [buffer, W]; rows from the limit on are not written
};
template <class Act> struct SortRowsBackwardArrays {
  View<const Act, 2> g;      // [buffer, W]
  View<const i32, 1> place;  // [slots]
  View<Act, 2> dx;           // [T, W]
};
template <class Act> struct UnsortArrays {
  View<const Act, 2> y;      // [buffer, W]
  View<const f32, 1> w;      // [slots]
  View<const i32, 1> place;  // [slots]
  View<Act, 2> out;          // [T, W]
};
template <class Act> struct UnsortGradientArrays {
  View<const Act, 2> g;      // [T, W], of out
  View<const Act, 2> y;      // [buffer, W]
  View<const f32, 1> w;      // [slots]
  View<const i32, 1> order;  // [slots], as the sort returned it
  View<Act, 2> dy;           // [buffer, W]; rows as unsort_rows_backward writes them
  View<f32, 1> dw;           // [slots], 0 for slots that are not held
};
template <class T> struct TopArrays {
  View<const T, 2> x;       // [rows, experts]
  View<const i32, 1> live;  // [rows]: rows with 0 are not looked at; absent: all are live
  View<i32, 2> ids;         // [rows, top], the largest first, of equal ones the lower index; only live rows are written
  View<T, 2> values;        // [rows, top]; absent: not wanted
};
template <class T> struct TopBackwardArrays {
  View<const T, 2> d_values;   // [rows, top]
  View<const i32, 2> ids;      // [rows, top]
  View<const i32, 1> live;     // [rows] or absent
  View<T, 2> dx;               // [rows, experts], 0 but for what was chosen in live rows
};

namespace detail {

template <class T> T& at(const View<T, 1>& v, std::int64_t i) { return v.data[i * v.strides[0]]; }
template <class T> T& at(const View<T, 2>& v, std::int64_t i, std::int64_t j) { return v.data[i * v.strides[0] + j * v.strides[1]]; }
template <class T> T act(f32 x) {
  if constexpr (std::is_same_v<T, bf16>) return to_bf16(x);
  else return x;
}
// slots a token has.
inline std::int64_t slots_a_token(const char* call, std::int64_t slots, std::int64_t tokens) {
  require(tokens > 0 ? slots % tokens == 0 : slots == 0, call, ": ", slots, " slots for ", tokens, " tokens; expected a multiple");
  return tokens > 0 ? slots / tokens : 1;
}
inline void check_held(const char* call, const HeldRows& held, std::int64_t slots, std::int64_t buffer) {
  require(held.first >= 0 && held.limit >= 0 && held.first + held.limit <= slots, call, ": places ", held.first, " to ", held.first + held.limit,
          "; expected a part of the ", slots, " slots");
  require(held.limit <= buffer, call, ": ", held.limit, " rows are held; expected at most the ", buffer, " of the buffer");
}
inline void check_indices(const char* call, const char* name, const View<const i32, 1>& v, std::int64_t n) {
  for (std::int64_t i = 0; i < v.shape[0]; i++)
    require(at(v, i) >= 0 && at(v, i) < n, call, ": ", name, "[", i, "] is ", at(v, i), "; expected 0 to ", n - 1);
}
// Row t of `to` is the sum of its held slots: w(slot) from(row of the buffer).
template <class Act, class Weight>
void sum_of_slots(const Cpu& cpu, const View<const Act, 2>& from, const View<const i32, 1>& place, const HeldRows& held, std::int64_t top,
                  const View<Act, 2>& to, Weight weighted) {
  const cpu::FlushGuard guard;
  const std::int64_t W = to.shape[1];
  cpu::parallel_for(static_cast<long>(to.shape[0]), cpu.threads(), [&](long t) {
    std::vector<f32> sum(static_cast<std::size_t>(W), 0.f);
    for (std::int64_t j = t * top; j < (t + 1) * top; j++) {
      const std::int64_t row = at(place, j) - held.first;
      if (row < 0 || row >= held.limit) continue;
      for (std::int64_t c = 0; c < W; c++) sum[static_cast<std::size_t>(c)] += weighted(j, to_f32(at(from, row, c)));
    }
    for (std::int64_t c = 0; c < W; c++) at(to, t, c) = act<Act>(sum[static_cast<std::size_t>(c)]);
  });
}

}  // namespace detail

// Slots by expert, stably: a counting sort.
inline void sort_by_expert(const ExpertSortArrays& x) {
  constexpr const char* call = "sort_by_expert";
  checks::given(call, "expert", static_cast<bool>(x.expert));
  checks::given(call, "order", static_cast<bool>(x.order));
  checks::given(call, "sizes", static_cast<bool>(x.sizes));
  const std::int64_t slots = x.expert.shape[0], experts = x.sizes.shape[0];
  checks::shape(call, "order", x.order, {slots});
  checks::optional_shape(call, "place", x.place, {slots});
  checks::no_overlap(call, std::array{checks::span_of("expert", x.expert, false), checks::span_of("order", x.order, true),
                                      checks::span_of("place", x.place, true), checks::span_of("sizes", x.sizes, true)}, [](auto, auto) { return false; });
  detail::check_indices(call, "expert", x.expert, experts);
  std::vector<i32> next(static_cast<std::size_t>(experts), 0);
  for (std::int64_t j = 0; j < slots; j++) next[static_cast<std::size_t>(detail::at(x.expert, j))]++;
  i32 before = 0;
  for (std::int64_t e = 0; e < experts; e++) {
    const i32 size = detail::at(x.sizes, e) = next[static_cast<std::size_t>(e)];
    next[static_cast<std::size_t>(e)] = before;
    before += size;
  }
  for (std::int64_t j = 0; j < slots; j++) {
    const i32 i = next[static_cast<std::size_t>(detail::at(x.expert, j))]++;
    detail::at(x.order, i) = static_cast<i32>(j);
    if (x.place) detail::at(x.place, j) = i;
  }
}

// Row i of the buffer is the row of the token whose slot has place first + i.
template <class Act> void sort_rows(const Cpu& cpu, const SortRowsArrays<Act>& x, const HeldRows& held) {
  constexpr const char* call = "sort_rows";
  for (auto [name, given] : {std::pair{"x", x.x.given}, {"order", x.order.given}, {"sorted", x.sorted.given}}) checks::given(call, name, given);
  const std::int64_t slots = x.order.shape[0], top = detail::slots_a_token(call, slots, x.x.shape[0]), W = x.x.shape[1];
  checks::shape(call, "sorted", x.sorted, {x.sorted.shape[0], W});
  checks::no_overlap(call, std::array{checks::span_of("x", x.x, false), checks::span_of("order", x.order, false), checks::span_of("sorted", x.sorted, true)},
                     [](auto, auto) { return false; });
  detail::check_held(call, held, slots, x.sorted.shape[0]);
  detail::check_indices(call, "order", x.order, slots);
  cpu::parallel_for(static_cast<long>(held.limit), cpu.threads(), [&](long i) {
    const std::int64_t token = detail::at(x.order, held.first + i) / top;
    for (std::int64_t c = 0; c < W; c++) detail::at(x.sorted, i, c) = detail::at(x.x, token, c);
  });
}
// The gradient of sort_rows: a token's is the sum of its slots'.
template <class Act> void sort_rows_backward(const Cpu& cpu, const SortRowsBackwardArrays<Act>& x, const HeldRows& held) {
  constexpr const char* call = "sort_rows_backward";
  for (auto [name, given] : {std::pair{"g", x.g.given}, {"place", x.place.given}, {"dx", x.dx.given}}) checks::given(call, name, given);
  const std::int64_t slots = x.place.shape[0], top = detail::slots_a_token(call, slots, x.dx.shape[0]);
  checks::shape(call, "dx", x.dx, {x.dx.shape[0], x.g.shape[1]});
  checks::no_overlap(call, std::array{checks::span_of("g", x.g, false), checks::span_of("place", x.place, false), checks::span_of("dx", x.dx, true)},
                     [](auto, auto) { return false; });
  detail::check_held(call, held, slots, x.g.shape[0]);
  detail::sum_of_slots(cpu, x.g, x.place, held, top, x.dx, [](std::int64_t, f32 g) { return g; });
}

// Row t of out is the sum of w y over the held slots of token t.
template <class Act> void unsort_rows(const Cpu& cpu, const UnsortArrays<Act>& x, const HeldRows& held) {
  constexpr const char* call = "unsort_rows";
  for (auto [name, given] : {std::pair{"y", x.y.given}, {"w", x.w.given}, {"place", x.place.given}, {"out", x.out.given}}) checks::given(call, name, given);
  const std::int64_t slots = x.place.shape[0], top = detail::slots_a_token(call, slots, x.out.shape[0]);
  checks::shape(call, "w", x.w, {slots});
  checks::shape(call, "out", x.out, {x.out.shape[0], x.y.shape[1]});
  checks::no_overlap(call, std::array{checks::span_of("y", x.y, false), checks::span_of("w", x.w, false), checks::span_of("place", x.place, false),
                                      checks::span_of("out", x.out, true)}, [](auto, auto) { return false; });
  detail::check_held(call, held, slots, x.y.shape[0]);
  detail::sum_of_slots(cpu, x.y, x.place, held, top, x.out, [&](std::int64_t j, f32 y) { return detail::at(x.w, j) * y; });
}
// The gradients of unsort_rows: the rows of g are fetched in the order of the buffer, unsort_rows_backward works on them, and what it says
// of weights goes back to their slots.
template <int W, int Rows = 128, class Act> void unsort_rows_gradient(Cpu& cpu, const UnsortGradientArrays<Act>& x, const HeldRows& held) {
  constexpr const char* call = "unsort_rows_gradient";
  for (auto [name, given] : {std::pair{"g", x.g.given}, {"y", x.y.given}, {"w", x.w.given}, {"order", x.order.given}, {"dy", x.dy.given}, {"dw", x.dw.given}})
    checks::given(call, name, given);
  const std::int64_t slots = x.order.shape[0], buffer = x.y.shape[0];
  checks::shape(call, "g", x.g, {x.g.shape[0], W});
  checks::shape(call, "y", x.y, {buffer, W});
  checks::shape(call, "w", x.w, {slots});
  checks::shape(call, "dy", x.dy, {buffer, W});
  checks::shape(call, "dw", x.dw, {slots});
  checks::no_overlap(call, std::array{checks::span_of("g", x.g, false), checks::span_of("y", x.y, false), checks::span_of("w", x.w, false),
                                      checks::span_of("order", x.order, false), checks::span_of("dy", x.dy, true), checks::span_of("dw", x.dw, true)},
                     [](auto, auto) { return false; });
  detail::check_held(call, held, slots, buffer);
  detail::check_indices(call, "order", x.order, slots);
  std::vector<Act> gathered(static_cast<std::size_t>(buffer * W));
  std::vector<f32> w(static_cast<std::size_t>(buffer)), dots(w.size());
  const View<Act, 2> rows = view(gathered, {buffer, W});
  sort_rows(cpu, SortRowsArrays<Act>{x.g, x.order, rows}, held);
  for (std::int64_t i = 0; i < held.limit; i++) w[static_cast<std::size_t>(i)] = detail::at(x.w, detail::at(x.order, held.first + i));
  const i32 limit = static_cast<i32>(held.limit);
  unsort_rows_backward<W, Rows>(cpu, UnsortBackwardArrays<Act>{rows, x.y, view(std::as_const(w), {buffer}), View<const i32, 1>(&limit, {1}, {1}), x.dy,
                                                               view(dots, {buffer})});
  for (std::int64_t j = 0; j < slots; j++) detail::at(x.dw, j) = 0;
  for (std::int64_t i = 0; i < held.limit; i++) detail::at(x.dw, detail::at(x.order, held.first + i)) = dots[static_cast<std::size_t>(i)];
}

// The `top` largest of each live row.
template <class T> void top_of_rows(const Cpu& cpu, const TopArrays<T>& x) {
  constexpr const char* call = "top_of_rows";
  checks::given(call, "x", static_cast<bool>(x.x));
  checks::given(call, "ids", static_cast<bool>(x.ids));
  const std::int64_t rows = x.x.shape[0], experts = x.x.shape[1], top = x.ids.shape[1];
  checks::shape(call, "ids", x.ids, {rows, top});
  checks::optional_shape(call, "live", x.live, {rows});
  checks::optional_shape(call, "values", x.values, {rows, top});
  require(top <= experts, call, ": the largest ", top, " of ", experts, " experts; expected at most all");
  checks::no_overlap(call, std::array{checks::span_of("x", x.x, false), checks::span_of("live", x.live, false), checks::span_of("ids", x.ids, true),
                                      checks::span_of("values", x.values, true)}, [](auto, auto) { return false; });
  std::vector<std::int64_t> live;
  for (std::int64_t r = 0; r < rows; r++)
    if (!x.live || detail::at(x.live, r) != 0) live.push_back(r);
  cpu::parallel_for(static_cast<long>(live.size()), cpu.threads(), [&](long i) {
    const std::int64_t r = live[static_cast<std::size_t>(i)];
    struct Choice {
      f32 value;
      i32 id;
    };
    std::vector<Choice> best;  // sorted; of equal values the earlier one stays in front
    for (std::int64_t e = 0; e < experts; e++) {
      const f32 value = to_f32(detail::at(x.x, r, e));
      if (static_cast<std::int64_t>(best.size()) == top && (top == 0 || !(value > best.back().value))) continue;
      const auto behind = std::find_if(best.begin(), best.end(), [&](const Choice& c) { return value > c.value; });
      best.insert(behind, {value, static_cast<i32>(e)});
      if (static_cast<std::int64_t>(best.size()) > top) best.pop_back();
    }
    for (std::int64_t s = 0; s < top; s++) {
      detail::at(x.ids, r, s) = best[static_cast<std::size_t>(s)].id;
      if (x.values) detail::at(x.values, r, s) = detail::at(x.x, r, best[static_cast<std::size_t>(s)].id);
    }
  });
}
// The gradient of the chosen values.
template <class T> void top_of_rows_backward(const Cpu& cpu, const TopBackwardArrays<T>& x) {
  constexpr const char* call = "top_of_rows_backward";
  for (auto [name, given] : {std::pair{"d_values", x.d_values.given}, {"ids", x.ids.given}, {"dx", x.dx.given}}) checks::given(call, name, given);
  const std::int64_t rows = x.dx.shape[0], experts = x.dx.shape[1], top = x.ids.shape[1];
  checks::shape(call, "ids", x.ids, {rows, top});
  checks::shape(call, "d_values", x.d_values, {rows, top});
  checks::optional_shape(call, "live", x.live, {rows});
  checks::no_overlap(call, std::array{checks::span_of("d_values", x.d_values, false), checks::span_of("ids", x.ids, false), checks::span_of("live", x.live, false),
                                      checks::span_of("dx", x.dx, true)}, [](auto, auto) { return false; });
  for (std::int64_t r = 0; r < rows; r++)
    for (std::int64_t s = 0; s < top && (!x.live || detail::at(x.live, r) != 0); s++) {
      const i32 id = detail::at(x.ids, r, s);
      require(id >= 0 && id < experts, call, ": ids[", r, ", ", s, "] is ", id, "; expected 0 to ", experts - 1);
    }
  cpu::parallel_for(static_cast<long>(rows), cpu.threads(), [&](long r) {
    for (std::int64_t e = 0; e < experts; e++) detail::at(x.dx, r, e) = detail::act<T>(0.f);
    if (x.live && detail::at(x.live, r) == 0) return;
    for (std::int64_t s = 0; s < top; s++) detail::at(x.dx, r, detail::at(x.ids, r, s)) = detail::at(x.d_values, r, s);
  });
}

}  // namespace gdn

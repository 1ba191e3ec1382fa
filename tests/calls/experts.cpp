// Around the products of a mixture of experts: permutations, rows there and back, weights' gradients, and the router's choice.
#include <gdn/calls/experts.hpp>
#include <numeric>

#include "../kernels/same_bits.hpp"

using namespace gdn;
using namespace gdn::test;

namespace {

std::vector<i32> argsort(const std::vector<i32>& x) {
  std::vector<i32> order(x.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](i32 a, i32 b) { return x[static_cast<std::size_t>(a)] < x[static_cast<std::size_t>(b)]; });
  return order;
}

// Slots of T tokens with random experts, sorted.
struct Slots {
  std::int64_t tokens, top, experts;
  std::vector<i32> expert{}, order{}, place{}, sizes{};
  Slots(std::int64_t tokens, std::int64_t top, std::int64_t experts, std::uint64_t seed = 1) : tokens(tokens), top(top), experts(experts) {
    Random random(seed);
    for (std::int64_t j = 0; j < count(); j++) expert.push_back(static_cast<i32>(random.uniform() * static_cast<double>(experts)));
    sort();
  }
  std::int64_t count() const { return tokens * top; }
  void sort() {
    order.assign(expert.size(), -1), place.assign(expert.size(), -1), sizes.assign(static_cast<std::size_t>(experts), -1);
    sort_by_expert({view(std::as_const(expert), {count()}), view(order, {count()}), view(place, {count()}), view(sizes, {experts})});
  }
  View<const i32, 1> order_view() const { return view(order, {count()}); }
  View<const i32, 1> place_view() const { return view(place, {count()}); }
};

template <class Act> std::vector<Act> normal(Random& random, std::int64_t n) {
  std::vector<Act> x;
  for (std::int64_t i = 0; i < n; i++) x.push_back(activation<Act>(random.normal()));
  return x;
}
template <class X> const X& at(const std::vector<X>& x, std::int64_t i) { return x.at(static_cast<std::size_t>(i)); }
template <class X> X& at(std::vector<X>& x, std::int64_t i) { return x.at(static_cast<std::size_t>(i)); }

}  // namespace

// J20: what the sort returns is what a backward pass would sort for.
TEST_CASE("experts: the permutation of the sort") {
  for (const auto& [tokens, top, experts] : {std::tuple{1, 1, 1}, {7, 3, 5}, {100, 10, 512}, {1000, 8, 16}}) {
    Slots s(tokens, top, experts);
    const auto order = argsort(s.expert), place = argsort(order);
    CHECK(s.order == order);
    CHECK(s.place == place);
    CHECK(argsort(place) == s.order);  // argsort of the inverse, as the plain backward has it
    std::vector<i32> token_of_slot, gathered;
    for (std::int64_t j = 0; j < s.count(); j++) token_of_slot.push_back(static_cast<i32>(j / top));
    for (i32 j : s.order) gathered.push_back(at(token_of_slot, j));
    std::size_t wrong = 0, unstable = 0;
    for (std::size_t i = 0; i < gathered.size(); i++) wrong += s.order[i] / top != gathered[i];
    CHECK(wrong == 0);
    for (std::size_t e = 0; e < s.sizes.size(); e++) CHECK(s.sizes[e] == std::count(s.expert.begin(), s.expert.end(), static_cast<i32>(e)));
    // Without stability equal experts would stand in another order.
    auto other = order;
    std::stable_sort(other.begin(), other.end(), [&](i32 a, i32 b) { return at(s.expert, a) != at(s.expert, b) ? at(s.expert, a) < at(s.expert, b) : a > b; });
    for (std::size_t i = 0; i < other.size(); i++) unstable += other[i] != s.order[i];
    CHECK((unstable > 0) == (tokens > 1));
  }
}

// B55, B54: two tokens of two slots, by hand.
TEMPLATE_TEST_CASE("experts: gradients by hand", "", bf16, f32) {
  const std::vector<i32> place{2, 0, 3, 1}, order{1, 3, 0, 2};
  std::vector<TestType> rows(4 * 16), g(2 * 16), dy(4 * 16), out(2 * 16);
  const auto set = [](auto& x, std::size_t row, f32 a, f32 b) { x[row * 16] = activation<TestType>(a), x[row * 16 + 1] = activation<TestType>(b); };
  set(rows, 0, 1, 0), set(rows, 1, 0, 1), set(rows, 2, 2, 0), set(rows, 3, 0, 2);
  set(g, 0, 1, 1), set(g, 1, 1, -1);
  Cpu cpu(2);
  for (f32 scale : {1.f, 0.f}) {  // the weights' gradient does not depend on the weights
    const std::vector<f32> w{0.5f * scale, 0.25f * scale, 2 * scale, 4 * scale};
    std::vector<f32> dw(4, unwritten);
    unsort_rows_gradient<16>(cpu, UnsortGradientArrays<TestType>{view(std::as_const(g), {2, 16}), view(std::as_const(rows), {4, 16}), view(w, {4}), view(order, {4}),
                                                                 view(dy, {4, 16}), view(dw, {4})}, {0, 4});
    CHECK(dw == std::vector<f32>{2, 1, -2, -1});
    for (std::size_t j = 0; j < 4; j++)
      for (std::size_t c = 0; c < 2; c++) CHECK(to_f32(dy[static_cast<std::size_t>(place[j]) * 16 + c]) == w[j] * to_f32(g[j / 2 * 16 + c]));
    unsort_rows(cpu, UnsortArrays<TestType>{view(std::as_const(rows), {4, 16}), view(w, {4}), view(place, {4}), view(out, {2, 16})}, {0, 4});
    CHECK(to_f32(out[0]) == 1.25f * scale);  // 0.5 (2, 0) + 0.25 (1, 0)
    CHECK(to_f32(out[16 + 1]) == 8 * scale);  // 2 (0, 2) + 4 (0, 1)
  }
}

// J21: rows there and back, and both gradients, against the plain form that looks every slot up; with all slots held and with a part.
TEMPLATE_TEST_CASE("experts: rows there and back, and the gradients", "", bf16, f32) {
  constexpr int W = 32;
  const Slots s(90, 4, 7);
  Random random(2);
  const auto x = normal<TestType>(random, s.tokens * W), g = normal<TestType>(random, s.tokens * W);
  const auto w = normal<f32>(random, s.count());
  struct Part {
    HeldRows held;
    std::int64_t buffer;
  };
  for (const auto& [held, buffer] : {Part{{0, 360}, 360}, Part{{50, 200}, 256}, Part{{300, 60}, 60}, Part{{10, 0}, 40}}) {
    INFO("places from " << held.first << ", " << held.limit << " rows of " << buffer);
    std::vector<TestType> y(static_cast<std::size_t>(buffer * W), activation<TestType>(unwritten)), dy = y, out(x.size()), dx(x.size());
    std::vector<f32> dw(static_cast<std::size_t>(s.count()), unwritten);
    Cpu cpu(3);
    sort_rows(cpu, SortRowsArrays<TestType>{view(x, {s.tokens, W}), s.order_view(), view(y, {buffer, W})}, held);
    unsort_rows(cpu, UnsortArrays<TestType>{view(std::as_const(y), {buffer, W}), view(w, {s.count()}), s.place_view(), view(out, {s.tokens, W})}, held);
    unsort_rows_gradient<W>(cpu, UnsortGradientArrays<TestType>{view(g, {s.tokens, W}), view(std::as_const(y), {buffer, W}), view(w, {s.count()}), s.order_view(),
                                                                view(dy, {buffer, W}), view(dw, {s.count()})}, held);
    sort_rows_backward(cpu, SortRowsBackwardArrays<TestType>{view(std::as_const(dy), {buffer, W}), s.place_view(), view(dx, {s.tokens, W})}, held);
    std::size_t wrong_y = 0, wrong_out = 0, wrong_dy = 0, wrong_dw = 0, wrong_dx = 0, not_held = 0;
    double far = 0;
    for (std::int64_t t = 0; t < s.tokens; t++) {
      std::vector<f32> sum(W), d_sum(W);
      for (std::int64_t j = t * s.top; j < (t + 1) * s.top; j++) {
        const std::int64_t row = at(s.place, j) - held.first;
        if (row < 0 || row >= held.limit) {
          wrong_dw += bits_of(at(dw, j)) != 0;
          not_held++;
          continue;
        }
        double dot = 0;
        for (std::int64_t c = 0; c < W; c++) {
          wrong_y += !same_bits(at(y, row * W + c), at(x, t * W + c));
          wrong_dy += !same_bits(at(dy, row * W + c), activation<TestType>(at(w, j) * to_f32(at(g, t * W + c))));
          at(sum, c) += at(w, j) * to_f32(at(y, row * W + c));
          at(d_sum, c) += to_f32(at(dy, row * W + c));
          dot += static_cast<double>(to_f32(at(g, t * W + c))) * static_cast<double>(to_f32(at(x, t * W + c)));
        }
        far = std::max(far, std::abs(at(dw, j) - dot));
      }
      for (std::int64_t c = 0; c < W; c++) wrong_out += !same_bits(at(out, t * W + c), activation<TestType>(at(sum, c))), wrong_dx += !same_bits(at(dx, t * W + c), activation<TestType>(at(d_sum, c)));
    }
    CHECK(wrong_y == 0);
    CHECK(wrong_out == 0);
    CHECK(wrong_dy == 0);
    CHECK(wrong_dw == 0);
    CHECK(wrong_dx == 0);
    CHECK(far < 1e-5);
    CHECK(not_held == static_cast<std::size_t>(s.count() - held.limit));
  }
}

// J22, B56: as a full sort has it, at 255, 256 and 257 live rows, with ties; the others' memory stays.
TEMPLATE_TEST_CASE("experts: the largest of live rows", "", bf16, f32) {
  constexpr std::int64_t rows = 600, experts = 64, top = 10;
  Random random(3);
  std::vector<TestType> x;
  for (std::int64_t i = 0; i < rows * experts; i++) x.push_back(activation<TestType>(i % 3 ? random.uniform() : std::floor(8 * random.uniform()) / 8));  // ties
  const auto d_values = normal<TestType>(random, rows * top);
  for (const std::int64_t n : {0, 255, 256, 257, 600}) {
    INFO(n << " live rows");
    std::vector<i32> live(rows, 0);
    for (std::int64_t i = 0; i < n; i++) at(live, (i * 7) % rows) = 1;
    const std::int64_t alive = std::count(live.begin(), live.end(), 1);
    CHECK(alive == n);
    std::vector<i32> ids(rows * top, -7), all(rows * top, -7);
    std::vector<TestType> values(rows * top), all_values(rows * top), dx(rows * experts, activation<TestType>(unwritten));
    Cpu cpu(3);
    top_of_rows(cpu, TopArrays<TestType>{view(std::as_const(x), {rows, experts}), view(std::as_const(live), {rows}), view(ids, {rows, top}), view(values, {rows, top})});
    top_of_rows(cpu, TopArrays<TestType>{view(std::as_const(x), {rows, experts}), {}, view(all, {rows, top}), view(all_values, {rows, top})});
    top_of_rows_backward(cpu, TopBackwardArrays<TestType>{view(d_values, {rows, top}), view(std::as_const(ids), {rows, top}), view(std::as_const(live), {rows}), view(dx, {rows, experts})});
    std::size_t wrong = 0, touched = 0, wrong_gradients = 0, ties = 0;
    for (std::int64_t r = 0; r < rows; r++) {
      std::vector<i32> order(experts);
      std::iota(order.begin(), order.end(), 0);
      const auto value = [&](std::int64_t e) { return to_f32(at(x, r * experts + e)); };
      std::stable_sort(order.begin(), order.end(), [&](i32 a, i32 b) { return value(a) > value(b); });
      std::vector<f32> right(experts);
      for (std::int64_t s = 0; s < top; s++) {
        const std::int64_t i = r * top + s;
        wrong += at(all, i) != at(order, s) || !same_bits(at(all_values, i), at(x, r * experts + at(order, s)));
        if (s + 1 < top) ties += value(at(order, s)) == value(at(order, s + 1));
        if (at(live, r)) wrong += at(ids, i) != at(order, s) || !same_bits(at(values, i), at(x, r * experts + at(order, s)));
        else touched += at(ids, i) != -7 || to_f32(at(values, i)) != 0;
        if (at(live, r)) at(right, at(order, s)) = to_f32(at(d_values, i));
      }
      for (std::int64_t e = 0; e < experts; e++) wrong_gradients += to_f32(at(dx, r * experts + e)) != at(right, e);
    }
    CHECK(wrong == 0);
    CHECK(touched == 0);
    CHECK(wrong_gradients == 0);
    CHECK(ties > 500);
  }
  const std::vector<TestType> even(4, activation<TestType>(0.25));
  std::vector<i32> ids(2);
  top_of_rows(Cpu(1), TopArrays<TestType>{view(even, {1, 4}), {}, view(ids, {1, 2}), {}});
  CHECK(ids == std::vector<i32>{0, 1});
}

TEST_CASE("experts: what is refused") {
  std::vector<i32> expert{0, 3, 1, 1}, order(4), sizes(3);
  ExpertSortArrays sort{view(std::as_const(expert), {4}), view(order, {4}), {}, view(sizes, {3})};
  CHECK_THROWS_WITH(sort_by_expert(sort), "sort_by_expert: expert[1] is 3; expected 0 to 2");
  expert[1] = -1;
  CHECK_THROWS_WITH(sort_by_expert(sort), "sort_by_expert: expert[1] is -1; expected 0 to 2");
  expert[1] = 2;
  CHECK_NOTHROW(sort_by_expert(sort));
  sort.order.shape[0] = 3;
  CHECK_THROWS_WITH(sort_by_expert(sort), "sort_by_expert: order has shape [3]; expected [4]");
  Cpu cpu(1);
  std::vector<f32> x(4 * 16), y(4 * 16);
  SortRowsArrays<f32> rows{view(std::as_const(x), {2, 16}), view(std::as_const(order), {4}), view(y, {4, 16})};
  CHECK_THROWS_WITH(sort_rows(cpu, rows, HeldRows{2, 3}), "sort_rows: places 2 to 5; expected a part of the 4 slots");
  rows.sorted = view(y, {2, 16});
  CHECK_THROWS_WITH(sort_rows(cpu, rows, HeldRows{0, 3}), "sort_rows: 3 rows are held; expected at most the 2 of the buffer");
  rows.x = view(std::as_const(x), {3, 16});
  CHECK_THROWS_WITH(sort_rows(cpu, rows, HeldRows{0, 2}), "sort_rows: 4 slots for 3 tokens; expected a multiple");
  std::vector<i32> ids(2 * 17);
  CHECK_THROWS_WITH(top_of_rows(cpu, TopArrays<f32>{view(std::as_const(x), {2, 16}), {}, view(ids, {2, 17}), {}}),
                    "top_of_rows: the largest 17 of 16 experts; expected at most all");
  const std::vector<i32> outside{0, 16};
  CHECK_THROWS_WITH(top_of_rows_backward(cpu, TopBackwardArrays<f32>{view(std::as_const(x), {1, 2}), view(outside, {1, 2}), {}, view(y, {1, 16})}),
                    "top_of_rows_backward: ids[0, 1] is 16; expected 0 to 15");
}

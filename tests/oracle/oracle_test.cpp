// The float64 oracles against each other and against answers written by hand.
#include <catch2/catch.hpp>

#include "../support/bits.hpp"
#include "../support/hard_inputs.hpp"
#include "../support/oracle.hpp"
#include "../support/random_inputs.hpp"

using namespace gdn;
using namespace gdn::test;

TEST_CASE("documents are numbered by change of the last valid id", "[oracle]") {
  CHECK(canonical_documents({1, 2, 1}, 3) == std::vector{1, 2, 3});
  CHECK(canonical_documents({1, 0, 1}, 3) == std::vector{1, 0, 1});
  CHECK(canonical_documents({-3, 9, 9, 0, 4}, 5) == std::vector{0, 1, 1, 0, 2});
  CHECK(canonical_documents({}, 2) == std::vector{1, 1});
  CHECK_THROWS_AS(canonical_documents({1}, 2), Error);
}

TEST_CASE("the recurrence gives the answers of a hand calculation", "[oracle]") {
  CoreInput<double> in;  // decay acts before the error is taken: 1 -> 0.5 -> 0.5 + 0.5 (1 - 0.5)
  in.q = in.k = in.v = Array<double>({1, 1, 1}, 1);
  in.g = Array<double>({1, 1}, std::log(0.5)), in.beta = Array<double>({1, 1}, 0.5);
  in.h0 = Array<double>({1, 1, 1}, 1), in.scale = 3;
  const auto result = recurrence(in);
  CHECK(result.state[0] == Approx(0.75).epsilon(1e-15));
  CHECK(result.out[0] == Approx(2.25).epsilon(1e-15));
}

TEST_CASE("the chunk form is the recurrence", "[oracle]") {
  for (const auto& layout : document_layouts()) {
    for (const bool with_state : {false, true}) {
      for (const int C : {16, 64}) {
        CAPTURE(layout.name, with_state, C);
        const auto in = random_core<double>(11, {layout.tokens, 2, 6, 12, 20}, layout.ids, with_state);
        const auto a = chunked(in, C), b = recurrence(in, C);
        CHECK(max_error(a.out, b.out) <= 1e-12);
        CHECK(max_error(a.state, b.state) <= 1e-12);
        CHECK(max_error(a.chunk_states, b.chunk_states) <= 1e-12);
      }
    }
  }
}

TEST_CASE("the chunk form is the recurrence on the hard inputs, with forgetting gates too", "[oracle]") {
  for (const std::string kind : hard_kinds) {
    CAPTURE(kind);
    auto in = widen(hard_input(kind, 0, 160, 1, 2, 16));
    auto a = chunked(in), b = recurrence(in);
    CHECK(max_error(a.out, b.out) <= 1e-12);
    CHECK(max_error(a.state, b.state) <= 1e-12);
    in.g(70, 1) = in.g(128, 0) = -std::numeric_limits<double>::infinity();
    a = chunked(in), b = recurrence(in);
    CHECK(max_error(a.out, b.out) <= 1e-12);
    CHECK(max_error(a.state, b.state) <= 1e-12);
    in.g = {};
    a = chunked(in), b = recurrence(in);
    CHECK(max_error(a.out, b.out) <= 1e-12);
  }
}

TEST_CASE("the comparison of the two forms can fail", "[oracle]") {
  const auto in = random_core<double>(11, {150, 2, 6, 12, 20});
  auto other = in;
  const auto right = chunked(in);
  SECTION("one decay") { other.g(70, 1) -= 1e-6; }
  SECTION("the head map") { std::swap(other.k(3, 0, 0), other.k(3, 1, 0)); }
  SECTION("a document more") { other.ids = document_ids({{1, 149}, {2, 1}}); }
  SECTION("the initial state") { other.h0(5, 3, 3) += 1e-3; }
  CHECK(max_error(recurrence(other).out, right.out) > 1e-9);
}

TEST_CASE("chunk states are final states of shorter calls, documents start anew", "[oracle]") {
  const auto ids = document_ids({{1, 40}, {2, 37}, {0, 23}, {3, 60}});
  const auto in = random_core<double>(5, {160, 1, 2, 8, 8}, ids);
  const auto whole = recurrence(in, 32, true);
  for (int n = 0; n < 5; ++n) {
    const auto prefix = recurrence(tokens_of(in, 0, 32 * n));
    CHECK(std::equal(prefix.state.begin(), prefix.state.end(), whole.chunk_states.row(n)));
  }

  // Every document alone: the second and third without the state, padding giving nothing.
  const int cu[] = {0, 40, 77, 100, 160};
  for (const int d : {0, 1, 3}) {
    auto one = tokens_of(in, cu[d], cu[d + 1]);
    one.ids.clear();
    if (d > 0) one.h0 = {};
    const auto alone = recurrence(one);
    CHECK(std::equal(alone.out.begin(), alone.out.end(), whole.out.row(cu[d])));
    CHECK(std::equal(alone.state.begin(), alone.state.end(), whole.document_states.row(d == 3 ? 2 : d)));
  }
  CHECK(std::all_of(whole.out.row(77), whole.out.row(100), [](double x) { return x == 0; }));

  // The same by offsets, an empty document handing its state on.
  Array<double> states({5, 2, 8, 8}, 0);
  std::copy(in.h0.begin(), in.h0.end(), states.data.begin());
  states(4, 1, 2, 3) = 42;
  auto packed = in;
  packed.ids.clear();
  const auto by_offset = recurrence_by_document(packed, {0, 40, 77, 100, 160, 160}, states);
  CHECK(std::equal(whole.out.row(100), whole.out.row(100) + 60 * 16, by_offset.out.row(100)));
  CHECK(by_offset.state(4, 1, 2, 3) == 42);
  CHECK(std::equal(whole.state.begin(), whole.state.end(), by_offset.state.row(3)));
}

TEST_CASE("padding passes states through and may hold NaN", "[oracle]") {
  auto in = random_core<double>(6, {100, 1, 2, 8, 8}, document_ids({{1, 30}, {0, 40}, {1, 30}}));
  for (int t = 30; t < 70; ++t) {
    for (int i = 0; i < 8; ++i) in.k(t, 0, i) = in.q(t, 0, i) = in.v(t, 1, i) = NAN;
    in.g(t, 0) = in.beta(t, 1) = NAN;
  }
  const auto a = chunked(in), b = recurrence(in);
  CHECK(max_error(a.out, b.out) <= 1e-12);
  CHECK(max_error(a.state, b.state) <= 1e-12);
  const auto padding = random_core<double>(6, {100, 1, 2, 8, 8}, document_ids({{0, 100}}));
  CHECK(recurrence(padding).state.data == padding.h0.data);
  CHECK(chunked(padding).state.data == padding.h0.data);
}

TEST_CASE("M inverts I + N, and r solves the chunk", "[oracle]") {
  const auto in = random_core<double>(9, {100, 1, 1, 8, 5}, document_ids({{1, 20}, {2, 60}, {0, 20}}), false);
  const auto result = chunked(in, 64);
  Array<double> N({64, 64});
  for (int i = 0; i < 64; ++i) {
    for (int j = 0; j < 64; ++j) N(i, j) = i > j ? 0.5 * std::sin(i * 7 + j) : i == j ? 9.0 : NAN;  // only the strict part is read
  }
  const auto X = unit_lower_inverse(N);
  double worst = 0, size = 0;
  for (int i = 0; i < 64; ++i) {
    for (int c = 0; c < 64; ++c) {
      double sum = X(i, c);
      for (int j = 0; j < i; ++j) sum += N(i, j) * X(j, c);
      worst = std::max(worst, std::abs(sum - (i == c)));
      size = std::max(size, std::abs(X(i, c)));
    }
  }
  CHECK(worst <= 1e-13 * size);
  for (int i = 0; i < 64; ++i) {  // block diagonal by document, identity on padding and past the end
    CHECK(result.t_inv(0, 0, i, i) == 1);
    CHECK(result.t_inv(0, 0, 40, i) * (i < 20) == 0);
    CHECK(result.t_inv(1, 0, 40, i) == (i == 40));
  }
  // In a first chunk without state S' = sum of k^T beta r decayed; the last document's first row has r = v.
  for (int j = 0; j < 5; ++j) CHECK(result.r(20, 0, j) == Approx(in.v(20, 0, j)).epsilon(1e-15));
}

TEST_CASE("convolution: taps, states and documents", "[oracle]") {
  Array<double> w({4, 1}), state({3, 1}), x({1, 1}, 10);
  w.data = {0.5, -1, 2, 3}, state.data = {1, 2, 3};
  auto r = conv_silu(x, w, {}, state);
  CHECK(r.y[0] == Approx(silu(34.5)));
  CHECK(r.state.data == std::vector<double>{2, 3, 10});

  const Array<double> one({1}, 1);
  CHECK(conv_silu(x, w, one, state).y[0] == Approx(silu(35.5)));
  CHECK(conv_silu(x, w).y[0] == Approx(silu(30)));

  Array<double> row({6, 1});
  row.data = {1, 2, NAN, 4, 5, NAN};
  r = conv_silu(row, w, {}, state, {8, 8, 0, 8, 3, 0});
  CHECK(r.y[0] == Approx(silu(0.5 * 1 - 2 + 2 * 3 + 3 * 1)));
  CHECK(r.y[2] == 0);
  CHECK(r.y[3] == Approx(silu(0.5 * 1 - 2 + 3 * 4)));  // the padded tap is a hole, not a shift
  CHECK(r.y[4] == Approx(silu(3 * 5)));
  CHECK(r.state.data == std::vector<double>{0, 0, 5});
  CHECK(conv_silu(row, w, {}, state, {0, 0, 0, 0, 0, 0}).state.data == state.data);
  CHECK(conv_silu(row, w, {}, {}, {0, 0, 0, 0, 0, 0}).state.data == std::vector<double>{0, 0, 0});
  CHECK(conv_silu(row, w, {}, state, {8, 8, 0, 0, 0, 0}).state.data == std::vector<double>{3, 1, 2});
  CHECK(conv_silu(row, w, {}, {}, {8, 8, 0, 0, 0, 0}).state.data == std::vector<double>{0, 1, 2});
  CHECK(conv_silu(Array<double>({0, 1}), w, {}, state).state.data == state.data);
}

TEST_CASE("a layer cut in two is the layer", "[oracle]") {
  const int T = 90;
  auto in = random_layer<double>(21, {T, 2, 4, 8, 6});
  const auto whole = fused_layer(in);

  for (const int cut : {1, 2, 3, 50}) {
    auto first = in, second = in;
    first.qkv = rows(in.qkv, 0, cut), first.a = rows(in.a, 0, cut), first.b = rows(in.b, 0, cut);
    second.qkv = rows(in.qkv, cut, T), second.a = rows(in.a, cut, T), second.b = rows(in.b, cut, T);
    const auto one = fused_layer(first);
    second.conv_state = one.conv_state, second.h0 = one.core.state;
    const auto two = fused_layer(second);
    CHECK(two.core.state.data == whole.core.state.data);
    CHECK(two.conv_state.data == whole.conv_state.data);
    CHECK(std::equal(two.core.out.begin(), two.core.out.end(), whole.core.out.row(cut)));
  }

  // Documents: what comes before, even NaN, does not reach the second one.
  in.ids = document_ids({{1, 40}, {2, 50}});
  const auto packed = fused_layer(in);
  auto alone = in;
  alone.ids.clear(), alone.conv_state = {}, alone.h0 = {};
  alone.qkv = rows(in.qkv, 40, T), alone.a = rows(in.a, 40, T), alone.b = rows(in.b, 40, T);
  const auto second = fused_layer(alone);
  CHECK(max_error(second.core.state, packed.core.state) <= 1e-15);
  CHECK(second.conv_state.data == packed.conv_state.data);
  in.qkv(39, 3) = NAN;
  CHECK(fused_layer(in).core.state.data == packed.core.state.data);
}

TEST_CASE("gates at their extremes are finite", "[oracle]") {
  CHECK(log_decay(100, -800, 0) == 0);
  CHECK(log_decay(0, 0, 0) == Approx(-std::log(2)));
  CHECK(softplus(1000) == 1000);
  CHECK(sigmoid(-1000) == 0);
}

// The right answers of the cases hold in float64, and the wrong answers they were reported for do not pass.
#include <catch2/catch.hpp>

#include "../support/cases.hpp"

using namespace gdn;
using namespace gdn::test;

namespace {

template <class T>
CoreResult run(const CoreInput<T>& in) {
  return recurrence(widen(in));
}
CoreResult run(const LayerInput<f32>& in) { return fused_layer(widen(in)).core; }

const CoreCase& find(const std::vector<CoreCase>& cases, const std::string& name) {
  for (const auto& c : cases) {
    if (c.name.starts_with(name)) return c;
  }
  throw Error("no case " + name);
}

std::vector<double> picked_rows(const Array<double>& x, const std::vector<std::pair<int, int>>& pairs, bool first) {
  std::vector<double> values;
  for (auto [a, b] : pairs) {
    const auto one = rows(x, first ? a : b, (first ? a : b) + 1);
    values.insert(values.end(), one.begin(), one.end());
  }
  return values;
}

// In float64 equal bits are not owed where sums may be taken in another order.
std::string near(const std::vector<double>& a, const std::vector<double>& b) { return miss(relative(1e-12), a, b); }

template <class Cases>
void check_same(const Cases& cases) {
  for (const auto& c : cases) {
    INFO(c.name);
    const auto a = run(c.a), b = run(c.b);
    REQUIRE(!c.rows.empty());
    CHECK(near(picked_rows(a.out, c.rows, true), picked_rows(b.out, c.rows, false)) == "");
    if (c.states) CHECK(near(a.state.data, b.state.data) == "");
  }
}

}  // namespace

TEST_CASE("every core case is right by the recurrence and by the chunk form", "[cases]") {
  for (const CaseDims dims : {CaseDims{}, CaseDims{32, 8, 32}}) {
    for (const auto& c : core_cases(dims)) {
      INFO(c.name);
      CoreCase strict = c;  // what f32 may miss, float64 hits
      if (c.out_within.kind != Tolerance::Kind::exact) strict.out_within.value = std::min(c.out_within.value, 1e-7);
      if (c.state_within.kind != Tolerance::Kind::exact) strict.state_within.value = std::min(c.state_within.value, 1e-7);
      const auto in = widen(c.in);
      const auto result = c.cu.empty() ? recurrence(in) : recurrence_by_document(in, c.cu, cast<double>(c.document_h0));
      CHECK(miss_out(strict, result.out) == "");
      CHECK(miss_state(strict, result.state) == "");
      if (!c.cu.empty()) continue;
      const auto by_chunk = chunked(in);
      CHECK(miss_out(strict, by_chunk.out) == "");
      CHECK(miss_state(strict, by_chunk.state) == "");
    }
  }
}

TEST_CASE("the wrong answers that were reported do not pass", "[cases]") {
  const auto cases = core_cases();
  const auto wrong_state = [&](const std::string& name, const Array<double>& state) { return miss_state(find(cases, name), state) != ""; };
  const auto number = [](double x) { return Array<double>({1, 1, 1}, x); };

  CHECK(wrong_state("B06", number(0.5)));              // error before decay
  CHECK(wrong_state("B10", number(1.1253517e-7)));     // g in bf16
  CHECK(wrong_state("B20", number(0.25)));             // state in bf16
  CHECK(wrong_state("B21", number(std::numeric_limits<double>::infinity())));
  {  // The decay of the chunk's last row instead of the last valid one: none at all.
    CHECK(wrong_state("B31 5", Array<double>({1, 128, 128}, 1)));
  }
  {
    auto tiled = find(cases, "B25").in;
    std::swap_ranges(tiled.v.row(0, 1), tiled.v.row(0, 2), tiled.v.row(0, 2));
    auto state = run(tiled).state;
    std::swap_ranges(state.row(1), state.row(2), state.row(2));
    CHECK(wrong_state("B25", state));
  }
  {  // Operands of one bf16 pass.
    auto c = find(cases, "B65");
    for (auto* x : {&c.in.k, &c.in.h0}) {
      for (auto& value : x->data) value = to_f32(to_bf16(value));
    }
    CHECK(miss_state(find(cases, "B65"), run(c.in).state) != "");
  }
  {  // A token that lost its entry; the norm flag ignored; ids ignored; a NaN anywhere.
    auto out = right_answer(find(cases, "B02 no decay")).out;
    out(40, 0, 7) -= 1;
    CHECK(miss_out(find(cases, "B02 no decay"), out) != "");
    CHECK(miss_out(find(cases, "B29 norm on"), right_answer(find(cases, "B29 norm off")).out) != "");
    auto packed = find(cases, "B35").in;
    packed.ids = document_ids({{1, 40}, {0, 24}});
    CHECK(miss_out(find(cases, "B35"), run(packed).out) != "");
    out = right_answer(find(cases, "B30")).out;
    out(74, 0, 127) = NAN;
    CHECK(miss_out(find(cases, "B30"), out) != "");
    out = right_answer(find(cases, "B35")).out;
    out(50, 0, 0) = 1e-30;
    CHECK_THAT(miss_out(find(cases, "B35"), out), Catch::Contains("padding row 50"));
  }
  {
    const auto& c = find(cases, "B33");
    auto state = right_answer(c).state;
    state(2, 0, 0, 0) *= 1 + 1e-9;
    CHECK_THAT(miss_state(c, state), Catch::Contains("empty document 2"));
  }
}

TEST_CASE("calls that must agree do", "[cases]") {
  const CaseDims dims{32, 8, 32};
  check_same(same_core_cases(dims));
  check_same(same_layer_cases(dims));

  // Without the ids the first document is seen.
  auto c = same_core_cases(dims)[2];
  REQUIRE_THAT(c.name, Catch::Contains("B34"));
  c.a.ids.clear(), c.b.ids.clear();
  CHECK(near(picked_rows(run(c.a).out, c.rows, true), picked_rows(run(c.b).out, c.rows, false)) != "");
}

TEST_CASE("calls cut in parts are the call", "[cases]") {
  const CaseDims dims{32, 8, 32};
  for (const auto& c : split_core_cases(dims)) {
    INFO(c.name);
    const auto whole = run(c.in);
    auto ends = c.cuts;
    ends.push_back(c.in.tokens());
    std::vector<double> out;
    auto h0 = c.in.h0;
    for (int first = 0; const int last : ends) {
      auto part = tokens_of(c.in, first, last);
      part.h0 = h0;
      const auto result = run(part);
      out.insert(out.end(), result.out.begin(), result.out.end());
      h0 = cast<f32>(result.state), first = last;
    }
    CHECK(miss(relative(1e-6), out, whole.out) == "");
  }
  for (const auto& c : split_layer_cases(dims)) {
    INFO(c.name);
    const auto whole = fused_layer(widen(c.in));
    auto ends = c.cuts;
    ends.push_back(c.in.tokens());
    auto carried = widen(c.in);
    std::vector<double> out;
    for (int first = 0; const int last : ends) {
      auto part = widen(tokens_of(c.in, first, last));
      part.h0 = carried.h0, part.conv_state = carried.conv_state;
      const auto result = fused_layer(part);
      out.insert(out.end(), result.core.out.begin(), result.core.out.end());
      carried.h0 = result.core.state, carried.conv_state = result.conv_state, first = last;
    }
    CHECK(out == whole.core.out.data);
    CHECK(carried.h0.data == whole.core.state.data);
    CHECK(carried.conv_state.data == whole.conv_state.data);
  }
  for (const auto& c : prefix_cases(dims)) {
    const auto whole = run(c.in);
    for (const int n : c.chunks) {
      const auto prefix = run(tokens_of(c.in, 0, 64 * n)).state;
      const double* there = 64 * n < c.in.tokens() ? whole.chunk_states.row(n) : whole.state.data.data();
      CHECK(std::equal(prefix.begin(), prefix.end(), there));
    }
  }
}

TEST_CASE("convolutions, gates and norms are right", "[cases]") {
  for (const auto& c : conv_cases(3)) {
    INFO(c.name);
    const auto result = conv_silu(cast<double>(c.x), cast<double>(c.weights), cast<double>(c.bias), cast<double>(c.state), c.ids);
    CHECK(miss(c.within, result.y, c.y) == "");
    CHECK(miss(exact(), result.state, c.new_state) == "");
  }
  for (const auto& c : gate_cases()) {
    INFO(c.name);
    CHECK(miss(c.g_within, std::vector{log_decay(c.A_log, c.a, c.dt_bias)}, std::vector{c.g}) == "");
    CHECK(miss(c.beta_within, std::vector{sigmoid(c.b)}, std::vector{c.beta}) == "");
    CHECK(miss(c.beta_within, std::vector{c.beta + 0.002}, std::vector{c.beta}) != "");
  }
  for (const auto& c : norm_cases()) {
    INFO(c.name);
    const auto norm = [](double x) {
      std::vector<double> row(128, x);
      l2norm(row.data(), 128);
      return row;
    };
    CHECK(miss(c.within, norm(c.x), std::vector<double>(128, c.y)) == "");
    const double step = 1e-7;
    const double dx = (norm(c.x + step)[0] - norm(c.x - step)[0]) / (2 * step) * c.dy;
    CHECK(miss(relative(1e-5), std::vector{dx}, std::vector{c.dx}) == "");
  }
  // Epsilon under the mean.
  CHECK(miss(norm_cases()[1].within, std::vector{0.0625}, std::vector{norm_cases()[1].y}) != "");
}

TEST_CASE("inverses are right", "[cases]") {
  for (const auto& c : inverse_cases()) {
    INFO(c.name);
    auto X = unit_lower_inverse(cast<double>(c.L));
    CHECK(miss(c, X) == "");
    X(40, 13) += std::abs(X(40, 13)) * 1e-4 + 1e-4;  // score of the whole matrix hides this
    CHECK(miss(c, X) != "");
    X = unit_lower_inverse(cast<double>(c.L));
    X(3, 50) = 1e-30;
    CHECK_THAT(miss(c, X), Catch::Contains("3,50"));
  }
}

TEST_CASE("plans say what they claim", "[cases]") {
  const auto far = stride_case();
  CHECK(63 * far.token_stride > std::int64_t{1} << 31);
  CHECK(far.elements == 64 * far.token_stride);
  const auto repeat = repeat_case({32, 8, 32});
  CHECK(miss_out(repeat.call, chunked(widen(repeat.call.in)).out) == "");
  for (const auto& c : refused_cases()) CHECK(c.in.g(c.token, c.head) > 0);

  Guarded<f32> state(10, 3.0f);
  state[0] = state[9] = 1;
  CHECK(state.intact());
  state.data()[10] = 0;
  CHECK(!state.intact());
  Guarded<bf16> small(10);
  CHECK(small.intact());
  small.data()[-1] = to_bf16(1);
  CHECK(!small.intact());
}

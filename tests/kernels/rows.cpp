// Rows up to a limit: SiLU-GLU, its gradient, and the gradient of a weighted unsort. Every bf16 gate against the formula, right answers,
// rows behind the limit, and bits on the CPU and in the simulator.
#include <gdn/calls/rows.hpp>
#include <gdn/portable/math.hpp>

#include "../support/cases.hpp"
#include "traced.hpp"

using namespace gdn;
using namespace gdn::test;

namespace {

constexpr f32 inf = std::numeric_limits<f32>::infinity(), nan = std::numeric_limits<f32>::quiet_NaN();

// Calls with their memory. Outputs start as `unwritten`; a limit below 0 is no limit.
struct Limit {
  i32 value = -1;
  View<const i32, 1> view() const { return value < 0 ? View<const i32, 1>() : View<const i32, 1>(&value, {1}, {1}); }
};
template <class Act> std::vector<Act> fresh(std::int64_t n) { return std::vector<Act>(static_cast<std::size_t>(n), activation<Act>(unwritten)); }

template <class Act, int W, int Rows = 256> struct Glu {
  std::int64_t rows = 0;
  Limit limit{};
  std::vector<Act> fused{}, y{};
  template <class Machine> void call(Machine& machine) {
    y = fresh<Act>(rows * W);
    glu_rows<W, Rows>(machine, GluArrays<Act>{view(std::as_const(fused), {rows, 2 * W}), limit.view(), view(y, {rows, W})});
  }
  Outputs outputs() const {
    Outputs all;
    add_output(all, "y", y, true);
    return all;
  }
};
template <class Act, int W, int Rows = 256> struct GluBackward {
  std::int64_t rows = 0;
  Limit limit{};
  std::vector<Act> fused{}, dy{}, d_fused{};
  template <class Machine> void call(Machine& machine) {
    d_fused = fresh<Act>(rows * 2 * W);
    glu_rows_backward<W, Rows>(machine, GluBackwardArrays<Act>{view(std::as_const(fused), {rows, 2 * W}), view(std::as_const(dy), {rows, W}),
                                                               limit.view(), view(d_fused, {rows, 2 * W})});
  }
  Outputs outputs() const {
    Outputs all;
    add_output(all, "d_fused", d_fused, true);
    return all;
  }
};
template <class Act, int W, int Rows = 128> struct Unsort {
  std::int64_t rows = 0;
  Limit limit{};
  std::vector<Act> g{}, x{}, dx{};
  std::vector<f32> w{}, dw{};
  template <class Machine> void call(Machine& machine) {
    dx = fresh<Act>(rows * W), dw = fresh<f32>(rows);
    unsort_rows_backward<W, Rows>(machine, UnsortBackwardArrays<Act>{view(std::as_const(g), {rows, W}), view(std::as_const(x), {rows, W}), view(std::as_const(w), {rows}),
                                                                     limit.view(), view(dx, {rows, W}), view(dw, {rows})});
  }
  Outputs outputs() const {
    Outputs all;
    add_output(all, "dx", dx, true);
    add_output(all, "dw", dw, true);
    return all;
  }
};

template <class Act> void add_normal(Random& random, std::vector<Act>& x, std::int64_t n, double scale = 1) {
  for (std::int64_t i = 0; i < n; i++) x.push_back(activation<Act>(scale * random.normal()));
}
template <class Call> Call random_rows(std::int64_t rows, int W, std::uint64_t seed = 1) {
  Random random(seed);
  Call c;
  c.rows = rows;
  if constexpr (requires { c.fused; }) add_normal(random, c.fused, rows * 2 * W, 3);
  if constexpr (requires { c.dy; }) add_normal(random, c.dy, rows * W);
  if constexpr (requires { c.g; }) add_normal(random, c.g, rows * W), add_normal(random, c.x, rows * W), add_normal(random, c.w, rows);
  return c;
}

// The formulas, element by element.
f32 sigmoid_of(f32 x) { return portable::sigmoid(x); }
f32 glu(f32 g, f32 u) {
  const f32 a = g * sigmoid_of(g);
  return a * u;
}
struct Pair {
  f32 gate, up;
};
Pair glu_gradient(f32 g, f32 u, f32 d) {
  const f32 s = sigmoid_of(g), a = g * s, t = d * u;
  const f32 first = t * s, second = t * g, rest = 1.f - s;
  const f32 slope = s * rest, curved = second * slope;
  return {first + curved, d * a};
}

// All 65536 gates, each with 64 partners: extremes first, then random ones. A row of gates is 256 wide.
constexpr int wide = 256;
constexpr std::int64_t gate_rows = 65536 * 64 / wide;
template <class Call> Call all_gates() {
  const bf16 extremes[] = {{0x0000}, {0x8000}, {0x7f80}, {0xff80}, {0x7fc0}, {0x0001}, {0x8001}, {0x007f}, {0x0080}, {0x7f7f}, {0xff7f}, {0x3f80}};
  Random random(5);
  Call c;
  c.rows = gate_rows;
  const auto partner = [&](std::int64_t k) { return k < static_cast<std::int64_t>(std::size(extremes)) ? extremes[k] : to_bf16(static_cast<f32>(4 * random.normal())); };
  for (std::int64_t r = 0; r < gate_rows; r++) {
    for (std::int64_t i = r * wide; i < (r + 1) * wide; i++) c.fused.push_back({static_cast<std::uint16_t>(i / 64)});
    for (std::int64_t i = r * wide; i < (r + 1) * wide; i++) c.fused.push_back(partner(i % 64));
  }
  if constexpr (requires { c.dy; })
    for (std::int64_t i = 0; i < gate_rows * wide; i++) c.dy.push_back(partner(i % 64 < 12 ? (i / 64 + i) % 12 : 12));
  return c;
}
template <class C> Pair inputs_of(const C& c, std::int64_t i) {
  const std::size_t at = static_cast<std::size_t>(i / wide * 2 * wide + i % wide);
  return {to_f32(c.fused[at]), to_f32(c.fused[at + wide])};
}

// Schedules whose text the simulator runs beside the default.
std::vector<Schedule> texts() {
  return {Schedule::lifted(), changed(Schedule::lifted(), [](Schedule& s) { s.exact_functions = true; })};
}
template <class Call> void check_machines(Call& call, const std::vector<Schedule>& schedules = {Schedule::lifted()}, const sim::Options& options = {}) {
  const Outputs one = run(Cpu(1), call);
  CHECK(differences(one, run(Cpu(3), call)) == "");
  for (const Schedule& s : schedules) {
    INFO(described(s) << (s.exact_functions ? ", exact" : ""));
    CHECK(differences(one, run(Traced(s, options), call)) == "");
  }
}
template <class Call> void check_limits(Call& call, std::int64_t block, const std::vector<i32>& limits) {
  for (const i32 limit : limits) {
    INFO("limit " << limit << " of " << call.rows);
    Call c = call;
    c.limit = {limit};
    // Behind the limit memory holds NaN.
    const auto spoil = [&](auto& x) {
      const std::size_t width = x.size() / static_cast<std::size_t>(call.rows);
      std::fill(x.begin() + static_cast<std::ptrdiff_t>(width) * limit, x.end(), activation<typename std::decay_t<decltype(x)>::value_type>(nan));
    };
    if constexpr (requires { c.fused; }) spoil(c.fused);
    if constexpr (requires { c.dy; }) spoil(c.dy);
    if constexpr (requires { c.g; }) spoil(c.g), spoil(c.x), spoil(c.w);
    check_machines(c);
    check_machines(c, {Schedule::lifted()}, {.late_windows = true});
    const std::int64_t end = std::min<std::int64_t>(call.rows, (std::max(limit - 1, 0) / block + 1) * block);
    const Outputs all = run(Cpu(2), call), some = run(Cpu(2), c);
    for (std::size_t o = 0; o < all.size(); o++) {
      INFO(all[o].name);
      const std::size_t width = all[o].values.size() / static_cast<std::size_t>(call.rows);
      std::size_t wrong = 0, wrong_zeros = 0, touched = 0;
      for (std::size_t i = 0; i < all[o].values.size(); i++) {
        const std::int64_t row = static_cast<std::int64_t>(i / width);
        const f32 x = some[o].values[i];
        if (row < limit) wrong += !same_bits(x, all[o].values[i]);
        else if (row < end) wrong_zeros += bits_of(x) != 0;
        else touched += all[o].name == "dw" ? x != unwritten : x != to_f32(to_bf16(unwritten)) && x != unwritten;
      }
      CHECK(wrong == 0);
      CHECK(wrong_zeros == 0);
      CHECK(touched == 0);
    }
  }
}

}  // namespace

// J15
TEST_CASE("glu: every bf16 gate with 64 partners, against the formula and in the simulator") {
  auto call = all_gates<Glu<bf16, wide>>();
  run(Cpu(2), call);
  std::size_t wrong = 0, far = 0, finite = 0, twice = 0;
  {
    const cpu::FlushGuard guard;
    for (std::int64_t i = 0; i < gate_rows * wide; i++) {
      const auto [g, u] = inputs_of(call, i);
      const bf16 y = call.y[static_cast<std::size_t>(i)];
      wrong += !same_bits(y, to_bf16(glu(g, u)));
      if (!std::isfinite(g) || !std::isfinite(u)) continue;
      finite++;
      twice += !same_bits(y, to_bf16(to_f32(to_bf16(g * sigmoid_of(g))) * u));
    }
  }
  CHECK(wrong == 0);
  // Rounded twice it would be another function.
  const double share = static_cast<double>(twice) / static_cast<double>(finite);
  INFO("rounded twice: " << share);
  CHECK(share > 0.01);
  CHECK(share < 0.04);
  for (std::int64_t i = 0; i < gate_rows * wide; i++) {
    const auto [g, u] = inputs_of(call, i);
    const double right = silu(static_cast<double>(g)) * static_cast<double>(u), size = std::abs(right);
    if (!std::isfinite(g) || !std::isfinite(u) || g < -87 || size < 0x1p-120 || size > 1e38 || std::abs(static_cast<double>(g)) < 0x1p-120 || std::abs(static_cast<double>(u)) < 0x1p-120) continue;
    far += !(std::abs(to_f32(call.y[static_cast<std::size_t>(i)]) - right) <= size * (0x1p-8 * (1 + 1e-4)));
  }
  CHECK(far == 0);
  check_machines(call, texts());
}

// J16
TEST_CASE("glu backward: every bf16 gate with 64 partners, against the formula and in the simulator") {
  auto call = all_gates<GluBackward<bf16, wide>>();
  run(Cpu(2), call);
  std::size_t wrong = 0, negative_zeros = 0, differs_from_sum = 0;
  {
    const cpu::FlushGuard guard;
    for (std::int64_t i = 0; i < gate_rows * wide; i++) {
      const auto [g, u] = inputs_of(call, i);
      const Pair d = glu_gradient(g, u, to_f32(call.dy[static_cast<std::size_t>(i)]));
      const std::size_t at = static_cast<std::size_t>(i / wide * 2 * wide + i % wide);
      for (const auto& [x, found] : {std::pair{d.gate, call.d_fused[at]}, {d.up, call.d_fused[at + wide]}}) {
        wrong += !same_bits(found, to_bf16(x == 0 ? 0.f : x));
        negative_zeros += bits_of(x) == 0x80000000u;
        differs_from_sum += !same_bits(found, to_bf16(to_f32(to_bf16(x)) + 0.f));  // two gradients padded with zeros, added
      }
    }
  }
  CHECK(wrong == 0);
  CHECK(differs_from_sum == 0);
  CHECK(negative_zeros > 1000);  // without the rule there would be as many differences
  check_machines(call, texts());
}

TEST_CASE("glu: cases with a right answer") {
  struct Case {
    const char* name;
    f32 gate, up;
    double y;
    double within;
  };
  const Case cases[] = {{"B52 a", 0.0625f, 1.375f, 0.044189453, 1e-9},       {"B52 b", 0.125f, 2.375f, 0.15722656, 1e-8}, {"B52 c", 0.1875f, 0.375f, 0.03833008, 1e-8},
                        {"B53 -20", -20, 1, -4.1223072e-8, 0.5 * 0x1p-8 * 4.2e-8}, {"B53 -88: sigmoid is 0", -88, 1, 0, 0},     {"B53 -89", -89, 1, 0, 0},
                        {"B53 +inf", inf, 1, inf, 0},                         {"B53 +0", 0, 1, 0, 0}};
  Glu<bf16, 128, 128> call{.rows = 1, .fused = std::vector<bf16>(256)};
  for (std::size_t i = 0; i < std::size(cases); i++) call.fused[i] = to_bf16(cases[i].gate), call.fused[128 + i] = to_bf16(cases[i].up);
  call.fused[100] = to_bf16(-0.f), call.fused[228] = to_bf16(1), call.fused[101] = to_bf16(-inf), call.fused[229] = to_bf16(1);
  const Outputs found = run(Cpu(1), call);
  for (std::size_t i = 0; i < std::size(cases); i++) {
    INFO(cases[i].name << ": " << found[0].values[i]);
    CHECK((found[0].values[i] == static_cast<f32>(cases[i].y) || std::abs(found[0].values[i] - cases[i].y) <= cases[i].within));
  }
  CHECK(bits_of(found[0].values[4]) == 0x80000000u);    // of -88
  CHECK(bits_of(found[0].values[100]) == 0x80000000u);  // the sign of a zero is kept
  CHECK(std::isnan(found[0].values[101]));              // -inf: 0 times infinity
  check_machines(call, texts());
}

TEST_CASE("glu backward: a derivative") {
  auto call = random_rows<GluBackward<f32, 128>>(3, 128);
  const Outputs found = run(Cpu(1), call);
  double worst = 0;
  for (std::size_t i = 0; i < 3 * 128; i++) {
    const std::size_t at = i / 128 * 256 + i % 128;
    const double g = call.fused[at], u = call.fused[at + 128], d = call.dy[i], s = sigmoid(g);
    worst = std::max(worst, std::abs(found[0].values[at] - d * u * s * (1 + g * (1 - s))) / (1 + std::abs(d * u)));
    worst = std::max(worst, std::abs(found[0].values[at + 128] - d * g * s) / (1 + std::abs(d * g)));
  }
  INFO("error " << worst);
  CHECK(worst < 5e-7);
}

// J15, J16, J17, J19 and B44: limits at, before and behind ends of blocks, the last block partial.
TEST_CASE("rows: limits, and what lies behind them") {
  const std::vector<i32> limits{0, 1, 255, 256, 257, 511, 512, 700, 868};
  auto forward = random_rows<Glu<bf16, 128>>(868, 128);
  check_limits(forward, 256, limits);
  auto backward = random_rows<GluBackward<bf16, 128>>(868, 128);
  check_limits(backward, 256, limits);
  auto unsort = random_rows<Unsort<bf16, 256>>(868, 256);
  check_limits(unsort, 128, limits);
}
// Windows of blocks behind the limit stay where they are, so that nothing is fetched or written back for them.
TEST_CASE("rows: every window keeps to the limit") {
  const auto windows_at_limit = [](auto call, i32 limit) {
    call.limit = {limit};
    Traced machine;
    run(machine, call);
    const std::string text = machine.simulate.module.generic(), kept = "%visited = \"arith.minsi\"(%t, %last)";
    int n = 0;
    for (std::size_t at = text.find(kept); at != std::string::npos; at = text.find(kept, at + 1)) n++;
    return n;
  };
  CHECK(windows_at_limit(random_rows<Glu<bf16, 128>>(512, 128), 1) == 2);
  CHECK(windows_at_limit(random_rows<GluBackward<bf16, 128>>(512, 128), 1) == 3);
  CHECK(windows_at_limit(random_rows<Unsort<bf16, 128>>(512, 128), 1) == 5);
  CHECK(windows_at_limit(random_rows<Glu<bf16, 128>>(512, 128), -1) == 0);
}
TEST_CASE("rows: f32, other blocks, no limit") {
  for (std::int64_t rows : {5, 128, 300}) {
    INFO(rows << " rows");
    auto forward = random_rows<Glu<f32, 128, 128>>(rows, 128);
    check_machines(forward);
    auto backward = random_rows<GluBackward<f32, 128, 128>>(rows, 128);
    check_machines(backward);
    auto unsort = random_rows<Unsort<f32, 128, 256>>(rows, 128);
    check_machines(unsort);
  }
}

// The buffers of a large model, by blocks of 1024 rows (columns fewer): gradients to the bit, dots within the bound.
TEST_CASE("unsort: the limits of a buffer of 225280 rows") {
  constexpr int W = 32;
  auto call = random_rows<Unsort<bf16, W, 1024>>(225280, W);
  for (i32 limit : {0, 1, 1023, 123 * 1024, 126156, 225280}) {
    INFO("limit " << limit);
    call.limit = {limit};
    run(Cpu(2), call);
    const std::int64_t end = (std::max(limit - 1, 0) / 1024 + 1) * 1024;
    std::size_t wrong = 0, touched = 0;
    double error = 0;
    for (std::int64_t r = 0; r < call.rows; r++) {
      double dot = 0;
      for (int c = 0; c < W; c++) {
        const std::size_t i = static_cast<std::size_t>(r * W + c);
        const bf16 right = r < limit ? to_bf16(to_f32(call.g[i]) * call.w[static_cast<std::size_t>(r)]) : bf16{0};
        if (r < end) wrong += bits_of(call.dx[i]) != bits_of(right);
        else touched += bits_of(call.dx[i]) != bits_of(to_bf16(unwritten));
        if (r < limit) dot += static_cast<double>(to_f32(call.g[i])) * static_cast<double>(to_f32(call.x[i]));
      }
      if (r < end) error = std::max(error, std::abs(call.dw[static_cast<std::size_t>(r)] - dot));
      else touched += call.dw[static_cast<std::size_t>(r)] != unwritten;
    }
    CHECK(wrong == 0);
    CHECK(touched == 0);
    CHECK(error < 5.3e-5);
  }
}
// J18
TEST_CASE("unsort: dots of 4096 columns against float64") {
  auto call = random_rows<Unsort<bf16, 4096>>(200, 4096);
  const Outputs found = run(Cpu(2), call);
  double error = 0, dropped = inf;
  for (std::size_t r = 0; r < 200; r++) {
    double dot = 0, largest = 0;
    for (std::size_t c = 0; c < 4096; c++) {
      const double p = static_cast<double>(to_f32(call.g[r * 4096 + c])) * static_cast<double>(to_f32(call.x[r * 4096 + c]));
      dot += p, largest = std::max(largest, std::abs(p));
    }
    error = std::max(error, std::abs(found[1].values[r] - dot));
    dropped = std::min(dropped, largest);
  }
  INFO("error " << error);
  CHECK(error < 5.3e-5);
  CHECK(dropped > 5.3e-5);  // a missing product would be seen
  check_machines(call);
}

TEST_CASE("rows: what is refused") {
  Cpu cpu(1);
  std::vector<bf16> x(256 * 256), y(256 * 256);
  std::vector<f32> w(256), dw(256);
  i32 limit = 257;
  GluArrays<bf16> glu;
  CHECK_THROWS_WITH(glu_rows<128>(cpu, glu), "glu_rows: fused is missing");
  glu.fused = view(std::as_const(x), {256, 256}), glu.y = view(y, {256, 64});
  CHECK_THROWS_WITH(glu_rows<128>(cpu, glu), "glu_rows: y has shape [256, 64]; expected [256, 128]");
  CHECK_THROWS_WITH(glu_rows<64>(cpu, glu), "glu_rows: fused has shape [256, 256]; expected [256, 128]");
  glu.y = view(y, {256, 128}), glu.limit = view(&limit, {1});
  CHECK_THROWS_WITH(glu_rows<128>(cpu, glu), "glu_rows: limit is 257; expected 0 to the 256 rows there are");
  limit = -1;
  CHECK_THROWS_WITH(glu_rows<128>(cpu, glu), "glu_rows: limit is -1; expected 0 to the 256 rows there are");
  limit = 256;
  CHECK_NOTHROW(glu_rows<128>(cpu, glu));
  glu.y = view(x, {256, 128});
  CHECK_THROWS_WITH(glu_rows<128>(cpu, glu), "glu_rows: output y overlaps fused; expected separate memory");
  GluBackwardArrays<bf16> back{view(std::as_const(x), {256, 256}), {}, {}, view(y, {256, 256})};
  CHECK_THROWS_WITH(glu_rows_backward<128>(cpu, back), "glu_rows_backward: dy is missing");
  UnsortBackwardArrays<bf16> unsort{view(std::as_const(x), {128, 256}), view(std::as_const(x), {128, 256}), view(std::as_const(w), {256}), {},
                                    view(y, {128, 256}), view(dw, {128})};
  CHECK_THROWS_WITH(unsort_rows_backward<256>(cpu, unsort), "unsort_rows_backward: w has shape [256]; expected [128]");
  unsort.w = view(std::as_const(w), {128});
  CHECK_NOTHROW(unsort_rows_backward<256>(cpu, unsort));
  unsort.g = view(std::as_const(x), {0, 256}), unsort.x = unsort.g, unsort.w = view(std::as_const(w), {0}), unsort.dx = view(y, {0, 256}), unsort.dw = view(dw, {0});
  CHECK_NOTHROW(unsort_rows_backward<256>(cpu, unsort));
}

// The text of a kernel is a function of the call and the schedule.
#include <catch2/catch.hpp>
#include <gdn/calls/forward.hpp>
#include <gdn/emit.hpp>

using namespace gdn;

namespace {

mosaic::Module emitted(int tokens, const mosaic::Schedule& schedule) {
  static std::vector<f32> memory(1 << 20);
  CoreArrays<f32> a;
  f32* p = memory.data();
  const auto next = [&](std::int64_t n) { return std::exchange(p, p + n); };
  const std::int64_t T = tokens;
  a.q = view(next(T * 64), {1, T, 2, 32}), a.k = view(next(T * 64), {1, T, 2, 32}), a.v = view(next(T * 192), {1, T, 4, 48});
  a.g = view(next(T * 4), {1, T, 4}), a.beta = view(next(T * 4), {1, T, 4}), a.out = view(next(T * 192), {1, T, 4, 48});
  Emit emit(schedule);
  forward<Geometry<16, 32, 48>>(emit, a);
  return emit.module;
}

}  // namespace

TEST_CASE("two emissions are equal, and other calls and schedules differ") {
  const auto a = emitted(48, {}), b = emitted(48, {});
  CHECK(a.generic() == b.generic());
  CHECK(a.program() == b.program());
  CHECK(a.generic() != emitted(64, {}).generic());
  mosaic::Schedule exact;
  exact.exact_functions = true;
  CHECK(a.generic() != emitted(48, exact).generic());
}

TEST_CASE("the forms of a text differ as they should") {
  const auto m = emitted(48, {});
  const std::string generic = m.generic(), stable = m.stable(), program = m.program();
  CHECK_THAT(generic, Catch::StartsWith("// call: (tensor<1x48x") && Catch::Contains("loc(\"forward"));
  CHECK_THAT(stable, Catch::StartsWith("module attributes {stable_mosaic.version = 13 : i64} {") && Catch::Contains("\"stable_mosaic.arith.addf\""));
  CHECK_THAT(stable, !Catch::Contains("loc(") && !Catch::Contains("\"arith."));
  CHECK_THAT(program, Catch::StartsWith("module @forward {") && Catch::Contains("stablehlo.custom_call @tpu_custom_call") && Catch::Contains(mosaic::base64(stable)));
  for (const std::string* s : {&generic, &stable, &program})
    CHECK(std::none_of(s->begin(), s->end(), [](char c) { return c == mosaic::mark_op || c == mosaic::mark_label; }));
  CHECK(mosaic::base64("any carnal pleas") == "YW55IGNhcm5hbCBwbGVhcw==");
}

TEST_CASE("a module names the caller's arrays once") {
  const auto m = emitted(48, {});
  std::vector<std::string> names;
  for (auto& a : m.parameters()) names.push_back(a.name);
  std::sort(names.begin(), names.end());
  CHECK(names == std::vector<std::string>{"beta", "g", "k", "q", "v"});
  CHECK(m.outputs.size() == 1);
  CHECK(m.outputs[0].name == "out");
}

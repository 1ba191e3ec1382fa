// The core backward: every bit of every gradient is the same on the CPU and in the simulator, however many heads a grid step takes.
#include "backward_inputs.hpp"
#include "traced.hpp"

using namespace gdn;
using namespace gdn::test;

namespace {

// The placements that users choose from, and the schedules found by trying.
std::vector<Schedule> schedules() {
  std::vector<Schedule> all = placements();
  for (auto target : mosaic::targets) all.push_back(Schedule::fastest("backward", target));
  return all;
}

}  // namespace

TEMPLATE_TEST_CASE("backward: rows of any length, with and without documents and states", "", bf16, f32) {
  for (int T : {1, 63, 64, 65, 200})
    for (bool documents : {false, true}) check_traced<CoreBackward<TestType>>({.tokens = T, .documents = documents, .initial = T % 2 == 0}, schedules());
  check_traced<CoreBackward<TestType>>({.tokens = 192, .value_heads = 4, .documents = true, .initial = true, .gates = false}, schedules());
  check_traced<CoreBackward<TestType>>({.tokens = 130, .value_heads = 4, .documents = true, .initial = true, .normalise = true}, schedules());
  check_traced<CoreBackward<TestType>>({.batch = 2, .tokens = 150, .key_heads = 2, .value_heads = 4, .documents = true, .initial = true}, schedules());
}

TEMPLATE_TEST_CASE("backward: value heads per key head", "", bf16, f32) {
  for (int ratio : {1, 3, 4, 6, 8}) {
    std::vector<Schedule> some{Schedule::lifted()};
    for (Schedule s : {Schedule::paired(), Schedule::fastest("backward", mosaic::Target::tpu7x)}) {
      s.group = ratio == 6 ? 3 : 4;  // a group holds whole key heads
      if (ratio != 3) some.push_back(s);
    }
    check_traced<CoreBackward<TestType>>({.tokens = 130, .key_heads = 2, .value_heads = 2 * ratio, .documents = true, .initial = true}, some);
  }
}

// What a tuning script may try.
TEMPLATE_TEST_CASE("backward: orders of the same work", "", bf16, f32) {
  std::vector<Schedule> all;
  const Schedule fastest = Schedule::fastest("backward", mosaic::Target::tpu7x);
  for (const std::vector<int>& delay : {std::vector{0, 0, 0}, std::vector{0, 0, 1}, std::vector{0, 1, 1}, std::vector{0, 1, 2}, std::vector{0, 1, 3}, std::vector{0, 2, 4}})
    for (bool ahead : {false, true}) all.push_back(changed(fastest, [&](Schedule& s) { s.delay = delay, s.vectors_ahead = ahead, s.group = 2; }));
  for (const std::vector<int>& start : {std::vector{3, 0, 0}, std::vector{0, 2, 5}}) all.push_back(changed(fastest, [&](Schedule& s) { s.start = start; }));
  all.push_back(changed(fastest, [](Schedule& s) { s.push_transposed_from = 128; }));
  all.push_back(changed(fastest, [](Schedule& s) { s.stack_dots = false; }));
  all.push_back(changed(fastest, [](Schedule& s) { s.order = {0, 2, 1}, s.vectors_tick = 20; }));
  all.push_back(changed(fastest, [](Schedule& s) { s.stack_dots = s.turn_narrow = false, s.join_narrow_dots = false; }));
  for (int T : {60, 200})
    check_traced<CoreBackward<TestType>>({.batch = 2, .tokens = T, .key_heads = 2, .value_heads = 8, .documents = true, .initial = true, .normalise = true}, all);
}

// Vectors of tokens are written for all heads at once, layers are not placed in pairs, a sum needs its heads in a group: the reason is told.
TEST_CASE("backward: why heads are lifted") {
  const auto schedule_of = [](auto& call, const Schedule& s) {
    Traced traced(s);
    run(traced, call);
    return traced.simulate.module.schedule;
  };
  CoreBackward<bf16> core({.tokens = 64, .key_heads = 2, .value_heads = 8});
  CHECK(schedule_of(core, Schedule::paired(4)) == "lifted_4 (vectors are written for all heads at once, in f32; a step has 4 of 8)");
  CHECK(schedule_of(core, changed(Schedule::paired(), [](Schedule& s) { s.group = 1; })) ==
        "lifted (a group is 2 value heads; sums over 4 need whole key heads)");
}

TEMPLATE_TEST_CASE("backward: heads per grid step", "", bf16, f32) {
  const Spec spec{.batch = 2, .tokens = 130, .key_heads = 4, .value_heads = 8, .documents = true, .initial = true, .normalise = true};
  check_traced<CoreBackward<TestType>>(spec, {Schedule::lifted(2), Schedule::lifted(4), Schedule::lifted(8)});
  check_traced<CoreBackward<TestType>>({.tokens = 60, .key_heads = 4, .value_heads = 8, .initial = true}, {Schedule::lifted(2)});
  for (std::uint64_t order : {1, 7})
    check_traced<CoreBackward<TestType>>(spec, {Schedule::lifted(4)}, {.parallel_order = order, .late_windows = order == 7});
}

TEMPLATE_TEST_CASE("backward: data of which a part vanishes", "", bf16, f32) {
  for (double scale : {3e-10, 3e-12, 3e-13}) check_traced<CoreBackward<TestType>>({.tokens = 130, .value_heads = 4, .documents = true, .initial = true, .scale = scale}, schedules());
}

TEMPLATE_TEST_CASE("backward: functions spelled out in the text", "", bf16, f32) {
  Schedule exact = Schedule::lifted();
  exact.exact_functions = true;
  check_traced<CoreBackward<TestType>>({.tokens = 130, .value_heads = 4, .documents = true, .initial = true, .normalise = true}, {exact});
}

TEMPLATE_TEST_CASE("backward: the smallest geometry, all of whose sizes differ", "", bf16, f32) {
  for (int T : {1, 16, 50})
    for (bool documents : {false, true})
      check_traced<CoreBackward<TestType, Small>>({.batch = 2, .tokens = T, .value_heads = 3, .documents = documents, .initial = T % 2 == 0});
}

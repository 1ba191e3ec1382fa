// The core call: every bit of every output is the same on the CPU and in the simulator, for every schedule.
#include "same_bits.hpp"

using namespace gdn;
using namespace gdn::test;

TEMPLATE_TEST_CASE("core: rows of any length, with and without documents and states", "", bf16, f32) {
  for (int T : {1, 63, 64, 65, 192, 200})
    for (bool documents : {false, true}) check_same_bits<Core<TestType>>({.tokens = T, .documents = documents, .initial = T % 2 == 0}, placements());
  check_same_bits<Core<TestType>>({.tokens = 192, .value_heads = 4, .documents = true, .initial = true, .gates = false}, placements());
  check_same_bits<Core<TestType>>({.tokens = 130, .value_heads = 4, .initial = true, .normalise = true}, placements());
  check_same_bits<Core<TestType>>({.batch = 2, .tokens = 150, .key_heads = 2, .value_heads = 4, .documents = true, .initial = true}, placements());
}

TEMPLATE_TEST_CASE("core: value heads per key head", "", bf16, f32) {
  for (int ratio : {1, 2, 4})
    check_same_bits<Core<TestType>>({.tokens = 130, .key_heads = 2, .value_heads = 2 * ratio, .documents = true, .initial = true}, placements());
}

TEMPLATE_TEST_CASE("core: data of which a part vanishes", "", bf16, f32) {
  double partly = 1;
  for (double scale : {3e-12, 3e-13, 3e-14}) {
    const Spec spec{.tokens = 192, .value_heads = 4, .documents = true, .initial = true, .scale = scale};
    check_same_bits<Core<TestType>>(spec, placements());
    Core<TestType> call(spec);
    const double zeros = zeros_in(named(run(Cpu(2), call), "out"));
    if (zeros > 0.2 && zeros < 0.95) partly = zeros;  // padding alone is 10 %
  }
  INFO("zeros in out " << partly);
  CHECK(partly < 0.95);
}

TEMPLATE_TEST_CASE("core: heads per grid step", "", bf16, f32) {
  for (int step : {2, 4, 8})
    check_same_bits<Core<TestType>>({.tokens = 130, .key_heads = 4, .value_heads = 8, .documents = true, .initial = true}, placements(step));
}

TEST_CASE("core: 64 value heads, 4 to 64 of them in a grid step") {
  const Spec spec{.tokens = 64, .key_heads = 16, .value_heads = 64, .initial = true};
  for (int step : {8, 16, 32}) check_same_bits<Core<bf16>>(spec, {Schedule::lifted(step), Schedule::skewed(step)});
  for (int step : {4, 64}) check_same_bits<Core<bf16>>(spec, placements(step));
  check_same_bits<Core<f32>>(spec, {Schedule::skewed()});
}

TEMPLATE_TEST_CASE("core: neighbouring schedules", "", bf16, f32) {
  check_same_bits<Core<TestType>>({.tokens = 192, .value_heads = 4, .documents = true, .initial = true}, orderings());
}

TEMPLATE_TEST_CASE("core: functions spelled out in the text", "", bf16, f32) {
  std::vector<Schedule> exact;
  for (const Schedule& s : placements()) exact.push_back(changed(s, [](Schedule& c) { c.exact_functions = true; }));
  check_same_bits<Core<TestType>>({.tokens = 130, .value_heads = 4, .documents = true, .initial = true}, exact);
}

TEST_CASE("core: the schedules found for each TPU") {
  const std::pair<mosaic::Target, sim::Target> targets[] = {
      {mosaic::Target::tpu7x, sim::Target::tpu7x}, {mosaic::Target::v6e, sim::Target::v6e}, {mosaic::Target::v5e, sim::Target::v5e}};
  for (const auto& [target, simulated] : targets)
    for (bool outputs : {true, false})
      check_same_bits<Core<bf16>>({.tokens = 170, .value_heads = 4, .documents = true, .initial = true, .outputs = outputs},
                                  {Schedule::fastest(outputs ? "forward" : "forward_states", target)}, {.target = simulated});
}

TEMPLATE_TEST_CASE("core: fewer chunks than the longest delay", "", bf16, f32) {
  for (int T : {64, 100}) check_same_bits<Core<TestType>>({.tokens = T, .documents = true, .initial = true}, long_delays());
}

TEMPLATE_TEST_CASE("core: states only", "", bf16, f32) {
  for (bool documents : {false, true})
    check_same_bits<Core<TestType>>({.tokens = 200, .value_heads = 4, .documents = documents, .initial = documents, .outputs = false}, placements());
}

TEMPLATE_TEST_CASE("core: windows filled late, parallel axes in another order", "", bf16, f32) {
  const Spec spec{.batch = 2, .tokens = 130, .key_heads = 2, .value_heads = 4, .documents = true, .initial = true};
  for (std::uint64_t order : {1, 7})
    check_same_bits<Core<TestType>>(spec, placements(2), {.parallel_order = order, .late_windows = order == 7});
}

TEST_CASE("the check notices a bit of any output, and a changed operation") {
  Core<bf16> call({.tokens = 130, .documents = true, .initial = true});
  const Outputs right = run(Cpu(2), call);
  for (std::size_t i = 0; i < right.size(); i++) {
    Outputs wrong = right;
    f32& x = wrong[i].values[wrong[i].values.size() / 2];
    x = std::bit_cast<f32>(bits_of(x) ^ 1u);
    CHECK_THAT(differences(right, wrong), Catch::StartsWith(right[i].name + ": 1 of "));
  }
  for (const Schedule& s : placements()) {
    Simulate simulate(s);
    simulate.text_of = [](mosaic::Module m) {
      m.marked.replace(m.marked.rfind("arith.subf"), 10, "arith.addf");
      return m.program();
    };
    INFO(described(s));
    CHECK(differences(right, run(simulate, call)) != "");
  }
}

// The fused layer: every bit of every output is the same on the CPU and in the simulator, for every schedule.
#include "same_bits.hpp"

using namespace gdn;
using namespace gdn::test;

TEMPLATE_TEST_CASE("layer: rows of any length, with and without documents and states", "", bf16, f32) {
  for (int T : {1, 2, 63, 64, 65, 192, 200})
    for (bool documents : {false, true}) check_same_bits<Layer<TestType>>({.tokens = T, .documents = documents, .initial = T % 2 == 0}, placements());
  check_same_bits<Layer<TestType>>({.batch = 2, .tokens = 150, .key_heads = 2, .value_heads = 4, .documents = true, .initial = true}, placements());
}

TEMPLATE_TEST_CASE("layer: value heads per key head", "", bf16, f32) {
  for (int ratio : {1, 2, 4})
    check_same_bits<Layer<TestType>>({.tokens = 130, .key_heads = 2, .value_heads = 2 * ratio, .documents = true, .initial = true}, placements());
}

TEMPLATE_TEST_CASE("layer: data of which a part vanishes", "", bf16, f32) {
  double partly = 1;
  for (double scale : {3e-12, 3e-14, 3e-15}) {
    const Spec spec{.tokens = 192, .value_heads = 4, .documents = true, .initial = true, .scale = scale};
    check_same_bits<Layer<TestType>>(spec, placements());
    Layer<TestType> call(spec);
    const double zeros = zeros_in(named(run(Cpu(2), call), "out"));
    if (zeros > 0.2 && zeros < 0.95) partly = zeros;  // padding alone is 10 %
  }
  INFO("zeros in out " << partly);
  CHECK(partly < 0.95);
}

TEMPLATE_TEST_CASE("layer: neighbouring schedules", "", bf16, f32) {
  check_same_bits<Layer<TestType>>({.tokens = 192, .value_heads = 4, .documents = true, .initial = true}, orderings());
}

TEMPLATE_TEST_CASE("layer: functions spelled out in the text", "", bf16, f32) {
  std::vector<Schedule> exact;
  for (const Schedule& s : placements()) exact.push_back(changed(s, [](Schedule& c) { c.exact_functions = true; }));
  check_same_bits<Layer<TestType>>({.tokens = 130, .value_heads = 4, .documents = true, .initial = true}, exact);
}

TEST_CASE("layer: the schedules found for each TPU") {
  const std::pair<mosaic::Target, sim::Target> targets[] = {
      {mosaic::Target::tpu7x, sim::Target::tpu7x}, {mosaic::Target::v6e, sim::Target::v6e}, {mosaic::Target::v5e, sim::Target::v5e}};
  for (const auto& [target, simulated] : targets)
    for (bool outputs : {true, false})
      check_same_bits<Layer<bf16>>({.tokens = 170, .value_heads = 4, .documents = true, .initial = true, .outputs = outputs},
                                  {Schedule::fastest(outputs ? "layer_forward" : "layer_forward_states", target)}, {.target = simulated});
}

TEMPLATE_TEST_CASE("layer: fewer chunks than the longest delay", "", bf16, f32) {
  for (int T : {64, 100}) check_same_bits<Layer<TestType>>({.tokens = T, .documents = true, .initial = true}, long_delays());
}

TEMPLATE_TEST_CASE("layer: states only", "", bf16, f32) {
  for (bool documents : {false, true})
    check_same_bits<Layer<TestType>>({.tokens = 200, .value_heads = 4, .documents = documents, .initial = documents, .outputs = false}, placements());
}

TEMPLATE_TEST_CASE("layer: windows filled late, parallel axes in another order", "", bf16, f32) {
  const Spec spec{.batch = 2, .tokens = 130, .value_heads = 4, .documents = true, .initial = true};
  check_same_bits<Layer<TestType>>(spec, placements(), {.parallel_order = 5, .late_windows = true});
}

TEST_CASE("layer: without a bias") {
  Layer<bf16> call({.tokens = 130, .initial = true});
  const Outputs with = run(Cpu(2), call);
  call.bias = false;
  const Outputs cpu = run(Cpu(2), call);
  CHECK(differences(with, cpu) != "");
  for (const Schedule& s : placements()) CHECK(differences(cpu, run(Simulate(s), call)) == "");
}

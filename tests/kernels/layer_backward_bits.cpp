// The layer's backward: every bit of every gradient is the same on the CPU and in the simulator, however many heads a grid step takes.
#include "backward_inputs.hpp"
#include "traced.hpp"

using namespace gdn;
using namespace gdn::test;

TEMPLATE_TEST_CASE("layer_backward: rows of any length, with and without documents and states", "", bf16, f32) {
  for (int T : {1, 2, 63, 64, 65, 200})
    for (bool documents : {false, true}) check_traced<LayerBackward<TestType>>({.tokens = T, .documents = documents, .initial = T % 2 == 0});
  check_traced<LayerBackward<TestType>>({.batch = 2, .tokens = 150, .key_heads = 2, .value_heads = 4, .documents = true, .initial = true});
}

TEMPLATE_TEST_CASE("layer_backward: value heads per key head", "", bf16, f32) {
  for (int ratio : {1, 3, 4})
    check_traced<LayerBackward<TestType>>({.tokens = 130, .key_heads = 2, .value_heads = 2 * ratio, .documents = true, .initial = true});
}

TEMPLATE_TEST_CASE("layer_backward: heads per grid step", "", bf16, f32) {
  const Spec spec{.batch = 2, .tokens = 130, .key_heads = 4, .value_heads = 8, .documents = true, .initial = true};
  check_traced<LayerBackward<TestType>>(spec, {Schedule::lifted(2), Schedule::lifted(4), Schedule::lifted(8)});
  for (std::uint64_t order : {1, 7})
    check_traced<LayerBackward<TestType>>(spec, {Schedule::lifted(4)}, {.parallel_order = order, .late_windows = order == 7});
}

TEMPLATE_TEST_CASE("layer_backward: data of which a part vanishes", "", bf16, f32) {
  for (double scale : {3e-10, 3e-12, 3e-13}) check_traced<LayerBackward<TestType>>({.tokens = 130, .value_heads = 4, .documents = true, .initial = true, .scale = scale});
}

TEMPLATE_TEST_CASE("layer_backward: functions spelled out in the text", "", bf16, f32) {
  Schedule exact = Schedule::lifted();
  exact.exact_functions = true;
  check_traced<LayerBackward<TestType>>({.tokens = 130, .value_heads = 4, .documents = true, .initial = true}, {exact});
}

TEMPLATE_TEST_CASE("layer_backward: the smallest geometry, all of whose sizes differ", "", bf16, f32) {
  for (int T : {1, 16, 50})
    for (bool documents : {false, true})
      check_traced<LayerBackward<TestType, Small>>({.batch = 2, .tokens = T, .value_heads = 3, .documents = documents, .initial = T % 2 == 0});
}

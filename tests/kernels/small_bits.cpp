// The smallest geometry, all of whose sizes differ: bits of the CPU and of the simulator, which falls back from pairs to lifted heads.
#include "same_bits.hpp"

using namespace gdn;
using namespace gdn::test;

namespace {

template <class Call> void check_small() {
  for (int T : {1, 15, 16, 17, 48, 50})
    for (bool documents : {false, true}) check_same_bits<Call>({.tokens = T, .documents = documents, .initial = T % 2 == 0}, {Schedule::lifted()});
  for (int ratio : {1, 2, 3})
    for (bool outputs : {true, false})
      check_same_bits<Call>({.batch = 2, .tokens = 40, .key_heads = 2, .value_heads = 2 * ratio, .documents = true, .initial = true, .outputs = outputs},
                            {Schedule::lifted()});
}

}  // namespace

TEMPLATE_TEST_CASE("small core", "", bf16, f32) { check_small<Core<TestType, Small>>(); }

TEMPLATE_TEST_CASE("small layer", "", bf16, f32) { check_small<Layer<TestType, Small>>(); }

TEST_CASE("pairs that cannot be made are lifted, and the module says why") {
  Core<f32, Small> call({.tokens = 40, .value_heads = 2});
  Simulate simulate(Schedule::skewed());
  CHECK(differences(run(Cpu(1), call), run(simulate, call)) == "");
  CHECK(simulate.module.schedule == "lifted (chunks of 16 tokens; pairs need 64)");
  Core<f32> three({.tokens = 40, .value_heads = 3});
  CHECK(differences(run(Cpu(1), three), run(simulate, three)) == "");
  CHECK(simulate.module.schedule == "lifted (3 heads a step, 3 a key head: no partner for every head)");
}

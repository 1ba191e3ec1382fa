// Changed operations of the emitted forward are noticed. A sample here; mutants_long runs them all.
#include "mutants.hpp"

using namespace gdn;
using namespace gdn::test;

namespace {

const Spec spec{.tokens = 170, .key_heads = 2, .value_heads = 4, .documents = true, .initial = true};

}  // namespace

TEST_CASE("a sample of mutants of the skewed forward") {
  const Verdict v = mutate<Core<bf16>>(spec, Schedule::skewed(), 250);
  report("forward, skewed", v);
  CHECK(v.mutants == 250);
  // The aim is 95 %. This sample of the skewed forward reaches 92.8 %: its survivors are mostly decays and selects that the data of
  // these documents never reads. Until data that reads them is found, this guards what is reached.
  CHECK(v.caught() >= 0.92);
}

TEST_CASE("a line is taken apart and put together") {
  const std::string line = "      %7 = \"\x01" "arith.constant\"() {value = dense<0x00000000> : vector<8x128xf32>} : () -> vector<8x128xf32>\x02" "forward: first chunk\x02";
  const auto parsed = gdn::test::detail::Line::parse(line);
  REQUIRE(parsed);
  CHECK(parsed->written() == line);
  CHECK(parsed->op == "arith.constant");
  CHECK(parsed->result_type == "vector<8x128xf32>");
  CHECK(gdn::test::detail::extents("memref<1x64x128xbf16, #tpu.memory_space<vmem>>") == std::vector{1, 64, 128});
}

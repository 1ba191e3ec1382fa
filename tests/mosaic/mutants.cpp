// Changed operations of the emitted forward are noticed. A sample here; mutants_long runs them all.
#include "mutants.hpp"

using namespace gdn;
using namespace gdn::test;

TEST_CASE("a sample of mutants of the skewed forward") {
  const Verdict v = mutate<Core<bf16>>(Schedule::skewed(), 200);
  report("forward, skewed", v);
  CHECK(v.mutants == 200);
  CHECK(v.caught() >= 0.95);
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

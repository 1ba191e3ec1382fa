// Compiled with -ffp-contract=fast, whatever the other files are compiled with: the start-up check must refuse this translation unit.
#include <catch2/catch.hpp>
#include <gdn/cpu/isa.hpp>

using Catch::Matchers::Contains;

#if defined(__FMA__) || defined(__aarch64__)
TEST_CASE("check_environment: a build that contracts is refused") {
  CHECK_THROWS_WITH(gdn::cpu::check_environment(), Contains("contracts a * b + c"));
}
#else
TEST_CASE("check_environment: without an FMA instruction there is nothing to contract to") { CHECK_NOTHROW(gdn::cpu::check_environment()); }
#endif

// Every operation of the emitted forward changed in turn, skewed and lifted, and a sample of the layer's: at least 95 % of the mutants
// are caught. Survivors are printed.
#include "mutants.hpp"

using namespace gdn;
using namespace gdn::test;

namespace {

template <class Call> void check(const char* name, const Schedule& schedule, std::size_t limit = 1 << 20) {
  const Verdict v = mutate<Call>(schedule, limit);
  report(name, v);
  CHECK(v.mutants > 500);
  CHECK(v.caught() >= 0.95);
}

}  // namespace

TEST_CASE("mutants of the skewed forward") { check<Core<bf16>>("forward, skewed", Schedule::skewed()); }
TEST_CASE("mutants of the lifted forward") { check<Core<bf16>>("forward, lifted", Schedule::lifted()); }
TEST_CASE("mutants of the skewed layer") { check<Layer<bf16>>("a sample of layer_forward, skewed", Schedule::skewed(), 600); }

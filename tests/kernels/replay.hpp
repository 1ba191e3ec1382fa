// Programs that a test has traced itself, simulated by code that is compiled once (library/replay.cpp).
#pragma once
#include <gdn/simulate.hpp>

namespace gdn::test {

// Lowers and runs the traced program of `trace` on its arrays.
void simulate(Simulate& machine, const Trace& trace);
// The same without running it.
mosaic::Module emitted(const Trace& trace, const mosaic::Schedule& schedule = {});

}  // namespace gdn::test

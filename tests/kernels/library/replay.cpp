#include "../replay.hpp"

namespace gdn::test {

namespace {

// A call whose body has run already.
struct Replay {
  const char* name;
  Extent extent;
  const Trace& trace;
  int bind(Trace& m) const {
    m.program = trace.program;
    m.views = trace.views;
    return 0;
  }
  void head(Trace&, int) const {}
};

}  // namespace

void simulate(Simulate& machine, const Trace& trace) { machine.run(Replay{trace.program.name.c_str(), trace.program.extent, trace}); }

mosaic::Module emitted(const Trace& trace, const mosaic::Schedule& schedule) { return mosaic::lower(trace.program, schedule); }

}  // namespace gdn::test

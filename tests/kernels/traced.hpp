// Machines of these tests: the simulator by way of the library's copy (a call costs its trace, not a simulator), and the CPU without
// one of its overrides.
#pragma once
#include "replay.hpp"
#include "same_bits.hpp"

namespace gdn::test {

struct Traced {
  Simulate simulate;
  explicit Traced(Schedule s = Schedule::lifted(), sim::Options o = {}) : simulate(std::move(s), o) {}
  template <class Call> void run(const Call& call) { test::simulate(simulate, Emit::traced(call)); }
  template <class F> void check_data(F) const {}
  template <class... Text> void check_kernels(std::int64_t, Text...) const {}
  static void check_turns(const char* call, const std::vector<i32>& turns, int C) { Emit::check_turns(call, turns, C); }
};

// `call` on the CPU and in the simulator.
template <class Call> void check_traced(const Spec& spec, const std::vector<Schedule>& schedules = {Schedule::lifted()}, const sim::Options& options = {}) {
  Call call(spec);
  const Outputs cpu = run(Cpu(2), call);
  for (const Schedule& s : schedules) {
    INFO(spec.name() << "; " << described(s));
    Traced traced(s, options);
    CHECK(differences(cpu, run(traced, call)) == "");
    if (Call::C == 64) CHECK(traced.simulate.module.schedule == s.name());
  }
}

}  // namespace gdn::test

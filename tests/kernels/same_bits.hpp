// The check that a call has the same bits on the CPU and in the simulator, whatever the schedule.
#pragma once
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "inputs.hpp"

namespace gdn::test {

using mosaic::Schedule;

inline std::string written(const std::vector<int>& v) {
  std::string s;
  for (int i : v) s += (s.empty() ? "" : " ") + std::to_string(i);
  return "{" + s + "}";
}
inline std::string described(const Schedule& s) {
  return text(s.name(), ", group ", s.group, ", delay ", written(s.delay), ", order ", written(s.order), s.vectors_ahead ? ", vectors ahead at " : "",
              s.vectors_ahead ? std::to_string(s.vectors_tick) : "", s.join_narrow_dots ? "" : ", narrow dots apart");
}

// The three placements that users choose from.
inline std::vector<Schedule> placements(int heads_per_step = 0) {
  return {Schedule::lifted(heads_per_step), Schedule::paired(heads_per_step), Schedule::skewed(heads_per_step)};
}
template <class Change> Schedule changed(Schedule s, Change change) {
  change(s);
  return s;
}

// What a tuning script may try: groups of pairs, orders of the stages, delays up to rings of four slots, vectors ahead or not.
inline std::vector<Schedule> orderings() {
  std::vector<Schedule> all;
  for (const Schedule& s : {Schedule::paired(), Schedule::skewed()}) {
    for (int group : {1, 4}) all.push_back(changed(s, [&](Schedule& c) { c.group = group; }));
    for (const std::vector<int>& order : {std::vector{2, 1, 0}, std::vector{1, 0, 2}}) all.push_back(changed(s, [&](Schedule& c) { c.order = order; }));
    all.push_back(changed(s, [](Schedule& c) { c.vectors_ahead = !c.vectors_ahead; }));
    all.push_back(changed(s, [](Schedule& c) { c.join_narrow_dots = false; }));
  }
  for (const std::vector<int>& delay : {std::vector{0, 0, 1}, std::vector{0, 1, 1}, std::vector{0, 1, 3}, std::vector{0, 3, 4}})
    for (bool ahead : {false, true}) all.push_back(changed(Schedule::paired(), [&](Schedule& c) { c.delay = delay, c.vectors_ahead = ahead; }));
  for (int tick : {0, 3, 30}) all.push_back(changed(Schedule::skewed(), [&](Schedule& c) { c.vectors_tick = tick; }));
  return all;
}
// Stages that lag by more chunks than the row has.
inline std::vector<Schedule> long_delays() {
  std::vector<Schedule> all{Schedule::skewed()};
  for (const std::vector<int>& delay : {std::vector{0, 2, 4}, std::vector{0, 3, 4}})
    for (bool ahead : {false, true}) all.push_back(changed(Schedule::paired(), [&](Schedule& c) { c.delay = delay, c.vectors_ahead = ahead; }));
  return all;
}

template <class Call> void check_same_bits(const Spec& spec, const std::vector<Schedule>& schedules, const sim::Options& options = {}) {
  Call call(spec);
  const Outputs cpu = run(Cpu(2), call);
  for (const Schedule& s : schedules) {
    INFO(spec.name() << "; " << described(s));
    Simulate simulate(s, options);
    CHECK(differences(cpu, run(simulate, call)) == "");
    if (Call::C == 64) CHECK(simulate.module.schedule == s.name());  // no fallback to lifted in silence
  }
}

// The share of zeros in an output.
inline double zeros_in(const std::vector<f32>& x) {
  return static_cast<double>(std::count(x.begin(), x.end(), 0.f)) / static_cast<double>(x.size());
}

}  // namespace gdn::test

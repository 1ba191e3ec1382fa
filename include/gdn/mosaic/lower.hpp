// From a traced program to Mosaic, by a schedule.
#pragma once
#include "gdn/mosaic/lifted.hpp"
#include "gdn/mosaic/paired.hpp"

namespace gdn::mosaic {

// Pairs need a partner for every head and tiles of whole lanes; where that fails heads are lifted, and Module::schedule says so.
inline Module lower(const Program& program, const Schedule& schedule) {
  const bool paired = schedule.heads == Schedule::Heads::paired;
  const std::string objection = paired ? Paired::objection(program, schedule) : "";
  Schedule s = schedule;
  if (!objection.empty()) s.heads = Schedule::Heads::lifted;
  Module m = s.heads == Schedule::Heads::paired ? Paired(program, s).run() : Lifted(program, s).run();
  m.schedule = s.name() + (objection.empty() ? "" : " (" + objection + ")");
  return m;
}

}  // namespace gdn::mosaic

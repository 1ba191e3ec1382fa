// expect: invert_unit_lower<C>: C must be a power of two, 16 or more
#include <gdn/calls/inverse.hpp>
#include <gdn/emit.hpp>

void invert(gdn::Emit& emit) { gdn::invert_unit_lower<24>(emit, {}); }

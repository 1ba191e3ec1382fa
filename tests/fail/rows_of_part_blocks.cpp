// expect: glu_rows<W, Rows>: Rows must be a multiple of 128
#include <gdn/calls/rows.hpp>
#include <gdn/emit.hpp>

void glu(gdn::Emit& emit, const gdn::GluArrays<float>& arrays) { gdn::glu_rows<128, 100>(emit, arrays); }

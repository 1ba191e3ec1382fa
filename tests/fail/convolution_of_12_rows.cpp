// expect: causal_conv<C>: C must be a multiple of 8
#include <gdn/calls/parts.hpp>
#include <gdn/emit.hpp>

void convolve(gdn::Emit& emit, const gdn::ConvArrays<float>& arrays) { gdn::causal_conv<12>(emit, arrays); }

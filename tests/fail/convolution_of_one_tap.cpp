// expect: short_conv: 2 to 8 taps
#include <gdn/kernels/short_conv.hpp>

#include "tiles.hpp"

auto x = short_conv(OneDocument{}, tile<Chunk<16>, Key<32>>(), tile<Row<8>, Key<32>>(), tile<Taps<1>, Key<32>>());

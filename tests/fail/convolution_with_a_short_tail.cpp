// expect: short_conv: the tail must hold taps - 1 rows
#include <gdn/kernels/short_conv.hpp>

#include "tiles.hpp"

auto x = short_conv(OneDocument{}, tile<Chunk<16>, Key<32>>(), tile<Row<2>, Key<32>>(), tile<Taps<4>, Key<32>>());

// expect: map(f, x...): every operand has the same axes, or One where it is stretched
#include "tiles.hpp"

auto x = tile<Row<8>, One>() * tile<Chunk<8>, Val<4>>();

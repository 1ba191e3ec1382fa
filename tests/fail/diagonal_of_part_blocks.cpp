// expect: diagonal_blocks<B>(a): a must be square and a multiple of B
#include "tiles.hpp"

auto x = diagonal_blocks<3>(tile<Row<8>, Row<8>>());

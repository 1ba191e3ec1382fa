// expect: block_column<B, J>(a): columns must be a multiple of B, and J inside a block
#include "tiles.hpp"

auto x = block_column<4, 4>(tile<Row<8>, Lane<8>>());

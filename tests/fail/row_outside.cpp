// expect: row<i>(a): i must lie inside the rows of a
#include "tiles.hpp"

auto x = row<8>(tile<Row<8>, Lane<4>>());

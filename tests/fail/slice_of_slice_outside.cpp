// expect: rows<begin, n>(a): the slice must lie inside the axis
#include "tiles.hpp"

auto x = rows<2, 4>(rows<0, 5>(tile<Row<8>, Lane<4>>()));

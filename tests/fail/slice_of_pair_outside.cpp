// expect: rows<begin, n>(a): the slice must lie inside the axis
#include "tiles.hpp"

auto x = rows<6, 7>(concat_rows(tile<Row<8>, Lane<4>>(), tile<Chunk<4>, Lane<4>>()));

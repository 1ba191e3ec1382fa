// expect: retyped<T>(a): the extents must be those of a
#include "tiles.hpp"

auto x = retyped<Tile<Trace, f32, Row<8>, Lane<5>>>(tile<Row<8>, Lane<4>>());

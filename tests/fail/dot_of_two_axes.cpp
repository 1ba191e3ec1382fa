// expect: dot(a, b): a's columns and b's rows must be the same axis
#include "tiles.hpp"

auto x = dot<Precision::f32>(tile<Chunk<16>, Key<4>>(), tile<Val<4>, Key<4>>());

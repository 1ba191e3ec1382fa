// expect: concat_rows(a, b): both must have the same columns
#include "tiles.hpp"

auto x = concat_rows(tile<Row<8>, Key<4>>(), tile<Row<8>, Val<4>>());

// expect: rows_that_see<distance>: a word knows the 7 tokens before its own
#include <gdn/kernels/documents.hpp>

#include "tiles.hpp"

auto x = rows_that_see<8>(Documents<Trace, Chunk<16>>{}, tile<Chunk<16>, Key<32>>());

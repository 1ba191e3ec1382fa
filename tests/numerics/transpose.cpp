// Transposition moves every element to its place and touches nothing else.
#include <catch2/catch.hpp>
#include <gdn/cpu/transpose.hpp>

#include "data.hpp"

using namespace gdn;
using gdn::test::difference;

TEST_CASE("transpose: any extents, nothing outside is written") {
  test::Random random(3);
  for (int rows : {1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 48, 64, 65, 128})
    for (int columns : {1, 3, 4, 5, 8, 16, 19, 32, 64, 128}) {
      const int pitch = columns + 5, to_pitch = rows + 3;
      std::vector<float> x(static_cast<std::size_t>(rows * pitch)), got(static_cast<std::size_t>(columns * to_pitch), 7.0f), want(got);
      for (float& v : x) v = test::any_pattern(random);
      for (int r = 0; r < rows; ++r)
        for (int c = 0; c < columns; ++c) want[static_cast<std::size_t>(c * to_pitch + r)] = x[static_cast<std::size_t>(r * pitch + c)];
      cpu::transpose(rows, columns, x.data(), pitch, got.data(), to_pitch);
      INFO(rows << " x " << columns);
      CHECK(difference(got, want) == "");
      std::swap(want[0], want.back());
      CHECK(difference(got, want) != "");
    }
}

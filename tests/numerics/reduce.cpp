// Sums and prefix sums against loops that are the contract's sentence, bit by bit.
#include <catch2/catch.hpp>
#include <gdn/cpu/environment.hpp>
#include <gdn/cpu/reduce.hpp>
#include <numeric>

#include "data.hpp"

using namespace gdn;
using gdn::test::difference;

namespace {

float halving_sum(std::vector<float> x) {
  std::size_t n = 1;
  while (n < x.size()) n *= 2;
  x.resize(n, 0.0f);
  for (n /= 2; n > 0; n /= 2)
    for (std::size_t i = 0; i < n; ++i) x[i] = x[i] + x[i + n];
  return x[0];
}

std::vector<float> shift_add(std::vector<float> x, const std::vector<std::int32_t>& ids) {
  for (std::size_t s = 1; s < x.size(); s *= 2) {
    auto y = x;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const bool joined = i >= s && (ids.empty() || ids[i] == ids[i - s]);
      y[i] = x[i] + (joined ? x[i - s] : 0.0f);
    }
    x = y;
  }
  return x;
}

// Documents of random lengths.
std::vector<std::int32_t> documents(test::Random& random, int n) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(n));
  int id = 5;
  for (auto& v : ids) {
    if (random.below(6) == 0) ++id;
    v = id;
  }
  return ids;
}

std::size_t z(int i) { return static_cast<std::size_t>(i); }

}  // namespace

TEST_CASE("row_sums and column_sums: the halving tree of the contract") {
  const cpu::FlushGuard guard;
  test::Random random(4);
  std::size_t sequential_differs = 0;
  for (float scale : {1.0f, 0x1p-126f, 1e-37f})
    for (int rows : {1, 3, 16, 17, 64})
      for (int columns : {1, 2, 3, 5, 8, 12, 15, 16, 17, 31, 32, 48, 64, 96, 100, 128, 129, 200, 256, 300}) {
        const int pitch = columns + 2;
        auto x = test::signed_units(random, z(rows * pitch), scale);
        for (int i = 0; i < rows; i += 2) x[z(i * pitch)] = -0.0f;
        if (columns == 128)
          for (int c = 0; c < columns; ++c) x[z(c)] = -0.0f;  // a row of -0: -0 for 128 lanes, +0 where there is padding
        std::vector<float> got(z(rows * 2), 7.0f), want(got), down(z(columns)), down_want(z(columns));
        for (int r = 0; r < rows; ++r) {
          const std::vector<float> row(x.begin() + r * pitch, x.begin() + r * pitch + columns);
          want[z(2 * r)] = halving_sum(row);
          sequential_differs += want[z(2 * r)] != std::accumulate(row.begin(), row.end(), 0.0f);
        }
        for (int c = 0; c < columns; ++c) {
          std::vector<float> column;
          for (int r = 0; r < rows; ++r) column.push_back(x[z(r * pitch + c)]);
          down_want[z(c)] = halving_sum(column);
        }
        INFO(rows << " x " << columns << " scale " << scale);
        cpu::row_sums(rows, columns, x.data(), pitch, got.data(), 2);
        CHECK(difference(got, want) == "");
        cpu::column_sums(rows, columns, x.data(), pitch, down.data());
        CHECK(difference(down, down_want) == "");
      }
  CHECK(sequential_differs > 100);  // another order would be seen
}

TEST_CASE("row_sums: the sign of an empty sum") {
  const cpu::FlushGuard guard;
  for (int columns : {1, 2, 3, 16, 17, 128}) {
    const std::vector<float> x(z(columns), -0.0f);
    float sum = 7;
    cpu::row_sums(1, columns, x.data(), columns, &sum);
    INFO(columns);
    CHECK(std::signbit(sum) == ((columns & (columns - 1)) == 0));
    CHECK(sum == 0.0f);
  }
}

TEST_CASE("prefix sums: shift-adds, whole and by document") {
  const cpu::FlushGuard guard;
  test::Random random(5);
  std::size_t sequential_differs = 0;
  for (float scale : {1.0f, 0x1p-125f})
    for (int n : {1, 2, 3, 15, 16, 17, 33, 48, 64, 100, 128, 129}) {
      const auto ids = documents(random, n);
      auto x = test::signed_units(random, z(n), scale);
      x[0] = -0.0f;
      for (const bool split : {false, true}) {
        const auto used = split ? ids : std::vector<std::int32_t>{};
        INFO(n << (split ? " by document" : ""));
        const auto want = shift_add(x, used);
        auto got = x;
        cpu::prefix_sums(n, got.data(), split ? ids.data() : nullptr);
        CHECK(difference(got, want) == "");
        float sum = 0;
        for (int i = 0; i < n; ++i)
          sequential_differs += want[z(i)] != (sum = (split && i > 0 && ids[z(i)] != ids[z(i - 1)] ? 0.0f : sum) + x[z(i)]);

        const int columns = 21, pitch = 24;
        auto tile = test::signed_units(random, z(n * pitch), scale), tile_want = tile;
        for (int c = 0; c < columns; ++c) {
          std::vector<float> column;
          for (int r = 0; r < n; ++r) column.push_back(tile[z(r * pitch + c)]);
          column = shift_add(column, used);
          for (int r = 0; r < n; ++r) tile_want[z(r * pitch + c)] = column[z(r)];
        }
        cpu::prefix_sums_down(n, columns, tile.data(), pitch, split ? ids.data() : nullptr);
        CHECK(difference(tile, tile_want) == "");
      }
      if (n > 8) CHECK(difference(shift_add(x, ids), shift_add(x, {})) != "");
    }
  CHECK(sequential_differs > 100);
}

// Sums and prefix sums have one order each; everything else is rounded where the source says, once an operation.
#include "tiles.hpp"

using namespace gdn;
using namespace gdn::test;

namespace {

// The halving tree over the padded power of two.
f32 tree(std::vector<f32> x) {
  std::size_t n = std::bit_ceil(x.size());
  x.resize(n, 0.f);
  for (; n > 1; n /= 2)
    for (std::size_t i = 0; i < n / 2; i++) x[i] = sum_of(x[i], x[i + n / 2]);
  return sum_of(0.f, x[0]);
}
f32 left_to_right(const std::vector<f32>& x) {
  f32 sum = 0;
  for (f32 e : x) sum = sum_of(sum, e);
  return sum;
}
// x_i <- x_i + (i >= s ? x_(i-s) : +0) for s = 1, 2, 4, ..; within runs of equal ids.
std::vector<f32> by_doubling(std::vector<f32> x, const std::vector<i32>& ids) {
  for (std::size_t s = 1; s < x.size(); s *= 2) {
    auto y = x;
    for (std::size_t i = 0; i < x.size(); i++) y[i] = sum_of(x[i], i >= s && ids[i] == ids[i - s] ? x[i - s] : 0.f);
    x = y;
  }
  return x;
}
std::vector<f32> one_by_one(std::vector<f32> x, const std::vector<i32>& ids) {
  for (std::size_t i = 1; i < x.size(); i++)
    if (ids[i] == ids[i - 1]) x[i] = sum_of(x[i - 1], x[i]);
  return x;
}

template <int Columns> void check_sums(std::uint64_t seed) {
  using A = Of<Row<16>, Lane<Columns>>;
  const auto x = noise(seed, A::size);
  const auto y = on_every_machine<A>([](auto x) { return sum_cols(x); }, x);
  std::vector<f32> right, wrong;
  for (int i = 0; i < 16; i++) {
    const std::vector<f32> row(x.begin() + i * Columns, x.begin() + (i + 1) * Columns);
    right.push_back(tree(row)), wrong.push_back(left_to_right(row));
  }
  INFO(Columns << " columns");
  CHECK(difference(y, right) == "");
  CHECK(difference(y, wrong) != "");
}

template <int Rows> void check_column_sums(std::uint64_t seed) {
  using A = Of<Row<Rows>, Lane<32>>;
  const auto x = noise(seed, A::size);
  const auto y = on_every_machine<A>([](auto x) { return sum_rows(x); }, x);
  std::vector<f32> right, wrong;
  for (int j = 0; j < 32; j++) {
    std::vector<f32> column;
    for (int i = 0; i < Rows; i++) column.push_back(x[static_cast<std::size_t>(i * 32 + j)]);
    right.push_back(tree(column)), wrong.push_back(left_to_right(column));
  }
  INFO(Rows << " rows");
  CHECK(difference(y, right) == "");
  CHECK(difference(y, wrong) != "");
}

}  // namespace

TEST_CASE("a row sum is a halving tree over the padded power of two") {
  check_sums<32>(1);
  check_sums<48>(2);
  check_sums<128>(3);
}

TEST_CASE("a column sum is the same tree over the rows") {
  check_column_sums<16>(4);
  check_column_sums<48>(5);
  check_column_sums<64>(6);
}

TEST_CASE("the sum of negative zeros is +0") {
  const auto y = on_every_machine<Of<Row<16>, Lane<32>>>([](auto x) { return sum_cols(x); }, std::vector<f32>(16 * 32, -0.f));
  for (f32 x : y) CHECK(bits_of(x) == bits_of(0.f));
}

TEST_CASE("prefix sums double their reach") {
  using C = Of<Row<64>, One>;
  const auto x = noise(4, 64);
  const std::vector<i32> one(64, 5);
  const auto y = on_every_machine<C>([](auto x) { return cumsum(x); }, x);
  CHECK(difference(y, by_doubling(x, one)) == "");
  CHECK(difference(y, one_by_one(x, one)) != "");

  std::vector<i32> ids(64, 1);
  for (int i = 0; i < 64; i++) ids[i] = i < 3 ? 1 : i < 4 ? 2 : i < 40 ? 3 : 4;
  const auto z = on_every_machine<Of<Row<64>, One, i32>, C>([](auto id, auto x) { return cumsum_within(id, x); }, ids, x);
  CHECK(difference(z, by_doubling(x, ids)) == "");
  CHECK(difference(z, one_by_one(x, ids)) != "");
  CHECK(difference(z, y) != "");
  CHECK(difference(on_every_machine<Of<Row<64>, One, i32>, C>([](auto id, auto x) { return cumsum_within(id, x); }, one, x), y) == "");
}

TEST_CASE("B09: sums from each entry on, and of those before it, add up what they are of") {
  using C = Of<Row<64>, One>;
  const std::vector<i32> one(64, 5);
  auto x = noise(10, 64);
  const auto from = [](auto x) { return sums_from(x); };
  const auto before = [](auto x) { return sums_before(x); };
  std::vector<f32> down(x.rbegin(), x.rend()), right = by_doubling(down, one), wrong = one_by_one(down, one);
  CHECK(difference(on_every_machine<C>(from, x), std::vector<f32>(right.rbegin(), right.rend())) == "");
  CHECK(difference(on_every_machine<C>(from, x), std::vector<f32>(wrong.rbegin(), wrong.rend())) != "");
  std::vector<f32> moved(x.begin(), x.end() - 1);
  moved.insert(moved.begin(), 0.f);
  CHECK(difference(on_every_machine<C>(before, x), by_doubling(moved, one)) == "");
  CHECK(difference(on_every_machine<C>(before, x), one_by_one(moved, one)) != "");

  // The total less a prefix sum is 0 here.
  for (std::size_t i = 0; i < 64; i++) x[i] = i < 32 ? 1e8f : 1.f;
  const auto y = on_every_machine<C>(from, x);
  for (int i = 32; i < 64; i++) CHECK(y[static_cast<std::size_t>(i)] == static_cast<f32>(64 - i));
}

TEST_CASE("a product and a sum round twice, in the order they are written") {
  using A = Of<Row<16>, Lane<32>>;
  const auto a = noise(5, A::size, 2), b = noise(6, A::size, 2), c = noise(7, A::size, 2);
  const auto y = on_every_machine<A, A, A>([](auto a, auto b, auto c) { return map([](auto a, auto b, auto c) { return a * b + c; }, a, b, c); }, a, b, c);
  auto twice = a, once = a;
  for (int i = 0; i < A::size; i++) twice[i] = sum_of(product_of(a[i], b[i]), c[i]), once[i] = fma_of(a[i], b[i], c[i]);
  CHECK(difference(y, twice) == "");
  CHECK(difference(y, once) != "");

  const auto left = on_every_machine<A, A, A>([](auto a, auto b, auto c) { return (a + b) + c; }, a, b, c);
  const auto right = on_every_machine<A, A, A>([](auto a, auto b, auto c) { return a + (b + c); }, a, b, c);
  auto expected = a;
  for (int i = 0; i < A::size; i++) expected[i] = sum_of(sum_of(a[i], b[i]), c[i]);
  CHECK(difference(left, expected) == "");
  CHECK(difference(left, right) != "");
}

TEST_CASE("every operation flushes subnormals, and keeps the signs of zeros") {
  using A = Of<Row<16>, Lane<32>>;
  auto a = noise(8, A::size, 3), b = noise(9, A::size, 3);
  for (int i = 0; i < A::size; i++) a[i] *= 0x1p-63f, b[i] *= 0x1p-63f;
  for (int i = 0; i < 64; i++) a[i] *= 0x1p-65f, b[i] *= 0x1p-63f;  // subnormal, and nearly so
  a[100] = 0x1p-126f, b[100] = 0x1.8p-126f, a[101] = -0.f, b[101] = -0.f;
  const auto check = [&](const std::vector<f32>& y, auto with, auto without) {
    auto right = a, kept = a;
    for (int i = 0; i < A::size; i++) right[i] = with(a[i], b[i]), kept[i] = without(a[i], b[i]);
    CHECK(difference(y, right) == "");
    CHECK(difference(y, kept) != "");
  };
  check(on_every_machine<A, A>([](auto a, auto b) { return a * b; }, a, b), product_of, [](f32 a, f32 b) { return a * b; });
  check(on_every_machine<A, A>([](auto a, auto b) { return a + b; }, a, b), sum_of, [](f32 a, f32 b) { return a + b; });
  check(on_every_machine<A, A>([](auto a, auto b) { return a - b; }, a, b), difference_of, [](f32 a, f32 b) { return a - b; });
}

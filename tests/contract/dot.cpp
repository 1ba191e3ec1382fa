// out = +0 + chain over k ascending of fma(a_ik, b_kj), subnormals flushed; classes P1, P3 and PF. Each sentence with a control that fails.
#include "tiles.hpp"

using namespace gdn;
using namespace gdn::test;

namespace {

using A = Of<Row<16>, Lane<64>>;
using B = Of<Lane<64>, Val<32>>;
const auto a = noise(1, A::size), b = noise(2, B::size);

template <Precision P> std::vector<f32> dots(const std::vector<f32>& x, const std::vector<f32>& y) {
  return on_every_machine<A, B>([](auto x, auto y) { return dot<P>(x, y); }, x, y);
}
std::vector<f32> expected(const std::vector<f32>& x, const std::vector<f32>& y) { return dot_of(x, y, 16, 64, 32); }

// The rows of x (or of a matrix with k rows) in another order of k.
std::vector<f32> reversed_columns(const std::vector<f32>& x, int m, int k) {
  std::vector<f32> y(x.size());
  for (int i = 0; i < m; i++)
    for (int l = 0; l < k; l++) y[i * k + l] = x[i * k + k - 1 - l];
  return y;
}
std::vector<f32> reversed_rows(const std::vector<f32>& x, int k, int n) {
  std::vector<f32> y(x.size());
  for (int l = 0; l < k; l++) std::copy_n(&x[(k - 1 - l) * n], n, &y[l * n]);
  return y;
}

}  // namespace

TEST_CASE("a dot is a chain of fma, k ascending") {
  const auto y = dots<Precision::f32>(a, b);
  CHECK(difference(y, expected(a, b)) == "");
  CHECK(difference(y, expected(reversed_columns(a, 16, 64), reversed_rows(b, 64, 32))) != "");  // k descending
  auto twice = expected(a, b);                                                                  // products rounded
  for (int i = 0; i < 16; i++)
    for (int j = 0; j < 32; j++) {
      f32 sum = 0;
      for (int l = 0; l < 64; l++) sum = sum_of(sum, product_of(a[i * 64 + l], b[l * 32 + j]));
      twice[i * 32 + j] = sum;
    }
  CHECK(difference(y, twice) != "");
}

TEST_CASE("a chain starts from +0, and a sum adds the finished chain") {
  auto minus_zero = a;
  std::fill_n(minus_zero.begin(), 64, -0.f);  // row 0
  const auto positive = each(b, [](f32 x) { return std::abs(x); });
  for (const auto& y : {dots<Precision::f32>(minus_zero, positive), dots<Precision::bf16>(minus_zero, positive), dots<Precision::bf16x3>(minus_zero, positive)})
    for (int j = 0; j < 32; j++) CHECK(bits_of(y[j]) == bits_of(0.f));
  CHECK(bits_of(fma_of(-0.f, 1.f, -0.f)) == bits_of(-0.f));  // what a chain from its first product would give

  const auto c = noise(3, 16 * 32, 2);
  const auto sum = on_every_machine<Of<Row<16>, Val<32>>, A, B>(
      [](auto c, auto x, auto y) { return map([](auto c, auto xy) { return c + xy; }, c, product<Precision::f32>(x, y)); }, c, a, b);
  const auto chain = expected(a, b);
  auto after = c, inside = c;
  for (int i = 0; i < 16 * 32; i++) after[i] = sum_of(c[i], chain[i]);
  for (int i = 0; i < 16; i++)
    for (int j = 0; j < 32; j++)
      for (int l = 0; l < 64; l++) inside[i * 32 + j] = fma_of(a[i * 64 + l], b[l * 32 + j], inside[i * 32 + j]);
  CHECK(difference(sum, after) == "");
  CHECK(difference(sum, inside) != "");
}

TEST_CASE("subnormal operands, partial sums and results are zeros") {
  auto x = each(a, [](f32 x) { return x * 0x1p-70f; }), y = each(b, [](f32 x) { return x * 0x1p-68f; });
  x[3] = 0x1p-130f, y[3 * 32] = 0x1p100f;
  const auto found = dots<Precision::f32>(x, y);
  CHECK(difference(found, expected(x, y)) == "");
  const long zeros = std::count(found.begin(), found.end(), 0.f);
  CHECK(zeros > 0);
  CHECK(zeros < 16 * 32);
  auto kept = found;
  for (int i = 0; i < 16; i++)
    for (int j = 0; j < 32; j++) {
      f32 sum = 0;
      for (int l = 0; l < 64; l++) sum = std::fma(x[i * 64 + l], y[l * 32 + j], sum);
      kept[i * 32 + j] = sum;
    }
  CHECK(difference(found, kept) != "");
}

TEST_CASE("P1 rounds both operands once to bf16") {
  const auto y = dots<Precision::bf16>(a, b);
  CHECK(difference(y, expected(each(a, bf16_of), each(b, bf16_of))) == "");
  CHECK(difference(y, expected(each(a, bf16_of), b)) != "");
  CHECK(difference(y, expected(a, each(b, bf16_of))) != "");
  CHECK(difference(y, dots<Precision::bf16>(each(a, bf16_of), each(b, bf16_of))) == "");
}

TEST_CASE("P3 is three dots of high and low parts, (high high + high low) + low high") {
  const auto low = [](f32 x) { return bf16_of(difference_of(x, bf16_of(x))); };
  const auto hh = expected(each(a, bf16_of), each(b, bf16_of)), hl = expected(each(a, bf16_of), each(b, low)),
             lh = expected(each(a, low), each(b, bf16_of));
  auto right = hh, other = hh, low_low = hh;
  const auto ll = expected(each(a, low), each(b, low));
  for (std::size_t i = 0; i < hh.size(); i++) {
    right[i] = sum_of(sum_of(hh[i], hl[i]), lh[i]);
    other[i] = sum_of(hh[i], sum_of(hl[i], lh[i]));
    low_low[i] = sum_of(right[i], ll[i]);
  }
  const auto y = dots<Precision::bf16x3>(a, b);
  CHECK(difference(y, right) == "");
  CHECK(difference(y, other) != "");
  CHECK(difference(y, low_low) != "");
  // It stands between the other classes.
  std::vector<double> exact(16 * 32);
  for (int i = 0; i < 16; i++)
    for (int j = 0; j < 32; j++)
      for (int l = 0; l < 64; l++) exact[i * 32 + j] += static_cast<double>(a[i * 64 + l]) * b[l * 32 + j];
  const double p1 = max_error(dots<Precision::bf16>(a, b), exact), p3 = max_error(y, exact), pf = max_error(dots<Precision::f32>(a, b), exact);
  INFO("errors " << p1 << ", " << p3 << ", " << pf);
  CHECK(p3 < p1 / 50);
  CHECK(pf < p3);
}

TEST_CASE("an element depends on its row, its column and k alone") {
  const auto whole = dots<Precision::bf16>(a, b);
  // Other rows and columns, and fewer of them.
  auto other_a = noise(4, A::size), other_b = noise(5, B::size);
  std::copy_n(&a[5 * 64], 64, &other_a[9 * 64]);
  for (int l = 0; l < 64; l++) other_b[l * 32 + 30] = b[l * 32 + 7];
  CHECK(bits_of(dots<Precision::bf16>(other_a, other_b)[9 * 32 + 30]) == bits_of(whole[5 * 32 + 7]));
  const std::vector<f32> one_row(&a[5 * 64], &a[6 * 64]);
  std::vector<f32> columns;  // 0 .. 15
  for (int l = 0; l < 64; l++) columns.insert(columns.end(), &b[l * 32], &b[l * 32 + 16]);
  const auto part = on_every_machine<Of<One, Lane<64>>, Of<Lane<64>, Val<16>>>([](auto x, auto y) { return dot<Precision::bf16>(x, y); }, one_row, columns);
  for (int j = 0; j < 16; j++) CHECK(bits_of(part[j]) == bits_of(whole[5 * 32 + j]));
  // Zeros behind the chain, or in front of it, change nothing.
  std::vector<f32> wide(16 * 96), tall(96 * 32);
  for (int shift : {0, 32}) {
    std::fill(wide.begin(), wide.end(), 0.f), std::fill(tall.begin(), tall.end(), 1.f);
    for (int i = 0; i < 16; i++) std::copy_n(&a[i * 64], 64, &wide[i * 96 + shift]);
    std::copy(b.begin(), b.end(), &tall[shift * 32]);
    CHECK(difference(whole, on_every_machine<Of<Row<16>, Lane<96>>, Of<Lane<96>, Val<32>>>([](auto x, auto y) { return dot<Precision::bf16>(x, y); }, wide, tall)) == "");
  }
  CHECK(bits_of(whole[5 * 32 + 7]) != bits_of(whole[5 * 32 + 8]));
}

TEST_CASE("promises about triangles change no bit") {
  using Square = Of<Row<32>, Row<32>>;
  auto l = noise(6, Square::size);
  for (int i = 0; i < 32; i++)
    for (int j = i + 1; j < 32; j++) l[i * 32 + j] = 0;
  const auto x = noise(7, 32 * 48), right = dot_of(l, x, 32, 32, 48);
  const auto y = on_every_machine<Square, Of<Row<32>, Val<48>>>([](auto l, auto x) { return dot<Precision::f32>(lower(l), x); }, l, x);
  CHECK(difference(y, right) == "");
  const auto all = on_every_machine<Square, Square>([](auto l, auto x) { return dot<Precision::f32>(l, transpose(x)); }, l, noise(8, Square::size));
  const auto half = on_every_machine<Square, Square>([](auto l, auto x) { return tril(lower_product<Precision::f32>(l, transpose(x))); }, l, noise(8, Square::size));
  for (int i = 0; i < 32; i++)
    for (int j = 0; j < 32; j++) CHECK(bits_of(half[i * 32 + j]) == bits_of(j <= i ? all[i * 32 + j] : 0.f));
}

// The comparators and the generator of the tests, and that each of them can fail.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <limits>

#include "../support/bits.hpp"
#include "../support/hard_inputs.hpp"
#include "../support/random.hpp"

using namespace gdn;
using namespace gdn::test;

namespace {

f32 from_bits(std::uint32_t u) { return std::bit_cast<f32>(u); }

}  // namespace

TEST_CASE("differing counts bit patterns, NaNs of any payload being equal", "[support]") {
  const std::vector<f32> a{1, 0.0f, from_bits(0x7fc00000), 4}, same{1, 0.0f, from_bits(0xffc00001), 4};
  CHECK(differing(a, same) == 0);
  CHECK(difference(a, same).empty());

  auto off = same;
  off[1] = -0.0f;
  off[3] = std::nextafter(4.0f, 5.0f);
  CHECK(differing(a, off) == 2);
  CHECK(difference(a, off) == "2 of 4 elements differ, first at 1: 0 (0x00000000) against -0 (0x80000000), 1 ULP");
  off = same;
  off[2] = 3;
  CHECK(difference(a, off) == "1 of 4 elements differ, first at 2: nan (0x7fc00000) against 3 (0x40400000), NaN");
  CHECK_THROWS_AS(differing(a, std::vector<f32>{1}), Error);
}

TEST_CASE("differing knows bf16 and integers", "[support]") {
  const std::vector<bf16> a{to_bf16(1), {0x7fc0}, to_bf16(-2)};
  std::vector<bf16> b{to_bf16(1), {0xffc1}, to_bf16(-2)};
  CHECK(differing(a, b) == 0);
  b[2].bits += 3;
  CHECK(difference(a, b) == "1 of 3 elements differ, first at 2: -2 (0xc000) against -2.046875 (0xc003), 3 ULP");

  const std::vector<std::int32_t> i{1, -7}, j{1, 5};
  CHECK(differing(i, i) == 0);
  CHECK(difference(i, j) == "1 of 2 elements differ, first at 1: -7 (0xfffffff9) against 5 (0x00000005), 12 ULP");
}

TEST_CASE("ULP distances cross zero and powers of two", "[support]") {
  CHECK(ulp_distance(1.0f, std::nextafter(1.0f, 0.0f)) == 1);
  CHECK(ulp_distance(from_bits(1), from_bits(0x80000001u)) == 3);
  CHECK(ulp_distance(to_bf16(1), to_bf16(2)) == 128);
}

TEST_CASE("max_error and relative_l2 see one bad element, and no NaN hides", "[support]") {
  const std::vector<double> reference{1, -4, 2};
  CHECK(max_error(reference, reference) == 0);
  CHECK(max_error(std::vector<f32>{1, -4, 2.5f}, reference) == 0.125);
  CHECK(max_absolute_error(std::vector<f32>{1, -4, 2.5f}, reference) == 0.5);
  CHECK(relative_l2(std::vector<double>{1, -4, 5}, reference) == Approx(3 / std::sqrt(21.0)));

  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  CHECK(max_error(std::vector<double>{nan, -4, 2}, reference) == inf);
  CHECK(relative_l2(std::vector<double>{nan, -4, 2}, reference) == inf);
  CHECK(max_error(reference, std::vector<double>{nan, -4, 2}) == inf);
  CHECK(max_error(std::vector<double>{inf, 1}, std::vector<double>{inf, 1}) == 0);
  CHECK(max_error(std::vector<double>{0}, std::vector<double>{0}) == 0);
  CHECK(max_error(std::vector<double>{1e-9}, std::vector<double>{0}) == inf);
}

TEST_CASE("the generator repeats itself and has the moments it claims", "[support]") {
  Random a(7), b(7), c(8);
  CHECK(a.next() == 0x63cbe1e459320dd7u);
  CHECK(b.next() == 0x63cbe1e459320dd7u);
  CHECK(c.next() != 0x63cbe1e459320dd7u);
  double sum = 0, squares = 0, low = 1, high = 0;
  for (int i = 0; i < 100000; ++i) {
    const double x = a.normal(), u = a.uniform();
    sum += x, squares += x * x;
    low = std::min(low, u), high = std::max(high, u);
  }
  CHECK(std::abs(sum / 100000) < 0.02);
  CHECK(squares / 100000 == Approx(1).margin(0.02));
  CHECK((low >= 0 && low < 1e-3 && high > 0.999 && high < 1));
}

TEST_CASE("hard inputs have unit keys, bf16 values and decays", "[support]") {
  for (const std::string kind : hard_kinds) {
    CAPTURE(kind);
    const auto in = hard_input(kind, 3, 40, 2, 4, 32);
    double worst = 0, highest = -1;
    for (int t = 0; t < 40; ++t) {
      for (int h = 0; h < 2; ++h) {
        double kk = 0;
        for (int i = 0; i < 32; ++i) kk += in.k(t, h, i) * in.k(t, h, i);
        worst = std::max(worst, std::abs(kk - 1));
      }
      for (int h = 0; h < 4; ++h) highest = std::max<double>(highest, in.g(t, h));
    }
    CHECK(worst < 0.01);
    CHECK(highest <= 0);
    CHECK(differing(in.v.data, detail::bf16_values(cast<double>(in.v)).data) == 0);
    CHECK(differing(in.k.data, hard_input(kind, 3, 40, 2, 4, 32).k.data) == 0);
    CHECK(differing(in.k.data, hard_input(kind, 4, 40, 2, 4, 32).k.data) > 0);
  }
}

TEST_CASE("a missing file of hard inputs says how to write it", "[support]") {
  CHECK_THROWS_WITH(read_hard_input("nowhere", "rand", 0), Catch::Contains("nowhere/rand-0.bin") && Catch::Contains("hard_inputs.py"));
  CHECK_THROWS_WITH(hard_input("easy"), Catch::Contains("easy"));
}

TEST_CASE("files of hard inputs are read whole, damaged ones refused", "[support]") {
  const auto directory = std::filesystem::temp_directory_path() / "gdn-support-test";
  std::filesystem::create_directories(directory);
  const auto write = [&](std::string bytes) { std::ofstream(directory / "rand-0.bin", std::ios::binary) << bytes; };
  const auto read = [&] { return read_hard_input(directory.string(), "rand", 0); };
  std::string bytes = "GDNHARD1";
  for (const std::int32_t n : {3, 1, 2, 4}) bytes.append(reinterpret_cast<const char*>(&n), 4);
  for (int i = 0; i < 3 * (4 + 4 + 8 + 2 + 2); ++i) {
    const auto x = static_cast<f32>(i);
    bytes.append(reinterpret_cast<const char*>(&x), 4);
  }
  write(bytes);
  const auto in = read();
  CHECK(in.q(2, 0, 3) == 11);
  CHECK(in.v(0, 1, 0) == 28);
  CHECK(in.beta(2, 1) == 59);
  write(bytes.substr(0, bytes.size() - 1));
  CHECK_THROWS_WITH(read(), Catch::Contains("ends too early"));
  write(bytes + "x");
  CHECK_THROWS_WITH(read(), Catch::Contains("more than its header"));
  write("PK" + bytes);
  CHECK_THROWS_WITH(read(), Catch::Contains("GDNHARD1"));
  std::filesystem::remove_all(directory);
}

// The vector shim against the scalar operation, lane by lane and bit by bit, and what it does otherwise than xsimd 8.1.0.
#include <catch2/catch.hpp>
#include <gdn/cpu/convert.hpp>
#include <gdn/cpu/environment.hpp>
#include <gdn/cpu/simd.hpp>
#include <sys/mman.h>
#include <unistd.h>

#include "data.hpp"

using namespace gdn;
using namespace gdn::cpu;
using gdn::test::difference;
using gdn::test::Random;

namespace {

// All pairs of special values and many random ones, as three parallel arrays of a multiple of W.
struct Arguments {
  std::vector<float> a, b, c;
};
Arguments arguments() {
  Arguments x;
  Random random(1);
  const auto special = test::special_values();
  for (float a : special)
    for (float b : special)
      for (int i = 0; i < 3; ++i) {
        x.a.push_back(a);
        x.b.push_back(b);
        x.c.push_back(special[static_cast<std::size_t>(random.below(static_cast<int>(special.size())))]);
      }
  for (int i = 0; i < 100000; ++i) {
    x.a.push_back(test::any_pattern(random));
    x.b.push_back(test::any_pattern(random));
    x.c.push_back(test::any_pattern(random));
  }
  // Sums near the product: cancellation, ties, flushing.
  for (int i = 0; i < 200000; ++i) {
    const float scale = std::ldexp(1.0f, random.below(200) - 100), other = std::ldexp(1.0f, random.below(60) - 90);
    const float a = test::signed_unit(random) * scale, b = test::signed_unit(random) * other;
    x.a.push_back(a);
    x.b.push_back(b);
    x.c.push_back(std::ldexp(a * b, random.below(60) - 30) * (random.below(2) ? 1.0f : -1.0f));
  }
  while (x.a.size() % static_cast<std::size_t>(W)) x.a.push_back(1), x.b.push_back(2), x.c.push_back(3);
  return x;
}

template <class Vector, class Scalar>
void check(const char* name, const Arguments& x, Vector vector, Scalar scalar) {
  INFO(name);
  const FlushGuard guard;
  std::vector<float> got(x.a.size()), want(x.a.size());
  for (std::size_t i = 0; i < x.a.size(); i += static_cast<std::size_t>(W))
    store(&got[i], vector(load(&x.a[i]), load(&x.b[i]), load(&x.c[i])));
  for (std::size_t i = 0; i < x.a.size(); ++i) want[i] = scalar(x.a[i], x.b[i], x.c[i]);
  CHECK(difference(got, want) == "");
}

std::uint32_t u(float x) { return std::bit_cast<std::uint32_t>(x); }
float f(std::uint32_t x) { return std::bit_cast<float>(x); }
std::int32_t s(float x) { return std::bit_cast<std::int32_t>(x); }
F truth(M m) { return select(m, F(1.0f), F(0.0f)); }
// So that the scalar side is computed where and when it stands.
template <class T>
T opaque(T x) {
  asm volatile("" : "+m"(x));
  return x;
}

}  // namespace

TEST_CASE("simd: arithmetic is the scalar one, also where it flushes") {
  const auto x = arguments();
  check(
      "+", x, [](F a, F b, F) { return a + b; }, [](float a, float b, float) { return opaque(a) + b; });
  check(
      "-", x, [](F a, F b, F) { return a - b; }, [](float a, float b, float) { return opaque(a) - b; });
  check(
      "*", x, [](F a, F b, F) { return a * b; }, [](float a, float b, float) { return opaque(a) * b; });
  check(
      "fma", x, [](F a, F b, F c) { return fma(a, b, c); }, [](float a, float b, float c) { return std::fma(opaque(a), b, c); });
}

TEST_CASE("simd: compares are ordered, selects and signs are moves") {
  const auto x = arguments();
  check(
      "<", x, [](F a, F b, F) { return truth(a < b); }, [](float a, float b, float) { return opaque(a) < b ? 1.0f : 0.0f; });
  check(
      "<=", x, [](F a, F b, F) { return truth(a <= b); }, [](float a, float b, float) { return opaque(a) <= b ? 1.0f : 0.0f; });
  check(
      ">", x, [](F a, F b, F) { return truth(a > b); }, [](float a, float b, float) { return opaque(a) > b ? 1.0f : 0.0f; });
  check(
      ">=", x, [](F a, F b, F) { return truth(a >= b); }, [](float a, float b, float) { return opaque(a) >= b ? 1.0f : 0.0f; });
  check(
      "==", x, [](F a, F b, F) { return truth(a == b); }, [](float a, float b, float) { return opaque(a) == b ? 1.0f : 0.0f; });
  check(
      "and", x, [](F a, F b, F c) { return truth((a < b) & (b < c)); },
      [](float a, float b, float c) { return opaque(a) < b && b < c ? 1.0f : 0.0f; });
  check(
      "or", x, [](F a, F b, F c) { return truth((a < b) | (b < c)); },
      [](float a, float b, float c) { return opaque(a) < b || b < c ? 1.0f : 0.0f; });
  check(
      "not", x, [](F a, F b, F) { return truth(!(a < b)); }, [](float a, float b, float) { return opaque(a) < b ? 0.0f : 1.0f; });
  check(
      "select", x, [](F a, F b, F c) { return select(a < b, b, c); }, [](float a, float b, float c) { return opaque(a) < b ? b : c; });
  check(
      "neg", x, [](F a, F, F) { return -a; }, [](float a, float, float) { return f(u(a) ^ 0x80000000u); });
  check(
      "abs", x, [](F a, F, F) { return abs(a); }, [](float a, float, float) { return f(u(a) & 0x7fffffffu); });
}

TEST_CASE("simd: min and max let a NaN win and order zeros") {
  auto x = arguments();
  const auto flushed = [](float v) { return std::fabs(v) < 0x1p-126f ? std::copysign(0.0f, v) : v; };
  for (auto* array : {&x.a, &x.b})
    for (float& v : *array) v = flushed(v);  // two subnormals are equal to the compare, yet not the same number
  const auto scalar_min = [](float a, float b, float) {
    if (a != a || b != b) return std::bit_cast<float>(0x7fc00000u);
    if (a == b) return std::signbit(a) ? a : b;
    return a < b ? a : b;
  };
  check(
      "min", x, [](F a, F b, F) { return min(a, b); }, scalar_min);
  check(
      "max", x, [](F a, F b, F) { return max(a, b); }, [&](float a, float b, float c) { return -scalar_min(-a, -b, c); });
}

TEST_CASE("simd: integers wrap, compare as signed and shift as unsigned") {
  const auto x = arguments();
  const auto real = [](std::uint32_t i) { return f(i); };
  // NaNs are compared as NaNs: the upper bits would be lost. Halves are looked at one by one.
  for (std::uint32_t half : {0xffffu, 0xffff0000u}) {
    const auto vector = [half](auto op) {
      return [half, op](F a, F b, F) {
        const I r = op(bits(a), bits(b)) & I(half);
        return from_bits(half == 0xffffu ? r : shift_right<16>(r));
      };
    };
    const auto scalar = [half, real](auto op) {
      return [half, op, real](float a, float b, float) {
        const std::uint32_t r = op(u(a), u(b)) & half;
        return real(half == 0xffffu ? r : r >> 16);
      };
    };
    check("i+", x, vector([](I a, I b) { return a + b; }), scalar([](std::uint32_t a, std::uint32_t b) { return a + b; }));
    check("i-", x, vector([](I a, I b) { return a - b; }), scalar([](std::uint32_t a, std::uint32_t b) { return a - b; }));
    check("i&", x, vector([](I a, I b) { return a & b; }), scalar([](std::uint32_t a, std::uint32_t b) { return a & b; }));
    check("i|", x, vector([](I a, I b) { return a | b; }), scalar([](std::uint32_t a, std::uint32_t b) { return a | b; }));
    check("i^", x, vector([](I a, I b) { return a ^ b; }), scalar([](std::uint32_t a, std::uint32_t b) { return a ^ b; }));
    check("<<", x, vector([](I a, I) { return shift_left<23>(a); }), scalar([](std::uint32_t a, std::uint32_t) { return a << 23; }));
    check(">>", x, vector([](I a, I) { return shift_right<1>(a); }), scalar([](std::uint32_t a, std::uint32_t) { return a >> 1; }));
    check("round_to_bf16", x, vector([](I a, I) { return round_to_bf16(from_bits(a)); }),
          scalar([](std::uint32_t a, std::uint32_t) { return std::uint32_t(to_bf16(f(a)).bits) << 16; }));
  }
  check(
      "i<", x, [](F a, F b, F) { return truth(bits(a) < bits(b)); }, [](float a, float b, float) { return s(a) < s(b) ? 1.0f : 0.0f; });
  check(
      "i<=", x, [](F a, F b, F) { return truth(bits(a) <= bits(b)); }, [](float a, float b, float) { return s(a) <= s(b) ? 1.0f : 0.0f; });
  check(
      "i>", x, [](F a, F b, F) { return truth(bits(a) > bits(b)); }, [](float a, float b, float) { return s(a) > s(b) ? 1.0f : 0.0f; });
  check(
      "i>=", x, [](F a, F b, F) { return truth(bits(a) >= bits(b)); }, [](float a, float b, float) { return s(a) >= s(b) ? 1.0f : 0.0f; });
  check(
      "i==", x, [](F a, F b, F) { return truth(bits(a) == bits(b)); }, [](float a, float b, float) { return s(a) == s(b) ? 1.0f : 0.0f; });
}

TEST_CASE("simd: pairs add the even product first") {
  const auto x = arguments();
  const auto high = [](float v) { return f(u(v) & 0xffff0000u); };
  const auto low = [](float v) { return f(u(v) << 16); };
  check(
      "pairs", x, [](F a, F b, F c) { return fma(Pairs(bits(a)), Pairs(bits(b)), c); },
      [&](float a, float b, float c) { return std::fma(low(a), low(b), std::fma(high(opaque(a)), high(b), c)); });
  // The other order is another function.
  const FlushGuard guard;
  std::size_t other = 0;
  for (std::size_t i = 0; i < x.a.size(); ++i) {
    const float a = x.a[i], b = x.b[i], c = x.c[i];
    other +=
        !test::same_bits(std::fma(low(a), low(b), std::fma(high(a), high(b), c)), std::fma(high(a), high(b), std::fma(low(a), low(b), c)));
  }
  CHECK(other > 1000);
}

TEST_CASE("simd: partial loads and stores stay inside") {
  // A page that may not be touched follows the array.
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  auto* memory = static_cast<char*>(mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  REQUIRE(memory != MAP_FAILED);
  REQUIRE(mprotect(memory + page, page, PROT_NONE) == 0);
  for (int n = 0; n <= W; ++n) {
    auto* end = reinterpret_cast<float*>(memory + page);
    float* p = end - n;
    for (int i = 0; i < n; ++i) p[i] = static_cast<float>(i + 1);
    std::vector<float> got(static_cast<std::size_t>(W)), want(got.size());
    for (int i = 0; i < n; ++i) want[static_cast<std::size_t>(i)] = p[i];
    store(got.data(), load(p, first_lanes(n)));
    CHECK(difference(got, want) == "");
    store(got.data(), from_bits(load(reinterpret_cast<const std::uint32_t*>(p), first_lanes(n))));
    CHECK(difference(got, want) == "");

    store(p, load(p, first_lanes(n)) + F(1.0f), first_lanes(n));
    for (int i = 0; i < n; ++i) CHECK(p[i] == static_cast<float>(i + 2));
    std::vector<float> canary(static_cast<std::size_t>(W), 7.0f);
    store(canary.data(), F(1.0f), first_lanes(n));
    store(reinterpret_cast<std::uint32_t*>(canary.data()), bits(F(1.0f)), first_lanes(n));
    for (int i = 0; i < W; ++i) CHECK(canary[static_cast<std::size_t>(i)] == (i < n ? 1.0f : 7.0f));
  }
  munmap(memory, 2 * page);
}

TEST_CASE("simd: lanes") {
  std::vector<std::int32_t> a(static_cast<std::size_t>(W)), b(a), got(a);
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = static_cast<int>(i), b[i] = static_cast<int>(i) + W;
  store(got.data(), iota());
  CHECK(got == a);
  store(got.data(), even_lanes(load(a.data()), load(b.data())));
  for (int i = 0; i < W; ++i) CHECK(got[static_cast<std::size_t>(i)] == 2 * i);
  store(got.data(), odd_lanes(load(a.data()), load(b.data())));
  for (int i = 0; i < W; ++i) CHECK(got[static_cast<std::size_t>(i)] == 2 * i + 1);
}

TEST_CASE("convert: rows of bf16") {
  Random random(2);
  for (int columns : {1, 3, 16, 31, 48, 128, 130}) {
    const int rows = 5, pitch = columns + 3;
    const auto n = static_cast<std::size_t>(rows * pitch);
    std::vector<float> x(n), wide(n, 7.0f), rounded(n, 7.0f), want(n, 7.0f);
    std::vector<bf16> narrow_got(n, bf16{1}), narrow_want(n, bf16{1});
    for (float& v : x) v = random.below(8) ? test::any_pattern(random) : test::special_values()[static_cast<std::size_t>(random.below(50))];
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < columns; ++c) {
        const auto i = static_cast<std::size_t>(r * pitch + c);
        narrow_want[i] = to_bf16(x[i]);
        want[i] = to_f32(narrow_want[i]);
      }
    narrow(rows, columns, x.data(), pitch, narrow_got.data(), pitch);
    CHECK(narrow_got == narrow_want);
    widen(rows, columns, narrow_want.data(), pitch, wide.data(), pitch);
    CHECK(difference(wide, want) == "");
    round_to_bf16(rows, columns, x.data(), pitch, rounded.data(), pitch);
    CHECK(difference(rounded, want) == "");
    ++narrow_want[0].bits;
    CHECK_FALSE(narrow_got == narrow_want);
  }
}

TEST_CASE("simd: what xsimd 8.1.0 does otherwise") {
  const FlushGuard guard;
  // (1 + 2^-12)^2 - (1 + 2^-11) is 2^-24 with one rounding, 0 with two.
  const F a = opaque(F(0x1.001p0f)), c = opaque(F(-0x1.002p0f));
  float fused[16], theirs[16], negated[16];
  store(fused, fma(a, a, c));
  store(theirs, xsimd::fma(a.v, a.v, c.v));
  store(negated, F(-opaque(F(0.0f)).v));
  CHECK(fused[0] == 0x1p-24f);
#if GDN_AVX512
  CHECK(theirs[0] == 0.0f);               // mul, then add
  CHECK_FALSE(std::signbit(negated[0]));  // 0 - x
#elif GDN_SSE2
  CHECK(theirs[0] == 0.0f);
#else
  CHECK(theirs[0] == fused[0]);
#endif
  store(negated, -opaque(F(0.0f)));
  CHECK(std::signbit(negated[0]));
}

TEST_CASE("simd: one rounding, not one in double and one more") {
  // c + ulp(c) / 2 (1 +- 2^-2k): beside a tie by less than double can tell.
  const FlushGuard guard;
  Random random(6);
  Arguments x;
  for (int i = 0; i < 4096; ++i) {
    const float d = std::ldexp(1.0f, -15 - random.below(8)), sign = random.below(2) ? 1.0f : -1.0f;
    const float c = 1.0f + static_cast<float>(random.below(1 << 23)) * 0x1p-23f, scale = std::ldexp(1.0f, random.below(80) - 40);
    x.a.push_back(0x1p-24f * (1.0f + d) * scale);
    x.b.push_back(sign * (1.0f - d));
    x.c.push_back(c * scale);
  }
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < x.a.size(); ++i) {
    const auto twice = static_cast<float>(static_cast<double>(x.a[i]) * static_cast<double>(x.b[i]) + static_cast<double>(x.c[i]));
    wrong += !test::same_bits(twice, std::fma(x.a[i], x.b[i], x.c[i]));
  }
  CHECK(wrong > 1000);
  check(
      "fma", x, [](F a, F b, F c) { return fma(a, b, c); }, [](float a, float b, float c) { return std::fma(opaque(a), b, c); });
}

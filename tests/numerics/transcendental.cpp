// The portable functions against double: largest error over the argument's bit patterns, special values, and one result for all value
// types. The default sweep takes every 977th pattern, [.long] all 2^32.
#include <catch2/catch.hpp>
#include <cstdio>
#include <functional>
#include <gdn/cpu/environment.hpp>
#include <gdn/cpu/simd.hpp>
#include <gdn/portable/math.hpp>

#include "data.hpp"

using namespace gdn;
using cpu::F;
using cpu::W;

namespace {

float f(std::uint32_t u) { return std::bit_cast<float>(u); }
std::uint32_t u(float x) { return std::bit_cast<std::uint32_t>(x); }

struct Function {
  const char* name;
  void (*vector)(const float* x, float* y, int n);  // n is a multiple of W
  float (*scalar)(float);
  double (*reference)(double);
  double bound;               // ulps; from the full sweep, rounded up
  std::uint32_t first, last;  // patterns of the domain
  std::uint64_t hash;         // of every 977th result
  std::vector<std::uint32_t> thresholds;
};

#define GDN_FUNCTION(name) \
#name, [](const float* x, float* y, int n) { for (int i = 0; i < n; i += W) cpu::store(y + i, portable::name(cpu::load(x + i))); }, \
      [](float x) { return portable::name(x); }

const std::vector<Function>& functions() {
  static const std::vector<Function> all = {
      {GDN_FUNCTION(exp2),
       [](double x) { return std::exp2(x); },
       0.82,
       0,
       ~0u,
       0xb1b6b277f05beb9eu,
       {0xc2fc0000u, 0x43000000u, 0x3f000000u, 0xbf000000u}},
      {GDN_FUNCTION(exp),
       [](double x) { return std::exp(x); },
       0.91,
       0,
       ~0u,
       0x65397ceb8136d994u,
       {0xc2aeac50u, 0x42b17218u, 0x3eb17218u, 0xbeb17218u}},
      {GDN_FUNCTION(log1p), [](double x) { return std::log1p(x); }, 0.92, 0, 0x3f800000u, 0x36a0cf9656494ab9u, {0x3f000000u}},
      {GDN_FUNCTION(reciprocal),
       [](double x) { return 1 / x; },
       0.5003,
       0,
       ~0u,
       0xaeada0e6d7116165u,
       {0x3f800000u, 0x7e800000u, 0xfe800000u, 0x80800000u}},
      {GDN_FUNCTION(rsqrt),
       [](double x) { return 1 / std::sqrt(x == 0 ? 0.0 : x); },
       0.5005,
       0,
       ~0u,
       0x267f06811abfd118u,
       {0x3f800000u, 0x40800000u}},
      {GDN_FUNCTION(sigmoid),
       [](double x) { return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x)); },
       1.96,
       0,
       ~0u,
       0x83cfc2016d89d3a5u,
       {0xc2aeac50u, 0x42aeac50u}},
      {GDN_FUNCTION(softplus),
       [](double x) { return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x)); },
       1.69,
       0,
       ~0u,
       0x3b4f4dea4e4aa08au,
       {0xc2aeac50u, 0x42aeac50u}},
  };
  return all;
}

struct Errors {
  double largest = 0;
  std::uint32_t at = 0;
  std::uint64_t count = 0, misrounded = 0, wrong = 0;
  std::string first_wrong;

  void add(const Function& function, std::uint32_t pattern, float got) {
    float x = f(pattern);
    if ((pattern & 0x7f800000u) == 0) x = std::copysign(0.0f, x);  // subnormal arguments are zeros
    const double exact = function.reference(static_cast<double>(x));
    ++count;
    const double magnitude = std::fabs(exact);
    // NaN, zero and infinity have to be just that. (2^128 - 2^103 rounds to infinity.)
    if (!(magnitude >= 0x1p-126) || magnitude >= 0x1.ffffffp127) {
      const float want = exact != exact  ? f(0x7fc00000u)
                         : magnitude < 1 ? static_cast<float>(std::copysign(0.0, exact))
                                         : static_cast<float>(std::copysign(INFINITY, exact));
      if (u(got) != u(want) && ++wrong == 1) note(function, pattern, got, exact);
      return;
    }
    // The last place of the exact result's binade.
    const double ulp = std::bit_cast<double>((std::bit_cast<std::uint64_t>(magnitude) & 0x7ff0000000000000u) - (std::uint64_t{23} << 52));
    const double error = std::fabs(static_cast<double>(got) - exact) / ulp;
    if (!(error <= largest)) {
      largest = error;
      at = pattern;
      if (error != error && ++wrong == 1) note(function, pattern, got, exact);
    }
    misrounded += error > 0.5;
  }

  void note(const Function& function, std::uint32_t pattern, float got, double exact) {
    std::ostringstream out;
    out << function.name << "(" << f(pattern) << " = 0x" << std::hex << pattern << ") gave " << got << " = 0x" << u(got) << ", exactly "
        << exact;
    first_wrong = out.str();
  }
};

// Results of the patterns first, first + step, .. last, given one by one in order.
void sweep(const Function& function, std::uint64_t step, const std::function<void(const std::uint32_t*, const float*, int)>& take) {
  constexpr int block = 4096;
  static std::uint32_t patterns[block];
  static float x[block], y[block];
  for (std::uint64_t p = function.first; p <= function.last;) {
    int n = 0;
    for (; n < block && p <= function.last; ++n, p += step) x[n] = f(patterns[n] = static_cast<std::uint32_t>(p));
    for (int i = n; i < block; ++i) x[i] = 0;
    function.vector(x, y, block);
    take(patterns, y, n);
  }
}

void report(const Function& function, const Errors& e) {
  std::printf("%-10s %10llu arguments: largest error %.4f ulp at 0x%08x (%.9g), %.3f %% not correctly rounded\n", function.name,
              static_cast<unsigned long long>(e.count), e.largest, e.at, static_cast<double>(f(e.at)),
              100.0 * static_cast<double>(e.misrounded) / static_cast<double>(e.count));
}

void check_sweep(std::uint64_t step) {
  const cpu::FlushGuard guard;
  for (const Function& function : functions()) {
    Errors errors;
    sweep(function, step, [&](const std::uint32_t* patterns, const float* y, int n) {
      for (int i = 0; i < n; ++i) errors.add(function, patterns[i], y[i]);
    });
    report(function, errors);
    INFO(function.name << " at 0x" << std::hex << errors.at << "; " << errors.first_wrong);
    CHECK(errors.wrong == 0);
    CHECK(errors.largest <= function.bound);
  }
}

}  // namespace

TEST_CASE("transcendental: error over every 977th argument") { check_sweep(977); }
TEST_CASE("transcendental: error over all arguments", "[.long]") { check_sweep(1); }

TEST_CASE("transcendental: special values and the neighbours of every threshold") {
  const cpu::FlushGuard guard;
  for (const Function& function : functions()) {
    std::vector<std::uint32_t> patterns;
    for (float x : test::special_values()) patterns.push_back(u(x));
    for (std::uint32_t t : function.thresholds)
      for (int i = -200; i <= 200; ++i) patterns.push_back(t + static_cast<std::uint32_t>(i));
    for (std::uint32_t e = 0; e < 512; ++e)
      for (int i = -2; i <= 2; ++i) patterns.push_back((e << 23) + static_cast<std::uint32_t>(i));
    Errors errors;
    for (std::uint32_t p : patterns)
      if (p >= function.first && p <= function.last) errors.add(function, p, function.scalar(f(p)));
    INFO(function.name << " at 0x" << std::hex << errors.at << "; " << errors.first_wrong);
    CHECK(errors.wrong == 0);
    CHECK(errors.largest <= function.bound);
  }
}

TEST_CASE("transcendental: exact where it is promised") {
  const cpu::FlushGuard guard;
  for (int n = -126; n <= 127; ++n) {
    CHECK(portable::exp2(static_cast<float>(n)) == std::ldexp(1.0f, n));
    CHECK(portable::reciprocal(std::ldexp(1.0f, n)) == (n <= 126 ? std::ldexp(1.0f, -n) : 0.0f));
    if (n % 2 == 0) CHECK(portable::rsqrt(std::ldexp(1.0f, n)) == std::ldexp(1.0f, -n / 2));
  }
  CHECK(portable::exp2(-126.00001f) == 0.0f);
  CHECK(portable::exp2(-INFINITY) == 0.0f);
  CHECK(portable::exp2(128.0f) == INFINITY);
  CHECK(portable::exp(0.0f) == 1.0f);
  CHECK(portable::sigmoid(0.0f) == 0.5f);
  CHECK(portable::sigmoid(INFINITY) == 1.0f);
  CHECK(portable::sigmoid(-INFINITY) == 0.0f);
  CHECK(portable::softplus(INFINITY) == INFINITY);
  CHECK(portable::softplus(-INFINITY) == 0.0f);
  CHECK(portable::softplus(100.0f) == 100.0f);
  CHECK(portable::log1p(0.0f) == 0.0f);
  CHECK(u(portable::reciprocal(-0.0f)) == 0xff800000u);
  CHECK(u(portable::reciprocal(-INFINITY)) == 0x80000000u);
  CHECK(portable::rsqrt(-0.0f) == INFINITY);
  CHECK(u(portable::rsqrt(-1.0f)) == 0x7fc00000u);
}

TEST_CASE("transcendental: vector and scalar give the same bits, on every instruction set") {
  const cpu::FlushGuard guard;
  for (const Function& function : functions()) {
    test::Hash hash;
    std::uint64_t different = 0;
    std::uint32_t first = 0;
    sweep(function, 977, [&](const std::uint32_t* patterns, const float* y, int n) {
      for (int i = 0; i < n; ++i) {
        hash.add(y[i]);
        if (u(y[i]) != u(function.scalar(f(patterns[i]))) && different++ == 0) first = patterns[i];
      }
    });
    INFO(function.name << ": " << different << " differ, first at 0x" << std::hex << first << "; hash 0x" << hash.value());
    CHECK(different == 0);
    CHECK(hash.value() == function.hash);
  }
}

TEST_CASE("transcendental: the sweep can fail") {
  const cpu::FlushGuard guard;
  const Function& exp2 = functions()[0];
  Errors errors;
  errors.add(exp2, u(0.3f), std::nextafter(static_cast<float>(std::exp2(static_cast<double>(0.3f))), 2.0f));
  CHECK(errors.largest > exp2.bound);
  errors = {};
  errors.add(exp2, u(-200.0f), 0x1p-126f);
  CHECK(errors.wrong == 1);
  errors = {};
  errors.add(exp2, 0x7f800001u, f(0xffc00000u));
  CHECK(errors.wrong == 1);
}

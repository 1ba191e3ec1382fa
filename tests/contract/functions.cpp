// Functions are operations with one portable definition each: the CPU, the simulator's reading of the TPU's own operation, and
// portable/math.hpp have the same bits. Error bounds are in numerics/transcendental.
#include "tiles.hpp"

using namespace gdn;
using namespace gdn::test;

namespace {

using A = Of<Row<32>, Lane<64>>;

std::vector<f32> arguments(double low, double high, std::uint64_t seed) {
  Random random(seed);
  std::vector<f32> x;
  for (int i = 0; i < A::size; i++) x.push_back(static_cast<f32>(random.uniform(low, high)));
  const f32 special[] = {0.f, -0.f, 1.f, -1.f, 0x1p-126f, -0x1p-126f, 126.f, 127.99999f, 128.f, -126.f, -126.00001f, 88.72283f, -87.33654f, 1e30f, -1e30f,
                         std::numeric_limits<f32>::infinity(), -std::numeric_limits<f32>::infinity(), std::numeric_limits<f32>::quiet_NaN(), 0.5f, 2.f};
  std::copy(std::begin(special), std::end(special), x.begin());
  return x;
}

template <class Op, class Portable, class Library>
void check(const char* name, double low, double high, Op op, Portable portable, Library library, bool whole_line = true) {
  INFO(name);
  auto x = arguments(low, high, 1);
  if (!whole_line)
    for (f32& e : x) e = e >= low && e <= high ? e : 0.25f;
  const auto y = on_every_machine<A>([op](auto x) { return map(op, x); }, x);
  std::vector<f32> right, other;
  {
    cpu::FlushGuard flush;
    for (f32 e : x) right.push_back(portable(e));
  }
  for (f32 e : x) other.push_back(library(e));
  CHECK(difference(y, right) == "");
  CHECK(difference(y, other) != "");  // the definition is ours, not that of a library: its last bits are other ones
}

}  // namespace

TEST_CASE("each function has the bits of its portable definition") {
  check("exp2", -130, 130, [](auto x) { return exp2(x); }, [](f32 x) { return portable::exp2(x); }, [](f32 x) { return std::exp2(x); });
  check("exp", -90, 90, [](auto x) { return exp(x); }, [](f32 x) { return portable::exp(x); }, [](f32 x) { return std::exp(x); });
  check("log1p", 0, 1, [](auto x) { return log1p(x); }, [](f32 x) { return portable::log1p(x); }, [](f32 x) { return std::log1p(x); }, false);
  check("rsqrt", 0, 1e4, [](auto x) { return rsqrt(x); }, [](f32 x) { return portable::rsqrt(x); },
        [](f32 x) { return std::nextafter(1 / std::sqrt(x), 0.f); });
  check("reciprocal", -1e4, 1e4, [](auto x) { return reciprocal(x); }, [](f32 x) { return portable::reciprocal(x); },
        [](f32 x) { return std::nextafter(1 / x, 0.f); });
  check("sigmoid", -30, 30, [](auto x) { return sigmoid(x); }, [](f32 x) { return portable::sigmoid(x); }, [](f32 x) { return 1 / (1 + std::exp(-x)); });
  check("softplus", -30, 30, [](auto x) { return softplus(x); }, [](f32 x) { return portable::softplus(x); },
        [](f32 x) { return std::max(x, 0.f) + std::log1p(std::exp(-std::abs(x))); });
}

TEST_CASE("min and max let a NaN win and order zeros") {
  const f32 nan = std::numeric_limits<f32>::quiet_NaN();
  using Pairs = Of<Row<16>, Lane<16>>;
  std::vector<f32> a(256, 1.f), b(256, 2.f);
  const f32 left[] = {0.f, -0.f, nan, 1.f, -3.f}, right[] = {-0.f, 0.f, 1.f, nan, 2.f}, least[] = {-0.f, -0.f, nan, nan, -3.f}, most[] = {0.f, 0.f, nan, nan, 2.f};
  std::copy(std::begin(left), std::end(left), a.begin()), std::copy(std::begin(right), std::end(right), b.begin());
  const auto low = on_every_machine<Pairs, Pairs>([](auto a, auto b) { return map([](auto a, auto b) { return min(a, b); }, a, b); }, a, b);
  const auto high = on_every_machine<Pairs, Pairs>([](auto a, auto b) { return map([](auto a, auto b) { return max(a, b); }, a, b); }, a, b);
  for (int i = 0; i < 5; i++) {
    CHECK(same_bits(low[i], least[i]));
    CHECK(same_bits(high[i], most[i]));
  }
  CHECK_FALSE(same_bits(low[0], high[0]));
}

TEST_CASE("2^0 is exactly 1, and integers are exact") {
  std::vector<f32> x(A::size, 0.f);
  for (int i = 1; i < 100; i++) x[i] = static_cast<f32>(i - 50);
  const auto y = on_every_machine<A>([](auto x) { return exp2(x); }, x);
  int by_exp = 0;
  for (int i = 0; i < 100; i++) {
    CHECK(y[i] == std::ldexp(1.f, static_cast<int>(x[i])));
    by_exp += std::exp(x[i] * 0.6931472f) == y[i];
  }
  CHECK(by_exp < 50);
}

TEST_CASE("silu is x sigmoid(x), rounded once each; l2norm is x rsqrt(sum + 1e-6)") {
  const auto x = noise(3, A::size, 2);
  const auto y = on_every_machine<A>([](auto x) { return silu(x); }, x);
  std::vector<f32> right, divided;
  for (f32 e : x) right.push_back(e * portable::sigmoid(e)), divided.push_back(e / (1 + portable::exp(-e)));
  CHECK(difference(y, right) == "");
  CHECK(difference(y, divided) != "");

  const auto n = on_every_machine<A>([](auto x) { return l2_normalised(x, 0.25f); }, x);
  const auto sums = on_every_machine<A>([](auto x) { return sum_cols(x * x); }, x);
  std::vector<f32> by_root, by_division;
  for (int i = 0; i < A::size; i++) {
    by_root.push_back(x[i] * (portable::rsqrt(sums[i / 64] + 1e-6f) * 0.25f));
    by_division.push_back(x[i] / std::sqrt(sums[i / 64] + 1e-6f) * 0.25f);
  }
  CHECK(difference(n, by_root) == "");
  CHECK(difference(n, by_division) != "");
}

TEST_CASE("the text uses the TPU's own operations") {
  const auto text_of = [](auto f) {
    std::vector<f32> x(A::size), y(A::size);
    const TileCall<decltype(f), A> call{.f = f, .in = {view(x, {1, 1, 32, 64})}, .out = view(y, {1, 1, 32, 64})};
    return emitted(Emit::traced(call)).generic();
  };
  CHECK_THAT(text_of([](auto x) { return map([](auto x) { return exp2(x); }, x); }), Catch::Contains("\"math.exp2\""));
  CHECK_THAT(text_of([](auto x) { return map([](auto x) { return exp(x); }, x); }), Catch::Contains("\"math.exp\""));
  CHECK_THAT(text_of([](auto x) { return map([](auto x) { return log1p(x); }, x); }), Catch::Contains("\"math.log1p\""));
  CHECK_THAT(text_of([](auto x) { return map([](auto x) { return rsqrt(x); }, x); }), Catch::Contains("\"math.rsqrt\""));
  CHECK_THAT(text_of([](auto x) { return map([](auto x) { return reciprocal(x); }, x); }), Catch::Contains("\"tpu.reciprocal\""));
  CHECK_THAT(text_of([](auto x) { return map([](auto x) { return sigmoid(x); }, x); }), Catch::Contains("\"tpu.logistic\""));
}

// A call computes with round to nearest and subnormals flushed, whatever the caller's environment is, and leaves that as it was.
#include "tiles.hpp"

#if defined(__SSE2__)
#include <xmmintrin.h>

using namespace gdn;
using namespace gdn::test;

namespace {

constexpr unsigned standard = 0x1f80, flush = 0x8040, down = 0x2000, toward_zero = 0x6000;

// Restores the environment of the test.
struct Environment {
  unsigned saved = _mm_getcsr();
  explicit Environment(unsigned control) { _mm_setcsr(control); }
  ~Environment() { _mm_setcsr(saved); }
};
// Without the flags that arithmetic raises.
unsigned control() { return _mm_getcsr() & ~0x3fu; }

using A = Of<Row<16>, Lane<32>>;

// Subnormals, and numbers whose sums round, for as many heads as threads.
std::vector<f32> numbers(int threads) {
  auto x = noise(1, threads * A::size);
  for (std::size_t i = 0; i < x.size(); i += 3) x[i] *= 0x1p-130f;
  return x;
}

// x x + x, a head per thread; `inside` runs in the body.
template <class Inside> std::vector<f32> squares(const std::vector<f32>& x, int threads, Inside inside) {
  std::vector<f32> y(x.size());
  const auto in = view(x, {1, threads, 16, 32});
  const auto out = view(y, {1, threads, 16, 32});
  Cpu(threads).run(LambdaCall("squares", {1, 8, 8, threads, threads},
                              [=]<class M>(gdn::detail::Binding<M>& b) {
                                using R = Ref<M, f32, Row<16>, Lane<32>>;
                                return std::array<R, 2>{b.template ref<f32, Row<16>, Lane<32>>(b.array("x", Use::in, in), Place::sequence, Use::in, Domain::value_head),
                                                        b.template ref<f32, Row<16>, Lane<32>>(b.array("y", Use::out, out), Place::sequence, Use::out, Domain::value_head)};
                              },
                              [inside](auto&, const auto& r) {
                                inside();
                                const auto x = load(r[0]);
                                store(r[1], x * x + x);
                              }));
  return y;
}

}  // namespace

TEST_CASE("results do not depend on the caller's rounding and flushing") {
  for (int threads : {1, 2}) {
    const auto x = numbers(threads);
    std::vector<f32> right;
    for (unsigned mode : {standard, standard | flush, standard | down, standard | toward_zero | flush}) {
      std::vector<f32> y;
      {
        const Environment environment(mode);
        y = squares(x, threads, [] {});
      }
      if (right.empty()) right = y;
      CHECK(difference(y, right) == "");
    }
    auto nearest = x, kept = x;
    for (std::size_t i = 0; i < x.size(); i++) nearest[i] = sum_of(product_of(x[i], x[i]), x[i]), kept[i] = x[i] * x[i] + x[i];
    CHECK(difference(right, nearest) == "");
    CHECK(difference(right, kept) != "");
  }
}

TEST_CASE("inside a call every thread flushes; outside nothing has changed") {
  for (int threads : {1, 2})
    for (unsigned mode : {standard, standard | flush, standard | down}) {
      std::atomic<int> active = 0;
      unsigned after = 0;
      {
        const Environment environment(mode);
        squares(numbers(threads), threads, [&] { active += cpu::FlushGuard::active(); });
        after = control();
      }
      CHECK(after == mode);
      CHECK(active == threads);
    }
  CHECK_FALSE(cpu::FlushGuard::active());
}

TEST_CASE("an exception leaves a call with the caller's environment") {
  for (int threads : {1, 2}) {
    unsigned after = 0, inside = 0;
    std::string what;
    {
      const Environment environment(standard | down);
      try {
        squares(numbers(threads), threads, [&] {
          inside = control();
          throw Error("from the body");
        });
      } catch (const Error& e) {
        what = e.what();
      }
      after = control();
    }
    CHECK(what == "from the body");
    CHECK(after == (standard | down));
    CHECK(inside == (standard | flush));
  }
}

#endif

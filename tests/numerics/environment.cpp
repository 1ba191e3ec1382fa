// The floating-point environment, the arena, and threads.
#include <catch2/catch.hpp>
#include <gdn/cpu/arena.hpp>
#include <gdn/cpu/environment.hpp>
#include <gdn/cpu/threads.hpp>
#include <limits>

#include "data.hpp"

using namespace gdn;
using namespace gdn::cpu;

namespace {

float times(float a, float b) {
  volatile float x = a, y = b;
  return x * y;
}

}  // namespace

TEST_CASE("check_environment: this build is accepted") { CHECK_NOTHROW(check_environment()); }

TEST_CASE("FlushGuard: subnormals are zeros inside, and are back outside") {
  constexpr float subnormal = 0x1p-130f;
  CHECK(times(0x1p-100f, 0x1p-30f) == subnormal);
  CHECK_FALSE(FlushGuard::active());
  {
    const FlushGuard guard;
    CHECK(FlushGuard::active());
    const float result = times(-0x1p-100f, 0x1p-30f), argument = times(subnormal, 0x1p100f);
    CHECK(std::bit_cast<std::uint32_t>(result) == 0x80000000u);
    CHECK(std::bit_cast<std::uint32_t>(argument) == 0u);
    { const FlushGuard nested; }
    CHECK(FlushGuard::active());
  }
  CHECK_FALSE(FlushGuard::active());
  CHECK(times(0x1p-100f, 0x1p-30f) == subnormal);
  try {
    const FlushGuard guard;
    throw 1;
  } catch (int) {
  }
  CHECK_FALSE(FlushGuard::active());
  CHECK(times(0x1p-100f, 0x1p-30f) == subnormal);
}

TEST_CASE("arena: last in, first out, counted, aligned") {
  Arena a;
  Slot* first = a.acquire(100);
  Slot* second = a.acquire(128);
  CHECK(reinterpret_cast<std::uintptr_t>(first->data()) % 64 == 0);
  CHECK(first->bytes() == 512);
  CHECK(a.live_bytes() == 1024);
  a.release(first);
  a.release(second);
  CHECK(a.live_bytes() == 0);
  CHECK(a.high_water_bytes() == 1024);
  CHECK(a.acquire(65) == second);
  CHECK(a.acquire(128) == first);
  Slot* small = a.acquire(1);
  CHECK(small->bytes() == 64);
  for (Slot* s : {first, second, small}) a.release(s);
  a.reset_high_water();
  CHECK(a.high_water_bytes() == 0);
  a.poison(true);
  Slot* poisoned = a.acquire(100);
  for (int i = 0; i < 128; ++i) CHECK(poisoned->data()[i] != poisoned->data()[i]);
  a.release(poisoned);
  a.trim();
  CHECK(a.live_bytes() == 0);
}

TEST_CASE("arena: handles share a slot, the last one gives it back") {
  const std::size_t before = arena().live_bytes();
  {
    Storage a(32);
    CHECK(a.unique());
    a.data()[3] = 5;
    Storage b = a, c;
    CHECK_FALSE(a.unique());
    c = b;
    b = Storage();
    CHECK_FALSE(b);
    CHECK(b.data() == nullptr);
    a = std::move(c);
    CHECK(a.unique());
    CHECK(a.data()[3] == 5);
    CHECK(arena().live_bytes() == before + 128);
  }
  CHECK(arena().live_bytes() == before);
}

TEST_CASE("arena: a handle may outlive its thread's arena") {
  // Made before the arena, so destroyed after it.
  std::thread([] {
    static thread_local Storage* kept = nullptr;
    struct Owner {
      ~Owner() { delete kept; }
    };
    static thread_local Owner owner;
    (void)&owner;
    kept = new Storage(1000);
  }).join();
}

TEST_CASE("parallel_for: every item once, any number of threads, in the right environment") {
  for (int threads : {1, 2, 3, 8, 100})
    for (long items : {0L, 1L, 2L, 7L, 100L}) {
      std::vector<int> seen(static_cast<std::size_t>(items));
      std::vector<int> flushed(seen);
      parallel_for(items, threads, [&](long i) {
        ++seen[static_cast<std::size_t>(i)];
        flushed[static_cast<std::size_t>(i)] = FlushGuard::active() && times(0x1p-100f, 0x1p-30f) == 0;
      });
      CHECK(seen == std::vector<int>(seen.size(), 1));
      CHECK(flushed == std::vector<int>(seen.size(), 1));
      CHECK_FALSE(FlushGuard::active());
    }
}

TEST_CASE("parallel_for: the first exception arrives, the pool lives on") {
  for (int threads : {1, 2, 5}) {
    std::atomic<int> begun = 0;
    CHECK_THROWS_WITH(parallel_for(1000, threads,
                                   [&](long i) {
                                     ++begun;
                                     require(i != 3, "item ", i, " is bad");
                                   }),
                      "item 3 is bad");
    CHECK(begun >= 1);
    CHECK_FALSE(FlushGuard::active());
    std::atomic<long> sum = 0;
    parallel_for(100, threads, [&](long i) { sum += i; });
    CHECK(sum == 4950);
  }
}

TEST_CASE("parallel_for: nested and concurrent calls finish") {
  std::atomic<long> sum = 0;
  parallel_for(4, 2, [&](long) {
    parallel_for(10, 4, [&](long i) { sum += i; });
    std::thread([&] { parallel_for(10, 2, [&](long i) { sum += i; }); }).join();
  });
  CHECK(sum == 4 * 2 * 45);
}

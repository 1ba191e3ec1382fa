// The CPU's own forms of a chunk's steps against the lines that define them, bit by bit.
#include <catch2/catch.hpp>

#include <gdn/kernels.hpp>

#include "../support/bits.hpp"
#include "../support/random.hpp"

using namespace gdn;
using gdn::test::Random;

namespace {

using M = cpu::Machine;
template <class R, class C> using T = Tile<M, f32, R, C>;

template <class R, class C> T<R, C> random_tile(Random& random, double scale = 1, double shift = 0) {
  const T<R, C> x{cpu::Handle::fresh(R::size, C::size)};
  for (int i = 0; i < R::size; i++)
    for (int j = 0; j < C::size; j++) x.h.data()[i * x.h.pitch() + j] = static_cast<f32>(scale * random.normal() + shift);
  return x;
}
template <class A> std::size_t differing(const A& a, const A& b) {
  std::size_t n = 0;
  for (int i = 0; i < A::rows::size; i++)
    for (int j = 0; j < A::cols::size; j++) n += !test::same_bits(a.h.data()[i * a.h.pitch() + j], b.h.data()[i * b.h.pitch() + j]);
  return n;
}

template <Precision P, class C> void check_decays(double scale) {
  Random random(5);
  Column<M, f32, C> g = map([](auto x) { return min(x, 0.f - x); }, random_tile<C, One>(random, scale));
  const auto beta = random_tile<C, One>(random, 0.3, 1);
  const T<C, C> kk = tril<-1>(random_tile<C, C>(random)), qk = tril(random_tile<C, C>(random));
  const auto c = log_decay<P>(OneDocument{}, g);
  const auto Gb = pairwise_decay(c) * as_row(beta);
  const auto [N, E] = decayed_lower(c, beta, kk, qk);
  CHECK(differing<T<C, C>>(N, Gb * kk) == 0);
  CHECK(differing<T<C, C>>(E, Gb * qk) == 0);
  CHECK(differing<T<C, C>>(E, Gb * kk) > 0);
  const auto [alone] = decayed_lower(c, beta, kk);
  CHECK(differing<T<C, C>>(alone, N) == 0);
}

}  // namespace

TEST_CASE("decayed_lower is its definition") {
  const cpu::FlushGuard guard;
  for (double scale : {0.01, 1., 40.}) {
    check_decays<Precision::bf16, Chunk<64>>(scale);
    check_decays<Precision::f32, Chunk<64>>(scale);
    check_decays<Precision::f32, Chunk<16>>(scale);
    check_decays<Precision::bf16, Chunk<48>>(scale);
  }
}

// One pass and many give the same bits, also when the results are packed on the way because they were right operands before.
TEMPLATE_TEST_CASE_SIG("unfinished maps are maps", "", ((Precision P), P), Precision::bf16, Precision::bf16x3, Precision::f32) {
  using C = Chunk<64>;
  using K = Key<32>;
  using V = Val<80>;
  const cpu::FlushGuard guard;
  Random random(6);
  for (int time = 0; time < 3; time++) {
    const auto k = random_tile<C, K>(random);
    const auto S = random_tile<K, V>(random);
    const auto E = random_tile<C, C>(random);
    const auto v = random_tile<C, V>(random);
    const auto gf = random_tile<C, One>(random);
    const auto times = [](auto a, auto b) { return a * b; };
    const T<C, V> read = map(times, gf, product<P>(k, S)), Ev = dot<P>(E, v);

    const T<C, V> left = v - unfinished(times, gf, product<P>(k, S));
    CHECK(differing<T<C, V>>(left, v - read) == 0);
    CHECK(differing<T<C, V>>(dot<P>(E, left), dot<P>(E, T<C, V>(v - read))) == 0);

    const T<C, V> two = unfinished(times, gf, product<P>(k, S)) + product<P>(E, v);
    CHECK(differing<T<C, V>>(two, read + Ev) == 0);
    CHECK(differing<T<C, V>>(two, Ev - read) > 0);

    const auto odd_rows = [](auto i, auto j, auto x) { return where((i & 1) == 1, x, where(j >= 17, x + 1.f, 0.f)); };
    const T<C, V> indexed = map_ij(odd_rows, v - unfinished(times, gf, product<P>(k, S)));
    CHECK(differing<T<C, V>>(indexed, T<C, V>(map_ij(odd_rows, v - read))) == 0);

    const T<C, V> stretched = v * unfinished([](auto x) { return x + 1.f; }, gf);
    CHECK(differing<T<C, V>>(stretched, v * T<C, One>(map([](auto x) { return x + 1.f; }, gf))) == 0);
  }
}

// The triangular inverse by itself: right answers, orders against each other, bits on the CPU and in the simulator.
#include <gdn/calls/inverse.hpp>

#include "../support/cases.hpp"
#include "traced.hpp"

using namespace gdn;
using namespace gdn::test;

namespace {

using enum InverseOrder;

// `count` matrices of size C side by side in heads and one after the other in chunks.
template <int C, InverseOrder O, Precision P> struct Inverses {
  static constexpr int size = C;
  int chunks = 1, heads = 1;
  std::vector<f32> N{}, inverse{};

  std::size_t at(int n, int i, int h, int j) const { return static_cast<std::size_t>(((n * C + i) * heads + h) * C + j); }
  std::size_t elements() const { return static_cast<std::size_t>(chunks * C * heads * C); }
  template <class Machine> void call(Machine& machine) {
    inverse.assign(elements(), unwritten);
    invert_unit_lower<C, O, P>(machine, {view(std::as_const(N), {1, chunks, C, heads, C}), view(inverse, {1, chunks, C, heads, C})});
  }
  Outputs outputs() const { return {{"inverse", inverse}}; }
};

// The inverse of one matrix on the CPU.
template <int C, InverseOrder O = merged_blocks, Precision P = Precision::f32> std::vector<f32> inverse_of(const Array<f32>& N) {
  Inverses<C, O, P> call{.N = N.data};
  return run(Cpu(1), call)[0].values;
}
// N of a chunk of unit keys, with the gates of a fresh layer: A in (0, 16), dt_bias 1.
Array<f32> chunk_matrix(std::uint64_t seed, int n) {
  Random random(seed);
  auto k = normal_array<double>(random, {n, 128});
  for (int i = 0; i < n; i++) l2norm(k.row(i), 128);
  const double A = random.uniform(0, 16);
  std::vector<double> c(static_cast<std::size_t>(n)), beta(c);
  for (int i = 0; i < n; i++) c[i] = (i ? c[i - 1] : 0) - A * softplus(random.normal() + 1), beta[i] = sigmoid(random.normal());
  Array<f32> N({n, n});
  for (int i = 0; i < n; i++)
    for (int j = 0; j < i; j++) {
      double kk = 0;
      for (int d = 0; d < 128; d++) kk += k(i, d) * k(j, d);
      N(i, j) = static_cast<f32>(std::exp(c[i] - c[j]) * kk * beta[j]);
    }
  return N;
}
// The same without gates: every token couples to every other.
Array<f32> slow_matrix(std::uint64_t seed, int n) {
  Random random(seed);
  auto k = normal_array<double>(random, {n, 16});
  for (int i = 0; i < n; i++) l2norm(k.row(i), 16);
  Array<f32> N({n, n});
  for (int i = 0; i < n; i++)
    for (int j = 0; j < i; j++) {
      double kk = 0;
      for (int d = 0; d < 16; d++) kk += k(i, d) * k(j, d);
      N(i, j) = static_cast<f32>(0.5 * kk);
    }
  return N;
}

template <InverseOrder O> void check_cases() {
  for (const auto& c : inverse_cases()) {
    INFO(c.name);
    CHECK(miss(c, inverse_of<64, O>(c.L)) == "");
    if (!c.p1) continue;
    CHECK(miss(c, inverse_of<64, O, Precision::bf16>(c.L)) == "");
    CHECK(miss(c, inverse_of<64, O, Precision::bf16x3>(c.L)) == "");
  }
}
template <int C, InverseOrder O> void check_size() {
  for (std::uint64_t seed : {1, 2, 3})
    for (const auto& N : {chunk_matrix(seed, C), slow_matrix(seed, C)})
      CHECK(max_absolute_error(inverse_of<C, O>(N), unit_lower_inverse(cast<double>(N))) <= 1e-6);
}

// Random matrices in memory that is NaN on and above the diagonals.
template <int C, InverseOrder O, Precision P> Inverses<C, O, P> many(int chunks, int heads, double scale = 1) {
  Inverses<C, O, P> call{.chunks = chunks, .heads = heads};
  call.N.assign(call.elements(), std::numeric_limits<f32>::quiet_NaN());
  for (int n = 0; n < chunks; n++)
    for (int h = 0; h < heads; h++) {
      const auto N = slow_matrix(static_cast<std::uint64_t>(n * heads + h), C);
      for (int i = 0; i < C; i++)
        for (int j = 0; j < i; j++) call.N[call.at(n, i, h, j)] = static_cast<f32>(scale * N(i, j));
    }
  return call;
}
template <int C, InverseOrder O, Precision P> void check_machines(const std::vector<Schedule>& schedules, int heads) {
  for (double scale : {1., 1e-20}) {
    auto call = many<C, O, P>(3, heads, scale);
    const Outputs cpu = run(Cpu(2), call);
    for (const Schedule& s : schedules) {
      Traced machine(s);
      INFO(C << ", " << described(s) << " x " << scale);
      CHECK(differences(cpu, run(machine, call)) == "");
      CHECK(machine.simulate.module.schedule == s.name());
    }
  }
}

}  // namespace

TEST_CASE("inverse: cases with a right answer, by merged blocks") { check_cases<merged_blocks>(); }
TEST_CASE("inverse: cases with a right answer, right-looking") { check_cases<right_looking>(); }
TEST_CASE("inverse: cases with a right answer, left-looking") { check_cases<left_looking>(); }

TEST_CASE("inverse: 16, 32 and 64 rows against float64") {
  check_size<16, merged_blocks>(), check_size<32, merged_blocks>(), check_size<64, merged_blocks>();
  check_size<16, left_looking>(), check_size<64, left_looking>(), check_size<64, right_looking>();
}

TEST_CASE("inverse: three bf16 passes are between one and f32") {
  double p1 = 0, p3 = 0;
  for (std::uint64_t seed : {1, 2, 3, 4}) {
    const auto N = slow_matrix(seed, 64);
    const auto right = unit_lower_inverse(cast<double>(N));
    p1 = std::max(p1, max_absolute_error(inverse_of<64, merged_blocks, Precision::bf16>(N), right));
    p3 = std::max(p3, max_absolute_error(inverse_of<64, merged_blocks, Precision::bf16x3>(N), right));
  }
  INFO("P1 " << p1 << ", P3 " << p3);
  CHECK(p1 > 1e-4);
  CHECK(p1 < 2e-2);
  CHECK(p3 < 1e-4);
}

// J8: left- against right-looking, with the gates of a model.
TEST_CASE("inverse: left- and right-looking differ by less than 4e-8") {
  double most = 0;
  for (std::uint64_t seed = 1; seed <= 40; seed++) {
    const auto N = chunk_matrix(seed, 64);
    most = std::max(most, max_absolute_error(inverse_of<64, left_looking>(N), inverse_of<64, right_looking>(N)));
    most = std::max(most, max_absolute_error(inverse_of<64, left_looking, Precision::bf16>(N), inverse_of<64, right_looking, Precision::bf16>(N)));
  }
  INFO("difference " << most);
  CHECK(most <= 4e-8);
  double slow = 0;  // and they are two orders: on slow gates they differ
  for (std::uint64_t seed : {1, 2, 3, 4}) slow = std::max(slow, max_absolute_error(inverse_of<64, left_looking>(slow_matrix(seed, 64)), inverse_of<64, right_looking>(slow_matrix(seed, 64))));
  CHECK(slow > 0);
}

TEST_CASE("inverse: a dropped column is an error of tenths") {
  for (int column : {2, 21, 40}) {
    const auto N = slow_matrix(5, 64);
    auto dropped = N;
    for (int i = column + 1; i < column / 16 * 16 + 16; i++) dropped(i, column) = 0;
    const double error = max_absolute_error(inverse_of<64>(dropped), unit_lower_inverse(cast<double>(N)));
    INFO("column " << column << ", error " << error);
    CHECK(error > 0.05);
    CHECK(error < 1);
  }
}

TEST_CASE("inverse: CPU and simulator") {
  const std::vector<Schedule> all = placements(), one{Schedule::lifted()};
  check_machines<64, merged_blocks, Precision::f32>(all, 4);
  check_machines<64, merged_blocks, Precision::bf16>(all, 4);
  check_machines<64, merged_blocks, Precision::bf16x3>(all, 4);
  check_machines<32, merged_blocks, Precision::f32>(one, 3);
  check_machines<16, merged_blocks, Precision::f32>(one, 1);
  check_machines<64, right_looking, Precision::f32>(one, 2);
  check_machines<64, left_looking, Precision::bf16>(one, 2);
}

TEST_CASE("inverse: matrices one after the other, in place, on any number of threads") {
  auto call = many<64, merged_blocks, Precision::f32>(5, 1);
  const Outputs right = run(Cpu(1), call);
  for (int threads : {1, 3}) {
    std::vector<f32> x = call.N;
    Cpu cpu(threads);
    invert_unit_lower(cpu, inverse_arrays(view(std::as_const(x), {5, 64, 64}), view(x, {5, 64, 64})));
    CHECK(difference(std::span<const f32>(right[0].values), std::span<const f32>(x)) == "");
  }
  std::vector<f32> shifted(call.N.size() + 1);
  Cpu cpu(1);
  CHECK_THROWS_WITH(invert_unit_lower(cpu, inverse_arrays(view(std::as_const(shifted), {5, 64, 64}), view(shifted.data() + 1, {5, 64, 64}))),
                    "invert_unit_lower: output inverse overlaps N; expected separate memory");
  CHECK_THROWS_WITH(invert_unit_lower<32>(cpu, inverse_arrays(view(std::as_const(shifted), {5, 64, 64}), view(shifted, {5, 64, 64}))),
                    "invert_unit_lower: N has shape [5, 1, 64, 1, 64]; expected [5, 1, 32, 1, 32]");
}

// The CPU's own forms of the two steps, against the lines that define them.
TEST_CASE("inverse: the CPU's steps are their definitions") {
  using Square = Tile<cpu::Machine, f32, Chunk<64>, Chunk<64>>;
  const cpu::FlushGuard guard;
  const auto same = [](const auto& a, const auto& b) {
    std::size_t wrong = 0;
    for (int i = 0; i < a.h.rows(); i++)
      for (int j = 0; j < a.h.columns(); j++) wrong += !same_bits(a.h.data()[i * a.h.pitch() + j], b.h.data()[i * b.h.pitch() + j]);
    return wrong == 0;
  };
  for (double scale : {1., 1e-18, 1e-20}) {
    auto N = slow_matrix(7, 64);
    for (f32& x : N.data) x = static_cast<f32>(scale * x);
    const Square n{cpu::Handle::view(64, 64, N.data.data(), 64)};
    const auto blocks = invert_diagonal_blocks(n);
    CHECK(same(blocks, invert_diagonal_blocks_by_rows(n)));
    const Square M = on_diagonal<Chunk<64>>(blocks);
    CHECK(same(inverse_from_blocks<Precision::f32>(n, blocks), merge_all_blocks<Precision::f32>(n, M)));
    CHECK(same(inverse_from_blocks<Precision::bf16>(n, blocks), merge_all_blocks<Precision::bf16>(n, M)));
    CHECK(same(inverse_from_blocks<Precision::bf16x3>(n, blocks), merge_all_blocks<Precision::bf16x3>(n, M)));
  }
}

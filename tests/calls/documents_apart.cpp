// Documents of a row with states of their own equal calls on each of them alone, bit for bit; empty ones pass their state on.
#include <catch2/catch.hpp>
#include <gdn/kernels.hpp>

#include "../support/bits.hpp"
#include "../support/random.hpp"

using namespace gdn;
using Small = Geometry<16, 32, 48>;

namespace {

constexpr int Hk = 1, H = 2, K = 32, V = 48, C = 16;

struct Sequence {
  int tokens;
  std::vector<f32> q, k, v, g, beta;
  explicit Sequence(int n) : tokens(n) {
    test::Random random(5);
    auto normals = [&](int count, f32 scale) {
      std::vector<f32> x;
      for (int i = 0; i < count; i++) x.push_back(static_cast<f32>(random.normal()) * scale);
      return x;
    };
    q = normals(n * Hk * K, 0.2f), k = normals(n * Hk * K, 0.17f), v = normals(n * H * V, 1.f), g = normals(n * H, 0.3f), beta = normals(n * H, 0.1f);
    for (f32& x : g) x = -std::abs(x);
    for (f32& x : beta) x = 0.5f + x;
  }
  CoreArrays<f32> arrays(int from, int n) {
    CoreArrays<f32> a;
    a.q = view(q.data() + from * Hk * K, {1, n, Hk, K});
    a.k = view(k.data() + from * Hk * K, {1, n, Hk, K});
    a.v = view(v.data() + from * H * V, {1, n, H, V});
    a.g = view(g.data() + from * H, {1, n, H});
    a.beta = view(beta.data() + from * H, {1, n, H});
    return a;
  }
};
std::string message_of(std::vector<i32> cu, int tokens) {
  Sequence row(tokens);
  std::vector<f32> out(static_cast<std::size_t>(tokens * H * V));
  auto a = row.arrays(0, tokens);
  a.out = view(out, {1, tokens, H, V});
  Cpu cpu(1);
  try {
    forward_documents<Small>(cpu, a, cu);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("each document is a call of its own") {
  const std::vector<i32> cu{0, 0, 7, 7, 39, 64};
  const int T = 64, n = 5, N = 1 + 2 + 2;
  Sequence row(T);
  test::Random random(6);
  std::vector<f32> initial, out(T * H * V), final(n * H * K * V), t_inv(N * C * H * C);
  for (int i = 0; i < n * H * K * V; i++) initial.push_back(static_cast<f32>(random.normal()));
  auto a = row.arrays(0, T);
  a.initial = view(initial, {n, H, K, V});
  a.out = view(out, {1, T, H, V});
  a.final = view(final, {n, H, K, V});
  a.residuals.t_inv = view(t_inv, {1, N, C, H, C});
  Cpu cpu(2);
  forward_documents<Small>(cpu, a, cu);
  int chunk = 0;
  for (int i = 0; i < n; i++) {
    const int from = cu[i], length = cu[i + 1] - from, chunks = (length + C - 1) / C;
    std::vector<f32> alone(static_cast<std::size_t>(length * H * V)), state(H * K * V), inverse(static_cast<std::size_t>(chunks * C * H * C));
    auto one = row.arrays(from, length);
    one.initial = view(initial.data() + i * H * K * V, {1, H, K, V});
    one.out = view(alone, {1, length, H, V});
    one.final = view(state, {1, H, K, V});
    one.residuals.t_inv = view(inverse, {1, chunks, C, H, C});
    forward<Small>(cpu, one);
    INFO("document " << i);
    CHECK(test::difference(alone, std::vector<f32>(out.begin() + from * H * V, out.begin() + cu[i + 1] * H * V)) == "");
    CHECK(test::difference(state, std::vector<f32>(final.begin() + i * H * K * V, final.begin() + (i + 1) * H * K * V)) == "");
    CHECK(test::difference(inverse, std::vector<f32>(t_inv.begin() + chunk * C * H * C, t_inv.begin() + (chunk + chunks) * C * H * C)) == "");
    if (length == 0) CHECK(test::difference(state, std::vector<f32>(initial.begin() + i * H * K * V, initial.begin() + (i + 1) * H * K * V)) == "");
    chunk += chunks;
  }
  CHECK(test::difference(final, initial) != "");
}

TEST_CASE("cumulative lengths are checked") {
  CHECK(message_of({0, 8, 16}, 16) == "");
  CHECK(message_of({1, 16}, 16) == "forward_documents: cumulative lengths start at 1; expected 0");
  CHECK(message_of({0, 9, 5, 16}, 16) == "forward_documents: cu[2] is 5; expected at least cu[1] = 9");
  CHECK(message_of({0, 9}, 16) == "forward_documents: cumulative lengths end at 9; expected the 16 tokens");
}

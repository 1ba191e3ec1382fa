// Prints "name hash" for what the CPU machine computes. tests/isa/run builds this for every instruction set and compares the lines.
// A hash takes results one by one, so that it does not depend on the vector width; every NaN counts as the same.
#include <array>
#include <bit>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <vector>

#include <gdn/kernels.hpp>

#include "support/random.hpp"

namespace {

namespace cpu = gdn::cpu;
using cpu::F;
using cpu::I;
using cpu::W;

// FNV-1a on words.
class Hash {
 public:
  void add(float x) { add(x == x ? std::bit_cast<std::uint32_t>(x) : 0x7fc00000u); }
  void add(std::uint32_t word) { hash_ = (hash_ ^ word) * 0x100000001b3u; }
  void print(const char* name) const { std::printf("%-20s %016" PRIx64 "\n", name, hash_); }

 private:
  std::uint64_t hash_ = 0xcbf29ce484222325u;
};

// Floats of all bit patterns, a multiple of every vector width.
std::vector<float> patterns(std::uint64_t seed, std::size_t count = 1 << 17) {
  gdn::test::Random random(seed);
  std::vector<float> x(count);
  for (auto& value : x) value = std::bit_cast<float>(static_cast<std::uint32_t>(random.next() >> 32));
  return x;
}

// Values of mixed signs and magnitudes whose products and sums cancel, round and flush.
std::vector<float> mixed(std::uint64_t seed, std::size_t count = 1 << 17) {
  gdn::test::Random random(seed);
  std::vector<float> x(count);
  for (auto& value : x) value = static_cast<float>(random.normal()) * std::bit_cast<float>(static_cast<std::uint32_t>(random.below(200) + 1) << 23);
  return x;
}

template <class Function>
void unary(const char* name, Function f) {
  Hash hash;
  std::array<float, 16> out;
  for (const auto& x : {patterns(1), mixed(2)})
    for (std::size_t i = 0; i < x.size(); i += W) {
      cpu::store(out.data(), f(cpu::load(&x[i])));
      for (int lane = 0; lane < W; ++lane) hash.add(out[static_cast<std::size_t>(lane)]);
    }
  hash.print(name);
}

template <class Function>
void ternary(const char* name, Function f) {
  Hash hash;
  std::array<float, 16> out;
  for (bool all_patterns : {true, false}) {
    const auto make = [&](std::uint64_t seed) { return all_patterns ? patterns(seed) : mixed(seed); };
    const auto x = make(3), y = make(4), z = make(5);
    for (std::size_t i = 0; i < x.size(); i += W) {
      cpu::store(out.data(), f(cpu::load(&x[i]), cpu::load(&y[i]), cpu::load(&z[i])));
      for (int lane = 0; lane < W; ++lane) hash.add(out[static_cast<std::size_t>(lane)]);
    }
  }
  hash.print(name);
}

void vectors() {
  namespace portable = gdn::portable;
  unary("exp2", [](F x) { return portable::exp2(x); });
  unary("exp", [](F x) { return portable::exp(x); });
  unary("log1p", [](F x) { return portable::log1p(x); });
  unary("reciprocal", [](F x) { return portable::reciprocal(x); });
  unary("rsqrt", [](F x) { return portable::rsqrt(x); });
  unary("sigmoid", [](F x) { return portable::sigmoid(x); });
  unary("softplus", [](F x) { return portable::softplus(x); });
  unary("round_to_bf16", [](F x) { return cpu::from_bits(cpu::round_to_bf16(x)); });
  unary("negate", [](F x) { return -x; });
  unary("bf16", [](F x) {
    std::array<gdn::bf16, 16> stored{};
    cpu::store(stored.data(), x);
    return cpu::load(stored.data());
  });
  ternary("multiply_add", [](F x, F y, F z) { return x * y + z; });
  ternary("fma", [](F x, F y, F z) { return cpu::fma(x, y, z); });
  ternary("min", [](F x, F y, F) { return cpu::min(x, y); });
  ternary("max", [](F x, F y, F) { return cpu::max(x, y); });
  ternary("compare", [](F x, F y, F z) { return cpu::select(x < y, z, cpu::select(x == z, y, x)); });
}

// Pairs of bf16, as a dot of class P1 takes them.
void pairs() {
  Hash hash;
  std::array<float, 16> out;
  gdn::test::Random random(6);
  std::vector<std::uint32_t> a(1 << 17), b(1 << 17);
  const auto word = [&] {
    const auto x = gdn::to_bf16(static_cast<float>(random.normal())), y = gdn::to_bf16(static_cast<float>(random.normal() * 0x1p-60));
    return static_cast<std::uint32_t>(x.bits) << 16 | y.bits;
  };
  for (auto& x : a) x = word();
  for (auto& x : b) x = word();
  const auto c = mixed(7);
  for (std::size_t i = 0; i < a.size(); i += W) {
    cpu::store(out.data(), cpu::fma(cpu::Pairs(cpu::load(&a[i])), cpu::Pairs(cpu::load(&b[i])), cpu::load(&c[i])));
    for (int lane = 0; lane < W; ++lane) hash.add(out[static_cast<std::size_t>(lane)]);
  }
  hash.print("pairs");
}

// The layer: three documents and a ragged end, all outputs. `scale` 3e-12 lets part of them flush to zero.
template <class G, class Act> void layer(const char* name, float scale) {
  using namespace gdn;
  constexpr int T = 2 * G::chunk::size + 5, Hk = 1, H = 2, K = G::key::size, V = G::value::size, D = 2 * Hk * K + H * V, N = 3;
  gdn::test::Random random(8);
  auto normals = [&]<class T_>(T_, int n, float s) {
    std::vector<T_> x(static_cast<std::size_t>(n));
    for (auto& e : x) {
      const float y = static_cast<float>(random.normal()) * s;
      if constexpr (std::is_same_v<T_, bf16>) e = to_bf16(y);
      else e = y;
    }
    return x;
  };
  const auto qkv = normals(Act{}, T * D, scale), a = normals(Act{}, T * H, 1.f), b = normals(Act{}, T * H, 1.f), edge = normals(Act{}, 3 * D, scale);
  const auto w = normals(0.f, 4 * D, 0.5f), rate = normals(0.f, H, 1.f), bias = normals(0.f, H, 1.f), initial = normals(0.f, H * K * V, scale);
  std::vector<i32> ids(T);
  for (int t = 0; t < T; t++) ids[t] = t < 9 ? 1 : t < 12 ? 0 : t < T - 20 ? 2 : 3;
  std::vector<Act> out(T * H * V), conv(3 * D), r(T * H * V);
  std::vector<f32> final(H * K * V), t_inv(N * G::chunk::size * H * G::chunk::size), states(N * H * K * V);
  LayerArrays<Act> x;
  x.qkv = view(qkv, {1, T, D}), x.a = view(a, {1, T, H}), x.b = view(b, {1, T, H}), x.ids = view(ids, {1, T});
  x.conv_weights = view(w, {4, D}), x.A_log = view(rate, {H}), x.dt_bias = view(bias, {H});
  x.conv_initial = view(edge, {1, 3, D}), x.initial = view(initial, {1, H, K, V});
  x.out = view(out, {1, T, H, V}), x.conv_final = view(conv, {1, 3, D}), x.final = view(final, {1, H, K, V}), x.residual = view(r, {1, T, H, V});
  x.residuals.t_inv = view(t_inv, {1, N, G::chunk::size, H, G::chunk::size}), x.residuals.chunk_states = view(states, {1, N, H, K, V});
  Cpu machine(1);
  layer_forward<G>(machine, x, {.key_heads = Hk});
  Hash hash;
  for (const auto* y : {&out, &conv, &r})
    for (auto e : *y) hash.add(to_f32(e));
  for (const auto* y : {&final, &t_inv, &states})
    for (float e : *y) hash.add(e);
  hash.print(name);
}

}  // namespace

int main() {
  cpu::check_environment();
  const cpu::FlushGuard flush;
  vectors();
  pairs();
  for (float scale : {1.f, 3e-12f}) {
    layer<gdn::Geometry<16, 32, 48>, gdn::f32>("layer_f32", scale);
    layer<gdn::Geometry<16, 32, 48>, gdn::bf16>("layer_bf16", scale);
    layer<gdn::Head128, gdn::bf16>("layer_bf16_128", scale);
  }
}

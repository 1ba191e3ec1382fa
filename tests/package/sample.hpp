// A small use of the library, the same for all consumers: a forward of a few tokens, as one number.
#pragma once
#include <bit>
#include <cstdint>
#include <vector>

#include <gdn/kernels.hpp>

struct Sample {
  const char* isa;
  std::uint32_t sum;
};

// Not inline: each translation unit shall have its own, compiled with its own flags.
[[maybe_unused]] static Sample sample() {
  constexpr int T = 20, H = 2, K = 32, V = 48;
  std::vector<float> q(T * H * K), k(T * H * K), v(T * H * V), g(T * H), beta(T * H), out(T * H * V);
  auto fill = [](std::vector<float>& x, float scale, float shift) {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = scale * static_cast<float>((i * 37) % 101) + shift;
  };
  fill(q, 0.01f, -0.5f), fill(k, 0.003f, -0.15f), fill(v, 0.1f, -5.f), fill(g, -0.01f, 0.f), fill(beta, 0.009f, 0.f);
  gdn::CoreArrays<float> x;
  x.q = gdn::view(q, {1, T, H, K}), x.k = gdn::view(k, {1, T, H, K}), x.v = gdn::view(v, {1, T, H, V});
  x.g = gdn::view(g, {1, T, H}), x.beta = gdn::view(beta, {1, T, H}), x.out = gdn::view(out, {1, T, H, V});
  gdn::Cpu machine(1);
  gdn::forward<gdn::Geometry<16, K, V>>(machine, x);
  std::uint32_t sum = 0;
  for (float y : out) sum = 31 * sum + std::bit_cast<std::uint32_t>(y);
  return {gdn::cpu::isa_name, sum};
}

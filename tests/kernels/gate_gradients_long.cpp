// Gradients of A_log and dt_bias over 8192 tokens, where sums of differences would point the wrong way: cosine over the heads, in bf16.
#include <catch2/catch.hpp>
#include <cstdio>

#include "backward_oracle.hpp"

using namespace gdn;
using namespace gdn::test;

namespace {

double cosine(const std::vector<f32>& a, const Array<double>& b) {
  double ab = 0, aa = 0, bb = 0;
  for (std::size_t i = 0; i < a.size(); i++) ab += a[i] * b[i], aa += static_cast<double>(a[i]) * a[i], bb += b[i] * b[i];
  return ab / std::sqrt(aa * bb);
}

}  // namespace

// model: rates as layers are initialised with; strong: every head forgets in a token or two; mixed: memories of 3 to 300 tokens.
TEST_CASE("A_log and dt_bias over 8192 tokens") {
  for (const std::string gates : {"model", "strong", "mixed"}) {
    CAPTURE(gates);
    constexpr int T = 8192, H = 6;
    auto in = random_layer<f32>(17, {T, 3, H, 128, 128}, {}, false);
    Random random(8);
    for (int h = 0; h < H; h++) {
      const double rate = gates == "model" ? random.uniform(1e-3, 16) : gates == "strong" ? random.uniform(4, 16) : std::exp(random.uniform(std::log(3e-3), std::log(0.3)));
      in.A_log(h) = static_cast<f32>(std::log(rate));
      in.dt_bias(h) = gates == "mixed" ? 0.f : 1.f;
    }
    for (auto* x : {&in.qkv, &in.a, &in.b})
      for (f32& e : x->data) e = to_f32(to_bf16(e));
    auto d_out = normal_array<f32>(random, {T, H, 128});
    for (f32& e : d_out.data) e = to_f32(to_bf16(e));
    const auto right = fused_layer_backward(widen(in), cast<double>(d_out));
    const auto low = layer_gradient_call<bf16>(in, d_out);
    const auto high = layer_gradient_call<f32>(in, d_out);
    std::printf("%-7s 1 - cosine: bf16 A_log %.1e dt_bias %.1e, f32 %.1e %.1e\n", gates.c_str(), 1 - cosine(low.A_log, right.A_log),
                1 - cosine(low.dt_bias, right.dt_bias), 1 - cosine(high.A_log, right.A_log), 1 - cosine(high.dt_bias, right.dt_bias));
    CHECK(cosine(low.A_log, right.A_log) >= 0.999);
    CHECK(cosine(low.dt_bias, right.dt_bias) >= 0.999);
    CHECK(cosine(high.A_log, right.A_log) >= 1 - 1e-9);
    CHECK(cosine(high.dt_bias, right.dt_bias) >= 1 - 1e-9);
  }
}

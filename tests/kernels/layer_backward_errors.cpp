// Gradients of the layer against reverse mode of the layer in float64, in every layout of documents.
#include <catch2/catch.hpp>
#include <cstdio>

#include "backward_oracle.hpp"

using namespace gdn;
using namespace gdn::test;

namespace {

struct LayerError {
  double qkv = 0, b = 0, a = 0, conv_weights = 0, conv_bias = 0, A_log = 0, dt_bias = 0, conv_state = 0, h0 = 0;
  double worst() const { return std::max({qkv, b, a, conv_weights, conv_bias, A_log, dt_bias, conv_state, h0}); }
};
// On the very arguments of the call: rounding them is no error of ours.
template <class Act> LayerError layer_error(LayerInput<f32> in, Array<f32> d_out, const Array<f32>& d_state, Array<f32> d_conv) {
  for (auto* x : {&in.qkv, &in.a, &in.b, &in.conv_state, &d_out, &d_conv})
    for (f32& e : x->data) e = to_f32(activation<Act>(e));
  const auto found = layer_gradient_call<Act>(in, d_out, d_state, d_conv);
  const auto right = fused_layer_backward(widen(in), cast<double>(d_out), cast<double>(d_state), cast<double>(d_conv));
  const auto of = [](const auto& x, const Array<double>& y) { return x.empty() ? 0.0 : relative_l2(x, y); };
  // Sums over all tokens, of terms of both signs: relative to the terms.
  const auto of_sum = [](const std::vector<f32>& x, const Array<double>& y, const Array<double>& size) {
    double worst = 0;
    for (std::size_t i = 0; i < x.size(); i++) worst = std::max(worst, size[i] == 0 ? static_cast<double>(x[i] != 0) : std::abs(x[i] - y[i]) / size[i]);
    return worst;
  };
  return {of(found.qkv, right.qkv), of(found.b, right.b), of(found.a, right.a), of(found.conv_weights, right.conv_weights),
          of(found.conv_bias, right.conv_bias), of_sum(found.A_log, right.A_log, right.A_log_size),
          of_sum(found.dt_bias, right.dt_bias, right.dt_bias_size), of(found.conv_state, right.conv_state), of(found.h0, right.h0)};
}

template <class Act> void check_layouts(double bound) {
  LayerError worst;
  auto layouts = document_layouts();
  layouts.push_back({"fewer than the taps", 2, {}});
  layouts.push_back({"one token behind a cut", 65, {}});
  for (const Layout& l : layouts) {
    if (l.tokens == 0) continue;
    for (bool states : {false, true}) {
      CAPTURE(l.name, states);
      const auto in = random_layer<f32>(7, {l.tokens, 1, 2, 128, 128}, l.ids, states);
      Random random(5);
      const auto d_out = normal_array<f32>(random, {l.tokens, 2, 128}), d_state = normal_array<f32>(random, {2, 128, 128});
      const auto e = layer_error<Act>(in, d_out, d_state, normal_array<f32>(random, {3, in.channels()}));
      CHECK(e.worst() <= (l.tokens > 2 ? bound : 2 * bound));  // one gate of two tokens has a gradient: nothing averages its error
      if (e.worst() > worst.worst()) worst = e;
    }
  }
  std::printf("%-5s dqkv %.1e db %.1e da %.1e dw %.1e dbias %.1e dA_log %.1e ddt_bias %.1e dconv %.1e dh0 %.1e\n", name_of<Act>(), worst.qkv, worst.b,
              worst.a, worst.conv_weights, worst.conv_bias, worst.A_log, worst.dt_bias, worst.conv_state, worst.h0);
  CHECK(worst.worst() > 1e-8);
}

}  // namespace

TEST_CASE("gradients of the layer in every layout of documents, f32") { check_layouts<f32>(1e-6); }
TEST_CASE("gradients of the layer in every layout of documents, bf16") { check_layouts<bf16>(1.5e-2); }

// Errors against the recurrence in float64: on the hard inputs of hard_inputs.py in both classes, and of the layer.
//
// The environment variable GDN_HARD_INPUTS names the directory of the files; ctest sets it.
#include <cstdio>
#include <cstdlib>

#include "../support/hard_inputs.hpp"
#include "oracle_calls.hpp"
#include "same_bits.hpp"

using namespace gdn;
using namespace gdn::test;

namespace {

constexpr int draws = 8;

std::string directory() {
  const char* d = std::getenv("GDN_HARD_INPUTS");
  require(d, "GDN_HARD_INPUTS is not set: run this by ctest");
  return d;
}

struct LayerError {
  double out = 0, state = 0, conv_state = 0, chunk_states = 0;
};
// Against the float64 layer on the very arguments of the call: rounding them is no error of ours.
template <class Act> LayerError layer_error(LayerInput<f32> in) {
  for (auto* x : {&in.qkv, &in.a, &in.b, &in.conv_state})
    for (f32& e : x->data) e = to_f32(activation<Act>(e));
  const auto found = layer_call<Act>(Cpu(2), in);
  const auto right = fused_layer(widen(in));
  return {max_error(found.out, right.core.out), max_error(found.state, right.core.state), max_error(found.conv_state, right.conv_state),
          max_error(found.chunk_states, right.core.chunk_states)};
}

}  // namespace

TEST_CASE("hard inputs: every draw in f32, the mean of the draws in bf16") {
  std::printf("%-8s %12s %12s | %12s %12s %12s %12s\n", "", "f32 out", "state", "bf16 out", "of emulation", "state", "of emulation");
  for (const HardBound& bound : p1_bounds) {
    double out = 0, state = 0, low_out = 0, low_state = 0;
    for (int draw = 0; draw < draws; draw++) {
      const auto in = read_hard_input(directory(), bound.kind, draw);
      const auto right = recurrence(widen(in));
      const auto high = core_call(Cpu(2), in);
      out = std::max(out, max_error(high.out, right.out));
      state = std::max(state, max_error(high.state, right.state));
      const auto low = core_call<bf16>(Cpu(2), in);
      low_out += max_error(low.out, right.out) / draws;
      low_state += max_error(low.state, right.state) / draws;
    }
    std::printf("%-8s %12.3e %12.3e | %12.3e %12.3f %12.3e %12.3f\n", bound.kind, out, state, low_out, low_out / bound.out_bf16, low_state,
                low_state / bound.state);
    INFO(bound.kind);
    CHECK(out <= pf_bound(bound.kind));
    CHECK(state <= pf_bound(bound.kind));
    CHECK(low_out <= 1.1 * bound.out_bf16);
    CHECK(low_state <= 1.1 * bound.state);
    CHECK(low_out > pf_bound(bound.kind));  // bf16 does not pass for f32
  }
}

TEST_CASE("the layer in every layout of documents") {
  LayerError high, low;
  const auto worst = [](LayerError& to, const LayerError& e) {
    to = {std::max(to.out, e.out), std::max(to.state, e.state), std::max(to.conv_state, e.conv_state), std::max(to.chunk_states, e.chunk_states)};
  };
  for (const Layout& l : document_layouts()) {
    if (l.tokens == 0) continue;
    for (bool states : {false, true}) {
      const auto in = random_layer<f32>(7, {l.tokens, 1, 2, 128, 128}, l.ids, states);
      worst(high, layer_error<f32>(in));
      worst(low, layer_error<bf16>(in));
    }
  }
  for (auto [name, e] : {std::pair("f32", high), std::pair("bf16", low)})
    std::printf("layer %-5s out %.3e  state %.3e  conv state %.3e  chunk states %.3e\n", name, e.out, e.state, e.conv_state, e.chunk_states);
  CHECK(high.conv_state == 0);
  CHECK(low.conv_state == 0);
  // f32: what the core has on random inputs, 1e-6, and as much again for convolution, norm and gates.
  CHECK(high.out <= 2e-6);
  CHECK(high.state <= 2e-6);
  CHECK(high.chunk_states <= 2e-6);
  // bf16: q, k, v are rounded once more than in the core.
  CHECK(low.out <= 1.5e-2);
  CHECK(low.state <= 1.5e-2);
  CHECK(low.chunk_states <= 1.5e-2);
}

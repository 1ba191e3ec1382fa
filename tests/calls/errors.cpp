// Every refusal of the calls, by its text.
#include "../kernels/same_bits.hpp"

using namespace gdn;
using namespace gdn::test;

namespace {

template <class Arrays> struct Refusal {
  void (*spoil)(Arrays&);
  const char* says;
};
using CoreRefusal = Refusal<CoreArrays<f32>>;
using LayerRefusal = Refusal<LayerArrays<f32>>;

const Spec spec{.batch = 2, .tokens = 20, .key_heads = 2, .value_heads = 4, .documents = true, .initial = true};

template <class T, int Rank> void grow(View<T, Rank>& v, int dim) { v.shape[static_cast<std::size_t>(dim)]++; }

}  // namespace

TEST_CASE("forward: what is refused") {
  const CoreRefusal all[] = {
      {[](auto& a) { a.k = {}; }, "forward: k is missing"},
      {[](auto& a) { a.v = {}; }, "forward: v is missing"},
      {[](auto& a) { a.beta = {}; }, "forward: beta is missing"},
      {[](auto& a) { a.q = {}; }, "forward: q is missing"},
      {[](auto& a) { a.out = {}; }, "forward: out is missing"},
      {[](auto& a) { a.v.shape[2] = 3; }, "forward: 3 value heads and 2 key heads; expected a multiple"},
      {[](auto& a) { a.k.shape[2] = 0; }, "forward: 4 value heads and 0 key heads; expected a multiple"},
      {[](auto& a) { grow(a.k, 3); }, "forward: k has shape [2, 20, 2, 33]; expected [2, 20, 2, 32]"},
      {[](auto& a) { grow(a.v, 1); }, "forward: v has shape [2, 21, 4, 48]; expected [2, 20, 4, 48]"},
      {[](auto& a) { grow(a.q, 0); }, "forward: q has shape [3, 20, 2, 32]; expected [2, 20, 2, 32]"},
      {[](auto& a) { grow(a.out, 3); }, "forward: out has shape [2, 20, 4, 49]; expected [2, 20, 4, 48]"},
      {[](auto& a) { grow(a.g, 2); }, "forward: g has shape [2, 20, 5]; expected [2, 20, 4]"},
      {[](auto& a) { grow(a.beta, 0); }, "forward: beta has shape [3, 20, 4]; expected [2, 20, 4]"},
      {[](auto& a) { grow(a.ids, 1); }, "forward: ids has shape [2, 21]; expected [2, 20]"},
      {[](auto& a) { grow(a.initial, 2); }, "forward: initial has shape [2, 4, 33, 48]; expected [2, 4, 32, 48]"},
      {[](auto& a) { grow(a.final, 1); }, "forward: final has shape [2, 5, 32, 48]; expected [2, 4, 32, 48]"},
      {[](auto& a) { grow(a.residuals.t_inv, 1); }, "forward: t_inv has shape [2, 3, 16, 4, 16]; expected [2, 2, 16, 4, 16]"},
      {[](auto& a) { grow(a.residuals.chunk_states, 4); }, "forward: chunk_states has shape [2, 2, 4, 32, 49]; expected [2, 2, 4, 32, 48]"},
      {[](auto& a) { grow(a.residual, 3); }, "forward: residual has shape [2, 20, 4, 49]; expected [2, 20, 4, 48]"},
      {[](auto& a) { a.v.data = a.out.data + 1; }, "forward: output out overlaps v; expected separate memory"},
      {[](auto& a) { a.v = {a.out.data, a.v.shape, {a.v.strides[0], 48, 20 * 48, 1}}; }, "forward: output out overlaps v; expected separate memory"},
      {[](auto& a) { a.residual = a.out; }, "forward: output out overlaps residual; expected separate memory"},
      {[](auto& a) { a.q.data = a.final.data; }, "forward: output final overlaps q; expected separate memory"},
      {[](auto& a) { a.final.data = const_cast<f32*>(a.initial.data) + 4; }, "forward: output final overlaps initial; expected separate memory"},
      {[](auto& a) { a.g.data = a.residuals.t_inv.data; }, "forward: output t_inv overlaps g; expected separate memory"},
      {[](auto& a) { a.k.data = a.residuals.chunk_states.data; }, "forward: output chunk_states overlaps k; expected separate memory"},
      {[](auto& a) { a.ids.data = reinterpret_cast<i32*>(a.residual.data); }, "forward: output residual overlaps ids; expected separate memory"},
      {[](auto& a) { const_cast<f32&>(a.g.data[20 * 4 + 7 * 4 + 2]) = 0.25f; },
       "forward: g[1, 7, 2] is 0.25; expected the natural logarithm of a decay, at most 0"},
  };
  for (const CoreRefusal& r : all) {
    Core<f32, Small> call(spec);
    auto a = call.arrays();
    r.spoil(a);
    Cpu cpu(1);
    CHECK(message_of([&] { forward<Small>(cpu, a, call.options); }) == r.says);
  }
  Core<f32, Small> call(spec);
  Cpu cpu(1);
  CHECK(message_of([&] { forward<Small>(cpu, call.arrays(), call.options); }) == "accepted");
}

TEST_CASE("layer_forward: what is refused") {
  const LayerRefusal all[] = {
      {[](auto& a) { a.qkv = {}; }, "layer_forward: qkv is missing"},
      {[](auto& a) { a.a = {}; }, "layer_forward: a is missing"},
      {[](auto& a) { a.b = {}; }, "layer_forward: b is missing"},
      {[](auto& a) { a.conv_weights = {}; }, "layer_forward: conv_weights is missing"},
      {[](auto& a) { a.A_log = {}; }, "layer_forward: A_log is missing"},
      {[](auto& a) { a.dt_bias = {}; }, "layer_forward: dt_bias is missing"},
      {[](auto& a) { a.out = {}; }, "layer_forward: out is missing"},
      {[](auto& a) { a.a.shape[2] = 3; }, "layer_forward: 3 value heads and 2 key heads; expected a multiple"},
      {[](auto& a) { grow(a.qkv, 2); }, "layer_forward: qkv has shape [2, 20, 321]; expected [2, 20, 320]"},
      {[](auto& a) { grow(a.a, 1); }, "layer_forward: a has shape [2, 21, 4]; expected [2, 20, 4]"},
      {[](auto& a) { grow(a.b, 2); }, "layer_forward: b has shape [2, 20, 5]; expected [2, 20, 4]"},
      {[](auto& a) { grow(a.conv_weights, 0); }, "layer_forward: conv_weights has shape [3, 320]; expected [2, 320]"},
      {[](auto& a) { grow(a.conv_bias, 0); }, "layer_forward: conv_bias has shape [321]; expected [320]"},
      {[](auto& a) { grow(a.A_log, 0); }, "layer_forward: A_log has shape [5]; expected [4]"},
      {[](auto& a) { grow(a.dt_bias, 0); }, "layer_forward: dt_bias has shape [5]; expected [4]"},
      {[](auto& a) { grow(a.conv_initial, 1); }, "layer_forward: conv_initial has shape [2, 2, 320]; expected [2, 1, 320]"},
      {[](auto& a) { grow(a.conv_final, 0); }, "layer_forward: conv_final has shape [3, 1, 320]; expected [2, 1, 320]"},
      {[](auto& a) { grow(a.ids, 0); }, "layer_forward: ids has shape [3, 20]; expected [2, 20]"},
      {[](auto& a) { grow(a.initial, 3); }, "layer_forward: initial has shape [2, 4, 32, 49]; expected [2, 4, 32, 48]"},
      {[](auto& a) { grow(a.final, 0); }, "layer_forward: final has shape [3, 4, 32, 48]; expected [2, 4, 32, 48]"},
      {[](auto& a) { grow(a.out, 2); }, "layer_forward: out has shape [2, 20, 5, 48]; expected [2, 20, 4, 48]"},
      {[](auto& a) { grow(a.residuals.t_inv, 2); }, "layer_forward: t_inv has shape [2, 2, 17, 4, 16]; expected [2, 2, 16, 4, 16]"},
      {[](auto& a) { a.b.data = a.out.data + 5; }, "layer_forward: output out overlaps b; expected separate memory"},
      {[](auto& a) { a.conv_final.data = const_cast<f32*>(a.conv_initial.data) + 1; },
       "layer_forward: output conv_final overlaps conv_initial; expected separate memory"},
      {[](auto& a) { a.conv_weights.data = a.conv_final.data; }, "layer_forward: output conv_final overlaps conv_weights; expected separate memory"},
      {[](auto& a) { a.conv_bias.data = a.final.data; }, "layer_forward: output final overlaps conv_bias; expected separate memory"},
      {[](auto& a) { a.A_log.data = a.residual.data; }, "layer_forward: output residual overlaps A_log; expected separate memory"},
      {[](auto& a) { a.dt_bias.data = a.residuals.chunk_states.data; },
       "layer_forward: output chunk_states overlaps dt_bias; expected separate memory"},
  };
  for (const LayerRefusal& r : all) {
    Layer<f32, Small> call(spec);
    auto a = call.arrays();
    r.spoil(a);
    Cpu cpu(1);
    CHECK(message_of([&] { layer_forward<Small>(cpu, a, {.key_heads = 2}); }) == r.says);
  }
  Layer<f32, Small> call(spec);
  Cpu cpu(1);
  CHECK(message_of([&] { layer_forward<Small>(cpu, call.arrays(), {}); }) == "layer_forward: options.key_heads is 0; expected the number of key heads");
  CHECK(message_of([&] { layer_forward<Small>(cpu, call.arrays(), {.key_heads = 2}); }) == "accepted");
}

TEST_CASE("states-only calls need neither q nor out, and name themselves") {
  Core<f32, Small> core(spec);
  Layer<f32, Small> layer(spec);
  Cpu cpu(1);
  auto a = core.arrays();
  a.q = {}, a.out = {};
  CHECK(message_of([&] { forward_states<Small>(cpu, a, core.options); }) == "accepted");
  a.k = {};
  CHECK(message_of([&] { forward_states<Small>(cpu, a, core.options); }) == "forward_states: k is missing");
  auto b = layer.arrays();
  b.out = {};
  CHECK(message_of([&] { layer_forward_states<Small>(cpu, b, {.key_heads = 2}); }) == "accepted");
  b.b = {};
  CHECK(message_of([&] { layer_forward_states<Small>(cpu, b, {.key_heads = 2}); }) == "layer_forward_states: b is missing");
}

TEST_CASE("schedules that do not fit are refused") {
  const auto says = [](const Spec& s, const Schedule& schedule) {
    Core<f32> call(s);
    Simulate simulate(schedule);
    return message_of([&] { call.call(simulate); });
  };
  const Spec four{.tokens = 64, .key_heads = 2, .value_heads = 4};
  CHECK(says(four, Schedule::lifted(3)) == "heads_per_step is 3; expected a divisor of the 4 value heads");
  CHECK(says(four, Schedule::lifted(-4)) == "heads_per_step is -4; expected a divisor of the 4 value heads");
  CHECK(says(four, Schedule::lifted(1)) == "heads_per_step is 1; a step needs whole key heads, so a multiple of 2 value heads");
  CHECK(says(four, changed(Schedule::paired(), [](Schedule& s) { s.delay = {0, 0}; })) ==
        "forward: the schedule has 2 delays and 3 places in the order; expected 3 of each, one a stage");
  CHECK(says({.tokens = 64, .value_heads = 6}, Schedule::paired()) ==
        "forward: groups of 2 pairs and 6 value heads a key head; expected one to divide the other");
  CHECK(says({.tokens = 64, .value_heads = 6}, changed(Schedule::paired(), [](Schedule& s) { s.group = 3; })) == "accepted");
  CHECK_THAT(says(four, changed(Schedule::skewed(), [](Schedule& s) { s.vmem_limit_bytes = 1 << 16; })),
             Catch::Contains("VMEM: the windows need ") && Catch::Contains("the scoped limit is 0.06 MiB"));
  Core<f32, Small> narrow({.tokens = 16, .key_heads = 2, .value_heads = 2});
  Simulate simulate(Schedule::lifted(1));
  CHECK(message_of([&] { narrow.call(simulate); }) ==
        "heads_per_step is 1: blocks of 32 columns at column 0 of k are no multiple of 128 lanes; take all heads in one step");
}

// Writes the fused layer, the backward of the core or the dh scan, at the geometry of a 397B model (16 key, 64 value heads of 128, 16,384 tokens, bf16) under a given
// schedule.
//   tune_emit FILE [key=value ..]     states=1 backward=1 scan=1 norm=1 heads=64 group=2 order=102 delay=012 ahead=1 tick=18 join=1
//                                   stack=0 turn=0 push=64 start=000
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>

#include <gdn/calls/backward.hpp>
#include <gdn/calls/scans.hpp>
#include <gdn/emit.hpp>

int main(int argc, char** argv) {
  using namespace gdn;
  if (argc < 2) return std::fprintf(stderr, "usage: tune_emit FILE [key=value ..]\n"), 2;
  std::map<std::string, std::string> given;
  for (int i = 2; i < argc; i++) {
    const std::string word = argv[i];
    given[word.substr(0, word.find('='))] = word.substr(word.find('=') + 1);
  }
  auto number = [&](const char* key, int standard) { return given.count(key) ? std::atoi(given[key].c_str()) : standard; };
  auto digits = [&](const char* key, std::vector<int> standard) {
    if (!given.count(key)) return standard;
    std::vector<int> v;
    for (char c : given[key]) v.push_back(c - '0');
    return v;
  };
  const bool states = number("states", 0), scan = number("scan", 0), gradients = number("backward", 0);
  const char* kernel = gradients ? "backward" : scan ? "state_gradient" : states ? "layer_forward_states" : "layer_forward";
  mosaic::Schedule s = mosaic::Schedule::fastest(kernel, mosaic::Target::tpu7x);
  s.heads_per_step = number("heads", s.heads_per_step);
  s.group = number("group", s.group);
  s.order = digits("order", s.order);
  s.delay = digits("delay", s.delay);
  s.vectors_ahead = number("ahead", s.vectors_ahead);
  s.vectors_tick = number("tick", s.vectors_tick);
  s.join_narrow_dots = number("join", s.join_narrow_dots);
  s.stack_dots = number("stack", s.stack_dots);
  s.turn_narrow = number("turn", s.turn_narrow);
  s.push_transposed_from = number("push", s.push_transposed_from);
  s.start = digits("start", s.start);

  constexpr int T = 16384, Hk = 16, H = 64, D = 2 * Hk * 128 + H * 128, N = T / 64;
  bf16* none = nullptr;
  f32* no_f32 = nullptr;
  std::vector<i32> ids(T);
  for (int t = 0; t < T; t++) ids[t] = 1 + t / 1000;
  LayerArrays<bf16> x;
  x.qkv = view(none, {1, T, D}), x.a = view(none, {1, T, H}), x.b = view(none, {1, T, H}), x.ids = view(ids, {1, T});
  x.conv_weights = view(no_f32, {4, D}), x.conv_bias = view(no_f32, {D}), x.A_log = view(no_f32, {H}), x.dt_bias = view(no_f32, {H});
  x.conv_initial = view(none, {1, 3, D}), x.conv_final = view(none, {1, 3, D});
  x.initial = view(no_f32, {1, H, 128, 128}), x.final = view(no_f32, {1, H, 128, 128});
  x.residuals.t_inv = view(no_f32, {1, N, 64, H, 64});
  Emit machine(s);
  if (gradients) {
    CoreArrays<bf16> c;
    c.q = c.k = view(static_cast<const bf16*>(none), {1, T, Hk, 128});
    c.g = c.beta = view(static_cast<const f32*>(no_f32), {1, T, H});
    c.ids = x.ids, c.initial = x.initial;
    c.residual = view(none, {1, T, H, 128});
    c.residuals = {x.residuals.t_inv, view(no_f32, {1, N, H, 128, 128})};
    CoreGradients<bf16> d;
    d.d_out = c.residual, d.dv = c.residual;
    d.dq = d.dk = view(none, {1, T, Hk, 128});
    d.dg = d.dbeta = view(no_f32, {1, T, H});
    d.d_final = x.initial, d.d_initial = x.final;
    backward(machine, c, d, {.use_qk_norm = number("norm", 1) != 0});
  } else if (scan) {
    const auto keys = view(static_cast<const bf16*>(none), {1, T, Hk, 128});
    const auto gates = view(static_cast<const f32*>(no_f32), {1, T, H});
    const StateGradientArrays<bf16> d{keys, keys, view(static_cast<const bf16*>(none), {1, T, H, 128}), gates, gates,
                                      view(static_cast<const f32*>(no_f32), {1, N, 64, H, 64}), {}, {}, view(no_f32, {1, H, 128, 128})};
    state_gradient<Precision::bf16x3>(machine, d, {.use_qk_norm = number("norm", 0) != 0});
  } else if (states) {
    layer_forward_states(machine, x, {.key_heads = Hk});
  } else {
    x.out = view(none, {1, T, H, 128});
    x.residuals.chunk_states = view(no_f32, {1, N, H, 128, 128});
    layer_forward(machine, x, {.key_heads = Hk});
  }
  std::ofstream(argv[1]) << machine.module.program();
}

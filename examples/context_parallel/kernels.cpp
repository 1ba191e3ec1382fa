// The kernels of one rank of a layer whose rows are cut over TPUs, for context_parallel.py; and what runs them where there is no TPU.
//
//   kernels emit DIRECTORY f32|bf16 TARGET B T KEY_HEADS VALUE_HEADS    T: tokens of a rank; TARGET: tpu7x, v6e, v5e
//   kernels run PROGRAM TYPE .. < ARRAYS > ARRAYS                       in the simulator; TYPE: of an array, 1x128x256xf32
//
// DIRECTORY gets a program for each kernel, NAME.mlir, and kernels.json: operands, results and backend_config of each.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "gdn/calls/backward.hpp"
#include "gdn/calls/parts.hpp"
#include "gdn/calls/scans.hpp"
#include "gdn/emit.hpp"
#include "gdn/sim.hpp"

using namespace gdn;

namespace {

std::string type_of(const mosaic::Argument& a) { return mosaic::dims(a.shape) + mosaic::name_of(a.element); }

class Kernels {
 public:
  Kernels(std::string directory, mosaic::Target target) : directory_(std::move(directory)), target_(target) {}
  // `call` is given the machine.
  template <class Call> void add(const std::string& name, Call call) {
    Emit machine(mosaic::Schedule::fastest(name, target_));
    call(machine);
    const mosaic::Module& m = machine.module;
    require(m.updates.empty(), name, " changes arrays in place, which kernels.json does not tell");
    std::ofstream(directory_ + "/" + name + ".mlir") << m.program();
    std::string config;
    for (char c : m.backend_config()) config += c == '"' ? "\\\"" : std::string(1, c);
    json_ += (json_.empty() ? "{" : ",\n ") + text('"', name, "\": {\"operands\": ", arrays(m.inputs), ", \"results\": ", arrays(m.outputs),
                                                   ",\n  \"backend_config\": \"", config, "\"}");
  }
  void write() const {
    std::ofstream file(directory_ + "/kernels.json");
    file << json_ << "}\n";
    require(file.good(), "cannot write into ", directory_);
  }

 private:
  static std::string arrays(const std::vector<mosaic::Argument>& all) {
    std::string s;
    for (const auto& a : all) s += (s.empty() ? "" : ", ") + text("[\"", a.name, "\", \"", type_of(a), "\"]");
    return "[" + s + "]";
  }
  std::string directory_, json_;
  mosaic::Target target_;
};

// Shapes are all that emission reads; of documents also that there are some.
template <class Act> void emit(Kernels& kernels, std::int64_t B, std::int64_t T, std::int64_t Hk, std::int64_t Hv) {
  constexpr int C = 64, K = 128, V = 128, taps = 4;
  constexpr Precision P = std::is_same_v<Act, f32> ? Precision::f32 : Precision::bf16x3;
  require(T % C == 0, "a rank holds ", T, " tokens; expected a multiple of ", C);
  const std::int64_t N = T / C, D = 2 * Hk * K + Hv * V;
  Act* const activations = nullptr;
  f32* const numbers = nullptr;
  const std::vector<i32> ids(static_cast<std::size_t>(B * T), 1);
  const int key_heads = static_cast<int>(Hk);

  LayerArrays<Act> x;
  x.qkv = view(activations, {B, T, D}), x.a = view(activations, {B, T, Hv}), x.b = view(activations, {B, T, Hv});
  x.conv_weights = view(numbers, {taps, D}), x.conv_bias = view(numbers, {D}), x.A_log = view(numbers, {Hv}), x.dt_bias = view(numbers, {Hv});
  x.conv_initial = view(activations, {B, taps - 1, D}), x.ids = view(ids, {B, T});
  LayerArrays<Act> first = x;
  first.final = view(numbers, {B, Hv, K, V}), first.residuals.t_inv = view(numbers, {B, N, C, Hv, C});
  kernels.add("layer_forward_states", [&](auto& m) { layer_forward_states(m, first, {.key_heads = key_heads}); });

  LayerArrays<Act> second = x;
  second.initial = view(numbers, {B, Hv, K, V}), second.out = view(activations, {B, T, Hv, V}), second.residual = view(activations, {B, T, Hv, V});
  second.residuals.chunk_states = view(numbers, {B, N, Hv, K, V});
  kernels.add("layer_forward", [&](auto& m) { layer_forward(m, second, {.key_heads = key_heads}); });

  // What the scans read, made of the layer's inputs: q and k one after the other, g, beta.
  kernels.add("causal_conv", [&](auto& m) {
    causal_conv(m, ConvArrays<Act>{view(activations, {B, T, Hk * K}), view(numbers, {taps, Hk * K}), view(numbers, {Hk * K}),
                                   view(activations, {B, taps - 1, Hk * K}), x.ids, view(activations, {B, T, Hk * K}), {}});
  });
  const auto g = view(numbers, {B, T, Hv});
  kernels.add("gates", [&](auto& m) { gates(m, GateArrays<Act>{x.a, x.b, x.A_log, x.dt_bias, x.ids, g, g}); });
  const auto k = view(activations, {B, T, Hk, K});
  const ScanOptions normalised{.scale = {}, .use_qk_norm = true};
  kernels.add("transition", [&](auto& m) {
    transition<P>(m, TransitionArrays<Act>{k, g, g, first.residuals.t_inv, x.ids, view(numbers, {B, Hv, K, K})}, normalised);
  });
  const auto d_out = view(activations, {B, T, Hv, V});
  const auto state = view(numbers, {B, Hv, K, V});
  kernels.add("state_gradient", [&](auto& m) {
    state_gradient<P>(m, StateGradientArrays<Act>{k, k, d_out, g, g, first.residuals.t_inv, x.ids, {}, state}, normalised);
  });

  second.residuals.t_inv = first.residuals.t_inv;
  LayerGradients<Act> d;
  d.d_out = d_out, d.d_final = state;
  d.dqkv = view(activations, {B, T, D}), d.da = view(activations, {B, T, Hv}), d.db = view(activations, {B, T, Hv});
  d.d_conv_weights = view(numbers, {B, taps, D}), d.d_conv_bias = view(numbers, {B, D});
  d.dA_log = view(numbers, {B, Hv}), d.ddt_bias = view(numbers, {B, Hv}), d.d_conv_initial = view(activations, {B, taps - 1, D});
  kernels.add("layer_backward", [&](auto& m) { layer_backward(m, second, d, {.key_heads = key_heads}); });
}

// An array of a type such as 1x128x256xf32, without its elements.
sim::Array array_of(const std::string& type) {
  sim::Array a;
  std::istringstream parts(type);
  for (std::string part; std::getline(parts, part, 'x');) {
    if (part != "f32" && part != "bf16" && part != "i32") a.shape.push_back(std::stoll(part));
    else a.element = part == "f32" ? sim::Element::f32 : part == "bf16" ? sim::Element::bf16 : sim::Element::i32;
  }
  std::size_t n = 1;
  for (auto extent : a.shape) n *= static_cast<std::size_t>(extent);
  a.data.resize(n);
  return a;
}
std::size_t width_of(const sim::Array& a) { return a.element == sim::Element::bf16 ? 2 : 4; }  // bytes of an element

void run(const std::string& program, std::vector<sim::Array> arrays) {
  std::ifstream file(program);
  require(file.good(), "cannot read ", program);
  for (auto& a : arrays)
    for (auto& word : a.data) std::cin.read(reinterpret_cast<char*>(&word), static_cast<std::streamsize>(width_of(a)));
  require(std::cin.good(), "the input ends before the arrays are complete");
  const sim::Result result = sim::run(std::string(std::istreambuf_iterator<char>(file), {}), std::move(arrays));
  for (const auto& a : result.outputs)
    for (const auto& word : a.data) std::cout.write(reinterpret_cast<const char*>(&word), static_cast<std::streamsize>(width_of(a)));
}

}  // namespace

int main(int argc, char** argv) try {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() >= 2 && words[0] == "run") {
    std::vector<sim::Array> arrays;
    for (std::size_t i = 2; i < words.size(); i++) arrays.push_back(array_of(words[i]));
    run(words[1], std::move(arrays));
    return 0;
  }
  require(words.size() == 8 && words[0] == "emit" && (words[2] == "f32" || words[2] == "bf16"),
          "usage: kernels emit DIRECTORY f32|bf16 TARGET B T KEY_HEADS VALUE_HEADS, or kernels run PROGRAM TYPE ..");
  const auto* target = std::find_if(std::begin(mosaic::targets), std::end(mosaic::targets), [&](auto t) { return mosaic::name_of(t) == words[3]; });
  require(target != std::end(mosaic::targets), "no target ", words[3], "; expected tpu7x, v6e or v5e");
  Kernels kernels(words[1], *target);
  const auto number = [&](std::size_t i) { return std::stoll(words[i]); };
  const auto emit_all = words[2] == "f32" ? emit<f32> : emit<bf16>;
  emit_all(kernels, number(4), number(5), number(6), number(7));
  kernels.write();
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "kernels: %s\n", e.what());
  return 1;
}

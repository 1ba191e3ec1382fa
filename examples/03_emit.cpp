// A call written down as a TPU kernel. No TPU, no Python and no MLIR library is needed for it.
//
//   layer_forward.mlir   a StableHLO program with one custom call; any PJRT client of a TPU compiles it as it is
//   layer_forward.txt    the same kernel as generic MLIR with a location on every operation, for people
#include <cstdio>
#include <fstream>
#include <vector>

#include "gdn/calls/forward.hpp"
#include "gdn/emit.hpp"

using namespace gdn;

int main() {
  // Emission reads shapes, not data: the views have no memory behind them.
  const int T = 4096, Hk = 2, Hv = 8, D = 128, W = (2 * Hk + Hv) * D, taps = 4;
  bf16* activations = nullptr;
  f32* numbers = nullptr;
  LayerArrays<bf16> x;
  x.qkv = view(activations, {1, T, W});
  x.a = view(activations, {1, T, Hv});
  x.b = view(activations, {1, T, Hv});
  x.conv_weights = view(numbers, {taps, W});
  x.A_log = view(numbers, {Hv});
  x.dt_bias = view(numbers, {Hv});
  x.out = view(activations, {1, T, Hv, D});
  x.final = view(numbers, {1, Hv, D, D});

  // A schedule changes where heads lie and when work is done, never a bit of a result.
  Emit machine(mosaic::Schedule::skewed());
  layer_forward(machine, x, {.key_heads = Hk});

  const mosaic::Module& module = machine.module;
  std::ofstream("layer_forward.mlir") << module.program();
  std::ofstream("layer_forward.txt") << module.generic();
  std::printf("%s, %s: %.1f MiB of VMEM\n", module.name.c_str(), module.schedule.c_str(), static_cast<double>(module.vmem_bytes) / (1 << 20));
  for (const auto& [role, arguments] : {std::pair{"in ", module.parameters()}, {"out", module.outputs}})
    for (const mosaic::Argument& a : arguments) std::printf("  %s %-14s %s\n", role, a.name.c_str(), mosaic::tensor_type(a.shape, a.element).c_str());
  return module.program().find("tpu_custom_call") != std::string::npos ? 0 : 1;
}

// The emitted kernel in the simulator, on the arrays of the call, against the CPU: every bit is the same.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include "gdn/kernels.hpp"
#include "gdn/simulate.hpp"

using namespace gdn;

int main() {
  const int T = 150, Hk = 1, Hv = 4, D = 128;  // two chunks and a part of one
  std::vector<bf16> q(T * Hk * D), k(q.size()), v(T * Hv * D);
  for (std::size_t i = 0; i < q.size(); i++) q[i] = to_bf16(static_cast<f32>(std::sin(0.37 * i))), k[i] = to_bf16(static_cast<f32>(std::cos(0.23 * i)));
  for (std::size_t i = 0; i < v.size(); i++) v[i] = to_bf16(static_cast<f32>(std::sin(0.11 * i)));
  std::vector<f32> g(T * Hv, -0.05f), beta(T * Hv, 0.5f);
  std::vector<i32> ids(T, 1);
  for (int t = 70; t < T; t++) ids[t] = t < 80 ? 0 : 2;  // ten tokens of padding, then a second document

  auto run = [&](auto& machine) {
    std::vector<bf16> out(T * Hv * D);
    CoreArrays<bf16> x;
    x.q = view(std::as_const(q), {1, T, Hk, D});
    x.k = view(std::as_const(k), {1, T, Hk, D});
    x.v = view(std::as_const(v), {1, T, Hv, D});
    x.g = view(std::as_const(g), {1, T, Hv});
    x.beta = view(std::as_const(beta), {1, T, Hv});
    x.ids = view(std::as_const(ids), {1, T});
    x.out = view(out, {1, T, Hv, D});
    forward(machine, x, {.use_qk_norm = true});
    return out;
  };

  Cpu cpu;
  const auto expected = run(cpu);
  bool same = true;
  for (const auto& schedule : {mosaic::Schedule::lifted(), mosaic::Schedule::paired(), mosaic::Schedule::skewed()}) {
    Simulate simulator(schedule);
    const auto out = run(simulator);
    std::size_t differing = 0;
    for (std::size_t i = 0; i < out.size(); i++) differing += out[i] != expected[i];
    std::printf("%s: %ld grid steps, %zu of %zu elements differ\n", simulator.module.schedule.c_str(), simulator.result.grid_steps, differing, out.size());
    same = same && differing == 0;
  }

  // The simulator refuses what a TPU would silently get wrong. Here the kernel loses its first store, which clears the state.
  Simulate simulator;
  simulator.text_of = [](const mosaic::Module& m) {
    std::string text = m.generic();
    const std::size_t store = text.find("vector_store"), line = text.rfind('\n', store) + 1;
    return text.erase(line, text.find('\n', store) + 1 - line);
  };
  try {
    run(simulator);
  } catch (const Error& e) {
    std::printf("refused: %s\n", e.what());
    return same ? 0 : 1;
  }
  return 1;
}

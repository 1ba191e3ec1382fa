// Prints the text of several kernels. tests/core/compilers/run builds this with two compilers, which must print the same bytes.
#include <cstdio>
#include <gdn/calls/forward.hpp>
#include <gdn/emit.hpp>

using namespace gdn;
using mosaic::Schedule;

namespace {

std::vector<i32> ids(1024, 1);

template <class T> View<T, 4> array(std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) { return view(static_cast<T*>(nullptr), {a, b, c, d}); }

template <class G, class Act> void print_core(const Schedule& schedule, bool documents) {
  constexpr int K = G::key::size, V = G::value::size, T = 3 * G::chunk::size - 5, Hk = 2, H = 4;
  CoreArrays<Act> a;
  a.q = array<const Act>(1, T, Hk, K), a.k = array<const Act>(1, T, Hk, K), a.v = array<const Act>(1, T, H, V);
  a.g = view(static_cast<const f32*>(nullptr), {1, T, H}), a.beta = view(static_cast<const f32*>(nullptr), {1, T, H});
  a.initial = array<const f32>(1, H, K, V), a.out = array<Act>(1, T, H, V), a.final = array<f32>(1, H, K, V);
  if (documents) a.ids = view(ids, {1, T});
  Emit emit(schedule);
  forward<G>(emit, a, {.use_qk_norm = true});
  std::puts(emit.module.generic().c_str());
  std::puts(emit.module.program().c_str());
}
template <class G> void print_layer(const Schedule& schedule) {
  constexpr int K = G::key::size, V = G::value::size, T = 3 * G::chunk::size, Hk = 2, H = 4, D = 2 * Hk * K + H * V;
  LayerArrays<bf16> a;
  a.qkv = view(static_cast<const bf16*>(nullptr), {1, T, D}), a.a = view(static_cast<const bf16*>(nullptr), {1, T, H}), a.b = a.a;
  a.conv_weights = view(static_cast<const f32*>(nullptr), {G::taps::size, D}), a.conv_bias = view(static_cast<const f32*>(nullptr), {D});
  a.A_log = view(static_cast<const f32*>(nullptr), {H}), a.dt_bias = a.A_log, a.ids = view(ids, {1, T});
  a.out = array<bf16>(1, T, H, V), a.conv_final = view(static_cast<bf16*>(nullptr), {1, G::taps::size - 1, D}), a.final = array<f32>(1, H, K, V);
  Emit emit(schedule);
  layer_forward<G>(emit, a, {.key_heads = Hk});
  std::puts(emit.module.generic().c_str());
}

}  // namespace

int main() {
  for (const Schedule& s : {Schedule::lifted(), Schedule::paired(), Schedule::skewed()}) {
    print_core<Head128, bf16>(s, true);
    print_layer<Head128>(s);
  }
  print_core<Geometry<16, 32, 48>, f32>({}, false);
}

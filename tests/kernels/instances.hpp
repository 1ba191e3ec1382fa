// The forward calls, compiled once for all tests (library/*.cpp): a file that includes this pays for parsing only.
#pragma once
#include <gdn/kernels.hpp>
#include <gdn/simulate.hpp>

namespace gdn {

namespace test {

// The smallest shape with all sizes different: heads of 32 key and 48 value channels, 16 tokens a chunk, two taps.
using Small = Geometry<16, 32, 48, 2>;

}  // namespace test

#define GDN_TEST_CORE(prefix, G, Machine, Act)                                                       \
  prefix template void forward<G, Machine, Act>(Machine&, const CoreArrays<Act>&, const CoreOptions&); \
  prefix template void forward_states<G, Machine, Act>(Machine&, const CoreArrays<Act>&, const CoreOptions&);
#define GDN_TEST_LAYER(prefix, G, Machine, Act)                                                               \
  prefix template void layer_forward<G, Machine, Act>(Machine&, const LayerArrays<Act>&, const LayerOptions&); \
  prefix template void layer_forward_states<G, Machine, Act>(Machine&, const LayerArrays<Act>&, const LayerOptions&);
#define GDN_TEST_DOCUMENTS(prefix, G, Machine, Act) \
  prefix template void forward_documents<G, Machine, Act>(Machine&, const CoreArrays<Act>&, std::span<const i32>, const CoreOptions&);
#define GDN_TEST_MACHINES(calls, prefix, G) \
  calls(prefix, G, Cpu, bf16) calls(prefix, G, Cpu, f32) calls(prefix, G, Simulate, bf16) calls(prefix, G, Simulate, f32)

GDN_TEST_MACHINES(GDN_TEST_CORE, extern, Head128)
GDN_TEST_MACHINES(GDN_TEST_LAYER, extern, Head128)
GDN_TEST_DOCUMENTS(extern, Head128, Cpu, f32)
GDN_TEST_MACHINES(GDN_TEST_CORE, extern, test::Small)
GDN_TEST_MACHINES(GDN_TEST_LAYER, extern, test::Small)

}  // namespace gdn

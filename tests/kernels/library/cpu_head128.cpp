#include "../instances.hpp"

namespace gdn {

GDN_TEST_CORE(, Head128, Cpu, bf16)
GDN_TEST_CORE(, Head128, Cpu, f32)
GDN_TEST_LAYER(, Head128, Cpu, bf16)
GDN_TEST_LAYER(, Head128, Cpu, f32)
GDN_TEST_DOCUMENTS(, Head128, Cpu, f32)

}  // namespace gdn

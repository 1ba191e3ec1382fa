#include "../instances.hpp"

namespace gdn {

GDN_TEST_CORE(, test::Small, Cpu, bf16)
GDN_TEST_CORE(, test::Small, Cpu, f32)
GDN_TEST_LAYER(, test::Small, Cpu, bf16)
GDN_TEST_LAYER(, test::Small, Cpu, f32)

}  // namespace gdn

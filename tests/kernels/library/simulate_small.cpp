#include "../instances.hpp"

namespace gdn {

GDN_TEST_CORE(, test::Small, Simulate, bf16)
GDN_TEST_CORE(, test::Small, Simulate, f32)
GDN_TEST_LAYER(, test::Small, Simulate, bf16)
GDN_TEST_LAYER(, test::Small, Simulate, f32)

}  // namespace gdn

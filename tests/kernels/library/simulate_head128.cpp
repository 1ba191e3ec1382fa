#include "../instances.hpp"

namespace gdn {

GDN_TEST_CORE(, Head128, Simulate, bf16)
GDN_TEST_CORE(, Head128, Simulate, f32)
GDN_TEST_LAYER(, Head128, Simulate, bf16)
GDN_TEST_LAYER(, Head128, Simulate, f32)

}  // namespace gdn

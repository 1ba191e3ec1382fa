#include <gdn/kernels.hpp>

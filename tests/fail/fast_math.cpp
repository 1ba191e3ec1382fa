// expect: gdn: -ffast-math changes results; compile with -ffp-contract=off and without fast-math options
#define __FAST_MATH__ 1
#include <gdn/cpu/isa.hpp>

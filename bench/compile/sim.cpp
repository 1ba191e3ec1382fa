#include <gdn/sim.hpp>

#include "../simulate.hpp"

#include <gdn/sim.hpp>

namespace gdn::test {

sim::Result simulate(std::string_view text, std::vector<Array> inputs, const sim::Options& options) {
  return sim::run(text, std::move(inputs), options);
}

}  // namespace gdn::test

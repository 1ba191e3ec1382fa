#include "arrays.hpp"
#include "gdn/simulate.hpp"

int main() { Arrays().run(gdn::Simulate()); }

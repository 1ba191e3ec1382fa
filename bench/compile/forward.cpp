#include "arrays.hpp"
#include "gdn/kernels.hpp"

int main() { Arrays().run(gdn::Cpu()); }

#include "gdn/kernels.hpp"

int main() {}

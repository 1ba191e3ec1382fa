#include "arrays.hpp"
#include "gdn/emit.hpp"

int main() { Arrays().run(gdn::Emit()); }

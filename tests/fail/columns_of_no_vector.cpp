// expect: map: columns must be a multiple of 16
#include <gdn/cpu/machine.hpp>

using namespace gdn;

template <class R, class C> using T = Tile<cpu::Machine, f32, R, C>;

auto f(T<Row<8>, Lane<24>> x) { return x + x; }

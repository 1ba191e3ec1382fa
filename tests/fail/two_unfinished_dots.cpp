// expect: map: at most one unfinished dot
#include <gdn/cpu/machine.hpp>

using namespace gdn;

template <class R, class C> using T = Tile<cpu::Machine, f32, R, C>;

auto f(T<Row<16>, Row<16>> x) { return product<Precision::f32>(x, x) + product<Precision::f32>(x, x); }

// expect: map: a dot of one column; use dot
#include <gdn/cpu/machine.hpp>

using namespace gdn;

template <class R, class C> using T = Tile<cpu::Machine, f32, R, C>;

auto f(T<Row<16>, Row<16>> x, T<Row<16>, One> y) { return y + product<Precision::f32>(x, y); }

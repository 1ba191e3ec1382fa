// The elements that map's lambda sees while tracing: every operation on them appends a node.
#pragma once
#include "gdn/trace/program.hpp"

namespace gdn::trace {

// An f32 element of the program, or a literal that takes the program of its partner.
struct Real {
  Program* program = nullptr;
  int id = -1;
  f32 literal = 0;
  Real(f32 x) : literal(x) {}
  Real(Program* p, int id) : program(p), id(id) {}
};
struct Integer {
  Program* program = nullptr;
  int id = -1;
  i32 literal = 0;
  Integer(i32 x) : literal(x) {}
  Integer(Program* p, int id) : program(p), id(id) {}
};
struct Condition {
  Program* program;
  int id;
};

inline int node_of(Program* p, const Real& x) { return x.program ? x.id : p->constant(1, 1, std::bit_cast<std::uint32_t>(x.literal)); }
inline int node_of(Program* p, const Integer& x) {
  return x.program ? x.id : p->constant(1, 1, static_cast<std::uint32_t>(x.literal), Element::i32);
}

template <class X> [[gnu::noinline]] int joined(Op op, const X& x, const X& y, Element e) {
  Program* p = x.program ? x.program : y.program;
  const int left = node_of(p, x);
  const int right = node_of(p, y);
  return p->elementwise(op, {left, right}, e);
}
template <class X> Program* program_of(const X& x, const X& y) { return x.program ? x.program : y.program; }

inline Real operator+(Real x, Real y) { return {program_of(x, y), joined(Op::add, x, y, Element::f32)}; }
inline Real operator-(Real x, Real y) { return {program_of(x, y), joined(Op::sub, x, y, Element::f32)}; }
inline Real operator*(Real x, Real y) { return {program_of(x, y), joined(Op::mul, x, y, Element::f32)}; }
inline Real min(Real x, Real y) { return {program_of(x, y), joined(Op::min, x, y, Element::f32)}; }
inline Real max(Real x, Real y) { return {program_of(x, y), joined(Op::max, x, y, Element::f32)}; }
inline Condition operator<(Real x, Real y) { return {program_of(x, y), joined(Op::less, x, y, Element::i1)}; }
inline Condition operator<=(Real x, Real y) { return {program_of(x, y), joined(Op::less_equal, x, y, Element::i1)}; }
inline Condition operator==(Real x, Real y) { return {program_of(x, y), joined(Op::equal, x, y, Element::i1)}; }

[[gnu::noinline]] inline Real unary(Op op, Real x) { return {x.program, x.program->elementwise(op, {x.id}, Element::f32)}; }
inline Real abs(Real x) { return unary(Op::absolute, x); }
inline Real exp2(Real x) { return unary(Op::exp2, x); }
inline Real exp(Real x) { return unary(Op::exp, x); }
inline Real log1p(Real x) { return unary(Op::log1p, x); }
inline Real rsqrt(Real x) { return unary(Op::rsqrt, x); }
inline Real reciprocal(Real x) { return unary(Op::reciprocal, x); }
inline Real sigmoid(Real x) { return unary(Op::sigmoid, x); }
inline Real operator-(Real x) { return Real(0.f) - x; }
inline Real softplus(Real x) { return max(x, 0.f) + log1p(exp(-abs(x))); }

inline Integer operator+(Integer x, Integer y) { return {program_of(x, y), joined(Op::add_i, x, y, Element::i32)}; }
inline Integer operator-(Integer x, Integer y) { return {program_of(x, y), joined(Op::sub_i, x, y, Element::i32)}; }
inline Integer operator&(Integer x, Integer y) { return {program_of(x, y), joined(Op::and_i, x, y, Element::i32)}; }
inline Integer operator>>(Integer x, Integer y) { return {program_of(x, y), joined(Op::shift_right, x, y, Element::i32)}; }
inline Condition operator==(Integer x, Integer y) { return {program_of(x, y), joined(Op::equal, x, y, Element::i1)}; }
inline Condition operator<(Integer x, Integer y) { return {program_of(x, y), joined(Op::less, x, y, Element::i1)}; }
inline Condition operator<=(Integer x, Integer y) { return {program_of(x, y), joined(Op::less_equal, x, y, Element::i1)}; }
inline Condition operator>(Integer x, Integer y) { return y < x; }
inline Condition operator>=(Integer x, Integer y) { return y <= x; }
inline Condition operator&&(Condition x, Condition y) { return {x.program, x.program->elementwise(Op::both, {x.id, y.id}, Element::i1)}; }

[[gnu::noinline]] inline int selected(Condition m, int x, int y) {
  Program& p = *m.program;
  const int rows = std::max({p[m.id].rows, p[x].rows, p[y].rows}), cols = std::max({p[m.id].cols, p[x].cols, p[y].cols});
  const int mask = p.stretch(m.id, rows, cols), yes = p.stretch(x, rows, cols), no = p.stretch(y, rows, cols);
  return p.add({.op = Op::select, .in = {mask, yes, no}, .rows = rows, .cols = cols, .element = p[yes].element});
}
inline Real where(Condition m, Real x, Real y) {
  const int yes = node_of(m.program, x);
  const int no = node_of(m.program, y);
  return {m.program, selected(m, yes, no)};
}
inline Integer where(Condition m, Integer x, Integer y) {
  const int yes = node_of(m.program, x);
  const int no = node_of(m.program, y);
  return {m.program, selected(m, yes, no)};
}

}  // namespace gdn::trace

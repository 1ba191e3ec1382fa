// `exact` text: the portable definition of a transcendental function written out in operations that every machine rounds alike.
#pragma once
#include "gdn/mosaic/builder.hpp"
#include "gdn/portable/math.hpp"

namespace gdn::mosaic::exact {

// What portable/math.hpp asks of a value type, on values of the text. `type` is the f32 vector's.
struct Term {
  Builder* b;
  int value;
};
struct Word {
  Builder* b;
  int value;
};
struct Truth {
  Builder* b;
  int value;
};
inline std::string retyped(std::string type, const char* element) {
  return type.substr(0, type.rfind('x') + 1) + element + ">";
}
inline std::string type_of(const Term& x) { return x.b->type(x.value); }
inline std::string type_of(const Word& x) { return x.b->type(x.value); }
inline Term binary(const char* op, const Term& x, const Term& y) { return {x.b, x.b->op(op, {x.value, y.value}, "fastmath = #arith.fastmath<none>", type_of(x))}; }
inline Word binary(const char* op, const Word& x, const Word& y, const char* attributes = "") {
  return {x.b, x.b->op(op, {x.value, y.value}, attributes, type_of(x))};
}
inline Truth compared(int predicate, const Term& x, const Term& y) {
  return {x.b, x.b->op("arith.cmpf", {x.value, y.value}, "fastmath = #arith.fastmath<none>, predicate = " + number(predicate) + " : i64",
                       retyped(type_of(x), "i1"))};
}
inline Term operator+(const Term& x, const Term& y) { return binary("arith.addf", x, y); }
inline Term operator-(const Term& x, const Term& y) { return binary("arith.subf", x, y); }
inline Term operator*(const Term& x, const Term& y) { return binary("arith.mulf", x, y); }
inline Truth operator<(const Term& x, const Term& y) { return compared(4, x, y); }
inline Truth operator==(const Term& x, const Term& y) { return compared(1, x, y); }
inline Term select(const Truth& m, const Term& x, const Term& y) { return {x.b, x.b->op("arith.select", {m.value, x.value, y.value}, "", type_of(x))}; }
inline Term constant(const Term& like, float x) {
  const std::string t = type_of(like);
  return {like.b, like.b->op("arith.constant", {}, "value = dense<" + literal(std::bit_cast<std::uint32_t>(x), Element::f32) + "> : " + t, t)};
}
inline Word constant(const Word& like, std::uint32_t x) {
  const std::string t = type_of(like);
  return {like.b, like.b->op("arith.constant", {}, "value = dense<" + literal(x, Element::i32) + "> : " + t, t)};
}
inline Word bits(const Term& x) { return {x.b, x.b->op("arith.bitcast", {x.value}, "", retyped(type_of(x), "i32"))}; }
inline Term from_bits(const Word& x) { return {x.b, x.b->op("arith.bitcast", {x.value}, "", retyped(type_of(x), "f32"))}; }
inline constexpr char wraps[] = "overflowFlags = #arith.overflow<none>";
inline Word operator+(const Word& x, const Word& y) { return binary("arith.addi", x, y, wraps); }
inline Word operator-(const Word& x, const Word& y) { return binary("arith.subi", x, y, wraps); }
inline Word operator&(const Word& x, const Word& y) { return binary("arith.andi", x, y); }
template <int n> Word shift_left(const Word& x) { return binary("arith.shli", x, constant(x, std::uint32_t{n}), wraps); }
template <int n> Word shift_right(const Word& x) { return binary("arith.shrui", x, constant(x, std::uint32_t{n})); }

inline bool has_definition(trace::Op op) { return op >= trace::Op::exp2 && op <= trace::Op::sigmoid; }
[[gnu::noinline]] inline int spelled_out(Builder& b, trace::Op op, int value) {
  const Term x{&b, value};
  switch (op) {
    case trace::Op::exp2: return portable::exp2(x).value;
    case trace::Op::exp: return portable::exp(x).value;
    case trace::Op::log1p: return portable::log1p(x).value;
    case trace::Op::rsqrt: return portable::rsqrt(x).value;
    case trace::Op::reciprocal: return portable::reciprocal(x).value;
    default: return portable::sigmoid(x).value;
  }
}

}  // namespace gdn::mosaic::exact

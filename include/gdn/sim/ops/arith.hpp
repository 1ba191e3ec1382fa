// arith and math: elementwise, scalars and vectors alike.
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "../../bf16.hpp"
#include "../../portable/math.hpp"
#include "common.hpp"

namespace gdn::sim::ops {

// ---- constants

inline Execute constant(const Node& n) {
  count_operands(n, 0);
  const auto& value = n.attribute("value");
  const Type& t = n.result_types[0];
  const bool dense = value.kind == Attribute::Kind::dense;
  n.check(is_value(t) && dense == (t.kind == Kind::vector), "cannot make a ", t, " of this value");
  n.check(!dense || (value.elements.size() == 1 && value.elements[0].kind == Attribute::Kind::number),
          "a vector constant must be a splat: dense<x>");
  const auto& literal = dense ? value.elements[0].text : value.text;
  const auto bits = literal_bits(literal, t.element);
  n.check(bits.has_value(), "'", literal, "' is no ", t.element_name);
  n.check(literal == "true" || literal == "false" || value.type == t, "the value is a ", value.type, ", the result a ", t);
  auto v = new_value(t);
  std::fill_n(v.words(), t.size(), *bits);
  return constant_value(n, std::move(v));
}

// ---- elementwise

inline void no_fastmath(const Node& n) {
  if (const auto* f = n.attributes.find("fastmath")) n.check(f->text == "none", "fastmath<", f->text, "> would leave the bits open");
}

template <float (*F)(float, float)>
std::uint32_t on_floats(std::uint32_t a, std::uint32_t b) {
  return as_bits(F(as_float(a), as_float(b)));
}
template <float (*F)(float)>
std::uint32_t on_float(std::uint32_t a) {
  return as_bits(F(as_float(a)));
}

template <float (*F)(float, float)>
Execute float2(const Node& n) {
  no_fastmath(n);
  elementwise_type(n, 2, {Scalar::f32});
  return run2(n, loop2<on_floats<F>>);
}

template <float (*F)(float)>
Execute float1(const Node& n) {
  no_fastmath(n);
  elementwise_type(n, 1, {Scalar::f32});
  return run1(n, loop1<on_float<F>>);
}

inline float add(float a, float b) { return a + b; }
inline float subtract(float a, float b) { return a - b; }
inline float multiply(float a, float b) { return a * b; }
inline float divide(float a, float b) { return a / b; }
// A subnormal operand counts as the zero of its sign; NaN wins; -0 < +0.
inline float flushed(float x) { return (as_bits(x) & 0x7f800000u) ? x : as_float(as_bits(x) & 0x80000000u); }
inline float maximum(float a, float b) {
  if (a != a || b != b) return as_float(0x7fc00000u);
  if (a == b) return flushed(as_float(as_bits(a) & as_bits(b)));
  return flushed(a > b ? a : b);
}
inline float minimum(float a, float b) {
  if (a != a || b != b) return as_float(0x7fc00000u);
  if (a == b) return flushed(as_float(as_bits(a) | as_bits(b)));
  return flushed(a < b ? a : b);
}

// Signs are bits: a NaN or a subnormal keeps the rest.
inline std::uint32_t flip_sign(std::uint32_t x) { return x ^ 0x80000000u; }
inline std::uint32_t drop_sign(std::uint32_t x) { return x & 0x7fffffffu; }

template <std::uint32_t (*F)(std::uint32_t)>
Execute sign1(const Node& n) {
  no_fastmath(n);
  elementwise_type(n, 1, {Scalar::f32});
  return run1(n, loop1<F>);
}

inline float exp2(float x) { return portable::exp2(x); }
inline float exp(float x) { return portable::exp(x); }
inline float log1p(float x) { return portable::log1p(x); }
inline float rsqrt(float x) { return portable::rsqrt(x); }
inline float reciprocal(float x) { return portable::reciprocal(x); }
inline float sigmoid(float x) { return portable::sigmoid(x); }
inline float square_root(float x) { return std::sqrt(x); }
// No portable definition: the double's function, rounded once more.
inline float log(float x) { return static_cast<float>(std::log(static_cast<double>(x))); }
inline float tanh(float x) { return static_cast<float>(std::tanh(static_cast<double>(x))); }

inline bool log1p_takes(std::uint32_t x) { return !(as_float(x) < 0 || as_float(x) > 1); }

inline Execute log1p_op(const Node& n) {
  no_fastmath(n);
  elementwise_type(n, 1, {Scalar::f32});
  return run1(n, loop1<on_float<log1p>>, log1p_takes, " is outside [0, 1], which the portable definition of log1p covers");
}

inline Execute reciprocal_op(const Node& n) {
  n.boolean("approx");
  n.boolean("full_range");
  return float1<reciprocal>(n);
}

inline std::int32_t as_signed(std::uint32_t x) { return static_cast<std::int32_t>(x); }
inline std::uint32_t iadd(std::uint32_t a, std::uint32_t b) { return a + b; }
inline std::uint32_t isubtract(std::uint32_t a, std::uint32_t b) { return a - b; }
inline std::uint32_t imultiply(std::uint32_t a, std::uint32_t b) { return a * b; }
inline std::uint32_t idivide(std::uint32_t a, std::uint32_t b) { return static_cast<std::uint32_t>(as_signed(a) / as_signed(b)); }
inline std::uint32_t iremainder(std::uint32_t a, std::uint32_t b) { return static_cast<std::uint32_t>(as_signed(a) % as_signed(b)); }
inline std::uint32_t udivide(std::uint32_t a, std::uint32_t b) { return a / b; }
inline std::uint32_t uremainder(std::uint32_t a, std::uint32_t b) { return a % b; }
inline std::uint32_t bit_and(std::uint32_t a, std::uint32_t b) { return a & b; }
inline std::uint32_t bit_or(std::uint32_t a, std::uint32_t b) { return a | b; }
inline std::uint32_t bit_xor(std::uint32_t a, std::uint32_t b) { return a ^ b; }
inline std::uint32_t shift_left(std::uint32_t a, std::uint32_t b) { return a << b; }
inline std::uint32_t shift_right(std::uint32_t a, std::uint32_t b) { return a >> b; }
inline std::uint32_t shift_right_signed(std::uint32_t a, std::uint32_t b) { return static_cast<std::uint32_t>(as_signed(a) >> b); }
inline std::uint32_t iminimum(std::uint32_t a, std::uint32_t b) { return as_signed(a) < as_signed(b) ? a : b; }
inline std::uint32_t imaximum(std::uint32_t a, std::uint32_t b) { return as_signed(a) > as_signed(b) ? a : b; }

inline const char* divisible(std::uint32_t a, std::uint32_t b) {
  if (b == 0) return "division by zero";
  return a == 0x80000000u && b == 0xffffffffu ? "the quotient overflows" : nullptr;
}
inline const char* divisible_unsigned(std::uint32_t, std::uint32_t b) { return b == 0 ? "division by zero" : nullptr; }
inline const char* shiftable(std::uint32_t, std::uint32_t b) { return b < 32 ? nullptr : "the shift is not within 0..31"; }

inline void no_overflow_promise(const Node& n) {
  if (const auto* f = n.attributes.find("overflowFlags")) n.check(f->text == "none", "overflow<", f->text, "> is a promise nothing checks");
}

template <std::uint32_t (*F)(std::uint32_t, std::uint32_t), Valid2 valid = nullptr>
Execute int2(const Node& n) {
  no_overflow_promise(n);
  elementwise_type(n, 2, {Scalar::i32, Scalar::index});
  return run2(n, loop2<F>, valid);
}

template <std::uint32_t (*F)(std::uint32_t, std::uint32_t)>
Execute logic2(const Node& n) {
  elementwise_type(n, 2, {Scalar::i32, Scalar::index, Scalar::i1});
  return run2(n, loop2<F>);
}

// The result of a compare: i1 elements in the shape of the operands.
inline void compare_types(const Node& n, std::initializer_list<Scalar> elements) {
  count_operands(n, 2);
  const Type& t = n.operand_types[0];
  n.check(t == n.operand_types[1], "operands differ: ", t, " and ", n.operand_types[1]);
  n.check(is_value(t) && std::find(elements.begin(), elements.end(), t.element) != elements.end(), "does not take ", t);
  n.check(n.result_types[0] == with_element(t, Scalar::i1, "i1"), "the result must be i1 in the operands' shape, not ", n.result_types[0]);
}

template <class T, bool (*F)(T, T)>
std::uint32_t test(std::uint32_t a, std::uint32_t b) {
  return F(std::bit_cast<T>(a), std::bit_cast<T>(b));
}
template <class T>
bool equal(T a, T b) { return a == b; }
template <class T>
bool unequal(T a, T b) { return a < b || a > b; }  // false on NaN: one, not une
template <class T>
bool less(T a, T b) { return a < b; }
template <class T>
bool less_equal(T a, T b) { return a <= b; }
template <class T>
bool greater(T a, T b) { return a > b; }
template <class T>
bool greater_equal(T a, T b) { return a >= b; }

inline Execute compare_ints(const Node& n) {
  using I = std::int32_t;
  using U = std::uint32_t;
  constexpr Loop2 loops[] = {loop2<test<I, equal>>,   loop2<test<I, unequal>>,       loop2<test<I, less>>, loop2<test<I, less_equal>>,
                             loop2<test<I, greater>>, loop2<test<I, greater_equal>>, loop2<test<U, less>>, loop2<test<U, less_equal>>,
                             loop2<test<U, greater>>, loop2<test<U, greater_equal>>};
  compare_types(n, {Scalar::i32, Scalar::index});
  const auto p = n.integer("predicate");
  n.check(p >= 0 && p < 10, "predicate ", p, " is none");
  return run2(n, loops[p]);
}

inline Execute compare_floats(const Node& n) {
  constexpr Loop2 loops[] = {loop2<test<float, equal>>, loop2<test<float, greater>>,    loop2<test<float, greater_equal>>,
                             loop2<test<float, less>>,  loop2<test<float, less_equal>>, loop2<test<float, unequal>>};
  no_fastmath(n);
  compare_types(n, {Scalar::f32});
  const auto p = n.integer("predicate");
  n.check(p >= 1 && p <= 6, "predicate ", p, ": only oeq, ogt, oge, olt, ole and one are known to compile (une and uno do not)");
  return run2(n, loops[p - 1]);
}

// Undefined elements that are not chosen do no harm.
inline Execute select(const Node& n) {
  count_operands(n, 3);
  const Type &condition = n.operand_types[0], &t = n.result_types[0];
  n.check(n.operand_types[1] == t && n.operand_types[2] == t, "both choices and the result must have one type");
  const bool one = condition.is(Kind::scalar, Scalar::i1);
  n.check(one || condition == with_element(t, Scalar::i1, "i1"), "the condition must be an i1 or i1 elements in the choices' shape, not ",
          condition);
  return [&n, &condition, &t, one, size = t.size()](Machine& m) {
    const int c = n.operands[0], a = n.operands[1], b = n.operands[2], out = n.results[0];
    if (one || !m.carry_undefined) m.need_defined(c, condition.shape);
    if (one) {
      m[out] = m[m[c].scalar ? a : b];
      return;
    }
    auto r = new_value(t);
    const Words w = m[c].words(), x = m[a].words(), y = m[b].words();
    auto* z = r.words();
    for (std::int64_t i = 0; i < size; i++) z[i] = w[i] ? x[i] : y[i];
    const auto *s = m[c].undefined(), *u = m[a].undefined(), *v = m[b].undefined();
    if (s || u || v) {
      std::vector<Origin> marks(static_cast<std::size_t>(size));
      for (std::int64_t i = 0; i < size; i++) {
        const auto* chosen = w[i] ? u : v;
        marks[static_cast<std::size_t>(i)] = s && s[i] ? s[i] : chosen ? chosen[i] : Origin{0};
      }
      set_undefined(r, std::move(marks));
    }
    m[out] = std::move(r);
  };
}

// ---- casts

inline void cast_types(const Node& n, Scalar from, Scalar to) {
  count_operands(n, 1);
  const Type &a = n.operand_types[0], &b = n.result_types[0];
  n.check(is_value(a) && a.element == from && b == with_element(a, to, b.element_name) && b.element == to, "does not take ", a, " to ",
          b);
}

inline std::uint32_t widen(std::uint32_t x) { return x << 16; }
inline std::uint32_t narrow(std::uint32_t x) { return to_bf16(as_float(x)).bits; }
inline std::uint32_t round_to_bf16(std::uint32_t x) { return widen(narrow(x)); }
inline std::uint32_t int_to_float(std::uint32_t x) { return as_bits(static_cast<float>(as_signed(x))); }
inline bool is_int(std::uint32_t x) { return as_float(x) >= -0x1p31f && as_float(x) < 0x1p31f; }
// An undefined element may be none; it becomes 0.
inline std::uint32_t float_to_int(std::uint32_t x) {
  return is_int(x) ? static_cast<std::uint32_t>(static_cast<std::int32_t>(as_float(x))) : 0;
}

inline Execute extf(const Node& n) {
  no_fastmath(n);
  cast_types(n, Scalar::bf16, Scalar::f32);
  return cast(n, loop1<widen>);
}

inline Execute truncf(const Node& n) {
  no_fastmath(n);
  cast_types(n, Scalar::f32, Scalar::bf16);
  return cast(n, loop1<narrow>);
}

inline Execute index_cast(const Node& n) {
  count_operands(n, 1);
  const bool to_index = n.operand_types[0].element == Scalar::i32;
  cast_types(n, to_index ? Scalar::i32 : Scalar::index, to_index ? Scalar::index : Scalar::i32);
  return shared(n);
}

inline Execute bitcast(const Node& n) {
  count_operands(n, 1);
  const bool to_int = n.operand_types[0].element == Scalar::f32;
  cast_types(n, to_int ? Scalar::f32 : Scalar::i32, to_int ? Scalar::i32 : Scalar::f32);
  return shared(n);
}

inline Execute fptosi(const Node& n) {
  cast_types(n, Scalar::f32, Scalar::i32);
  return run1(n, loop1<float_to_int>, is_int, " is no i32");
}

template <int bits, bool sign>
std::uint32_t extend(std::uint32_t x) {
  constexpr int unused = 32 - bits;
  return sign ? static_cast<std::uint32_t>(as_signed(x << unused) >> unused) : x << unused >> unused;
}

// From i1, i8 or i16 to i32.
template <bool sign>
Execute extend_int(const Node& n) {
  count_operands(n, 1);
  const auto from = n.operand_types[0].element;
  n.check(from == Scalar::i1 || from == Scalar::i8 || from == Scalar::i16, "does not take ", n.operand_types[0]);
  cast_types(n, from, Scalar::i32);
  return cast(n, from == Scalar::i1 ? loop1<extend<1, sign>> : from == Scalar::i8 ? loop1<extend<8, sign>> : loop1<extend<16, sign>>);
}

template <int bits>
std::uint32_t small_int_to_float(std::uint32_t x) { return int_to_float(extend<bits, true>(x)); }

// From i32, i16 or i8.
inline Execute sitofp(const Node& n) {
  count_operands(n, 1);
  const auto from = n.operand_types[0].element;
  n.check(from == Scalar::i32 || from == Scalar::i16 || from == Scalar::i8, "does not take ", n.operand_types[0]);
  cast_types(n, from, Scalar::f32);
  return run1(n, from == Scalar::i32 ? loop1<int_to_float> : from == Scalar::i16 ? loop1<small_int_to_float<16>> : loop1<small_int_to_float<8>>);
}

template <int bits>
std::uint32_t keep(std::uint32_t x) { return x & ((1u << bits) - 1); }

// From i32 to i1, i8 or i16.
inline Execute trunci(const Node& n) {
  no_overflow_promise(n);
  count_operands(n, 1);
  const auto to = n.result_types[0].element;
  n.check(to == Scalar::i1 || to == Scalar::i8 || to == Scalar::i16, "does not give ", n.result_types[0]);
  cast_types(n, Scalar::i32, to);
  return cast(n, to == Scalar::i1 ? loop1<keep<1>> : to == Scalar::i8 ? loop1<keep<8>> : loop1<keep<16>>);
}

}  // namespace gdn::sim::ops

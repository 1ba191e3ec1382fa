// The ops: one table row and one function each. A function checks the op once, when the kernel is loaded, and returns what executes it.
// What executes refers to the op and its types, which stay where they are as long as the kernel is loaded.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "../bf16.hpp"
#include "../portable/math.hpp"
#include "memory.hpp"
#include "parse.hpp"
#include "value.hpp"

namespace gdn::sim {

class Machine;
using Execute = std::function<void(Machine&)>;

struct Step {
  const Node* node = nullptr;
  Execute execute;
  std::vector<int> last_uses;  // values that die here
};

// A region, ready to run. `results` are the operands of its terminator.
struct Block {
  std::vector<int> arguments;
  std::vector<Step> steps;
  std::vector<int> results, result_last_uses;
};

// The state of an execution: the values by number, and what errors have to tell.
class Machine {
 public:
  explicit Machine(const std::vector<std::string>& names) : values(names.size()), names_(names) {}

  std::vector<Value> values;
  std::vector<std::string> origins{""};  // names of memories, by the mark of their undefined elements
  std::vector<std::int64_t> grid_step, bounds;
  std::string during;  // "" in the body, else the transform being evaluated
  long ops = 0;

  Value& operator[](int i) { return values[static_cast<std::size_t>(i)]; }
  const std::string& name(int i) const { return names_[static_cast<std::size_t>(i)]; }

  // Leaves the results in place; `finish` drops what dies with the block.
  void run(const Block& b) {
    for (const auto& step : b.steps) {
      node_ = step.node;
      ops++;
      step.execute(*this);
      for (int v : step.last_uses) (*this)[v] = Value{};
    }
  }
  void finish(const Block& b) {
    for (int v : b.result_last_uses) (*this)[v] = Value{};
  }

  std::string when() const {
    return text(during, during.empty() ? "" : ", ", bounds.empty() ? "without a grid" : "grid step " + tuple_text(grid_step));
  }

  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    fail_with({Part(parts)...});
  }
  template <class... Parts>
  void check(bool condition, const Parts&... parts) const {
    if (!condition) fail(parts...);
  }

  [[noreturn, gnu::noinline, gnu::cold]] void fail_with(std::initializer_list<Part> parts) const {
    throw Error(text(node_->where(), ", ", when(), ": ", joined(parts)));
  }

  // Anything but a move refuses undefined elements.
  void need_defined(int i, const Shape& shape) {
    const auto* marks = (*this)[i].undefined();
    if (!marks) return;
    const auto n = volume(shape);
    const auto at = std::find_if(marks, marks + n, [](Origin o) { return o != 0; }) - marks;
    fail("operand ", name(i), shape.empty() ? std::string() : ", index " + index_text(at, shape) + ",", " is undefined: it comes from ",
         origins[marks[at]]);
  }

  // A scalar operand that is an index, a bound or an amount.
  std::int64_t number(int i) {
    need_defined(i, {});
    return static_cast<std::int32_t>((*this)[i].scalar);
  }

 private:
  const std::vector<std::string>& names_;
  const Node* node_ = nullptr;
};

std::shared_ptr<Block> load_block(const Region& r);

namespace ops {

using Kind = Type::Kind;
using Words = const std::uint32_t*;

inline void count_operands(const Node& n, std::size_t operands, std::size_t results = 1) {
  n.check(n.operands.size() == operands && n.results.size() == results, "takes ", operands, " operands and gives ", results,
          " results, not ", n.operands.size(), " and ", n.results.size());
}

inline bool is_value(const Type& t) { return t.kind == Kind::scalar || t.kind == Kind::vector; }

inline Type with_element(Type t, Scalar element, std::string name) {
  t.element = element;
  t.element_name = std::move(name);
  return t;
}

// All operands and the result have one type, with an element the op is for.
inline const Type& elementwise_type(const Node& n, std::size_t operands, std::initializer_list<Scalar> elements) {
  count_operands(n, operands);
  const Type& t = n.result_types[0];
  for (auto& o : n.operand_types) n.check(o == t, "operands and result must have one type, not ", o, " and ", t);
  const bool fits = is_value(t) && std::find(elements.begin(), elements.end(), t.element) != elements.end();
  n.check(fits, "does not take ", t, t.element == Scalar::bf16 ? " (widen with arith.extf: arithmetic is f32)" : "");
  return t;
}

// A new result of operand `n`'s elements in another order or number: box.from reads the operand at `base`.
inline Execute moved(const Node& n, Box box, std::int64_t base) {
  return [in = n.operands[0], out = n.results[0], &type = n.result_types[0], box = std::move(box), base](Machine& m) {
    auto r = new_value(type);
    copy_box(box, r.words(), m[in].words() + base);
    if (const auto* marks = m[in].undefined()) {
      std::vector<Origin> moved_marks(static_cast<std::size_t>(type.size()));
      copy_box(box, moved_marks.data(), marks + base);
      set_undefined(r, std::move(moved_marks));
    }
    m[out] = std::move(r);
  };
}

// The operand's buffer under a new type.
inline Execute shared(const Node& n) {
  return [in = n.operands[0], out = n.results[0]](Machine& m) { m[out] = m[in]; };
}

inline Execute constant_value(const Node& n, Value v) {
  return [out = n.results[0], v = std::move(v)](Machine& m) { m[out] = v; };
}

// ---- elementwise

using Loop1 = void (*)(Words, std::uint32_t*, std::int64_t);
using Loop2 = void (*)(Words, Words, std::uint32_t*, std::int64_t);
using Valid2 = const char* (*)(std::uint32_t, std::uint32_t);

template <auto F>
void loop1(Words x, std::uint32_t* z, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i++) z[i] = F(x[i]);
}
template <auto F>
void loop2(Words x, Words y, std::uint32_t* z, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i++) z[i] = F(x[i], y[i]);
}

inline Execute run1(const Node& n, Loop1 loop) {
  return [in = n.operands[0], out = n.results[0], &from = n.operand_types[0], &to = n.result_types[0], size = n.result_types[0].size(),
          loop](Machine& m) {
    m.need_defined(in, from.shape);
    auto r = new_value(to);
    loop(m[in].words(), r.words(), size);
    m[out] = std::move(r);
  };
}

// `valid` names what is wrong with a pair of elements, or gives null.
inline Execute run2(const Node& n, Loop2 loop, Valid2 valid = nullptr) {
  return [a = n.operands[0], b = n.operands[1], out = n.results[0], &shape = n.operand_types[0].shape, &to = n.result_types[0],
          size = n.result_types[0].size(), loop, valid](Machine& m) {
    m.need_defined(a, shape);
    m.need_defined(b, shape);
    const Words x = m[a].words(), y = m[b].words();
    for (std::int64_t i = 0; valid && i < size; i++)
      if (const char* wrong = valid(x[i], y[i]))
        m.fail(wrong, ": ", static_cast<std::int32_t>(x[i]), " and ", static_cast<std::int32_t>(y[i]), " at index ", index_text(i, shape));
    auto r = new_value(to);
    loop(x, y, r.words(), size);
    m[out] = std::move(r);
  };
}

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

inline Execute log1p_op(const Node& n) {
  auto execute = float1<log1p>(n);
  return [execute = std::move(execute), in = n.operands[0], &shape = n.operand_types[0].shape](Machine& m) {
    m.need_defined(in, shape);
    const Words x = m[in].words();
    for (std::int64_t i = 0; i < volume(shape); i++)
      if (as_float(x[i]) < 0 || as_float(x[i]) > 1)
        m.fail("log1p of ", as_float(x[i]), " at index ", index_text(i, shape), ": its portable definition covers [0, 1]");
    execute(m);
  };
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
    m.need_defined(c, condition.shape);
    if (one) {
      m[out] = m[m[c].scalar ? a : b];
      return;
    }
    auto r = new_value(t);
    const Words w = m[c].words(), x = m[a].words(), y = m[b].words();
    auto* z = r.words();
    for (std::int64_t i = 0; i < size; i++) z[i] = w[i] ? x[i] : y[i];
    const auto *u = m[a].undefined(), *v = m[b].undefined();
    if (u || v) {
      std::vector<Origin> marks(static_cast<std::size_t>(size));
      for (std::int64_t i = 0; i < size; i++) marks[static_cast<std::size_t>(i)] = w[i] ? (u ? u[i] : Origin{0}) : (v ? v[i] : Origin{0});
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

// A cast that is a move: undefined elements stay undefined.
inline Execute cast(const Node& n, Loop1 loop) {
  return [in = n.operands[0], out = n.results[0], &type = n.result_types[0], size = n.result_types[0].size(), loop](Machine& m) {
    auto r = new_value(type);
    loop(m[in].words(), r.words(), size);
    if (const auto* marks = m[in].undefined()) set_undefined(r, {marks, marks + size});
    m[out] = std::move(r);
  };
}

inline std::uint32_t widen(std::uint32_t x) { return x << 16; }
inline std::uint32_t narrow(std::uint32_t x) { return to_bf16(as_float(x)).bits; }
inline std::uint32_t round_to_bf16(std::uint32_t x) { return widen(narrow(x)); }
inline std::uint32_t int_to_float(std::uint32_t x) { return as_bits(static_cast<float>(as_signed(x))); }
inline std::uint32_t float_to_int(std::uint32_t x) { return static_cast<std::uint32_t>(static_cast<std::int32_t>(as_float(x))); }
inline std::uint32_t low_bit(std::uint32_t x) { return x & 1u; }

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

inline Execute sitofp(const Node& n) {
  cast_types(n, Scalar::i32, Scalar::f32);
  return run1(n, loop1<int_to_float>);
}

inline Execute fptosi(const Node& n) {
  cast_types(n, Scalar::f32, Scalar::i32);
  auto execute = run1(n, loop1<float_to_int>);
  return [execute = std::move(execute), in = n.operands[0], &shape = n.operand_types[0].shape](Machine& m) {
    m.need_defined(in, shape);
    const Words x = m[in].words();
    for (std::int64_t i = 0; i < volume(shape); i++)
      if (!(as_float(x[i]) >= -0x1p31f && as_float(x[i]) < 0x1p31f))
        m.fail(as_float(x[i]), " at index ", index_text(i, shape), " is no i32");
    execute(m);
  };
}

inline Execute extui(const Node& n) {
  cast_types(n, Scalar::i1, Scalar::i32);
  return shared(n);
}

inline Execute trunci(const Node& n) {
  no_overflow_promise(n);
  cast_types(n, Scalar::i32, Scalar::i1);
  return cast(n, loop1<low_bit>);
}

// Same width: a renaming. Between 16 and 32 bits: rows 2r (low half) and 2r + 1 (high half) are row r.
inline Execute vector_bitcast(const Node& n) {
  count_operands(n, 1);
  const Type &from = n.operand_types[0], &to = n.result_types[0];
  const auto width = [&](const Type& t) {
    n.check(t.kind == Kind::vector && t.element != Scalar::i1 && t.element != Scalar::index && t.element != Scalar::other, "does not take ",
            t);
    return t.element == Scalar::bf16 ? 1 : 2;
  };
  const auto wf = width(from), wt = width(to);
  if (wf == wt) {
    n.check(from.shape == to.shape, "shapes differ: ", from, " and ", to);
    return shared(n);
  }
  const auto rank = from.shape.size();
  n.check(rank >= 2 && to.shape.size() == rank, "needs rank 2 or more");
  auto scaled = from.shape;
  scaled[rank - 2] = scaled[rank - 2] * wf / wt;
  n.check(scaled == to.shape && from.shape[rank - 2] * wf == to.shape[rank - 2] * wt, "rows must scale with the width: ", from, " and ",
          to);
  const bool pack = wf < wt;
  const std::int64_t columns = from.shape.back(), rows = (pack ? to : from).size() / columns;  // of 32 bits
  return [in = n.operands[0], out = n.results[0], &to, pack, columns, rows](Machine& m) {
    auto r = new_value(to);
    const Words x = m[in].words();
    auto* z = r.words();
    const auto* marks = m[in].undefined();
    std::vector<Origin> moved_marks(marks ? static_cast<std::size_t>(to.size()) : 0);
    for (std::int64_t row = 0; row < rows; row++)
      for (std::int64_t c = 0; c < columns; c++) {
        const auto whole = row * columns + c, low = 2 * row * columns + c, high = low + columns;
        if (pack) z[whole] = x[low] | (x[high] << 16);
        else {
          z[low] = x[whole] & 0xffffu;
          z[high] = x[whole] >> 16;
        }
        if (marks && pack) moved_marks[static_cast<std::size_t>(whole)] = std::max(marks[low], marks[high]);
        if (marks && !pack) moved_marks[static_cast<std::size_t>(low)] = moved_marks[static_cast<std::size_t>(high)] = marks[whole];
      }
    if (marks) set_undefined(r, std::move(moved_marks));
    m[out] = std::move(r);
  };
}

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

inline Execute iota(const Node& n) {
  count_operands(n, 0);
  const Type& t = n.result_types[0];
  n.check(t.is(Kind::vector, Scalar::i32) && t.shape.size() >= 2, "makes i32 vectors of rank 2 or more, not ", t);
  Shape weights(t.shape.size(), 0);
  const auto dims = n.integers("dimensions");
  std::int64_t weight = 1;
  for (std::size_t i = dims.size(); i-- > 0;) {
    n.check(dims[i] >= 0 && dims[i] < static_cast<std::int64_t>(t.shape.size()), "dimension ", dims[i], " of ", t);
    weights[static_cast<std::size_t>(dims[i])] = weight;
    weight *= t.shape[static_cast<std::size_t>(dims[i])];
  }
  auto v = new_value(t);
  const auto strides = strides_of(t.shape);
  for (std::int64_t i = 0; i < t.size(); i++) {
    std::int64_t sum = 0;
    for (std::size_t d = 0; d < t.shape.size(); d++) sum += i / strides[d] % t.shape[d] * weights[d];
    v.words()[i] = static_cast<std::uint32_t>(sum);
  }
  return constant_value(n, std::move(v));
}

// ---- moves between shapes

inline void same_element(const Node& n) {
  const Type &a = n.operand_types[0], &b = n.result_types[0];
  n.check(a.element == b.element, "the element type changes: ", a, " to ", b);
}

inline Execute broadcast(const Node& n) {
  count_operands(n, 1);
  same_element(n);
  const Type &from = n.operand_types[0], &to = n.result_types[0];
  n.check(to.kind == Kind::vector && is_value(from) && from.shape.size() <= to.shape.size(), "cannot stretch ", from, " to ", to);
  const auto strides = strides_of(from.shape);
  const auto lead = to.shape.size() - from.shape.size();
  Shape steps(to.shape.size(), 0);
  for (std::size_t d = 0; d < from.shape.size(); d++) {
    n.check(from.shape[d] == 1 || from.shape[d] == to.shape[lead + d], "cannot stretch ", from, " to ", to);
    if (from.shape[d] != 1) steps[lead + d] = strides[d];
  }
  return moved(n, make_box(to.shape, strides_of(to.shape), steps), 0);
}

inline Execute shape_cast(const Node& n) {
  count_operands(n, 1);
  same_element(n);
  const Type &from = n.operand_types[0], &to = n.result_types[0];
  n.check(from.kind == Kind::vector && to.kind == Kind::vector && from.size() == to.size(), "sizes differ: ", from, " and ", to);
  return shared(n);
}

inline Execute extract_strided_slice(const Node& n) {
  count_operands(n, 1);
  same_element(n);
  const Type &from = n.operand_types[0], &to = n.result_types[0];
  const auto offsets = n.integers("offsets"), sizes = n.integers("sizes"), steps = n.integers("strides");
  const auto rank = from.shape.size();
  n.check(offsets.size() == rank && sizes.size() == rank && steps.size() == rank && to.shape == sizes,
          "offsets, sizes and strides must fit ", from, " and ", to);
  for (std::size_t d = 0; d < rank; d++) {
    n.check(steps[d] == 1, "stride ", steps[d], " in dim ", d, ": only 1 compiles");
    n.check(offsets[d] >= 0 && sizes[d] >= 1 && offsets[d] + sizes[d] <= from.shape[d], "rows ", offsets[d], "..",
            offsets[d] + sizes[d] - 1, " in dim ", d, " of ", from, " are out of bounds");
  }
  const auto strides = strides_of(from.shape);
  return moved(n, make_box(to.shape, strides_of(to.shape), strides), dot(offsets, strides));
}

inline Execute extract(const Node& n) {
  count_operands(n, 1);
  same_element(n);
  const Type &from = n.operand_types[0], &to = n.result_types[0];
  const auto position = n.integers("static_position");
  n.check(from.kind == Kind::vector && position.size() <= from.shape.size(), "position and ", from, " do not fit");
  const auto strides = strides_of(from.shape);
  std::int64_t base = 0;
  for (std::size_t d = 0; d < position.size(); d++) {
    n.check(position[d] >= 0 && position[d] < from.shape[d], "position ", position[d], " in dim ", d, " of ", from, " is out of bounds");
    base += position[d] * strides[d];
  }
  const Shape rest(from.shape.begin() + static_cast<std::ptrdiff_t>(position.size()), from.shape.end());
  n.check(rest == to.shape, "cannot take a ", to, " out of ", from);
  const auto packed = strides_of(rest);
  return moved(n, make_box(rest, packed, packed), base);
}

inline Execute transpose(const Node& n) {
  count_operands(n, 1);
  same_element(n);
  const Type &from = n.operand_types[0], &to = n.result_types[0];
  const auto order = n.integers("permutation");
  auto sorted = order;
  std::sort(sorted.begin(), sorted.end());
  n.check(order.size() == from.shape.size() && order.size() == to.shape.size(), "permutation and ", from, " do not fit");
  const auto strides = strides_of(from.shape);
  Shape steps;
  for (std::size_t d = 0; d < order.size(); d++) {
    n.check(sorted[d] == static_cast<std::int64_t>(d), order, " is no permutation");
    n.check(to.shape[d] == from.shape[static_cast<std::size_t>(order[d])], "cannot transpose ", from, " to ", to);
    steps.push_back(strides[static_cast<std::size_t>(order[d])]);
  }
  return moved(n, make_box(to.shape, strides_of(to.shape), steps), 0);
}

// The dim of an attribute, and the sizes before, at and after it.
struct Along {
  std::int64_t outer = 1, size = 1, inner = 1;
};

inline Along along(const Node& n, std::int64_t dim, const Type& t) {
  n.check(t.kind == Kind::vector && dim >= 0 && dim < static_cast<std::int64_t>(t.shape.size()), "dimension ", dim, " of ", t);
  Along a;
  for (std::size_t d = 0; d < t.shape.size(); d++) {
    auto& part = static_cast<std::int64_t>(d) < dim ? a.outer : static_cast<std::int64_t>(d) == dim ? a.size : a.inner;
    part *= t.shape[d];
  }
  return a;
}

inline Execute concatenate(const Node& n) {
  count_operands(n, n.operands.size());
  const Type& to = n.result_types[0];
  n.check(n.operands.size() >= 2, "needs two operands or more");
  const auto dim = n.integer("dimension");
  const auto whole = along(n, dim, to);
  std::vector<std::int64_t> widths;
  std::int64_t sum = 0;
  for (auto& t : n.operand_types) {
    auto filled = t.shape;
    n.check(t.element == to.element && filled.size() == to.shape.size(), "cannot join ", t, " into ", to);
    const auto width = filled[static_cast<std::size_t>(dim)];
    filled[static_cast<std::size_t>(dim)] = to.shape[static_cast<std::size_t>(dim)];
    n.check(filled == to.shape, "cannot join ", t, " into ", to, " along dim ", dim);
    widths.push_back(width * whole.inner);
    sum += width;
  }
  n.check(sum == whole.size, "the parts have ", sum, " rows along dim ", dim, ", the result ", whole.size);
  return [&in = n.operands, out = n.results[0], &to, widths, outer = whole.outer, row = whole.size * whole.inner](Machine& m) {
    auto r = new_value(to);
    std::vector<Origin> marks;
    std::int64_t at = 0;
    for (std::size_t i = 0; i < in.size(); at += widths[i++]) {
      const auto width = widths[i];
      const Words x = m[in[i]].words();
      for (std::int64_t o = 0; o < outer; o++) std::memcpy(r.words() + o * row + at, x + o * width, static_cast<std::size_t>(width) * 4);
      if (const auto* u = m[in[i]].undefined()) {
        marks.resize(static_cast<std::size_t>(to.size()));
        for (std::int64_t o = 0; o < outer; o++) std::copy_n(u + o * width, width, marks.begin() + o * row + at);
      }
    }
    set_undefined(r, std::move(marks));
    m[out] = std::move(r);
  };
}

// Element i of the dim goes to (i + amount) mod size.
inline Execute dynamic_rotate(const Node& n) {
  count_operands(n, 2);
  const Type& t = n.result_types[0];
  n.check(n.operand_types[0] == t && n.operand_types[1].is(Kind::scalar, Scalar::i32), "takes ", t, " and an i32 amount");
  return [in = n.operands[0], by = n.operands[1], out = n.results[0], &t, a = along(n, n.integer("dimension"), t)](Machine& m) {
    const auto amount = m.number(by);
    m.check(amount >= 0, "a rotation by ", amount, ": the amount must not be negative");
    const auto head = amount % a.size * a.inner, row = a.size * a.inner;
    const auto rotate = [&](auto* to, const auto* from) {
      for (std::int64_t o = 0; o < a.outer; o++) {
        std::copy_n(from + o * row, row - head, to + o * row + head);
        std::copy_n(from + o * row + row - head, head, to + o * row);
      }
    };
    auto r = new_value(t);
    rotate(r.words(), m[in].words());
    if (const auto* u = m[in].undefined()) {
      std::vector<Origin> marks(static_cast<std::size_t>(t.size()));
      rotate(marks.data(), u);
      set_undefined(r, std::move(marks));
    }
    m[out] = std::move(r);
  };
}

// out[.., i, ..] = source[.., index[.., i, ..], ..] along one dim.
inline Execute dynamic_gather(const Node& n) {
  count_operands(n, 2);
  const Type &t = n.result_types[0], &it = n.operand_types[1];
  const auto dims = n.integers("dimensions");
  n.check(n.operand_types[0] == t, "source and result differ: ", n.operand_types[0], " and ", t);
  n.check(it == with_element(t, Scalar::i32, "i32"), "the indices must be i32 in the source's shape, not ", it);
  n.check(dims.size() == 1, "gathers along one dim");
  return [in = n.operands[0], by = n.operands[1], out = n.results[0], &t, a = along(n, dims[0], t)](Machine& m) {
    m.need_defined(by, t.shape);
    auto r = new_value(t);
    const Words x = m[in].words(), at = m[by].words();
    const auto* u = m[in].undefined();
    std::vector<Origin> marks(u ? static_cast<std::size_t>(t.size()) : 0);
    const auto row = a.size * a.inner;
    for (std::int64_t i = 0; i < t.size(); i++) {
      if (at[i] >= static_cast<std::uint64_t>(a.size))
        m.fail("out of bounds: operand ", m.name(in), ", gathers element ", as_signed(at[i]), " of ", a.size, " at index ",
               index_text(i, t.shape));
      const auto from = i / row * row + at[i] * a.inner + i % a.inner;
      r.words()[i] = x[from];
      if (u) marks[static_cast<std::size_t>(i)] = u[from];
    }
    set_undefined(r, std::move(marks));
    m[out] = std::move(r);
  };
}

// ---- reductions

// Folds halves: element i with i + n/2, over the power of two at or above n, where `fill` stands in for the missing ones.
template <auto F>
void fold(std::vector<std::uint32_t>& data, const Along& a, std::uint32_t fill) {
  const auto padded = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(a.size)));
  std::vector<std::uint32_t> tree(static_cast<std::size_t>(padded * a.inner));
  for (std::int64_t o = 0; o < a.outer; o++) {
    const auto* in = data.data() + o * a.size * a.inner;
    std::copy_n(in, a.size * a.inner, tree.begin());
    std::fill(tree.begin() + a.size * a.inner, tree.end(), fill);
    for (auto half = padded / 2 * a.inner; half >= a.inner; half /= 2) loop2<F>(tree.data(), tree.data() + half, tree.data(), half);
    std::copy_n(tree.begin(), a.inner, data.begin() + o * a.inner);  // o * inner never passes what is still to be read
  }
  data.resize(static_cast<std::size_t>(a.outer * a.inner));
}

// Dims are reduced one by one, the minor ones first; then out = acc + reduced (or the max or min of the two).
inline Execute multi_reduction(const Node& n) {
  count_operands(n, 2);
  const Type &from = n.operand_types[0], &to = n.result_types[0];
  n.check(n.operand_types[1] == to && from.kind == Kind::vector && to.kind == Kind::vector && from.element == to.element,
          "source, accumulator and result do not fit: ", from, ", ", n.operand_types[1], ", ", to);
  auto dims = n.integers("reduction_dims");
  std::sort(dims.begin(), dims.end());
  Shape kept;
  std::vector<Along> folds;
  Type rest = from;
  for (std::size_t i = dims.size(); i-- > 0;) {
    n.check(i == 0 || dims[i] != dims[i - 1], "dim ", dims[i], " is named twice");
    folds.push_back(along(n, dims[i], rest));
    rest.shape.erase(rest.shape.begin() + dims[i]);
  }
  n.check(rest.shape == to.shape, "reducing dims ", dims, " of ", from, " does not give ", to);
  struct Rule {
    std::string_view kind;
    Scalar element;
    void (*fold)(std::vector<std::uint32_t>&, const Along&, std::uint32_t);
    Loop2 join;
    std::uint32_t neutral;
  };
  static const Rule rules[] = {
      {"add", Scalar::f32, fold<on_floats<add>>, loop2<on_floats<add>>, 0},
      {"maximumf", Scalar::f32, fold<on_floats<maximum>>, loop2<on_floats<maximum>>, 0xff800000u},
      {"minimumf", Scalar::f32, fold<on_floats<minimum>>, loop2<on_floats<minimum>>, 0x7f800000u},
      {"add", Scalar::i32, fold<iadd>, loop2<iadd>, 0},
      {"maxsi", Scalar::i32, fold<imaximum>, loop2<imaximum>, 0x80000000u},
      {"minsi", Scalar::i32, fold<iminimum>, loop2<iminimum>, 0x7fffffffu},
  };
  const auto& kind = n.tagged("kind", "vector.kind");
  for (const auto& rule : rules)
    if (rule.kind == kind && rule.element == from.element)
      return [in = n.operands[0], acc = n.operands[1], out = n.results[0], &from, &to, folds, &rule](Machine& m) {
        m.need_defined(in, from.shape);
        m.need_defined(acc, to.shape);
        std::vector<std::uint32_t> data(m[in].words(), m[in].words() + from.size());
        for (auto& f : folds) rule.fold(data, f, rule.neutral);
        auto r = new_value(to);
        rule.join(m[acc].words(), data.data(), r.words(), to.size());
        m[out] = std::move(r);
      };
  n.fail("'", kind, "' of ", from, " is not simulated");
}

// ---- matmul

// One [M, K] x [K, N] product: out = acc + (+0 + chain over k ascending of fma(a, b)). Blocks of columns stay in registers; every
// output has its own chain, so the blocking does not show.
inline void chains(const float* a, const float* b, const std::uint32_t* acc, std::uint32_t* out, std::int64_t M, std::int64_t N,
                   std::int64_t K) {
  constexpr std::int64_t width = 64;
  for (std::int64_t j = 0; j < N; j += width) {
    const auto columns = std::min(width, N - j);
    for (std::int64_t i = 0; i < M; i++) {
      float sum[width] = {};
      const float* row = a + i * K;
      if (columns == width)
        for (std::int64_t k = 0; k < K; k++)
          for (std::int64_t c = 0; c < width; c++) sum[c] = fused_multiply_add(row[k], b[k * N + j + c], sum[c]);
      else
        for (std::int64_t k = 0; k < K; k++)
          for (std::int64_t c = 0; c < columns; c++) sum[c] = fused_multiply_add(row[k], b[k * N + j + c], sum[c]);
      for (std::int64_t c = 0; c < columns; c++) out[i * N + j + c] = as_bits(as_float(acc[i * N + j + c]) + sum[c]);
    }
  }
}

inline Execute matmul(const Node& n) {
  count_operands(n, 3);
  const Type &at = n.operand_types[0], &bt = n.operand_types[1], &to = n.result_types[0];
  n.check(at.kind == Kind::vector && bt.kind == Kind::vector && n.operand_types[2] == to && to.is(Kind::vector, Scalar::f32),
          "takes two vectors and an f32 accumulator of the result's type");
  n.check(!n.boolean("transpose_lhs") && !n.boolean("transpose_rhs"), "the transpose flags must be false; dimension_numbers say it");
  n.boolean("transpose_lhs_hint");
  std::vector<std::vector<std::int64_t>> groups;
  {
    Reader r(n.tagged("dimension_numbers", "tpu.dot_dimension_numbers"));
    do {
      groups.emplace_back();
      for (auto& e : r.attribute().elements) groups.back().push_back(std::stoll(e.text));
    } while (r.eat(","));
  }
  n.check(groups.size() == 7, "dimension_numbers has 7 lists");
  const auto &lhs_batch = groups[5], &rhs_batch = groups[6];
  const std::size_t rank = 2 + lhs_batch.size();
  n.check(lhs_batch.size() <= 1 && rhs_batch.size() == lhs_batch.size(), "Up to 1 batch dim supported");
  n.check(at.shape.size() == rank && bt.shape.size() == rank && to.shape.size() == rank, "operands and result must have rank ", rank);
  for (int g = 0; g < 4; g++) n.check(groups[static_cast<std::size_t>(g)].size() == 1, "one contracting and one free dim each");
  const auto cover = [&](std::vector<std::int64_t> dims) {
    std::sort(dims.begin(), dims.end());
    for (std::size_t d = 0; d < dims.size(); d++)
      n.check(dims[d] == static_cast<std::int64_t>(d), "dimension_numbers must name each dim once");
  };
  auto lhs_dims = lhs_batch, rhs_dims = rhs_batch;
  lhs_dims.insert(lhs_dims.end(), {groups[2][0], groups[0][0]});
  rhs_dims.insert(rhs_dims.end(), {groups[1][0], groups[3][0]});
  cover(lhs_dims);
  cover(rhs_dims);
  std::vector<std::int64_t> order;
  if (!lhs_batch.empty()) order = {0, lhs_batch[0]};
  order.insert(order.end(), {0, groups[2][0], 1, groups[3][0]});
  n.check(order == groups[4], "the output order must be batch, lhs free, rhs free");
  const auto dim = [](const Type& t, std::int64_t d) { return t.shape[static_cast<std::size_t>(d)]; };
  const auto B = lhs_batch.empty() ? 1 : dim(at, lhs_batch[0]), M = dim(at, groups[2][0]), K = dim(at, groups[0][0]),
             N = dim(bt, groups[3][0]);
  n.check(dim(bt, groups[1][0]) == K, "contraction sizes differ: ", at, " and ", bt);
  n.check(lhs_batch.empty() || dim(bt, rhs_batch[0]) == B, "batch sizes differ: ", at, " and ", bt);
  n.check(to.shape == (lhs_batch.empty() ? Shape{M, N} : Shape{B, M, N}), at, " by ", bt, " does not give ", to);

  const auto* precision = n.attributes.find("precision");
  const auto kind = precision ? n.tagged("precision", "tpu.contract_precision") : std::string("bf16");
  n.check(kind == "bf16" || kind == "fp32", "precision '", kind, "' is not simulated: its passes are not public");
  const auto operand = [&](const Type& t) {
    n.check(t.element == Scalar::f32 || t.element == Scalar::bf16, "does not take ", t);
    n.check(kind == "bf16" || t.element == Scalar::f32, "Bad lhs type: fp32 precision needs f32 operands, not ", t);
    return t.element == Scalar::bf16 ? loop1<widen> : kind == "fp32" ? Loop1(nullptr) : loop1<round_to_bf16>;
  };
  // To [B, M, K] and [B, K, N], rows contiguous.
  const auto pack = [&](const Type& t, const std::vector<std::int64_t>& dims) {
    const auto strides = strides_of(t.shape);
    Shape shape, steps;
    for (auto d : dims) {
      shape.push_back(dim(t, d));
      steps.push_back(strides[static_cast<std::size_t>(d)]);
    }
    return make_box(shape, strides_of(shape), steps);
  };
  return [&n, &at, &bt, &to, B, M, N, K, a_box = pack(at, lhs_dims), b_box = pack(bt, rhs_dims), a_loop = operand(at),
          b_loop = operand(bt)](Machine& m) {
    m.need_defined(n.operands[0], at.shape);
    m.need_defined(n.operands[1], bt.shape);
    m.need_defined(n.operands[2], to.shape);
    const auto packed = [](Words x, std::int64_t size, const Box& box, Loop1 convert) {
      std::vector<std::uint32_t> words(static_cast<std::size_t>(size));
      copy_box(box, words.data(), x);
      if (convert) convert(words.data(), words.data(), size);
      std::vector<float> floats(words.size());
      std::memcpy(floats.data(), words.data(), words.size() * 4);
      return floats;
    };
    const auto a = packed(m[n.operands[0]].words(), at.size(), a_box, a_loop);
    const auto b = packed(m[n.operands[1]].words(), bt.size(), b_box, b_loop);
    auto r = new_value(to);
    for (std::int64_t i = 0; i < B; i++)
      chains(a.data() + i * M * K, b.data() + i * K * N, m[n.operands[2]].words() + i * M * N, r.words() + i * M * N, M, N, K);
    m[n.results[0]] = std::move(r);
  };
}

// ---- memory

// The parts of a load or store: base and indices are operands `base` and on.
struct Access {
  int ref;
  std::vector<int> indices;
  Type type;          // of the vector
  Shape ref_shape;
  Shape steps;        // distance in rows of the ref between neighbours, along each dim
  Box box;            // from the ref's side: `from`; the vector is packed
};

inline Access access(const Node& n, std::size_t base, std::size_t count, const Type& type, Shape steps = {}) {
  n.check(base < n.operands.size() && n.operand_types[base].kind == Kind::memref, "operand ", base, " must be a memref");
  const Type& ref = n.operand_types[base];
  const auto rank = ref.shape.size();
  n.check(ref.space == "vmem", "vectors live in vmem, not in ", ref.space.empty() ? "no space" : ref.space);
  n.check(type.kind == Kind::vector && type.element == ref.element && type.shape.size() == rank && count == rank, "vector, memref and ",
          count, " indices do not fit: ", type, " and ", ref);
  if (steps.empty()) steps = Shape(rank, 1);
  n.check(steps.size() == rank, "one stride per dim");
  Access a{n.operands[base], {}, type, ref.shape, steps, {}};
  auto from = strides_of(ref.shape);
  for (std::size_t d = 0; d < rank; d++) {
    n.check(n.operand_types[base + 1 + d].is(Kind::scalar, Scalar::index), "indices are of type index");
    n.check(steps[d] >= 0, "stride ", steps[d], " in dim ", d);
    a.indices.push_back(n.operands[base + 1 + d]);
    from[d] *= steps[d];
  }
  a.box = make_box(type.shape, strides_of(type.shape), from);
  return a;
}

// Where the access starts in its memory, bounds checked.
inline std::int64_t start(Machine& m, const Access& a, const char* what) {
  const Memory& memory = *m[a.ref].memory;
  Shape index;
  for (int i : a.indices) index.push_back(m.number(i));
  for (std::size_t d = 0; d < index.size(); d++) {
    const auto last = index[d] + (a.type.shape[d] - 1) * a.steps[d];
    if (index[d] < 0 || last >= a.ref_shape[d])
      m.fail(what, " out of bounds: ", memory.name, " ", a.ref_shape, " at index ", index,
            ", dim ", d, " reaches ", index[d] < 0 ? index[d] : last);
  }
  return dot(index, memory.strides);
}

inline Execute load_from(const Node& n, Access a, int mask) {
  return [a = std::move(a), mask, out = n.results[0]](Machine& m) {
    const auto at = start(m, a, "load");
    const Memory& memory = *m[a.ref].memory;
    auto r = new_value(a.type);
    copy_box(a.box, r.words(), memory.words.data() + at);
    std::vector<Origin> marks;
    if (!memory.undefined.empty()) {
      marks.resize(static_cast<std::size_t>(a.type.size()));
      copy_box(a.box, marks.data(), memory.undefined.data() + at);
    }
    if (mask >= 0) {
      m.need_defined(mask, a.type.shape);
      marks.resize(static_cast<std::size_t>(a.type.size()));
      for (std::int64_t i = 0; i < a.type.size(); i++)
        if (!m[mask].words()[i]) {
          marks[static_cast<std::size_t>(i)] = memory.origin;
          r.words()[i] = poison(a.type.element);
        }
    }
    set_undefined(r, std::move(marks));
    m[out] = std::move(r);
  };
}

inline Execute store_to(const Node& n, Access a, int mask) {
  std::swap(a.box.to, a.box.from);
  return [a = std::move(a), mask, in = n.operands[0]](Machine& m) {
    const auto at = start(m, a, "store");
    Memory& memory = *m[a.ref].memory;
    const auto* marks = m[in].undefined();
    if (mask < 0) {
      copy_box(a.box, memory.words.data() + at, m[in].words());
      set_marks(memory, at, a.box, marks);
      return;
    }
    m.need_defined(mask, a.type.shape);
    const Words x = m[in].words(), w = m[mask].words();
    const auto strides = strides_of(a.type.shape);
    for (std::int64_t i = 0; i < a.type.size(); i++) {
      if (!w[i]) continue;
      auto to = at;
      for (std::size_t d = 0; d < strides.size(); d++) to += i / strides[d] % a.type.shape[d] * memory.strides[d];
      memory.words[static_cast<std::size_t>(to)] = x[i];
      set_marks(memory, to, {{1}, {1}, {1}}, marks ? marks + i : nullptr);
    }
  };
}

inline std::vector<std::int64_t> segments(const Node& n, std::size_t parts) {
  const auto s = n.integers("operandSegmentSizes");
  std::int64_t sum = 0;
  for (auto p : s) sum += p;
  n.check(s.size() == parts && sum == static_cast<std::int64_t>(n.operands.size()), "operandSegmentSizes ", s, " do not fit ",
          n.operands.size(), " operands");
  return s;
}

// The last operand, if the segments say there is a mask.
inline int mask_operand(const Node& n, std::int64_t masks, const Type& vector) {
  n.check(masks == 0 || masks == 1, "one mask at most");
  if (!masks) return -1;
  n.check(vector.element != Scalar::bf16, "masks are for 32-bit elements");
  n.check(n.operand_types.back() == with_element(vector, Scalar::i1, "i1"), "the mask must be i1 in the vector's shape");
  return n.operands.back();
}

inline Execute vector_load(const Node& n) {
  count_operands(n, n.operands.size());
  return load_from(n, access(n, 0, n.operands.size() - 1, n.result_types[0]), -1);
}

inline Execute tpu_vector_load(const Node& n) {
  count_operands(n, n.operands.size());
  const auto s = segments(n, 3);
  n.check(s[0] == 1 && n.integers("strides").empty(), "strides are not implemented");
  return load_from(n, access(n, 0, static_cast<std::size_t>(s[1]), n.result_types[0]), mask_operand(n, s[2], n.result_types[0]));
}

inline Execute strided_load(const Node& n) {
  count_operands(n, n.operands.size());
  return load_from(n, access(n, 0, n.operands.size() - 1, n.result_types[0], n.integers("strides")), -1);
}

inline Execute vector_store(const Node& n) {
  count_operands(n, n.operands.size(), 0);
  n.check(n.operands.size() >= 2, "takes a vector, a memref and indices");
  return store_to(n, access(n, 1, n.operands.size() - 2, n.operand_types[0]), -1);
}

inline Execute tpu_vector_store(const Node& n) {
  count_operands(n, n.operands.size(), 0);
  const auto s = segments(n, 4);
  n.check(s[0] == 1 && s[1] == 1 && n.integers("strides").empty(), "strides are not implemented");
  n.check(!n.boolean("add"), "add = true is not implemented on the TensorCore");
  return store_to(n, access(n, 1, static_cast<std::size_t>(s[2]), n.operand_types[0]), mask_operand(n, s[3], n.operand_types[0]));
}

// Scalars in SMEM.
inline std::int64_t scalar_place(Machine& m, const Node& n, std::size_t base) {
  const Memory& memory = *m[n.operands[base]].memory;
  Shape index;
  for (std::size_t i = base + 1; i < n.operands.size(); i++) index.push_back(m.number(n.operands[i]));
  for (std::size_t d = 0; d < index.size(); d++)
    if (index[d] < 0 || index[d] >= memory.shape[d]) m.fail("out of bounds: ", memory.name, " ", memory.shape, " at index ", index);
  return dot(index, memory.strides);
}

inline void scalar_access(const Node& n, std::size_t base, const Type& type) {
  n.check(base < n.operands.size() && n.operand_types[base].kind == Kind::memref, "operand ", base, " must be a memref");
  const Type& ref = n.operand_types[base];
  n.check(ref.space == "smem", "scalars live in smem, not in ", ref.space.empty() ? "no space" : ref.space);
  n.check(type.is(Kind::scalar, ref.element) && n.operands.size() - base - 1 == ref.shape.size(), "value, memref and indices do not fit");
  for (std::size_t i = base + 1; i < n.operands.size(); i++)
    n.check(n.operand_types[i].is(Kind::scalar, Scalar::index), "indices are of type index");
}

inline Execute memref_load(const Node& n) {
  count_operands(n, n.operands.size());
  scalar_access(n, 0, n.result_types[0]);
  return [&n](Machine& m) {
    const auto at = static_cast<std::size_t>(scalar_place(m, n, 0));
    const Memory& memory = *m[n.operands[0]].memory;
    Value v;
    v.scalar = memory.words[at];
    if (!memory.undefined.empty()) v.scalar_undefined = memory.undefined[at];
    m[n.results[0]] = std::move(v);
  };
}

inline Execute memref_store(const Node& n) {
  count_operands(n, n.operands.size(), 0);
  n.check(n.operands.size() >= 2, "takes a scalar, a memref and indices");
  scalar_access(n, 1, n.operand_types[0]);
  return [&n](Machine& m) {
    const auto at = scalar_place(m, n, 1);
    Memory& memory = *m[n.operands[1]].memory;
    const Value& v = m[n.operands[0]];
    memory.words[static_cast<std::size_t>(at)] = v.scalar;
    set_marks(memory, at, {{1}, {1}, {1}}, v.undefined());
  };
}

// ---- scalars of the grid

inline Execute assume_multiple(const Node& n) {
  count_operands(n, 1);
  const auto multiple = n.integer("multiple");
  n.check(n.result_types[0] == n.operand_types[0] && n.result_types[0].kind == Kind::scalar && multiple > 0,
          "takes a scalar and a positive multiple");
  return [in = n.operands[0], out = n.results[0], multiple](Machine& m) {
    const auto x = m.number(in);
    m.check(x % multiple == 0, x, " is no multiple of ", multiple);
    m[out] = m[in];
  };
}

inline Execute iteration_bound(const Node& n) {
  count_operands(n, 0);
  const auto dim = n.integer("dim");
  n.check(n.result_types[0].is(Kind::scalar, Scalar::i32) && dim >= 0, "gives an i32");
  return [out = n.results[0], dim = static_cast<std::size_t>(dim)](Machine& m) {
    m.check(dim < m.bounds.size(), "the grid has ", m.bounds.size(), " dims");
    Value v;
    v.scalar = static_cast<std::uint32_t>(m.bounds[dim]);
    m[out] = std::move(v);
  };
}

// ---- control

inline std::vector<Value> results_of(Machine& m, const Block& b) {
  std::vector<Value> out;
  for (int r : b.results) out.push_back(m[r]);
  m.finish(b);
  return out;
}

// The terminator must yield the types of the op's results.
inline void check_yield(const Node& n, const Region& r) {
  const auto& yielded = r.nodes.empty() ? std::vector<Type>{} : r.nodes.back().operand_types;
  n.check(yielded == n.result_types, "a region yields ", yielded.size(), " values of other types or number than the ",
          n.result_types.size(), " results");
  n.check(r.nodes.empty() || r.nodes.back().name == "scf.yield", "a region must end in scf.yield");
}

inline Execute if_op(const Node& n) {
  n.check(n.operands.size() == 1 && n.operand_types[0].is(Kind::scalar, Scalar::i1) && n.regions.size() == 2,
          "takes an i1 and two regions");
  std::shared_ptr<Block> arms[2];
  for (std::size_t i = 0; i < 2; i++) {
    n.check(n.regions[i].arguments.empty(), "a region of scf.if has no arguments");
    check_yield(n, n.regions[i]);
    arms[i] = load_block(n.regions[i]);
  }
  return [condition = n.operands[0], &out = n.results, then = arms[0], otherwise = arms[1]](Machine& m) {
    const Block& arm = m.number(condition) ? *then : *otherwise;
    m.run(arm);
    auto results = results_of(m, arm);
    for (std::size_t i = 0; i < out.size(); i++) m[out[i]] = std::move(results[i]);
  };
}

inline Execute for_op(const Node& n) {
  n.check(n.operands.size() >= 3 && n.regions.size() == 1, "takes bounds, a step and one region");
  const Region& r = n.regions[0];
  const std::vector<Type> carried(n.operand_types.begin() + 3, n.operand_types.end());
  std::vector<Type> arguments{n.operand_types[0]};
  arguments.insert(arguments.end(), carried.begin(), carried.end());
  const Type& t = n.operand_types[0];
  n.check((t.is(Kind::scalar, Scalar::i32) || t.is(Kind::scalar, Scalar::index)) && n.operand_types[1] == t && n.operand_types[2] == t,
          "bounds and step must all be i32 or all index");
  n.check(r.types == arguments && carried == n.result_types, "initial values, region arguments and results must have the same types");
  check_yield(n, r);
  std::shared_ptr<Block> body = load_block(r);
  return [&in = n.operands, &out = n.results, body](Machine& m) {
    const auto low = m.number(in[0]), high = m.number(in[1]), step = m.number(in[2]);
    m.check(step > 0, "a step of ", step, ": it must be positive");
    std::vector<Value> state;
    for (std::size_t i = 3; i < in.size(); i++) state.push_back(m[in[i]]);
    for (auto i = low; i < high; i += step) {
      m[body->arguments[0]] = Value{};
      m[body->arguments[0]].scalar = static_cast<std::uint32_t>(i);
      for (std::size_t c = 0; c < state.size(); c++) m[body->arguments[c + 1]] = std::move(state[c]);
      m.run(*body);
      state = results_of(m, *body);
    }
    for (std::size_t c = 0; c < state.size(); c++) m[out[c]] = std::move(state[c]);
  };
}

// One row per op: its function and the attributes it may carry.
struct Row {
  std::string_view name;
  Execute (*load)(const Node&);
  std::string_view attributes;
};

inline const Row table[] = {
    {"arith.constant", constant, "value"},
    {"arith.addf", float2<add>, "fastmath"},
    {"arith.subf", float2<subtract>, "fastmath"},
    {"arith.mulf", float2<multiply>, "fastmath"},
    {"arith.divf", float2<divide>, "fastmath"},
    {"arith.negf", sign1<flip_sign>, "fastmath"},
    {"arith.maximumf", float2<maximum>, "fastmath"},
    {"arith.minimumf", float2<minimum>, "fastmath"},
    {"arith.addi", int2<iadd>, "overflowFlags"},
    {"arith.subi", int2<isubtract>, "overflowFlags"},
    {"arith.muli", int2<imultiply>, "overflowFlags"},
    {"arith.divsi", int2<idivide, divisible>, ""},
    {"arith.remsi", int2<iremainder, divisible>, ""},
    {"arith.andi", logic2<bit_and>, ""},
    {"arith.ori", logic2<bit_or>, ""},
    {"arith.xori", logic2<bit_xor>, ""},
    {"arith.shli", int2<shift_left, shiftable>, "overflowFlags"},
    {"arith.shrui", int2<shift_right, shiftable>, ""},
    {"arith.shrsi", int2<shift_right_signed, shiftable>, ""},
    {"arith.minsi", int2<iminimum>, ""},
    {"arith.maxsi", int2<imaximum>, ""},
    {"arith.cmpi", compare_ints, "predicate"},
    {"arith.cmpf", compare_floats, "predicate fastmath"},
    {"arith.select", select, ""},
    {"arith.extf", extf, "fastmath"},
    {"arith.truncf", truncf, "fastmath"},
    {"arith.index_cast", index_cast, ""},
    {"arith.bitcast", bitcast, ""},
    {"arith.sitofp", sitofp, ""},
    {"arith.fptosi", fptosi, ""},
    {"arith.extui", extui, ""},
    {"arith.trunci", trunci, "overflowFlags"},
    {"math.exp", float1<exp>, "fastmath"},
    {"math.exp2", float1<exp2>, "fastmath"},
    {"math.log1p", log1p_op, "fastmath"},
    {"math.rsqrt", float1<rsqrt>, "fastmath"},
    {"math.absf", sign1<drop_sign>, "fastmath"},
    {"tpu.reciprocal", reciprocal_op, "approx full_range"},
    {"tpu.logistic", float1<sigmoid>, ""},
    {"tpu.bitcast", vector_bitcast, ""},
    {"tpu.iota", iota, "dimensions"},
    {"tpu.concatenate", concatenate, "dimension"},
    {"tpu.transpose", transpose, "permutation"},
    {"tpu.matmul", matmul, "dimension_numbers precision transpose_lhs transpose_rhs transpose_lhs_hint"},
    {"tpu.dynamic_gather", dynamic_gather, "dimensions"},
    {"tpu.dynamic_rotate", dynamic_rotate, "dimension"},
    {"tpu.vector_load", tpu_vector_load, "operandSegmentSizes strides"},
    {"tpu.vector_store", tpu_vector_store, "add operandSegmentSizes strides"},
    {"tpu.strided_load", strided_load, "strides"},
    {"tpu.assume_multiple", assume_multiple, "multiple"},
    {"tpu.iteration_bound", iteration_bound, "dim"},
    {"vector.load", vector_load, ""},
    {"vector.store", vector_store, ""},
    {"vector.broadcast", broadcast, ""},
    {"vector.shape_cast", shape_cast, ""},
    {"vector.extract_strided_slice", extract_strided_slice, "offsets sizes strides"},
    {"vector.extract", extract, "static_position"},
    {"vector.multi_reduction", multi_reduction, "kind reduction_dims"},
    {"memref.load", memref_load, ""},
    {"memref.store", memref_store, ""},
    {"scf.if", if_op, ""},
    {"scf.for", for_op, ""},
};

inline const Row& row_of(const Node& n) {
  static const auto by_name = [] {
    std::unordered_map<std::string_view, const Row*> map;
    for (auto& row : table) map[row.name] = &row;
    return map;
  }();
  const auto found = by_name.find(n.name);
  n.check(found != by_name.end(), "this op is not simulated");
  return *found->second;
}

inline void check_attributes(const Node& n, std::string_view allowed) {
  for (auto& key : n.attributes.keys) {
    bool known = false;
    for (auto rest = allowed; !rest.empty();) {
      const auto end = std::min(rest.find(' '), rest.size());
      known = known || rest.substr(0, end) == key;
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    n.check(known, "attribute '", key, "' is not known here");
  }
}

}  // namespace ops

// Everything an op reads, inside its regions too.
inline void add_uses(const Node& n, std::vector<int>& out) {
  out.insert(out.end(), n.operands.begin(), n.operands.end());
  for (auto& region : n.regions)
    for (auto& inner : region.nodes) add_uses(inner, out);
}

// A value dies at its last use in the block that defines it, where a region counts as a use by its op.
inline std::shared_ptr<Block> load_block(const Region& r) {
  auto b = std::make_shared<Block>();
  b->arguments = r.arguments;
  std::unordered_set<int> own(r.arguments.begin(), r.arguments.end());
  for (auto& n : r.nodes) {
    own.insert(n.results.begin(), n.results.end());
    if (n.name == "scf.yield" || n.name == "func.return") {
      n.check(&n == &r.nodes.back(), "must be the last op of its region");
      b->results = n.operands;
      continue;
    }
    const auto& row = ops::row_of(n);
    ops::check_attributes(n, row.attributes);
    b->steps.push_back({&n, row.load(n), {}});
  }
  std::unordered_set<int> used;
  for (int v : b->results)
    if (own.count(v) && used.insert(v).second) b->result_last_uses.push_back(v);
  for (std::size_t i = b->steps.size(); i-- > 0;) {
    auto& step = b->steps[i];
    std::vector<int> uses = step.node->results;  // a result nobody reads dies at once
    add_uses(*step.node, uses);
    for (int v : uses)
      if (own.count(v) && used.insert(v).second) step.last_uses.push_back(v);
  }
  return b;
}

}  // namespace gdn::sim

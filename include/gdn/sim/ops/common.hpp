// What the functions of many ops share.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "../machine.hpp"
#include "../memory.hpp"
#include "../parse.hpp"
#include "../value.hpp"

namespace gdn::sim::ops {

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

// ---- loops over elements

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

// The marks of a result that takes its elements from these, elementwise.
inline void set_undefined(Value& v, std::int64_t size, const Origin* a, const Origin* b) {
  if (!a && !b) return;
  std::vector<Origin> marks(static_cast<std::size_t>(size));
  for (std::int64_t i = 0; i < size; i++) marks[static_cast<std::size_t>(i)] = a && a[i] ? a[i] : b ? b[i] : Origin{0};
  set_undefined(v, std::move(marks));
}

// `valid` is what an element must be; `wrong` says what it is otherwise, after the element and its index.
using Valid1 = bool (*)(std::uint32_t);

inline Execute run1(const Node& n, Loop1 loop, Valid1 valid = nullptr, const char* wrong = "") {
  return [in = n.operands[0], out = n.results[0], &shape = n.operand_types[0].shape, &to = n.result_types[0],
          size = n.result_types[0].size(), loop, valid, wrong](Machine& m) {
    const auto* marks = m.marks_in_arithmetic(in, shape);
    const Words x = m[in].words();
    for (std::int64_t i = 0; valid && i < size; i++)
      if ((!marks || !marks[i]) && !valid(x[i])) m.fail(as_float(x[i]), " at index ", index_text(i, shape), wrong);
    auto r = new_value(to);
    loop(x, r.words(), size);
    set_undefined(r, size, marks, nullptr);
    m[out] = std::move(r);
  };
}

// `valid` names what is wrong with a pair of elements, or gives null. An undefined pair is taken for (0, 1).
inline Execute run2(const Node& n, Loop2 loop, Valid2 valid = nullptr) {
  return [a = n.operands[0], b = n.operands[1], out = n.results[0], &shape = n.operand_types[0].shape, &to = n.result_types[0],
          size = n.result_types[0].size(), loop, valid](Machine& m) {
    const auto *u = m.marks_in_arithmetic(a, shape), *v = m.marks_in_arithmetic(b, shape);
    const Words x = m[a].words(), y = m[b].words();
    const auto undefined = [&](std::int64_t i) { return (u && u[i]) || (v && v[i]); };
    for (std::int64_t i = 0; valid && i < size; i++)
      if (const char* wrong = undefined(i) ? nullptr : valid(x[i], y[i]))
        m.fail(wrong, ": ", static_cast<std::int32_t>(x[i]), " and ", static_cast<std::int32_t>(y[i]), " at index ", index_text(i, shape));
    auto r = new_value(to);
    if (!valid || (!u && !v)) loop(x, y, r.words(), size);
    else
      for (std::int64_t i = 0; i < size; i++) {
        const std::uint32_t zero = 0, one = 1;
        loop(undefined(i) ? &zero : x + i, undefined(i) ? &one : y + i, r.words() + i, 1);
      }
    set_undefined(r, size, u, v);
    m[out] = std::move(r);
  };
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

}  // namespace gdn::sim::ops

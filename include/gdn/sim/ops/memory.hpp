// Refs and views of them, loads and stores, scoped allocations.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "common.hpp"

namespace gdn::sim::ops {

inline std::vector<std::int64_t> segments(const Node& n, std::size_t parts) {
  const auto s = n.integers("operandSegmentSizes");
  std::int64_t sum = 0;
  for (auto p : s) sum += p;
  n.check(s.size() == parts && sum == static_cast<std::int64_t>(n.operands.size()), "operandSegmentSizes ", s, " do not fit ",
          n.operands.size(), " operands");
  return s;
}

inline bool is_static(const Type& t) { return std::find(t.shape.begin(), t.shape.end(), dynamic) == t.shape.end(); }

inline Value value_of(Ref r) {
  Value v;
  v.ref = std::make_shared<const Ref>(std::move(r));
  return v;
}

// ---- vectors

// The parts of a load or store: base and indices are operands `base` and on.
struct Access {
  int ref;
  std::vector<int> indices;
  Type type;      // of the vector
  Shape steps;    // distance in rows of the ref between neighbours, along each dim
  Shape strides;  // distance in words between neighbours, in a ref that is a whole memory
  Box box;        // for such a ref; from its side: `from`; the vector is packed
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
  // No whole memory has dynamic dims.
  Access a{n.operands[base], {}, type, steps, is_static(ref) ? strides_of(ref.shape) : Shape(rank, 0), {}};
  for (std::size_t d = 0; d < rank; d++) {
    n.check(n.operand_types[base + 1 + d].is(Kind::scalar, Scalar::index), "indices are of type index");
    n.check(steps[d] >= 0, "stride ", steps[d], " in dim ", d);
    a.indices.push_back(n.operands[base + 1 + d]);
    a.strides[d] *= steps[d];
  }
  a.box = make_box(type.shape, strides_of(type.shape), a.strides);
  return a;
}

// The elements a load or store is about, bounds checked.
inline Ref reached(Machine& m, const Access& a, const char* what) {
  const Ref& ref = *m[a.ref].ref;
  Ref out{ref.memory, ref.at, a.type.shape, ref.strides, ref.parts, ref.part_step, ref.outside};
  Shape index;
  for (int i : a.indices) index.push_back(m.number(i));
  for (std::size_t d = 0; d < index.size(); d++) {
    const auto last = index[d] + (a.type.shape[d] - 1) * a.steps[d];
    if (index[d] < 0 || last >= ref.shape[d])
      m.fail(what, " out of bounds: ", ref.memory->name, " ", ref.shape, " at index ", index, ", dim ", d, " reaches ",
             index[d] < 0 ? index[d] : last);
    out.at += index[d] * ref.strides[d];
    out.strides[d] *= a.steps[d];
  }
  return out;
}

// Copies the elements of a ref to a packed array, marks to `marks` if it is not null.
inline void gather(const Ref& r, const Box& box, std::uint32_t* to, Origin* marks) {
  const Memory& memory = *r.memory;
  copy_box(box, to, memory.words.data() + r.at);
  if (marks) copy_box(box, marks, memory.undefined.data() + r.at);
  const auto n = static_cast<std::size_t>(r.size());
  std::vector<std::uint32_t> part(r.parts > 1 ? n : 0);
  std::vector<Origin> part_marks(marks ? part.size() : 0);
  for (std::int64_t p = 1; p < r.parts; p++) {
    const auto at = r.at + p * r.part_step;
    copy_box(box, part.data(), memory.words.data() + at);
    for (std::size_t i = 0; i < n; i++) to[i] |= part[i] << (p * bits_of(memory.element));
    if (marks) copy_box(box, part_marks.data(), memory.undefined.data() + at);
    for (std::size_t i = 0; marks && i < n; i++) marks[i] = std::max(marks[i], part_marks[i]);
  }
}

// The other way. The box is from the ref's side: `to`.
inline void scatter(const Ref& r, const Box& box, const std::uint32_t* from, const Origin* marks) {
  Memory& memory = *r.memory;
  if (r.parts == 1) {
    copy_box(box, memory.words.data() + r.at, from);
    set_marks(memory, r.at, box, marks);
    return;
  }
  const int bits = bits_of(memory.element);
  std::vector<std::uint32_t> part(static_cast<std::size_t>(r.size()));
  for (std::int64_t p = 0; p < r.parts; p++) {
    const auto at = r.at + p * r.part_step;
    for (std::size_t i = 0; i < part.size(); i++) part[i] = (from[i] >> (p * bits)) & ((1u << bits) - 1);
    copy_box(box, memory.words.data() + at, part.data());
    set_marks(memory, at, box, marks);
  }
}

inline Execute load_from(const Node& n, Access a, int mask) {
  return [a = std::move(a), mask, out = n.results[0]](Machine& m) {
    const auto ref = reached(m, a, "load");
    m.use(ref, false);
    const Memory& memory = *ref.memory;
    auto r = new_value(a.type);
    std::vector<Origin> marks(memory.undefined.empty() ? 0 : static_cast<std::size_t>(a.type.size()));
    const bool whole = ref.strides == a.strides;
    gather(ref, whole ? a.box : make_box(ref.shape, strides_of(ref.shape), ref.strides), r.words(), marks.empty() ? nullptr : marks.data());
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
    auto ref = reached(m, a, "store");
    const auto* marks = m[in].undefined();
    if (mask < 0) {
      m.use(ref, true);
      const bool whole = ref.strides == a.strides;
      scatter(ref, whole ? a.box : make_box(ref.shape, ref.strides, strides_of(ref.shape)), m[in].words(), marks);
      return;
    }
    m.need_defined(mask, a.type.shape);
    const Words x = m[in].words(), w = m[mask].words();
    const auto strides = strides_of(a.type.shape);
    Ref one{ref.memory, 0, {1}, {1}, ref.parts, ref.part_step, ref.outside};
    for (std::int64_t i = 0; i < a.type.size(); i++) {
      if (!w[i]) continue;
      one.at = ref.at;
      for (std::size_t d = 0; d < strides.size(); d++) one.at += i / strides[d] % a.type.shape[d] * ref.strides[d];
      m.use(one, true);
      scatter(one, {{1}, {1}, {1}}, x + i, marks ? marks + i : nullptr);
    }
  };
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

inline Execute strided_store(const Node& n) {
  count_operands(n, n.operands.size(), 0);
  n.check(n.operands.size() >= 2, "takes a vector, a memref and indices");
  const auto steps = n.integers("strides");
  for (auto s : steps) n.check(s >= 1, "stride ", s, ": elements would meet");
  return store_to(n, access(n, 1, n.operands.size() - 2, n.operand_types[0], steps), -1);
}

// ---- scalars, in SMEM

inline Ref scalar_reached(Machine& m, const Node& n, std::size_t base) {
  const Ref& ref = *m[n.operands[base]].ref;
  Shape index;
  for (std::size_t i = base + 1; i < n.operands.size(); i++) index.push_back(m.number(n.operands[i]));
  for (std::size_t d = 0; d < index.size(); d++)
    if (index[d] < 0 || index[d] >= ref.shape[d]) m.fail("out of bounds: ", ref.memory->name, " ", ref.shape, " at index ", index);
  return {ref.memory, ref.at + dot(index, ref.strides), {1}, {1}, 1, 0, ref.outside};
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
    const auto ref = scalar_reached(m, n, 0);
    m.use(ref, false);
    const auto at = static_cast<std::size_t>(ref.at);
    Value v;
    v.scalar = ref.memory->words[at];
    if (!ref.memory->undefined.empty()) v.scalar_undefined = ref.memory->undefined[at];
    m[n.results[0]] = std::move(v);
  };
}

inline Execute memref_store(const Node& n) {
  count_operands(n, n.operands.size(), 0);
  n.check(n.operands.size() >= 2, "takes a scalar, a memref and indices");
  scalar_access(n, 1, n.operand_types[0]);
  return [&n](Machine& m) {
    const auto ref = scalar_reached(m, n, 1);
    m.use(ref, true);
    const Value& v = m[n.operands[0]];
    scatter(ref, {{1}, {1}, {1}}, v.words(), v.undefined());
  };
}

// ---- views

// A view of operand 0: same space, and same elements unless they are bitcast.
inline void view_types(const Node& n, bool same_elements = true) {
  n.check(!n.operands.empty() && n.results.size() == 1, "takes a memref and gives one");
  const Type &from = n.operand_types[0], &to = n.result_types[0];
  n.check(from.kind == Kind::memref && to.kind == Kind::memref && from.space == to.space, "takes a memref and gives one of its space, not ",
          from, " and ", to);
  n.check(!same_elements || from.element == to.element, "the element type changes: ", from, " to ", to);
}

// Operands: the memref, an i32 offset per dim, and the extents of dynamic dims of the result. A slice may leave its memory as long as
// nothing but its size is looked at, which is all a wait does.
inline Execute memref_slice(const Node& n) {
  view_types(n);
  const Type &from = n.operand_types[0], &to = n.result_types[0];
  const auto rank = from.shape.size();
  const auto s = segments(n, 3);
  const auto unknown = std::count(to.shape.begin(), to.shape.end(), dynamic);
  n.check(s[0] == 1 && s[1] == static_cast<std::int64_t>(rank) && to.shape.size() == rank && s[2] == unknown,
          "one offset per dim and one extent per dynamic dim, for ", from, " to ", to);
  for (std::size_t i = 1; i < n.operands.size(); i++)
    n.check(n.operand_types[i].is(Kind::scalar, Scalar::i32), "offsets and extents are i32");
  return [&n, &to, rank](Machine& m) {
    const Ref& ref = *m[n.operands[0]].ref;
    Ref out{ref.memory, ref.at, to.shape, ref.strides, ref.parts, ref.part_step, ref.outside};
    auto extent = n.operands.begin() + 1 + static_cast<std::ptrdiff_t>(rank);
    for (std::size_t d = 0; d < rank; d++) {
      const auto offset = m.number(n.operands[1 + d]);
      if (to.shape[d] == dynamic) out.shape[d] = m.number(*extent++);
      m.check(out.shape[d] >= 0, "an extent of ", out.shape[d], " in dim ", d);
      if (out.outside.empty() && (offset < 0 || offset + out.shape[d] > ref.shape[d]))
        out.outside = text("slice out of bounds: ", ref.memory->name, " ", ref.shape, ", dim ", d, ": ", out.shape[d], " from ", offset);
      out.at += offset * ref.strides[d];
    }
    m[n.results[0]] = value_of(std::move(out));
  };
}

// Drops dims of extent 1.
inline Execute memref_squeeze(const Node& n) {
  count_operands(n, 1);
  view_types(n);
  const Type &from = n.operand_types[0], &to = n.result_types[0];
  std::vector<std::size_t> kept;
  for (std::size_t d = 0; d < from.shape.size(); d++) {
    const bool next = kept.size() < to.shape.size() && from.shape[d] == to.shape[kept.size()];
    n.check(next || from.shape[d] == 1, "cannot squeeze ", from, " to ", to);
    if (next) kept.push_back(d);
  }
  n.check(kept.size() == to.shape.size(), "cannot squeeze ", from, " to ", to);
  return [in = n.operands[0], out = n.results[0], kept](Machine& m) {
    const Ref& ref = *m[in].ref;
    Ref r{ref.memory, ref.at, {}, {}, ref.parts, ref.part_step, ref.outside};
    for (auto d : kept) {
      r.shape.push_back(ref.shape[d]);
      r.strides.push_back(ref.strides[d]);
    }
    m[out] = value_of(std::move(r));
  };
}

// Of elements without gaps.
inline Execute memref_reshape(const Node& n) {
  count_operands(n, 1);
  view_types(n);
  const Type &from = n.operand_types[0], &to = n.result_types[0];
  n.check(is_static(from) && is_static(to) && from.size() == to.size(), "sizes differ or are not known: ", from, " and ", to);
  return [in = n.operands[0], out = n.results[0], &to](Machine& m) {
    const Ref& ref = *m[in].ref;
    const auto packed = strides_of(ref.shape);
    for (std::size_t d = 0; d < packed.size(); d++)
      m.check(ref.shape[d] == 1 || ref.strides[d] == packed[d], "a view of ", ref.memory->name, " with gaps in dim ", d, " has no other shape");
    m.check(ref.parts == 1, "a bitcast view of ", ref.memory->name, " has no other shape");
    m[out] = value_of({ref.memory, ref.at, to.shape, strides_of(to.shape), 1, 0, ref.outside});
  };
}

// Same width: a renaming. To wider elements: each consists of neighbouring rows, the first in the low bits.
inline Execute memref_bitcast(const Node& n) {
  count_operands(n, 1);
  view_types(n, false);
  const Type &from = n.operand_types[0], &to = n.result_types[0];
  const auto ratio = bits_of(to.element) / std::max(bits_of(from.element), 1);
  n.check(ratio >= 1, "narrower elements are not simulated: ", from, " to ", to);
  n.check(from.element != Scalar::other && to.element != Scalar::other && !is_semaphore(from.element) && !is_semaphore(to.element),
          "does not take ", from, " to ", to);
  const auto rank = from.shape.size();
  auto scaled = from.shape;
  if (ratio > 1) {
    n.check(rank >= 2 && scaled[rank - 2] != dynamic && scaled[rank - 2] % ratio == 0, "rows must scale with the width: ", from, " and ", to);
    scaled[rank - 2] /= ratio;
  }
  n.check(scaled == to.shape, "rows must scale with the width: ", from, " and ", to);
  return [in = n.operands[0], out = n.results[0], ratio, rank](Machine& m) {
    Ref r = *m[in].ref;
    if (ratio > 1) {
      m.check(r.parts == 1, "a view of ", r.memory->name, " is bitcast twice");
      r.parts = ratio;
      r.part_step = r.strides[rank - 2];
      r.shape[rank - 2] /= ratio;
      r.strides[rank - 2] *= ratio;
    }
    m[out] = value_of(std::move(r));
  };
}

// ---- scoped allocations

inline void allocate(Machine& m, const Type& t, int out, const char* kind) {
  m.check(m.regions > 0, "allocations live in a tpu.region");
  const auto name = text(kind, " ", m.name(out));
  m.scoped.push_back(std::make_unique<Memory>(make_memory(name, t.element, t.space, t.shape, m.origin(name + " (not written)"))));
  if (!is_semaphore(t.element)) make_undefined(*m.scoped.back());
  m[out] = value_of(ref_to(*m.scoped.back()));
}

inline bool is_storage(Scalar s) {
  return s == Scalar::f32 || s == Scalar::bf16 || s == Scalar::i32 || s == Scalar::i16 || s == Scalar::i8;
}

inline Execute alloca_op(const Node& n) {
  count_operands(n, 0);
  const Type& t = n.result_types[0];
  n.check(t.kind == Kind::memref && is_storage(t.element) && is_static(t) && (t.space == "vmem" || t.space == "smem"), "cannot allocate a ",
          t, " here");
  return [&t, out = n.results[0]](Machine& m) { allocate(m, t, out, "allocation"); };
}

inline Execute sem_alloc(const Node& n) {
  count_operands(n, 0);
  const Type& t = n.result_types[0];
  n.check(t.kind == Kind::memref && is_semaphore(t.element) && is_static(t) && t.space == "semaphore_mem", "gives semaphores, not a ", t);
  return [&t, out = n.results[0]](Machine& m) { allocate(m, t, out, "semaphore"); };
}

}  // namespace gdn::sim::ops

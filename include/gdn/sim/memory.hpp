// Memory of the simulator: arrays, windows and scratch, with an undefined mark per element, and the VMEM they take.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "value.hpp"

namespace gdn::sim {

inline std::int64_t dot(const Shape& a, const Shape& b) {
  std::int64_t n = 0;
  for (std::size_t i = 0; i < a.size(); i++) n += a[i] * b[i];
  return n;
}

// Which elements of a memory take part in copies that are in flight; empty while there are none.
struct Traffic {
  int copies = 0;
  std::vector<std::uint32_t> writer;   // the number of the copy that writes it
  std::vector<std::uint32_t> readers;  // how many copies read it
};

struct Memory {
  std::string name;  // as errors call it: "output window %o"
  Scalar element = Scalar::f32;
  std::string space;  // vmem, smem, hbm, any or semaphore_mem
  Shape shape, strides;
  Origin origin = 0;  // the mark of its own undefined elements
  std::vector<std::uint32_t> words;
  std::vector<Origin> undefined;  // empty if all are defined
  std::int64_t undefined_count = 0;
  Traffic traffic;
  bool read_only = false;  // an input that no output shares

  std::int64_t size() const { return static_cast<std::int64_t>(words.size()); }
};

inline void make_undefined(Memory& m) {
  std::fill(m.words.begin(), m.words.end(), poison(m.element));
  m.undefined.assign(m.words.size(), m.origin);
  m.undefined_count = m.size();
}

// All elements are defined, and zero.
inline Memory make_memory(std::string name, Scalar element, std::string space, const Shape& shape, Origin origin) {
  Memory m{std::move(name), element, std::move(space), shape, strides_of(shape), origin, {}, {}, 0, {}, false};
  m.words.resize(static_cast<std::size_t>(volume(shape)));
  return m;
}

// Copies the marks of a box into `to` at `to_at`; null marks mean all defined.
inline void set_marks(Memory& to, std::int64_t to_at, const Box& box, const Origin* from) {
  if (to.undefined.empty()) {
    const std::int64_t n = box.shape.back();
    bool any = false;
    if (from) for_each_row(box, [&](std::int64_t, std::int64_t f) {
        for (std::int64_t i = 0; i < n && !any; i++) any = from[f + i * box.from.back()] != 0;
      });
    if (!any) return;
    to.undefined.assign(to.words.size(), 0);
  }
  for_each_row(box, [&](std::int64_t t, std::int64_t f) {
    for (std::int64_t i = 0; i < box.shape.back(); i++) {
      auto& mark = to.undefined[static_cast<std::size_t>(to_at + t + i * box.to.back())];
      const Origin now = from ? from[f + i * box.from.back()] : Origin{0};
      to.undefined_count += (now != 0) - (mark != 0);
      mark = now;
    }
  });
  if (to.undefined_count == 0) to.undefined.clear();
}

// What a memref stands for: elements of a memory. Of a memref that was bitcast to wider elements, each consists of `parts` elements of
// the memory, low bits first, `part_step` apart.
struct Ref {
  Memory* memory = nullptr;
  std::int64_t at = 0;
  Shape shape, strides;
  std::int64_t parts = 1, part_step = 0;
  std::string outside{};  // how a slice leaves its memory; such a one has a size, and no elements

  std::int64_t size() const { return volume(shape); }
};

inline Ref ref_to(Memory& m) { return {&m, 0, m.shape, m.strides}; }

// A box of a memory.
inline Ref ref_to(Memory& m, const Shape& index, const Shape& extent) { return {&m, dot(index, m.strides), extent, m.strides}; }

// The same elements, with parts as a dim of their own.
inline Ref in_parts(Ref r) {
  if (r.parts == 1) return r;
  r.shape.push_back(std::exchange(r.parts, 1));
  r.strides.push_back(std::exchange(r.part_step, 0));
  return r;
}

// The index, within its memory, of the element that stands `offset` words in.
inline std::string index_of(const Memory& m, std::int64_t offset) { return index_text(offset, m.shape); }

inline std::int64_t bytes_of(const Ref& r) { return r.size() * r.parts * bits_of(r.memory->element) / 8; }

// Copies elements, undefined marks and all. Both have one shape.
inline void copy_elements(const Ref& to, const Ref& from) {
  const auto t = in_parts(to), f = in_parts(from);
  if (t.size() == 0) return;
  const auto box = make_box(t.shape, t.strides, f.strides);
  const auto& marks = f.memory->undefined;
  copy_box(box, t.memory->words.data() + t.at, f.memory->words.data() + f.at);
  set_marks(*t.memory, t.at, box, marks.empty() ? nullptr : marks.data() + f.at);
}

// One line of the VMEM bill.
struct Allocation {
  std::string name;
  std::int64_t bytes = 0;  // of one buffer, padded to tiles
  int buffers = 1;
  bool window = false;
  std::int64_t total() const { return bytes * buffers; }
};

// The last two dims are padded to a tile: (8, 128) for 32 bits, (16, 128) for 16, (32, 128) for 8; a vector counts as whole tiles.
inline std::int64_t padded_bytes(Scalar element, const Shape& shape) {
  const std::int64_t width = bits_of(element) / 8, rows = 32 / width;
  const auto up = [](std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; };
  Shape padded = shape;
  if (padded.empty()) padded = {1};
  if (padded.size() == 1) padded[0] = up(padded[0], rows * 128);
  else {
    padded.back() = up(padded.back(), 128);
    padded[padded.size() - 2] = up(padded[padded.size() - 2], rows);
  }
  return volume(padded) * width;
}

inline std::string mebibytes(std::int64_t bytes) {
  const auto hundredths = (bytes * 100 + (1 << 19)) >> 20;
  const auto fraction = std::to_string(hundredths % 100);
  return text(hundredths / 100, ".", fraction.size() < 2 ? "0" : "", fraction, " MiB");
}

// Refuses a kernel that does not fit, listing what takes the room. Returns the bytes taken.
// The compiler holds windows alone against the scoped limit, and everything against the capacity.
inline std::int64_t check_vmem(std::vector<Allocation> items, std::int64_t capacity, std::int64_t scoped_limit) {
  std::int64_t total = 0, windows = 0;
  for (auto& a : items) {
    total += a.total();
    if (a.window) windows += a.total();
  }
  if (total <= capacity && windows <= scoped_limit) return total;
  std::stable_sort(items.begin(), items.end(), [](auto& a, auto& b) { return a.total() > b.total(); });
  std::string list;
  for (auto& a : items)
    list += text("\n  ", mebibytes(a.total()), "  ", a.name,
                 a.buffers > 1 ? text(" (", a.buffers, " buffers of ", mebibytes(a.bytes), ")") : "");
  require(windows <= scoped_limit, "VMEM: the windows need ", mebibytes(windows), ", the scoped limit is ", mebibytes(scoped_limit), ":",
          list);
  throw Error(text("VMEM: the kernel needs ", mebibytes(total), ", the core has ", mebibytes(capacity), ":", list));
}

}  // namespace gdn::sim

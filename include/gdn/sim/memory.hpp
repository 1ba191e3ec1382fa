// Memory of the simulator: arrays, windows and scratch, with an undefined mark per element, and the VMEM they take.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "value.hpp"

namespace gdn::sim {

struct Memory {
  std::string name;  // as errors call it: "output window %o"
  Scalar element = Scalar::f32;
  std::string space;  // vmem, smem or hbm
  Shape shape, strides;
  Origin origin = 0;  // the mark of its own undefined elements
  std::vector<std::uint32_t> words;
  std::vector<Origin> undefined;  // empty if all are defined
  std::int64_t undefined_count = 0;

  std::int64_t size() const { return static_cast<std::int64_t>(words.size()); }
};

inline void make_undefined(Memory& m) {
  std::fill(m.words.begin(), m.words.end(), poison(m.element));
  m.undefined.assign(m.words.size(), m.origin);
  m.undefined_count = m.size();
}

// All elements are defined, and zero.
inline Memory make_memory(std::string name, Scalar element, std::string space, const Shape& shape, Origin origin) {
  Memory m{std::move(name), element, std::move(space), shape, strides_of(shape), origin, {}, {}, 0};
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

inline std::int64_t dot(const Shape& a, const Shape& b) {
  std::int64_t n = 0;
  for (std::size_t i = 0; i < a.size(); i++) n += a[i] * b[i];
  return n;
}

// Copies a box of one memory to another.
inline void copy_memory(Memory& to, const Shape& to_index, const Memory& from, const Shape& from_index, const Shape& extent) {
  const auto box = make_box(extent, to.strides, from.strides);
  const auto t = dot(to_index, to.strides), f = dot(from_index, from.strides);
  copy_box(box, to.words.data() + t, from.words.data() + f);
  set_marks(to, t, box, from.undefined.empty() ? nullptr : from.undefined.data() + f);
}

// One line of the VMEM bill.
struct Allocation {
  std::string name;
  std::int64_t bytes = 0;  // of one buffer, padded to tiles
  int buffers = 1;
  bool window = false;
  std::int64_t total() const { return bytes * buffers; }
};

// The last two dims are padded to a tile: (8, 128) for 32 bits, (16, 128) for 16; a vector counts as whole tiles.
inline std::int64_t padded_bytes(Scalar element, const Shape& shape) {
  const std::int64_t width = element == Scalar::bf16 ? 2 : 4, rows = 32 / width;
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

// Values of the simulator: 32 bits per element (bf16: its 16 bits, i1: 0 or 1), row-major, with an undefined mark per element;
// the f32 arithmetic they obey; and strided copies between them.
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "parse.hpp"

namespace gdn::sim {

// While alive, f32 subnormals are flushed to zero, as operands and as results.
class FlushSubnormals {
 public:
#if defined(__x86_64__)
  FlushSubnormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040u); }
  ~FlushSubnormals() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#elif defined(__aarch64__)
  FlushSubnormals() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" ::"r"(saved_ | (std::uint64_t{1} << 24)));
  }
  ~FlushSubnormals() { asm volatile("msr fpcr, %0" ::"r"(saved_)); }

 private:
  std::uint64_t saved_;
#else
#error "the simulator needs a way to flush f32 subnormals on this processor"
#endif
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;
};

// a * b + c with one rounding, without an instruction for it. The product of two floats is exact in double. Rounding the sum to
// double and then to float differs from rounding it once only where the double is halfway between two floats and inexact: there it is
// moved to the side of the error first. The two conversions flush subnormals.
inline float fma_by_double(float a, float b, float c) {
  const double product = static_cast<double>(a) * static_cast<double>(b);
  const double addend = c;
  double sum = product + addend;
  const auto bits = std::bit_cast<std::uint64_t>(sum);
  if ((bits & 0x1fffffffu) == 0x10000000u) [[unlikely]] {
    const double back = sum - product;
    const double error = (product - (sum - back)) + (addend - back);
    if (error != 0) sum = std::bit_cast<double>((error > 0) == (sum > 0) ? bits + 1 : bits - 1);
  }
  return static_cast<float>(sum);
}

inline float fused_multiply_add(float a, float b, float c) {
#if defined(__FMA__) || defined(__aarch64__)
  return std::fma(a, b, c);
#else
  return fma_by_double(a, b, c);
#endif
}

inline float as_float(std::uint32_t bits) { return std::bit_cast<float>(bits); }
inline std::uint32_t as_bits(float x) { return std::bit_cast<std::uint32_t>(x); }

// A quiet NaN with a payload of ours; as an i32 it is out of every array's range.
inline std::uint32_t poison(Scalar element) { return bits_of(element) == 16 ? 0x7fdeu : bits_of(element) == 8 ? 0x7fu : 0x7fc0deadu; }

// 0: defined. Otherwise the number of the memory the undefined element was first read from.
using Origin = std::uint8_t;

struct Buffer {
  std::unique_ptr<std::uint32_t[]> words;
  std::vector<Origin> undefined;  // one per element; empty if all are defined
};

struct Ref;

// What a slot holds: a scalar, a vector (immutable once set, so copies share the buffer) or a ref.
struct Value {
  std::shared_ptr<Buffer> buffer;
  std::uint32_t scalar = 0;
  Origin scalar_undefined = 0;
  std::shared_ptr<const Ref> ref;

  const std::uint32_t* words() const { return buffer ? buffer->words.get() : &scalar; }
  std::uint32_t* words() { return buffer ? buffer->words.get() : &scalar; }
  // The marks, or null if all elements are defined.
  const Origin* undefined() const {
    if (buffer) return buffer->undefined.empty() ? nullptr : buffer->undefined.data();
    return scalar_undefined ? &scalar_undefined : nullptr;
  }
};

inline Value new_value(const Type& type) {
  Value v;
  if (type.kind == Type::Kind::vector) {
    v.buffer = std::make_shared<Buffer>();
    v.buffer->words.reset(new std::uint32_t[static_cast<std::size_t>(type.size())]);
  }
  return v;
}

inline bool any_mark(const Origin* marks, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i++)
    if (marks[i]) return true;
  return false;
}

// Gives `v`, of n elements, these marks; an array of zeros is the same as none.
inline void set_undefined(Value& v, std::vector<Origin> marks) {
  if (!any_mark(marks.data(), static_cast<std::int64_t>(marks.size()))) return;
  if (v.buffer) v.buffer->undefined = std::move(marks);
  else v.scalar_undefined = marks[0];
}

// A copy of a box between two strided arrays, with unit dims dropped and adjacent dims merged, as far as both sides allow.
struct Box {
  Shape shape, to, from;
};

inline Box make_box(const Shape& shape, const Shape& to, const Shape& from) {
  Box b;
  for (std::size_t d = 0; d < shape.size(); d++) {
    if (shape[d] == 1) continue;
    const bool joins = !b.shape.empty() && b.to.back() == to[d] * shape[d] && b.from.back() == from[d] * shape[d];
    if (joins) {
      b.shape.back() *= shape[d];
      b.to.back() = to[d];
      b.from.back() = from[d];
    } else {
      b.shape.push_back(shape[d]);
      b.to.push_back(to[d]);
      b.from.push_back(from[d]);
    }
  }
  if (b.shape.empty()) b = {{1}, {1}, {1}};
  return b;
}

// Calls row(to offset, from offset) for every innermost row of the box, in row-major order.
template <class Row>
void for_each_row(const Box& b, Row row) {
  const std::size_t outer = b.shape.size() - 1;
  Shape index(outer, 0);
  std::int64_t to = 0, from = 0;
  if (volume(b.shape) == 0) return;
  for (;;) {
    row(to, from);
    std::size_t d = outer;
    for (;;) {
      if (d == 0) return;
      d--;
      to += b.to[d];
      from += b.from[d];
      if (++index[d] < b.shape[d]) break;
      to -= b.to[d] * b.shape[d];
      from -= b.from[d] * b.shape[d];
      index[d] = 0;
    }
  }
}

template <class T>
void copy_box(const Box& b, T* to, const T* from) {
  const std::int64_t n = b.shape.back(), to_step = b.to.back(), from_step = b.from.back();
  for_each_row(b, [&](std::int64_t t, std::int64_t f) {
    T* out = to + t;
    const T* in = from + f;
    if (to_step == 1 && from_step == 1) std::memcpy(out, in, static_cast<std::size_t>(n) * sizeof(T));
    else if (to_step == 1 && from_step == 0) std::fill_n(out, n, *in);
    else
      for (std::int64_t i = 0; i < n; i++) out[i * to_step] = in[i * from_step];
  });
}

}  // namespace gdn::sim

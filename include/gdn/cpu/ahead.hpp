// Rows of the caller's arrays that will be wanted soon. A head's rows lie far apart, where no hardware prefetcher sees the next one; so
// they are fetched a few at a time beside the sums of dots, which leave the load unit idle.
#pragma once
#include <gdn/cpu/isa.hpp>

namespace gdn {
inline namespace GDN_ISA {
namespace cpu {

class Ahead {
 public:
  // Rows of `bytes` bytes, `step` bytes apart, to be read or written. When too many are waiting, the oldest are forgotten.
  void add(const void* p, long step, int rows, int bytes, bool write) {
    spans_[end_++ % size] = {static_cast<const char*>(p), step, rows, bytes, write};
    if (end_ - begin_ > size) begin_ = end_ - size;
  }
  GDN_INLINE void fetch_some() {
    if (begin_ != end_) fetch_rows();
  }

 private:
  struct Span {
    const char* p;
    long step;
    int rows, bytes;
    bool write;
  };
  static constexpr unsigned size = 8;
  static constexpr int line = 64, rows_at_once = 2;

  [[gnu::noinline]] void fetch_rows() {
    Span& s = spans_[begin_ % size];
    for (int i = 0; i < rows_at_once && s.rows > 0; i++, s.rows--, s.p += s.step)
      for (const char* p = s.p; p < s.p + s.bytes; p += line) {
        if (s.write) __builtin_prefetch(p, 1, 3);
        else __builtin_prefetch(p, 0, 2);
      }
    if (s.rows == 0) begin_++;
  }

  Span spans_[size];
  unsigned begin_ = 0, end_ = 0;
};
inline Ahead& ahead() {
  static thread_local Ahead a;
  return a;
}

}  // namespace cpu
}  // namespace GDN_ISA
}  // namespace gdn

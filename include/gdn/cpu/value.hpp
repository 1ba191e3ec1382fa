// What a tile of the CPU machine is: f32 or i32 in row-major memory, of the arena or of the caller, with its packed forms once made.
#pragma once
#include <atomic>
#include <gdn/cpu/arena.hpp>
#include <gdn/cpu/convert.hpp>
#include <gdn/cpu/dot.hpp>

namespace gdn {
inline namespace GDN_ISA {
namespace cpu {

// Whether what a line of a kernel computes becomes the right operand of a packed dot: then it is packed there next time, while it is in
// registers. The bits are the same either way.
using RightUse = std::atomic<bool>;

// Columns [R, 1] and rows [1, C] are contiguous.
struct Value {
  Value* next = nullptr;  // while free
  int uses = 0;
  int rows = 0, columns = 0;
  float* data = nullptr;         // null: still only the bf16 array below
  long pitch = 0;
  const bf16* source = nullptr;  // the caller's array of which this is the widened copy
  long source_pitch = 0;
  Storage storage;
  Packed packed[2][2];  // [right operand][low piece]
  RightUse* right_use = nullptr;
};

// A counted reference. Values live in their thread, as their memory does.
class Handle {
 public:
  Handle() = default;
  Handle(const Handle& o) : v_(o.v_) {
    if (v_) ++v_->uses;
  }
  Handle(Handle&& o) noexcept : v_(std::exchange(o.v_, nullptr)) {}
  Handle& operator=(Handle o) noexcept {
    std::swap(v_, o.v_);
    return *this;
  }
  ~Handle() {
    if (v_ && --v_->uses == 0) release(v_);
  }
  explicit operator bool() const { return v_; }
  int rows() const { return v_->rows; }
  int columns() const { return v_->columns; }
  float* data() const {
    if (!v_->data) widen_now();
    return v_->data;
  }
  long pitch() const {
    if (!v_->data) widen_now();
    return v_->pitch;
  }

  // The words where a right operand of fresh data is to be packed, if `use` says that it will be one; else null.
  std::uint32_t* packed_ahead(RightUse& use, long& row) const {
    v_->right_use = &use;
    if (!use.load(std::memory_order_relaxed) || v_->rows % 2 != 0) return nullptr;
    Packed& p = v_->packed[true][false] = Packed::empty_rows(v_->rows, v_->columns);
    row = p.pair;
    return p.empty_words();
  }

  // The caller's bf16, of a tile that has not been widened; else null.
  const bf16* narrow() const { return v_->data ? nullptr : v_->source; }
  long narrow_pitch() const { return v_->source_pitch; }

  // Fresh memory, with the pitch of whole cache lines.
  static Handle fresh(int rows, int columns) {
    Handle h = make(rows, columns);
    const bool vector = rows == 1 || columns == 1;
    h.v_->pitch = columns == 1 ? 1 : padded(columns);
    // Vectors end in a spare line: a slice of one may be read a whole register wide.
    h.v_->storage = Storage(static_cast<std::size_t>(vector ? padded(rows * columns) + 16 : rows * h.v_->pitch));
    h.v_->data = h.v_->storage.data();
    return h;
  }
  // The caller's memory, which stays as it is while the kernel reads it.
  static Handle view(int rows, int columns, const float* p, long pitch) {
    Handle h = make(rows, columns);
    h.v_->data = const_cast<float*>(p);
    h.v_->pitch = pitch;
    return h;
  }
  static Handle view(int rows, int columns, const bf16* p, long pitch) {
    Handle h = make(rows, columns);
    h.v_->source = p;
    h.v_->source_pitch = pitch;
    return h;
  }
  // The memory, where nobody else holds it and nothing is made of it: it may be written again. Else null.
  float* own_data() const {
    const bool alone = v_->uses == 1 && v_->storage.unique() && v_->data && !v_->source;
    for (auto& side : v_->packed)
      for (const Packed& p : side)
        if (p) return nullptr;
    return alone ? v_->data : nullptr;
  }
  // Part of the rows, or the same memory in another shape.
  Handle part(int row, int rows, int columns, long pitch) const {
    Handle h = make(rows, columns);
    h.v_->data = data() + row * v_->pitch;
    h.v_->pitch = pitch;
    h.v_->storage = v_->storage;
    return h;
  }
  const Packed& packed(bool right, Piece piece = Piece::high) const {
    Packed& p = v_->packed[right][piece == Piece::low];
    if (!p && right && v_->right_use) v_->right_use->store(true, std::memory_order_relaxed);
    if (!p) p = v_->source ? pack(right, piece, v_->source, v_->source_pitch) : pack(right, piece, static_cast<const float*>(data()), v_->pitch);
    return p;
  }

 private:
  struct FreeList {
    Value* head = nullptr;
    ~FreeList() {
      while (head) delete std::exchange(head, head->next);
    }
  };
  static FreeList& free_list() {
    static thread_local FreeList list;
    return list;
  }
  static Handle make(int rows, int columns) {
    Value*& head = free_list().head;
    Value* v = head;
    if (v) head = v->next;
    else v = new Value;
    v->uses = 1;
    v->rows = rows;
    v->columns = columns;
    v->data = nullptr;
    v->source = nullptr;
    v->right_use = nullptr;
    Handle h;
    h.v_ = v;
    return h;
  }
  static void release(Value* v) {
    v->storage = {};
    for (auto& side : v->packed)
      for (Packed& p : side)
        if (p) p = {};
    Value*& head = free_list().head;
    v->next = head;
    head = v;
  }
  template <class T> Packed pack(bool right, Piece piece, const T* p, long pitch) const {
    return right ? Packed::rows(v_->rows, v_->columns, p, pitch, piece) : Packed::columns(v_->rows, v_->columns, p, pitch, piece);
  }
  void widen_now() const {
    const int columns = v_->columns;
    v_->pitch = columns == 1 ? 1 : padded(columns);
    v_->storage = Storage(static_cast<std::size_t>(padded(v_->rows * static_cast<int>(v_->pitch))));
    v_->data = v_->storage.data();
    widen(v_->rows, columns, v_->source, v_->source_pitch, v_->data, v_->pitch);
  }

  Value* v_ = nullptr;
};

}  // namespace cpu
}  // namespace GDN_ISA
}  // namespace gdn

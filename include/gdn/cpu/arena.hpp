// Memory of tiles: thread-local free lists, last in first out, by power-of-two size. A kernel's temporaries stay in the cache because
// the slot freed last is the slot handed out next; nothing is allocated in a steady state.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <gdn/cpu/isa.hpp>
#include <limits>
#include <new>
#include <utility>

namespace gdn {
inline namespace GDN_ISA {
namespace cpu {

// One piece of memory and the number of handles on it. The count is not atomic: handles stay in their thread (the floats need not).
struct alignas(64) Slot {
  Slot* next;  // while free
  std::uint32_t uses;
  std::uint32_t size_class;

  float* data() { return reinterpret_cast<float*>(this + 1); }
  std::size_t bytes() const { return sizeof(float) << size_class; }
};

namespace detail {
// Set when this thread's arena is gone. Not a member: stores to an object under destruction are dead to the optimiser.
inline thread_local bool arena_closed = false;
}  // namespace detail

class Arena {
 public:
  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena() {
    trim();
    detail::arena_closed = true;
  }

  // A slot for at least `floats` floats, 64-byte aligned, with one use. Its contents are whatever was there, or NaNs when poisoned.
  Slot* acquire(std::size_t floats) {
    const auto size_class = floats <= smallest ? smallest_class : static_cast<std::uint32_t>(std::bit_width(floats - 1));
    Slot* slot = free_[size_class];
    if (slot)
      free_[size_class] = slot->next;
    else
      slot = allocate(size_class);
    slot->uses = 1;
    live_ += slot->bytes();
    if (live_ > high_water_) high_water_ = live_;
    if (poison_) fill_with_nan(*slot);
    return slot;
  }

  void release(Slot* slot) {
    live_ -= slot->bytes();
    if (detail::arena_closed) return deallocate(slot);  // a handle that outlives its thread's arena
    slot->next = free_[slot->size_class];
    free_[slot->size_class] = slot;
  }

  std::size_t live_bytes() const { return live_; }
  std::size_t high_water_bytes() const { return high_water_; }
  void reset_high_water() { high_water_ = live_; }

  // For checking mode: every slot handed out from now on is full of NaNs, so that a read before a write shows.
  void poison(bool on) { poison_ = on; }
  bool poisons() const { return poison_; }

  // Gives the free slots back to the system.
  void trim() {
    for (Slot*& list : free_)
      while (list) deallocate(std::exchange(list, list->next));
  }

 private:
  static constexpr std::size_t smallest = 16;
  static constexpr std::uint32_t smallest_class = 4;

  [[gnu::noinline]] static Slot* allocate(std::uint32_t size_class) {
    const std::size_t bytes = sizeof(Slot) + (sizeof(float) << size_class);
    auto* slot = static_cast<Slot*>(::operator new(bytes, std::align_val_t(alignof(Slot))));
    slot->size_class = size_class;
    return slot;
  }
  [[gnu::noinline]] static void deallocate(Slot* slot) { ::operator delete(slot, std::align_val_t(alignof(Slot))); }
  [[gnu::noinline]] static void fill_with_nan(Slot& slot) {
    for (std::size_t i = 0; i < slot.bytes() / sizeof(float); ++i) slot.data()[i] = std::numeric_limits<float>::quiet_NaN();
  }

  Slot* free_[48] = {};
  std::size_t live_ = 0, high_water_ = 0;
  bool poison_ = false;
};

// The calling thread's arena.
inline Arena& arena() {
  static thread_local Arena instance;
  return instance;
}

// A counted handle on a slot; empty by default. Copies share the slot, the last one gives it back.
class Storage {
 public:
  Storage() = default;
  explicit Storage(std::size_t floats) : slot_(arena().acquire(floats)) {}
  Storage(const Storage& o) : slot_(o.slot_) {
    if (slot_) ++slot_->uses;
  }
  Storage(Storage&& o) noexcept : slot_(std::exchange(o.slot_, nullptr)) {}
  Storage& operator=(Storage o) noexcept {
    std::swap(slot_, o.slot_);
    return *this;
  }
  ~Storage() {
    if (slot_ && --slot_->uses == 0) arena().release(slot_);
  }

  explicit operator bool() const { return slot_; }
  float* data() const { return slot_ ? slot_->data() : nullptr; }
  // The same memory as 32-bit words (packed bf16 pairs).
  std::uint32_t* words() const { return reinterpret_cast<std::uint32_t*>(data()); }
  // Whether this is the only handle: its owner may write in place.
  bool unique() const { return slot_ && slot_->uses == 1; }

 private:
  Slot* slot_ = nullptr;
};

// Row pitch of a tile: whole cache lines.
constexpr int padded(int columns) { return (columns + 15) / 16 * 16; }

}  // namespace cpu
}  // namespace GDN_ISA
}  // namespace gdn

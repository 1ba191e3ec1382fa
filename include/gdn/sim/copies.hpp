// Copies in flight, and semaphores.
//
// A copy is in flight from its start until the waits on its semaphore add up to the bytes of all copies started on it: only then is it
// known to be over, whichever of them ended first. Until then its target may be neither read nor written, and its source not written.
// When the elements are really moved is another matter, and up to a number.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "memory.hpp"

namespace gdn::sim {

struct Semaphore {
  std::string name;
  std::int64_t count = 0;              // of signals; of a DMA semaphore: bytes waited for, of copies still in the list
  std::vector<std::uint32_t> started;  // copies in flight
};

struct Copy {
  std::string what;  // "the copy of tpu.enqueue_dma at line 7, grid step (1)"
  Ref from, to;
  std::int64_t bytes = 0;
  bool moved = false;
};

class Copies {
 public:
  // 0: elements move when a copy starts; 1: when it is waited for, the last copy first; other numbers: some time in between.
  explicit Copies(std::uint64_t order) : order_(order), random_(order * 0x9e3779b97f4a7c15u) {}

  bool none() const { return copies_.empty(); }

  // What a read or write of these elements collides with, or "".
  std::string conflict(const Ref& r, bool write) const {
    const auto& traffic = r.memory->traffic;
    if (traffic.copies == 0) return "";
    std::int64_t found = -1;
    for_each_element(r, [&](std::int64_t at) {
      const auto i = static_cast<std::size_t>(at);
      if (found < 0 && (traffic.writer[i] || (write && traffic.readers[i]))) found = at;
    });
    if (found < 0) return "";
    const auto writer = traffic.writer[static_cast<std::size_t>(found)];
    return text("race: index ", index_of(*r.memory, found), " of ", r.memory->name, " is ", write ? "written" : "read", " while ",
                writer ? copies_.at(writer).what + " writes it" : reader_of(*r.memory, found).what + " reads it");
  }

  // Whether two refs share an element.
  static bool meet(const Ref& a, const Ref& b) {
    if (a.memory != b.memory) return false;
    std::vector<bool> in_a(a.memory->words.size());
    bool met = false;
    for_each_element(a, [&](std::int64_t at) { in_a[static_cast<std::size_t>(at)] = true; });
    for_each_element(b, [&](std::int64_t at) { met = met || in_a[static_cast<std::size_t>(at)]; });
    return met;
  }

  // The caller has asked for conflicts. `from` may be null: then nothing moves, and only the target is watched; likewise `to`.
  std::uint32_t start(std::string what, const Ref* from, const Ref* to) {
    Copy c;
    c.what = std::move(what);
    const auto number = next_++;
    if (from) watch(c.from = in_parts(*from), number, false, true);
    if (to) watch(c.to = in_parts(*to), number, true, true);
    c.moved = !from || !to;
    if (from && to) c.bytes = bytes_of(*to);
    copies_.emplace(number, std::move(c));
    return number;
  }

  void end(std::uint32_t number) {
    auto found = copies_.find(number);
    auto& c = found->second;
    if (c.from.memory) watch(c.from, number, false, false);
    if (c.to.memory) watch(c.to, number, true, false);
    copies_.erase(found);
  }

  // A copy whose bytes are counted by a DMA semaphore.
  void start(std::string what, const Ref& from, const Ref& to, Semaphore& semaphore) {
    const auto number = start(std::move(what), &from, &to);
    semaphore.started.push_back(number);
    if (order_ == 0 || (order_ > 1 && chance(2))) move(copies_.at(number));
  }

  // Empty, or why the wait would last forever.
  std::string wait(Semaphore& s, std::int64_t bytes) {
    std::int64_t started = 0, moved = 0;
    for (auto n : s.started) {
      const auto& c = copies_.at(n);
      started += c.bytes;
      moved += c.moved ? c.bytes : 0;
    }
    if (s.count + bytes > started)
      return text("waits for ", bytes, " bytes on ", s.name, ", where copies of ", started - s.count, " are on their way: it would never end");
    s.count += bytes;
    while (moved < s.count) {
      std::vector<std::uint32_t> waiting;
      for (auto n : s.started)
        if (!copies_.at(n).moved) waiting.push_back(n);
      auto& c = copies_.at(order_ > 1 ? waiting[random(waiting.size())] : waiting.back());
      move(c);
      moved += c.bytes;
    }
    if (s.count < started) return "";
    for (auto n : s.started) end(n);
    s = {std::move(s.name), 0, {}};
    return "";
  }

  // Between two ops: by a number above 1, some copy may move now.
  void pass_time() {
    if (order_ < 2 || copies_.empty() || !chance(4)) return;
    auto at = copies_.begin();
    std::advance(at, random(copies_.size()));
    if (!at->second.moved) move(at->second);
  }

  // The first copy that uses a memory, or null.
  const Copy* user_of(const Memory& m) const {
    for (auto& [number, c] : copies_)
      if (c.from.memory == &m || c.to.memory == &m) return &c;
    return nullptr;
  }

  Semaphore& semaphore(const Ref& r) {
    auto& s = semaphores_[{r.memory, r.at}];
    if (s.name.empty()) s.name = r.memory->name + (r.memory->shape.empty() ? "" : " " + index_of(*r.memory, r.at));
    return s;
  }

  // Forgets the semaphores of a memory; empty, or what is left on one of them.
  std::string close(const Memory& m) {
    for (auto at = semaphores_.begin(); at != semaphores_.end();) {
      const auto& s = at->second;
      if (at->first.first != &m) {
        ++at;
        continue;
      }
      if (!s.started.empty()) return text(s.name, " is left while ", copies_.at(s.started.back()).what, " is in flight: nothing waits for it");
      if (s.count != 0) return text(s.name, " is left at ", s.count, ", not at 0");
      at = semaphores_.erase(at);
    }
    return "";
  }

 private:
  template <class F>
  static void for_each_element(const Ref& any, F f) {
    const auto r = in_parts(any);
    const auto box = make_box(r.shape, r.strides, r.strides);
    for_each_row(box, [&](std::int64_t row, std::int64_t) {
      for (std::int64_t i = 0; i < box.shape.back(); i++) f(r.at + row + i * box.to.back());
    });
  }

  static void watch(const Ref& r, std::uint32_t number, bool write, bool begin) {
    auto& t = r.memory->traffic;
    if (begin && t.copies++ == 0) {
      t.writer.assign(r.memory->words.size(), 0);
      t.readers.assign(r.memory->words.size(), 0);
    }
    for_each_element(r, [&](std::int64_t at) {
      const auto i = static_cast<std::size_t>(at);
      if (write) t.writer[i] = begin ? number : 0;
      else t.readers[i] += begin ? 1u : ~0u;
    });
    if (!begin && --t.copies == 0) t = {};
  }

  const Copy& reader_of(const Memory& m, std::int64_t offset) const {
    for (auto& [number, c] : copies_) {
      bool found = false;
      if (c.from.memory == &m) for_each_element(c.from, [&](std::int64_t at) { found = found || at == offset; });
      if (found) return c;
    }
    throw Error("sim: an element is marked as read by no copy");
  }

  void move(Copy& c) {
    copy_elements(c.to, c.from);
    c.moved = true;
  }

  std::size_t random(std::size_t n) {
    random_ = random_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::size_t>((random_ >> 33) % n);
  }
  bool chance(std::size_t n) { return random(n) == 0; }

  std::uint64_t order_, random_;
  std::uint32_t next_ = 1;
  std::map<std::uint32_t, Copy> copies_;
  std::map<std::pair<const Memory*, std::int64_t>, Semaphore> semaphores_;
};

}  // namespace gdn::sim

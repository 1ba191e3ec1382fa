// Copies and semaphores.
#pragma once
#include <cstdint>
#include <vector>

#include "memory.hpp"

namespace gdn::sim::ops {

inline void copied_types(const Node& n, const Type& from, const Type& to) {
  for (auto* t : {&from, &to}) {
    const bool known = t->space == "any" || t->space == "hbm" || t->space == "vmem" || t->space == "smem";
    n.check(t->kind == Kind::memref && is_storage(t->element) && known, "cannot copy a ", *t);
  }
  n.check(from.element == to.element && from.shape == to.shape, "source and target differ: ", from, " and ", to);
}

inline void semaphore_type(const Node& n, const Type& t, Scalar element) {
  n.check(t.kind == Kind::memref && t.element == element && t.shape.empty(), "needs one ",
          element == Scalar::semaphore ? "semaphore" : "DMA semaphore", ", not a ", t);
}

inline Semaphore& semaphore_of(Machine& m, const Node& n, std::size_t operand) {
  const Ref& ref = *m[n.operands[operand]].ref;
  m.check(ref.outside.empty(), ref.outside);
  return m.copies.semaphore(ref);
}

// Operands: source, target and the semaphore that counts the bytes. Copies to other cores and chips have more.
inline Execute enqueue_dma(const Node& n) {
  const auto s = segments(n, n.version && n.version < 14 ? 6 : 7);
  n.check(s[0] == 1 && s[2] == 1 && s[3] == 1 && n.operands.size() == 3,
          "takes a source, a target and a semaphore; copies to another core or chip are not simulated");
  if (n.attributes.find("strict_ordering")) n.check(!n.boolean("strict_ordering"), "strict ordering is not for the TensorCore");
  copied_types(n, n.operand_types[0], n.operand_types[1]);
  semaphore_type(n, n.operand_types[2], Scalar::dma_semaphore);
  return [&n](Machine& m) {
    const Ref &from = *m[n.operands[0]].ref, &to = *m[n.operands[1]].ref;
    m.check(from.shape == to.shape, "source ", from.memory->name, " ", from.shape, " and target ", to.memory->name, " ", to.shape,
            " differ");
    m.check(from.parts == to.parts, "of source and target, one is a bitcast view");
    m.check(!to.memory->read_only, to.memory->name, " is written, but no output shares its memory");
    m.use(from, false);
    m.use(to, true);
    m.check(!Copies::meet(from, to), "race: source and target are both in ", from.memory->name, " and overlap");
    m.copies.start("the copy of " + m.now(), from, to, semaphore_of(m, n, 2));
  };
}

// Waits for the bytes of the target. The source is not looked at.
inline Execute wait_dma2(const Node& n) {
  const auto s = segments(n, 5);
  n.check(s[0] == 1 && s[1] == 1 && s[2] == 1 && n.operands.size() == 3,
          "takes a semaphore, a source and a target; copies from another core or chip are not simulated");
  semaphore_type(n, n.operand_types[0], Scalar::dma_semaphore);
  copied_types(n, n.operand_types[1], n.operand_types[2]);
  return [&n](Machine& m) {
    const auto endless = m.copies.wait(semaphore_of(m, n, 0), bytes_of(*m[n.operands[2]].ref));
    if (!endless.empty()) m.fail(endless);
  };
}

inline void amount_type(const Node& n) {
  semaphore_type(n, n.operand_types[0], Scalar::semaphore);
  n.check(n.operand_types[1].is(Kind::scalar, Scalar::i32), "the amount is an i32");
}

inline Execute sem_signal(const Node& n) {
  const auto s = segments(n, n.version && n.version < 14 ? 4 : 5);
  n.check(s[0] == 1 && s[1] == 1 && n.operands.size() == 2 && n.results.empty(),
          "takes a semaphore and an amount; signals to another core or chip are not simulated");
  amount_type(n);
  return [&n](Machine& m) {
    const auto amount = m.number(n.operands[1]);
    m.check(amount >= 0, "an amount of ", amount);
    semaphore_of(m, n, 0).count += amount;
  };
}

inline Execute sem_wait(const Node& n) {
  count_operands(n, 2, 0);
  amount_type(n);
  return [&n](Machine& m) {
    auto& s = semaphore_of(m, n, 0);
    const auto amount = m.number(n.operands[1]);
    m.check(amount >= 0, "an amount of ", amount);
    m.check(s.count >= amount, "waits for ", amount, " on ", s.name, ", which is at ", s.count, ": it would never end");
    s.count -= amount;
  };
}

inline Execute sem_read(const Node& n) {
  count_operands(n, 1);
  semaphore_type(n, n.operand_types[0], Scalar::semaphore);
  n.check(n.result_types[0].is(Kind::scalar, Scalar::i32), "gives an i32");
  return [&n](Machine& m) {
    Value v;
    v.scalar = static_cast<std::uint32_t>(semaphore_of(m, n, 0).count);
    m[n.results[0]] = std::move(v);
  };
}

}  // namespace gdn::sim::ops

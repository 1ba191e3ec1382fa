// Control flow, and the scalars of the grid.
#pragma once
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "common.hpp"

namespace gdn::sim::ops {

// ---- scalars of the grid

inline Execute assume_multiple(const Node& n) {
  count_operands(n, 1);
  const auto multiple = n.integer("multiple");
  n.check(n.result_types[0] == n.operand_types[0] && n.result_types[0].kind == Kind::scalar && multiple > 0,
          "takes a scalar and a positive multiple");
  return [in = n.operands[0], out = n.results[0], multiple](Machine& m) {
    const auto x = m.number(in);
    m.check(x % multiple == 0, x, " is no multiple of ", multiple);
    m[out] = m[in];
  };
}

inline Execute iteration_bound(const Node& n) {
  count_operands(n, 0);
  const auto dim = n.integer("dim");
  n.check(n.result_types[0].is(Kind::scalar, Scalar::i32) && dim >= 0, "gives an i32");
  return [out = n.results[0], dim = static_cast<std::size_t>(dim)](Machine& m) {
    m.check(dim < m.bounds.size(), "the grid has ", m.bounds.size(), " dims");
    Value v;
    v.scalar = static_cast<std::uint32_t>(m.bounds[dim]);
    m[out] = std::move(v);
  };
}

// ---- control

inline std::vector<Value> results_of(Machine& m, const Block& b) {
  std::vector<Value> out;
  for (int r : b.results) out.push_back(m[r]);
  m.finish(b);
  return out;
}

// The terminator must yield the types of the op's results.
inline void check_yield(const Node& n, const Region& r, const std::vector<Type>& wanted, std::string_view terminator = "scf.yield") {
  const auto& yielded = r.nodes.empty() ? std::vector<Type>{} : r.nodes.back().operand_types;
  n.check(yielded == wanted, "a region yields ", yielded.size(), " values of other types or number than the ", wanted.size(), " results");
  n.check(r.nodes.empty() || r.nodes.back().name == terminator, "a region must end in ", terminator);
}

inline Execute if_op(const Node& n) {
  n.check(n.operands.size() == 1 && n.operand_types[0].is(Kind::scalar, Scalar::i1) && n.regions.size() == 2,
          "takes an i1 and two regions");
  std::shared_ptr<Block> arms[2];
  for (std::size_t i = 0; i < 2; i++) {
    n.check(n.regions[i].arguments.empty(), "a region of scf.if has no arguments");
    check_yield(n, n.regions[i], n.result_types);
    arms[i] = load_block(n.regions[i]);
  }
  return [condition = n.operands[0], &out = n.results, then = arms[0], otherwise = arms[1]](Machine& m) {
    const Block& arm = m.number(condition) ? *then : *otherwise;
    m.run(arm);
    auto results = results_of(m, arm);
    for (std::size_t i = 0; i < out.size(); i++) m[out[i]] = std::move(results[i]);
  };
}

inline Execute for_op(const Node& n) {
  n.check(n.operands.size() >= 3 && n.regions.size() == 1, "takes bounds, a step and one region");
  const Region& r = n.regions[0];
  const std::vector<Type> carried(n.operand_types.begin() + 3, n.operand_types.end());
  std::vector<Type> arguments{n.operand_types[0]};
  arguments.insert(arguments.end(), carried.begin(), carried.end());
  const Type& t = n.operand_types[0];
  n.check((t.is(Kind::scalar, Scalar::i32) || t.is(Kind::scalar, Scalar::index)) && n.operand_types[1] == t && n.operand_types[2] == t,
          "bounds and step must all be i32 or all index");
  n.check(r.types == arguments && carried == n.result_types, "initial values, region arguments and results must have the same types");
  check_yield(n, r, n.result_types);
  std::shared_ptr<Block> body = load_block(r);
  return [&in = n.operands, &out = n.results, body](Machine& m) {
    const auto low = m.number(in[0]), high = m.number(in[1]), step = m.number(in[2]);
    m.check(step > 0, "a step of ", step, ": it must be positive");
    std::vector<Value> state;
    for (std::size_t i = 3; i < in.size(); i++) state.push_back(m[in[i]]);
    for (auto i = low; i < high; i += step) {
      m[body->arguments[0]] = Value{};
      m[body->arguments[0]].scalar = static_cast<std::uint32_t>(i);
      for (std::size_t c = 0; c < state.size(); c++) m[body->arguments[c + 1]] = std::move(state[c]);
      m.run(*body);
      state = results_of(m, *body);
    }
    for (std::size_t c = 0; c < state.size(); c++) m[out[c]] = std::move(state[c]);
  };
}

inline void set_arguments(Machine& m, const Block& b, std::vector<Value> values) {
  for (std::size_t i = 0; i < values.size(); i++) m[b.arguments[i]] = std::move(values[i]);
}

// The first region ends in scf.condition: whether to go on, and what the second region, or the op, gets.
inline Execute while_op(const Node& n) {
  n.check(n.regions.size() == 2, "takes two regions");
  const Region &before = n.regions[0], &after = n.regions[1];
  n.check(before.types == n.operand_types, "initial values and the arguments of the first region must have the same types");
  n.check(after.types == n.result_types, "results and the arguments of the second region must have the same types");
  auto condition = n.result_types;
  condition.insert(condition.begin(), Type{Kind::scalar, Scalar::i1, "i1", {}, {}, {}, {}});
  check_yield(n, before, condition, "scf.condition");
  check_yield(n, after, n.operand_types);
  return [&n, &in = n.operands, &out = n.results, test = load_block(before), body = load_block(after)](Machine& m) {
    std::vector<Value> state;
    for (int i : in) state.push_back(m[i]);
    for (;;) {
      set_arguments(m, *test, std::move(state));
      m.run(*test);
      m.back_at(n);
      const bool more = m.number(test->results[0]) != 0;
      state = results_of(m, *test);
      state.erase(state.begin());
      if (!more) break;
      set_arguments(m, *body, std::move(state));
      m.run(*body);
      state = results_of(m, *body);
    }
    for (std::size_t i = 0; i < out.size(); i++) m[out[i]] = std::move(state[i]);
  };
}

// Its allocations end with it.
inline Execute region(const Node& n) {
  n.check(n.operands.empty() && n.regions.size() == 1 && n.regions[0].arguments.empty(), "takes one region without arguments");
  check_yield(n, n.regions[0], n.result_types, "tpu.yield");
  return [&n, &out = n.results, body = load_block(n.regions[0])](Machine& m) {
    const auto outside = m.scoped.size();
    m.regions++;
    m.run(*body);
    m.back_at(n);
    auto results = results_of(m, *body);
    m.regions--;
    for (; m.scoped.size() > outside; m.scoped.pop_back()) {
      const Memory& gone = *m.scoped.back();
      if (const auto left = m.copies.close(gone); !left.empty()) m.fail(left);
      if (const auto* user = m.copies.user_of(gone)) m.fail(gone.name, " ends while ", user->what, " is in flight");
    }
    for (std::size_t i = 0; i < out.size(); i++) m[out[i]] = std::move(results[i]);
  };
}

// Marks for a profiler.
inline Execute nothing(const Node& n) {
  count_operands(n, 0, 0);
  return [](Machine&) {};
}

}  // namespace gdn::sim::ops

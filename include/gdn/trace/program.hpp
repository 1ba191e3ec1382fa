// A kernel body as the tracing machine saw it: a short program over per-head 2-D tiles. Nothing here knows where heads live.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gdn/arrays.hpp"
#include "gdn/error.hpp"
#include "gdn/tile.hpp"

namespace gdn::trace {

enum class Op {
  load, store, store_rows, constant, row_index, col_index,
  add, sub, mul, min, max, absolute, exp2, exp, log1p, rsqrt, reciprocal, sigmoid,
  add_i, sub_i, and_i, shift_right,
  equal, less, less_equal, both,
  select, stretch, dot, transpose, rows, concat, concat_cols, sum_cols, sum_rows, sum_heads, sums_from, sums_before, cumsum, cumsum_within, diagonal_blocks, block_column,
  round, extend,
  when, loop, loop_index, end,  // a region of effects: when(condition) or loop(a times), up to its end
};

struct OpInfo {
  const char* name;    // in listings
  const char* mosaic;  // the TPU operation an elementwise op becomes, or ""
};
inline const OpInfo& info(Op op) {
  static const OpInfo table[] = {
      {"load", ""}, {"store", ""}, {"store_rows", ""}, {"constant", ""}, {"row_index", ""}, {"col_index", ""},
      {"add", "arith.addf"}, {"sub", "arith.subf"}, {"mul", "arith.mulf"}, {"min", "arith.minimumf"}, {"max", "arith.maximumf"},
      {"absolute", "math.absf"}, {"exp2", "math.exp2"}, {"exp", "math.exp"}, {"log1p", "math.log1p"}, {"rsqrt", "math.rsqrt"},
      {"reciprocal", "tpu.reciprocal"}, {"sigmoid", "tpu.logistic"},
      {"add_i", "arith.addi"}, {"sub_i", "arith.subi"}, {"and_i", "arith.andi"}, {"shift_right", "arith.shrui"},
      {"equal", "arith.cmp"}, {"less", "arith.cmp"}, {"less_equal", "arith.cmp"}, {"both", "arith.andi"},
      {"select", "arith.select"}, {"stretch", "vector.broadcast"}, {"dot", "tpu.matmul"}, {"transpose", "tpu.transpose"},
      {"rows", ""}, {"concat", ""}, {"concat_cols", ""}, {"sum_cols", ""}, {"sum_rows", ""}, {"sum_heads", ""}, {"sums_from", ""},
      {"sums_before", ""}, {"cumsum", ""}, {"cumsum_within", ""}, {"diagonal_blocks", ""},
      {"block_column", ""}, {"round", "arith.truncf"}, {"extend", "arith.extf"},
      {"when", "scf.if"}, {"loop", "scf.for"}, {"loop_index", ""}, {"end", ""},
  };
  return table[static_cast<int>(op)];
}
inline bool is_store(Op op) { return op == Op::store || op == Op::store_rows; }
inline bool is_region(Op op) { return op == Op::when || op == Op::loop || op == Op::end; }
inline bool elementwise(Op op) { return (op >= Op::add && op <= Op::both) || op == Op::round || op == Op::extend; }

struct Node {
  Op op;
  std::vector<int> in;
  int rows = 1, cols = 1;
  Element element = Element::f32;
  int a = 0, b = 0;         // rows: begin, count; block ops: block size, column; store_rows: ref of the plan
  std::uint32_t value = 0;  // bit pattern of a constant
  Precision precision = Precision::f32;
  int ref = -1, stage = 0;
  int version = 0;          // of the ref a load reads
  Domain domain = Domain::constant;
};

struct Program {
  std::string name;
  Extent extent;
  std::vector<ArrayInfo> arrays;
  std::vector<RefInfo> refs;
  std::vector<Node> nodes;
  int stage = 0, stages = 1;
  bool round_early = true;

  const Node& operator[](int i) const { return nodes[i]; }
  int size() const { return static_cast<int>(nodes.size()); }

  // Identical pure nodes are one node. Loads are the same while nothing was stored to their ref.
  int add(Node n) {
    n.stage = stage;
    for (int i : n.in) n.domain = std::max(n.domain, nodes[i].domain);
    if (n.op == Op::sum_heads) n.domain = Domain::key_head;
    if (n.op == Op::load) n.version = versions_[n.ref];
    if (is_store(n.op)) n.version = ++versions_[n.ref];
    const bool staged = n.op == Op::load || is_store(n.op);
    std::vector<std::int64_t> key{static_cast<int>(n.op), n.rows, n.cols, static_cast<int>(n.element), n.a, n.b, n.value,
                                  static_cast<int>(n.precision), n.ref, n.version, staged ? n.stage : -1};
    key.insert(key.end(), n.in.begin(), n.in.end());
    auto [at, fresh] = seen_.emplace(std::move(key), size());
    if (fresh) nodes.push_back(std::move(n));
    return at->second;
  }
  void forget_identities() { seen_.clear(); }

  // Nodes up to the matching close() happen under this one.
  int open(Node region) {
    region.stage = stage;
    for (int i : region.in) region.domain = std::max(region.domain, nodes[i].domain);
    nodes.push_back(std::move(region));
    if (nodes.back().op == Op::loop) forget_loads();  // a pass may see what the one before it stored
    return size() - 1;
  }
  void close() {
    nodes.push_back({.op = Op::end, .in = {}, .stage = stage});
    forget_loads();
  }

  bool is_zero(int i) const { return nodes[i].op == Op::constant && nodes[i].value == 0; }
  int constant(int rows, int cols, std::uint32_t value, Element e = Element::f32) {
    return add({.op = Op::constant, .in = {}, .rows = rows, .cols = cols, .element = e, .value = value});
  }
  int stretch(int i, int rows, int cols) {
    const Node& n = nodes[i];
    if (n.rows == rows && n.cols == cols) return i;
    if (n.op == Op::constant) return constant(rows, cols, n.value, n.element);
    return add({.op = Op::stretch, .in = {i}, .rows = rows, .cols = cols, .element = n.element});
  }
  int elementwise(Op op, std::vector<int> in, Element e) {
    int rows = 1, cols = 1;
    for (int i : in) rows = std::max(rows, nodes[i].rows), cols = std::max(cols, nodes[i].cols);
    for (int& i : in) i = stretch(i, rows, cols);
    return add({.op = op, .in = std::move(in), .rows = rows, .cols = cols, .element = e});
  }
  int extend(int i) {
    const Node& n = nodes[i];
    return n.element == Element::f32 ? i : add({.op = Op::extend, .in = {i}, .rows = n.rows, .cols = n.cols});
  }
  // Whether rounding to bf16 changes nothing: widened values, and what is moved or selected of them.
  bool exact_in_bf16(int i) const {
    const Node& n = nodes[i];
    if (n.element == Element::bf16 || n.op == Op::extend || is_zero(i)) return true;
    if (n.op == Op::select) return exact_in_bf16(n.in[1]) && exact_in_bf16(n.in[2]);
    const bool moved = n.op == Op::rows || n.op == Op::concat || n.op == Op::transpose || n.op == Op::stretch;
    return moved && std::all_of(n.in.begin(), n.in.end(), [&](int j) { return exact_in_bf16(j); });
  }
  // Rounding to bf16 commutes with moves and with selecting zero: done as early as possible, less is moved and kept.
  // Only at multiples of 16 rows, the height of a bf16 tile.
  int round(int i) {
    Node n = nodes[i];
    const bool narrow = round_early;
    if (n.op == Op::extend) return n.in[0];
    if (n.op == Op::constant && n.value == 0) return constant(n.rows, n.cols, 0, Element::bf16);
    if (narrow && n.op == Op::select && is_zero(n.in[2])) {
      n.in[1] = round(n.in[1]);
      n.in[2] = constant(n.rows, n.cols, 0, Element::bf16);
      n.element = Element::bf16;
      return add(n);
    }
    if (narrow && (n.op == Op::concat_cols ||
                   (n.op == Op::concat && std::all_of(n.in.begin(), n.in.end(), [&](int j) { return nodes[j].rows % 16 == 0; })))) {
      for (int& j : n.in) j = round(j);
      n.element = Element::bf16;
      return add(n);
    }
    if (narrow && n.op == Op::rows && n.cols > 1 && n.a % 16 == 0 && n.b % 16 == 0) {
      n.in[0] = round(n.in[0]);
      n.element = Element::bf16;
      return add(n);
    }
    return add({.op = Op::round, .in = {i}, .rows = n.rows, .cols = n.cols, .element = Element::bf16});
  }

 private:
  void forget_loads() {
    for (int r = 0; r < static_cast<int>(refs.size()); r++) versions_[r]++;
  }
  std::map<std::vector<std::int64_t>, int> seen_;
  std::map<int, int> versions_;
};

}  // namespace gdn::trace

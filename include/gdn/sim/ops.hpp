// The ops: one table row and one function each, by theme in ops/. A function checks the op once, when the kernel is loaded, and returns
// what executes it. What executes refers to the op and its types, which stay where they are as long as the kernel is loaded.
#pragma once
#include <algorithm>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "machine.hpp"
#include "ops/arith.hpp"
#include "ops/control.hpp"
#include "ops/dma.hpp"
#include "ops/memory.hpp"
#include "ops/vector.hpp"
#include "parse.hpp"

namespace gdn::sim {

namespace ops {

// One row per op: its function and the attributes it may carry.
struct Row {
  std::string_view name;
  Execute (*load)(const Node&);
  std::string_view attributes;
};

inline const Row table[] = {
    {"arith.constant", constant, "value"},
    {"arith.addf", float2<add>, "fastmath"},
    {"arith.subf", float2<subtract>, "fastmath"},
    {"arith.mulf", float2<multiply>, "fastmath"},
    {"arith.divf", float2<divide>, "fastmath"},
    {"arith.negf", sign1<flip_sign>, "fastmath"},
    {"arith.maximumf", float2<maximum>, "fastmath"},
    {"arith.minimumf", float2<minimum>, "fastmath"},
    {"arith.addi", int2<iadd>, "overflowFlags"},
    {"arith.subi", int2<isubtract>, "overflowFlags"},
    {"arith.muli", int2<imultiply>, "overflowFlags"},
    {"arith.divsi", int2<idivide, divisible>, ""},
    {"arith.remsi", int2<iremainder, divisible>, ""},
    {"arith.divui", int2<udivide, divisible_unsigned>, ""},
    {"arith.remui", int2<uremainder, divisible_unsigned>, ""},
    {"arith.andi", logic2<bit_and>, ""},
    {"arith.ori", logic2<bit_or>, ""},
    {"arith.xori", logic2<bit_xor>, ""},
    {"arith.shli", int2<shift_left, shiftable>, "overflowFlags"},
    {"arith.shrui", int2<shift_right, shiftable>, ""},
    {"arith.shrsi", int2<shift_right_signed, shiftable>, ""},
    {"arith.minsi", int2<iminimum>, ""},
    {"arith.maxsi", int2<imaximum>, ""},
    {"arith.cmpi", compare_ints, "predicate"},
    {"arith.cmpf", compare_floats, "predicate fastmath"},
    {"arith.select", select, ""},
    {"arith.extf", extf, "fastmath"},
    {"arith.truncf", truncf, "fastmath"},
    {"arith.index_cast", index_cast, ""},
    {"arith.bitcast", bitcast, ""},
    {"arith.sitofp", sitofp, ""},
    {"arith.fptosi", fptosi, ""},
    {"arith.extui", extend_int<false>, ""},
    {"arith.extsi", extend_int<true>, ""},
    {"arith.trunci", trunci, "overflowFlags"},
    {"math.exp", float1<exp>, "fastmath"},
    {"math.exp2", float1<exp2>, "fastmath"},
    {"math.log", float1<log>, "fastmath"},
    {"math.log1p", log1p_op, "fastmath"},
    {"math.sqrt", float1<square_root>, "fastmath"},
    {"math.rsqrt", float1<rsqrt>, "fastmath"},
    {"math.tanh", float1<tanh>, "fastmath"},
    {"math.absf", sign1<drop_sign>, "fastmath"},
    {"tpu.reciprocal", reciprocal_op, "approx full_range"},
    {"tpu.logistic", float1<sigmoid>, ""},
    {"tpu.bitcast", vector_bitcast, ""},
    {"tpu.iota", iota, "dimensions"},
    {"tpu.concatenate", concatenate, "dimension"},
    {"tpu.transpose", transpose, "permutation"},
    {"tpu.matmul", matmul, "dimension_numbers precision transpose_lhs transpose_rhs transpose_lhs_hint"},
    {"tpu.dynamic_gather", dynamic_gather, "dimensions"},
    {"tpu.dynamic_rotate", dynamic_rotate, "dimension"},
    {"tpu.vector_load", tpu_vector_load, "operandSegmentSizes strides"},
    {"tpu.vector_store", tpu_vector_store, "add operandSegmentSizes strides"},
    {"tpu.strided_load", strided_load, "strides"},
    {"tpu.strided_store", strided_store, "strides"},
    {"tpu.memref_slice", memref_slice, "operandSegmentSizes"},
    {"tpu.memref_squeeze", memref_squeeze, ""},
    {"tpu.memref_reshape", memref_reshape, ""},
    {"tpu.memref_bitcast", memref_bitcast, ""},
    {"tpu.sem_alloc", sem_alloc, ""},
    {"tpu.enqueue_dma", enqueue_dma, "operandSegmentSizes priority strict_ordering"},
    {"tpu.wait_dma2", wait_dma2, "operandSegmentSizes strict_ordering"},
    {"tpu.sem_signal", sem_signal, "operandSegmentSizes"},
    {"tpu.sem_wait", sem_wait, ""},
    {"tpu.sem_read", sem_read, ""},
    {"tpu.region", region, ""},
    {"tpu.trace_start", nothing, "level message"},
    {"tpu.trace_stop", nothing, ""},
    {"tpu.assume_multiple", assume_multiple, "multiple"},
    {"tpu.iteration_bound", iteration_bound, "dim"},
    {"vector.load", vector_load, ""},
    {"vector.store", vector_store, ""},
    {"vector.broadcast", broadcast, ""},
    {"vector.shape_cast", shape_cast, ""},
    {"vector.extract_strided_slice", extract_strided_slice, "offsets sizes strides"},
    {"vector.extract", extract, "static_position"},
    {"vector.multi_reduction", multi_reduction, "kind reduction_dims"},
    {"memref.alloca", alloca_op, "operandSegmentSizes"},
    {"memref.load", memref_load, ""},
    {"memref.store", memref_store, ""},
    {"scf.if", if_op, ""},
    {"scf.for", for_op, ""},
    {"scf.while", while_op, ""},
};

inline const Row& row_of(const Node& n) {
  static const auto by_name = [] {
    std::unordered_map<std::string_view, const Row*> map;
    for (auto& row : table) map[row.name] = &row;
    return map;
  }();
  const auto found = by_name.find(n.name);
  n.check(found != by_name.end(), "this op is not simulated");
  return *found->second;
}

inline void check_attributes(const Node& n, std::string_view allowed) {
  for (auto& key : n.attributes.keys) {
    bool known = false;
    for (auto rest = allowed; !rest.empty();) {
      const auto end = std::min(rest.find(' '), rest.size());
      known = known || rest.substr(0, end) == key;
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    n.check(known, "attribute '", key, "' is not known here");
  }
}

}  // namespace ops

// Everything an op reads, inside its regions too.
inline void add_uses(const Node& n, std::vector<int>& out) {
  out.insert(out.end(), n.operands.begin(), n.operands.end());
  for (auto& region : n.regions)
    for (auto& inner : region.nodes) add_uses(inner, out);
}

// A value dies at its last use in the block that defines it, where a region counts as a use by its op.
inline std::shared_ptr<Block> load_block(const Region& r) {
  auto b = std::make_shared<Block>();
  b->arguments = r.arguments;
  std::unordered_set<int> own(r.arguments.begin(), r.arguments.end());
  for (auto& n : r.nodes) {
    own.insert(n.results.begin(), n.results.end());
    if (n.name == "scf.yield" || n.name == "scf.condition" || n.name == "tpu.yield" || n.name == "func.return") {
      n.check(&n == &r.nodes.back(), "must be the last op of its region");
      b->results = n.operands;
      continue;
    }
    const auto& row = ops::row_of(n);
    ops::check_attributes(n, row.attributes);
    b->steps.push_back({&n, row.load(n), {}});
  }
  std::unordered_set<int> used;
  for (int v : b->results)
    if (own.count(v) && used.insert(v).second) b->result_last_uses.push_back(v);
  for (std::size_t i = b->steps.size(); i-- > 0;) {
    auto& step = b->steps[i];
    std::vector<int> uses = step.node->results;  // a result nobody reads dies at once
    add_uses(*step.node, uses);
    for (int v : uses)
      if (own.count(v) && used.insert(v).second) step.last_uses.push_back(v);
  }
  return b;
}

}  // namespace gdn::sim

// What goes into the simulator and what comes out of it; light enough to be included everywhere.
#pragma once
#include <cstdint>
#include <vector>

namespace gdn::sim {

enum class Element { f32, bf16, i32, i8, i1 };

// A row-major array. Elements are their bit patterns, in the low bits of a word. ui32 arrays are i32 arrays.
struct Array {
  Element element = Element::f32;
  std::vector<std::int64_t> shape;
  std::vector<std::uint32_t> data;
  std::vector<std::uint8_t> defined;  // 0: undefined; empty: all are defined
};

enum class Target { tpu7x, v6e, v5e };

struct Options {
  Target target = Target::tpu7x;
  std::uint64_t parallel_order = 0;  // 0: `parallel` grid axes run in order; else a number for another order of each
  bool late_windows = false;         // windows are filled and written back between steps, so that none is on its way during one
  bool undefined_outputs = false;    // outputs may be partly undefined; Array::defined of the result tells
  std::uint64_t copy_order = 0;      // 0: a copy that is started moves its elements at once; 1: when it is waited for, the last one first;
                                     // else a number for some time in between, another for each copy
  bool carry_undefined = false;      // arithmetic on undefined elements gives undefined elements; it is refused otherwise
};

struct Result {
  std::vector<Array> outputs;
  long ops = 0;                 // executed in kernel bodies
  long grid_steps = 0;          // of all calls
  std::int64_t vmem_bytes = 0;  // windows and scratch of the largest call
};

}  // namespace gdn::sim

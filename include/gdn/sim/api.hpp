// What goes into the simulator and what comes out of it; light enough to be included everywhere.
#pragma once
#include <cstdint>
#include <vector>

namespace gdn::sim {

enum class Element { f32, bf16, i32 };

// A row-major array. bf16 elements are their 16 bits, f32 elements their bit patterns.
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
  bool late_windows = false;         // input windows are filled at the beginning of their step, not one step ahead
  bool undefined_outputs = false;    // outputs may be partly undefined; Array::defined of the result tells
};

struct Result {
  std::vector<Array> outputs;
  long ops = 0;                 // executed in kernel bodies
  long grid_steps = 0;          // of all calls
  std::int64_t vmem_bytes = 0;  // windows and scratch of the largest call
};

}  // namespace gdn::sim

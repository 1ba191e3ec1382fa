// The simulator: runs emitted Mosaic (TPU kernel) text under the TPU's memory rules, with the arithmetic of the numeric contract.
//
//   sim::Result r = sim::run(text, inputs);        // r.outputs
//
// `text` is one of
//   - a StableHLO program: func.func public @main with reshapes and tpu_custom_call, whose body is stable text in base64;
//   - a kernel in MLIR's generic form, plain or stable, with a comment line  // call: (tensor<256x512xbf16>) -> tensor<256x512xbf16>
//     that types its arrays, and optionally  // vmem_limit_bytes: N  and  // aliases: OUTPUT = OPERAND, .. .
//
// Arithmetic: f32, round to nearest even, subnormals flushed. tpu.matmul is acc + (+0 + chain over k ascending of fma(a, b)), its f32
// operands rounded to bf16 unless the precision is fp32; sums fold halves of the next power of two, then acc + sum; math.exp2,
// tpu.reciprocal and their like have the portable meaning. So the bits are those of the CPU, and of the TPU only within a bound.
//
// Refused, with a gdn::Error that names op, line, loc label, grid step, buffer and index where they apply:
//   - arithmetic on undefined elements: those of fresh scratch and output windows, and of the part of a window outside its array.
//     Moves, casts and selects carry them; a select may discard them;
//   - loads, stores, gathers and block indices out of bounds;
//   - outputs with elements never written, and output blocks visited again after another one;
//   - races: reads and writes of what a copy in flight writes, and writes of what it reads. A copy (tpu.enqueue_dma) is in flight until
//     the waits on its semaphore add up to all copies started on it. The copies of double-buffered windows count too: the next step's
//     block is fetched while a step runs, and a block that is left is written back while the next step runs;
//   - waits that would never end, semaphores that are not back at zero when they end, copies still in flight then;
//   - windows and scratch that do not fit the VMEM, windows that do not fit the scoped limit;
//   - blocks the compiler would not take, arguments that do not fit the grid, ops and attributes the simulator does not know.
#pragma once
#include "sim/api.hpp"
#include "sim/copies.hpp"
#include "sim/grid.hpp"
#include "sim/machine.hpp"
#include "sim/memory.hpp"
#include "sim/ops.hpp"
#include "sim/parse.hpp"
#include "sim/program.hpp"
#include "sim/value.hpp"

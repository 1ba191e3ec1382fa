// The order of steps, windows and what is in them.
#include <catch2/catch.hpp>

#include <bit>

#include "fixtures.hpp"
#include "simulate.hpp"

using namespace gdn;
using namespace gdn::test;
using Catch::Contains;

namespace {

const std::string tile = "8x128xf32", V = vector(tile);

std::string add(const std::string& to, const std::string& a, const std::string& b) {
  return to + " = \"arith.addf\"(" + a + ", " + b + ") : (" + V + ", " + V + ") -> " + V + "\n";
}

// Runs the body when the grid index is 0.
std::string when_first(const std::string& id, const std::string& body) {
  return "%zero_i = \"arith.constant\"() {value = 0 : i32} : () -> i32\n%first = \"arith.cmpi\"(" + id +
         ", %zero_i) {predicate = 0 : i64} : (i32, i32) -> i1\n\"scf.if\"(%first) ({\n" + body +
         "\"scf.yield\"() : () -> ()\n}, {}) : (i1) -> ()\n";
}

const std::string zero = "%zero = \"arith.constant\"() {value = dense<0.0> : " + V + "} : () -> " + V + "\n";

// One step per 8 rows of a [rows, 128] array: grid, semantics and the block index as given.
Kernel rows(const std::vector<std::string>& bounds, const std::vector<std::string>& semantics, const std::string& in,
            const std::string& out, const std::string& body) {
  Kernel k;
  k.bounds = bounds;
  k.semantics = semantics;
  k.inputs = {{"32x128xf32", "8x128", in}};
  k.outputs = {{"32x128xf32", "8x128", out}};
  k.body = body;
  return k;
}

// The value of the first lane of every 8th row.
std::vector<float> per_block(const Array& a) {
  std::vector<float> out;
  for (std::size_t i = 0; i < a.data.size(); i += 1024) out.push_back(std::bit_cast<float>(a.data[i]));
  return out;
}

// 32 rows, where all of block b is b + 1.
Array blocks() {
  Array a{Element::f32, {32, 128}, {}, {}};
  for (int i = 0; i < 4096; i++) a.data.push_back(bits(static_cast<float>(i / 1024 + 1)));
  return a;
}

}  // namespace

TEST_CASE("the last axis is the fastest, and the block index decides what is in a window") {
  auto k = rows({"2", "2"}, {"arbitrary", "arbitrary"}, "%b, %c0", "%r, %c0", load("%x", "%a0", tile) + store("%x", "%o0", tile));
  k.transform_body = R"(%two = "arith.constant"() {value = 2 : i32} : () -> i32
%three = "arith.constant"() {value = 3 : i32} : () -> i32
%m = "arith.muli"(%g0, %two) : (i32, i32) -> i32
%b = "arith.addi"(%m, %g1) : (i32, i32) -> i32
%r = "arith.subi"(%three, %b) : (i32, i32) -> i32
)";
  const auto r = simulate(text_of(k), {blocks()});
  CHECK(per_block(r.outputs[0]) == std::vector<float>{4, 3, 2, 1});
  CHECK(r.grid_steps == 4);
  CHECK(r.ops == 4 * 3);
}

TEST_CASE("an output window keeps its content while its block stays, and is fresh for a new block") {
  // out[block of g0] = sum over g1 of the input blocks
  Kernel k;
  k.bounds = {"2", "3"};
  k.semantics = {"parallel", "arbitrary"};
  k.inputs = {{"24x128xf32", "8x128", "%g1, %c0"}};
  k.outputs = {{"16x128xf32", "8x128", "%g0, %c0"}};
  const std::string accumulate = load("%x", "%a0", tile) + load("%s", "%o0", tile) + add("%t", "%s", "%x") + store("%t", "%o0", tile);
  k.body = zero + when_first("%g1", store("%zero", "%o0", tile)) + accumulate;
  const auto x = counting({24, 128});
  const auto out = floats(simulate(text_of(k), {x}).outputs[0]);
  CHECK(out[5] == 5.f + (1024 + 5) + (2048 + 5));
  CHECK(out[1024 + 5] == out[5]);
  // Cleared at the first step only, the second block is still undefined.
  k.body = zero + R"(%ten = "arith.constant"() {value = 3 : i32} : () -> i32
%base = "arith.muli"(%g0, %ten) : (i32, i32) -> i32
%at = "arith.addi"(%base, %g1) : (i32, i32) -> i32
)" + when_first("%at", store("%zero", "%o0", tile)) + accumulate;
  CHECK_THAT(error_of([&] { simulate(text_of(k), {x}); }),
             Contains("grid step (1, 0): operand %s, index (0, 0), is undefined: it comes from output window 0 %o0"));
}

TEST_CASE("scratch lasts over all steps") {
  auto k = rows({"4"}, {"arbitrary"}, "%g0, %c0", "%g0, %c0",
                zero + when_first("%g0", store("%zero", "%s0", tile)) + load("%x", "%a0", tile) + load("%s", "%s0", tile) +
                    add("%t", "%s", "%x") + store("%t", "%s0", tile) + store("%t", "%o0", tile));
  k.scratch = {tile};
  CHECK(per_block(simulate(text_of(k), {blocks()}).outputs[0]) == std::vector<float>{1, 3, 6, 10});
}

TEST_CASE("an input window is fetched when its block changes; what the body stores in it stays, and does not reach the array") {
  // Two steps per block; each doubles the window and writes it out.
  Kernel k;
  k.bounds = {"4"};
  k.semantics = {"arbitrary"};
  k.inputs = {{"16x128xf32", "8x128", "%h, %c0"}, {"16x128xf32", "8x128", "%h, %c0"}};
  k.outputs = {{"32x128xf32", "8x128", "%g0, %c0"}};
  k.transform_body = "%two = \"arith.constant\"() {value = 2 : i32} : () -> i32\n%h = \"arith.divsi\"(%g0, %two) : (i32, i32) -> i32\n";
  k.body = load("%x", "%a0", tile) + add("%y", "%x", "%x") + store("%y", "%a0", tile) + load("%w", "%a1", tile) + add("%v", "%y", "%w") +
           store("%v", "%o0", tile);
  const auto x = counting({16, 128}, 1, 0);
  for (bool late : {false, true}) {
    sim::Options options;
    options.late_windows = late;
    CHECK(per_block(simulate(text_of(k), {x, x}, options).outputs[0]) == std::vector<float>{2 + 1, 4 + 1, 2 + 1, 4 + 1});
  }
}

TEST_CASE("prefetched scalars choose blocks, and the body may read and write them") {
  auto k = rows({"4"}, {"arbitrary"}, "%b, %c0", "%g0, %c0", load("%x", "%a0", tile) + R"(%j = "arith.index_cast"(%g0) : (i32) -> index
%p = "memref.load"(%p0, %j) : (memref<4xi32, #tpu.memory_space<smem>>, index) -> i32
"memref.store"(%g0, %p0, %j) : (i32, memref<4xi32, #tpu.memory_space<smem>>, index) -> ()
%q = "memref.load"(%p0, %j) : (memref<4xi32, #tpu.memory_space<smem>>, index) -> i32
%f = "arith.sitofp"(%q) : (i32) -> f32
%w = "vector.broadcast"(%f) : (f32) -> vector<8x128xf32>
)" + add("%y", "%x", "%w") + store("%y", "%o0", tile));
  k.prefetch = {"4xi32"};
  k.transform_body = R"(%j = "arith.index_cast"(%g0) : (i32) -> index
%b = "memref.load"(%p0, %j) : (memref<4xi32, #tpu.memory_space<smem>>, index) -> i32
)";
  CHECK(per_block(simulate(text_of(k), {i32_array({4}, {3, 0, 0, 2}), blocks()}).outputs[0]) ==
        std::vector<float>{4 + 0, 1 + 1, 1 + 2, 3 + 3});
}

TEST_CASE("a grid bound may be an operand") {
  Kernel k = rows({"-9223372036854775808"}, {"arbitrary"}, "%g0, %c0", "%g0, %c0",
                  load("%x", "%a0", tile) + R"(%n = "tpu.iteration_bound"() {dim = 0 : i32} : () -> i32
%f = "arith.sitofp"(%n) : (i32) -> f32
%w = "vector.broadcast"(%f) : (f32) -> vector<8x128xf32>
)" + add("%y", "%x", "%w") + store("%y", "%o0", tile));
  const auto run = [&](int n) { return simulate(text_of(k), {i32_array({}, {n}), blocks()}, {sim::Target::tpu7x, 0, false, true}); };
  CHECK(per_block(run(4).outputs[0]) == std::vector<float>{5, 6, 7, 8});
  CHECK(run(2).grid_steps == 2);
  CHECK(run(2).outputs[0].defined[2047] == 1);
  CHECK(run(2).outputs[0].defined[2048] == 0);
  CHECK(run(0).grid_steps == 0);
  CHECK_THAT(error_of([&] { run(5); }), Contains("grid step (4): block index (4, 0) is out of bounds"));
  CHECK_THAT(error_of([&] { run(-1); }), Contains("grid axis 0 has bound -1"));
}

TEST_CASE("parallel axes in another order: equal results, unless the kernel depends on it") {
  const std::string independent = load("%x", "%a0", tile) + add("%y", "%x", "%x") + store("%y", "%o0", tile);
  // The running sum over a parallel axis is the mistake.
  const std::string running = zero + when_first("%g0", store("%zero", "%s0", tile)) + load("%x", "%a0", tile) + load("%s", "%s0", tile) +
                              add("%t", "%s", "%x") + store("%t", "%s0", tile) + store("%t", "%o0", tile);
  auto good = rows({"4"}, {"parallel"}, "%g0, %c0", "%g0, %c0", independent);
  auto bad = rows({"4"}, {"parallel"}, "%g0, %c0", "%g0, %c0", running);
  auto ordered = rows({"4"}, {"arbitrary"}, "%g0, %c0", "%g0, %c0", running);
  bad.scratch = ordered.scratch = {tile};
  const auto result = [&](const Kernel& k, std::uint64_t order) {
    try {
      return per_block(simulate(text_of(k), {blocks()}, {sim::Target::tpu7x, order, false, false}).outputs[0]);
    } catch (const Error&) {
      return std::vector<float>{};
    }
  };
  bool differs = true;
  for (std::uint64_t order = 1; order < 6; order++) {
    CHECK(result(good, order) == result(good, 0));
    CHECK(result(ordered, order) == result(ordered, 0));
    CHECK(result(bad, order) == result(bad, order));
    differs = differs && result(bad, order) != result(bad, 0);
  }
  CHECK(differs);
}

TEST_CASE("early and late windows") {
  // In place on aliased arrays is legal; see program.cpp for a kernel that depends on the timing.
  const auto k =
      rows({"4"}, {"arbitrary"}, "%g0, %c0", "%g0, %c0", load("%x", "%a0", tile) + add("%y", "%x", "%x") + store("%y", "%o0", tile));
  CHECK(simulate(text_of(k), {blocks()}, {sim::Target::tpu7x, 0, true, false}).outputs[0].data ==
        simulate(text_of(k), {blocks()}).outputs[0].data);
}

TEST_CASE("one kernel of ours, as jaxlib prints it") {
  const auto table = i32_array({4}, {2, 0, 5, 1});
  const auto a = counting({64, 128}, 0, 0.125f);
  Array h{Element::bf16, {64, 128}, {}, {}};
  for (std::uint32_t i = 0; i < 64 * 128; i++) h.data.push_back(0x3f80u + i % 128);
  std::vector<float> s(16 * 128, 0.f);
  std::vector<std::uint32_t> o, p;
  for (std::size_t g = 0; g < 4; g++) {
    const int n = static_cast<int>(table.data[g]);
    for (std::size_t r = 0; r < 16; r++) {
      std::vector<float> row(128);
      for (std::size_t c = 0; c < 128; c++) {
        const auto at = (g * 16 + r) * 128 + c;
        const float x = floats(a)[at], y = std::bit_cast<float>(h.data[at] << 16);
        row[c] = x;
        for (int k = 0; k < n; k++) row[c] += y;
        const float product = g > 0 ? x : y * static_cast<float>(n * (n - 1) / 2);
        const auto b = bits(product);
        p.push_back((b + 0x7fffu + ((b >> 16) & 1u)) >> 16);
      }
      for (std::size_t half = 64; half > 0; half /= 2)
        for (std::size_t c = 0; c < half; c++) row[c] += row[c + half];
      for (std::size_t c = 0; c < 128; c++) o.push_back(bits(s[r * 128 + c] += row[0]));
    }
  }
  for (const char* text : {running_generic, running_stable, running_with_locations}) {
    const auto r = simulate(text, {i32_array({}, {4}), table, a, h});
    CHECK(r.outputs[0].data == o);
    CHECK(r.outputs[1].data == p);
    CHECK(r.grid_steps == 4);
  }
}

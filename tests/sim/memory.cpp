// What the simulator refuses, each beside a control that passes.
#include <catch2/catch.hpp>

#include "simulate.hpp"

using namespace gdn;
using namespace gdn::test;
using Catch::Contains;

namespace {

std::string refusal(const std::string& text, const std::vector<Array>& inputs, const sim::Options& options = {}) {
  return error_of([&] { simulate(text, inputs, options); });
}
std::string refusal(const Kernel& k, const std::vector<Array>& inputs, const sim::Options& options = {}) {
  return refusal(text_of(k), inputs, options);
}

const std::string tile = "8x128xf32", V = vector(tile), M = memref(tile);

// out = body(%x: the input, %u: never written scratch)
Kernel with_scratch(const std::string& body) {
  Kernel k;
  k.inputs = {{tile, "", ""}};
  k.outputs = {{tile, "", ""}};
  k.scratch = {tile};
  k.body = load("%x", "%a0", tile) + load("%u", "%s0", tile) + body + "\n" + store("%r", "%o0", tile);
  return k;
}

const Array ones = counting({8, 128}, 1, 0);

std::string binary(const std::string& to, const std::string& op, const std::string& a, const std::string& b) {
  return to + " = \"" + op + "\"(" + a + ", " + b + ") : (" + V + ", " + V + ") -> " + V + "\n";
}
std::string splat(const std::string& to, const std::string& value, const std::string& type = tile) {
  return to + " = \"arith.constant\"() {value = dense<" + value + "> : " + vector(type) + "} : () -> " + vector(type) + "\n";
}

// %m: the lanes below 64.
const std::string lower_lanes = R"(%lane = "tpu.iota"() {dimensions = array<i32: 1>} : () -> vector<8x128xi32>
)" + splat("%c64", "64", "8x128xi32") +
                                R"(%m = "arith.cmpi"(%lane, %c64) {predicate = 2 : i64} : (vector<8x128xi32>, vector<8x128xi32>) -> vector<8x128xi1>
)";
std::string select(const std::string& to, const std::string& a, const std::string& b) {
  return to + " = \"arith.select\"(%m, " + a + ", " + b + ") : (vector<8x128xi1>, " + V + ", " + V + ") -> " + V + "\n";
}

// A copy kernel whose windows are these.
Kernel copy(const std::string& bound, const std::string& semantics, const Windowed& in, const Windowed& out) {
  Kernel k;
  k.bounds = {bound};
  k.semantics = {semantics};
  k.inputs = {in};
  k.outputs = {out};
  const auto type = in.block + "xf32";
  k.body = load("%x", "%a0", type) + store("%x", "%o0", type);
  return k;
}

}  // namespace

TEST_CASE("fresh scratch is undefined: arithmetic on it is refused, with op, line, label, step, buffer and index") {
  const auto k = with_scratch("%r = \"arith.addf\"(%x, %u) : (" + V + ", " + V + ") -> " + V + " loc(\"sum\")");
  CHECK_THAT(refusal(k, {ones}), Contains("arith.addf at line 8 (\"sum\"), without a grid: operand %u, index (0, 0), is undefined: it "
                                          "comes from scratch 0 %s0 (not written)"));
  auto written = k;
  written.body = load("%x", "%a0", tile) + store("%x", "%s0", tile) + load("%u", "%s0", tile) + binary("%r", "arith.addf", "%x", "%u") +
                 store("%r", "%o0", tile);
  CHECK(floats(simulate(text_of(written), {ones}).outputs[0]) == std::vector<float>(1024, 2.f));
}

TEST_CASE("masking by select discards undefined elements, masking by 0 does not") {
  // B59
  CHECK(refusal(with_scratch(lower_lanes + splat("%zero", "0.0") + select("%r", "%x", "%zero")), {ones}) == "");
  CHECK(refusal(with_scratch(lower_lanes + binary("%d", "arith.addf", "%x", "%x") + select("%v", "%d", "%u") + select("%r", "%v", "%x")),
                {ones}) == "");
  CHECK_THAT(refusal(with_scratch(splat("%zero", "0.0") + binary("%r", "arith.mulf", "%u", "%zero")), {ones}), Contains("operand %u"));
  // A select that keeps some: the first of those.
  const auto kept = with_scratch(lower_lanes + select("%v", "%x", "%u") + binary("%r", "arith.addf", "%v", "%v"));
  CHECK_THAT(refusal(kept, {ones}), Contains("operand %v, index (0, 64), is undefined"));
  // Stored, it is the output that is incomplete.
  const auto stored = with_scratch(lower_lanes + select("%r", "%x", "%u"));
  CHECK_THAT(refusal(stored, {ones}),
             Contains("output window 0 %o0: index (0, 64) of the output (8, 128) was left undefined: it comes from scratch 0 %s0"));
  sim::Options lenient;
  lenient.undefined_outputs = true;
  const auto out = simulate(text_of(stored), {ones}, lenient).outputs[0];
  std::vector<std::uint8_t> expected;
  for (int i = 0; i < 1024; i++) expected.push_back(i % 128 < 64);
  CHECK(out.defined == expected);
}

TEST_CASE("the mark of an undefined element goes with every move") {
  // %v is defined in the lower 64 lanes. The marks of %r, one letter per 32 lanes.
  const std::string v = lower_lanes + select("%v", "%x", "%u");
  const auto marks_after = [&](const std::string& body) {
    sim::Options lenient;
    lenient.undefined_outputs = true;
    const auto out = simulate(text_of(with_scratch(v + body)), {ones}, lenient).outputs[0];
    std::string lanes;
    for (std::size_t i = 0; i < 128; i += 32) lanes += out.defined.empty() || out.defined[i] ? 'd' : 'u';
    return lanes;
  };
  CHECK(marks_after(binary("%r", "arith.addf", "%x", "%x")) == "dddd");
  CHECK(marks_after("%r = \"vector.shape_cast\"(%v) : (" + V + ") -> " + V) == "dduu");
  CHECK(marks_after("%t = \"tpu.transpose\"(%v) {permutation = array<i64: 1, 0>} : (" + V + ") -> vector<128x8xf32>\n"
                    "%r = \"tpu.transpose\"(%t) {permutation = array<i64: 1, 0>} : (vector<128x8xf32>) -> " + V) == "dduu");
  CHECK(marks_after("%n = \"arith.constant\"() {value = 32 : i32} : () -> i32\n"
                    "%r = \"tpu.dynamic_rotate\"(%v, %n) {dimension = 1 : si32} : (" + V + ", i32) -> " + V) == "uddu");
  CHECK(marks_after("%h = \"arith.truncf\"(%v) : (" + V + ") -> vector<8x128xbf16>\n"
                    "%i = \"tpu.bitcast\"(%h) : (vector<8x128xbf16>) -> vector<4x128xi32>\n"
                    "%j = \"tpu.bitcast\"(%i) : (vector<4x128xi32>) -> vector<8x128xbf16>\n"
                    "%r = \"arith.extf\"(%j) : (vector<8x128xbf16>) -> " + V) == "dduu");
  CHECK(marks_after("%a = \"vector.extract_strided_slice\"(%v) {offsets = [0, 32], sizes = [8, 64], strides = [1, 1]} : (" + V +
                    ") -> vector<8x64xf32>\n"
                    "%r = \"tpu.concatenate\"(%a, %a) {dimension = 1 : i32} : (vector<8x64xf32>, vector<8x64xf32>) -> " +
                    V) == "dudu");
  CHECK(marks_after("%a = \"vector.extract_strided_slice\"(%v) {offsets = [0, 64], sizes = [8, 1], strides = [1, 1]} : (" + V +
                    ") -> vector<8x1xf32>\n"
                    "%r = \"vector.broadcast\"(%a) : (vector<8x1xf32>) -> " +
                    V) == "uuuu");
  CHECK(marks_after("%e = \"vector.extract\"(%v) {static_position = array<i64: 3, 127>} : (" + V + ") -> f32\n"
                    "%r = \"vector.broadcast\"(%e) : (f32) -> " + V) == "uuuu");
  CHECK(marks_after("%r = \"tpu.dynamic_gather\"(%v, %lane) {dimensions = array<i32: 1>} : (" + V + ", vector<8x128xi32>) -> " + V) ==
        "dduu");
  CHECK(marks_after("%b = \"arith.bitcast\"(%v) : (" + V + ") -> vector<8x128xi32>\n"
                    "%r = \"arith.bitcast\"(%b) : (vector<8x128xi32>) -> " + V) == "dduu");
  CHECK(marks_after(store("%v", "%s0", tile) + load("%r", "%s0", tile)) == "dduu");
}

TEST_CASE("undefined elements are refused by whatever is no move") {
  const auto refused = [&](const std::string& body) { return refusal(with_scratch(body), {ones}); };
  const std::string result = "\n%r = \"arith.negf\"(%x) : (" + V + ") -> " + V;
  CHECK_THAT(refused("%r = \"arith.negf\"(%u) : (" + V + ") -> " + V), Contains("arith.negf"));
  CHECK_THAT(refused("%m = \"arith.cmpf\"(%u, %x) {predicate = 1 : i64} : (" + V + ", " + V + ") -> vector<8x128xi1>" + result),
             Contains("arith.cmpf"));
  CHECK_THAT(refused(splat("%n", "0.0", "8xf32") +
                     "%q = \"vector.multi_reduction\"(%u, %n) {kind = #vector.kind<add>, reduction_dims = array<i64: 1>} : (" + V +
                     ", vector<8xf32>) -> vector<8xf32>" + result),
             Contains("vector.multi_reduction"));
  CHECK_THAT(
      refused(splat("%n", "0.0", "8x8xf32") +
              "%q = \"tpu.matmul\"(%x, %u, %n) {dimension_numbers = #tpu.dot_dimension_numbers<[1], [1], [0], [0], [0, 0, 1, 0], [], []>, "
              "transpose_lhs = false, transpose_lhs_hint = false, transpose_rhs = false} : (" +
              V + ", " + V + ", vector<8x8xf32>) -> vector<8x8xf32>" + result),
      Contains("tpu.matmul"));
  const std::string scalar = "%e = \"vector.extract\"(%u) {static_position = array<i64: 0, 0>} : (" + V + ") -> f32\n"
                             "%i = \"arith.bitcast\"(%e) : (f32) -> i32\n";
  CHECK_THAT(refused(scalar + "%j = \"arith.index_cast\"(%i) : (i32) -> index\n%q = \"vector.load\"(%a0, %j, %z) : (" + M +
                     ", index, index) -> vector<1x128xf32>" + result),
             Contains("vector.load"));
  CHECK_THAT(refused(scalar + "%b = \"arith.trunci\"(%i) : (i32) -> i1\n\"scf.if\"(%b) ({}, {}) : (i1) -> ()" + result),
             Contains("scf.if"));
  CHECK_THAT(refused(scalar + "\"scf.for\"(%i, %i, %i) ({^bb0(%k: i32): \"scf.yield\"() : () -> ()}) : (i32, i32, i32) -> ()" + result),
             Contains("scf.for"));
  CHECK_THAT(refused("%i = \"arith.bitcast\"(%u) : (" + V +
                     ") -> vector<8x128xi32>\n%b = \"arith.trunci\"(%i) : (vector<8x128xi32>) -> vector<8x128xi1>\n" +
                     "%r = \"arith.select\"(%b, %x, %x) : (vector<8x128xi1>, " + V + ", " + V + ") -> " + V),
             Contains("arith.select"));
}

TEST_CASE("loads and stores out of bounds") {
  const auto at = [](const std::string& op, int place) {
    const std::string index = "%i = \"arith.constant\"() {value = " + std::to_string(place) + " : index} : () -> index\n";
    const std::string result = "\n%r = \"arith.negf\"(%x) : (" + V + ") -> " + V;
    if (op == "load") return index + "%q = \"vector.load\"(%a0, %i, %z) : (" + M + ", index, index) -> vector<2x128xf32>" + result;
    return index + splat("%q", "0.0", "2x128xf32") + "\"vector.store\"(%q, %s0, %i, %z) : (vector<2x128xf32>, " + M +
           ", index, index) -> ()" + result;
  };
  for (const char* op : {"load", "store"}) {
    CHECK(refusal(with_scratch(at(op, 6)), {ones}) == "");
    CHECK_THAT(refusal(with_scratch(at(op, 7)), {ones}),
               Contains(std::string(op) + " out of bounds: ") && Contains("(8, 128) at index (7, 0), dim 0 reaches 8"));
    CHECK_THAT(refusal(with_scratch(at(op, -1)), {ones}), Contains("dim 0 reaches -1"));
  }
  CHECK_THAT(refusal(with_scratch(at("store", 7)), {ones}), Contains("scratch 0 %s0"));
}

TEST_CASE("scalars in SMEM: bounds, and vectors stay out") {
  Kernel k = copy("2", "arbitrary", {"16x128xf32", "8x128", "%b, %c0"}, {"16x128xf32", "8x128", "%g0, %c0"});
  k.prefetch = {"2xi32"};
  k.transform_body = R"(%j = "arith.index_cast"(%g0) : (i32) -> index
%b = "memref.load"(%p0, %j) : (memref<2xi32, #tpu.memory_space<smem>>, index) -> i32
)";
  const auto x = counting({16, 128});
  CHECK(refusal(k, {i32_array({2}, {1, 0}), x}) == "");
  CHECK_THAT(refusal(k, {i32_array({2}, {0, 2}), x}),
             Contains("input window 0 %a0, grid step (1): block index (2, 0) is out of bounds: dim 0 of the array (16, 128)"));
  CHECK_THAT(refusal(k, {i32_array({2}, {-1, 0}), x}), Contains("block index (-1, 0) is out of bounds"));
  auto past = k;
  past.transform_body = R"(%one = "arith.constant"() {value = 1 : i32} : () -> i32
%k = "arith.addi"(%g0, %one) : (i32, i32) -> i32
%j = "arith.index_cast"(%k) : (i32) -> index
%b = "memref.load"(%p0, %j) : (memref<2xi32, #tpu.memory_space<smem>>, index) -> i32
)";
  CHECK_THAT(refusal(past, {i32_array({2}, {1, 0}), x}), Contains("memref.load at line") &&
                                                             Contains("block index of input window 0 %a0, grid step (1)") &&
                                                             Contains("out of bounds: prefetched operand 0 %p0 (2) at index (2)"));
  auto vector_in_smem = k;
  vector_in_smem.body += "%q = \"vector.load\"(%p0, %z) : (memref<2xi32, #tpu.memory_space<smem>>, index) -> vector<2xi32>\n";
  CHECK_THAT(refusal(vector_in_smem, {i32_array({2}, {1, 0}), x}), Contains("vectors live in vmem, not in smem"));
  auto scalar_in_vmem = k;
  scalar_in_vmem.body += "%q = \"memref.load\"(%a0, %z, %z) : (memref<8x128xf32, #tpu.memory_space<vmem>>, index, index) -> f32\n";
  CHECK_THAT(refusal(scalar_in_vmem, {i32_array({2}, {1, 0}), x}), Contains("scalars live in smem, not in vmem"));
}

TEST_CASE("an edge block: outside its array the input is undefined, the output is dropped") {
  auto k = copy("2", "arbitrary", {"12x128xf32", "8x128", "%g0, %c0"}, {"12x128xf32", "8x128", "%g0, %c0"});
  CHECK(simulate(text_of(k), {counting({12, 128})}).outputs[0].data == counting({12, 128}).data);
  k.body = load("%x", "%a0", tile) + binary("%y", "arith.addf", "%x", "%x") + store("%y", "%o0", tile);
  CHECK_THAT(refusal(k, {counting({12, 128})}),
             Contains("grid step (1): operand %x, index (4, 0), is undefined: it comes from input window 0 %a0 (outside its array)"));
}

TEST_CASE("undefined elements of an input array are what the caller says") {
  auto x = counting({8, 128});
  x.defined.assign(1024, 1);
  CHECK(refusal(op_kernel({tile}, tile, binary("%r", "arith.addf", "%x0", "%x0")), {x}) == "");
  x.defined[130] = 0;
  CHECK_THAT(refusal(op_kernel({tile}, tile, binary("%r", "arith.addf", "%x0", "%x0")), {x}),
             Contains("index (1, 2), is undefined: it comes from input 0"));
}

TEST_CASE("an output that is not written everywhere") {
  // B59: block 1 of 3 is skipped, by the grid or by the body.
  auto skipped = copy("2", "arbitrary", {"24x128xf32", "8x128", "%d, %c0"}, {"24x128xf32", "8x128", "%d, %c0"});
  skipped.transform_body =
      "%two = \"arith.constant\"() {value = 2 : i32} : () -> i32\n%d = \"arith.muli\"(%g0, %two) : (i32, i32) -> i32\n";
  CHECK_THAT(refusal(skipped, {counting({24, 128})}),
             Contains("index (8, 0) of the output (24, 128) was never written: its block (1, 0) was never visited"));
  auto whole = copy("3", "arbitrary", {"24x128xf32", "8x128", "%g0, %c0"}, {"24x128xf32", "8x128", "%g0, %c0"});
  CHECK(refusal(whole, {counting({24, 128})}) == "");
  auto unwritten = whole;
  unwritten.body = R"(%one = "arith.constant"() {value = 1 : i32} : () -> i32
%w = "arith.cmpi"(%g0, %one) {predicate = 1 : i64} : (i32, i32) -> i1
"scf.if"(%w) ({
)" + load("%x", "%a0", tile) + store("%x", "%o0", tile) + "\"scf.yield\"() : () -> ()\n}, {}) : (i1) -> ()\n";
  CHECK_THAT(refusal(unwritten, {counting({24, 128})}),
             Contains("index (8, 0) of the output (24, 128) was left undefined: it comes from output window 0 %o0 (not written)"));
}

TEST_CASE("five rows of an eight-row block: the rest keeps its poison") {
  // B63
  Kernel k;
  k.inputs = {{tile, "", ""}};
  k.outputs = {{tile, "", ""}};
  k.body = "%x = \"vector.load\"(%a0, %z, %z) : (" + M +
           ", index, index) -> vector<5x128xf32>\n\"vector.store\"(%x, %o0, %z, %z) : (vector<5x128xf32>, " + M + ", index, index) -> ()\n";
  CHECK_THAT(refusal(k, {counting({8, 128})}), Contains("index (5, 0)"));
  sim::Options lenient;
  lenient.undefined_outputs = true;
  const auto out = simulate(text_of(k), {counting({8, 128})}, lenient).outputs[0];
  bool kept = true;
  for (std::size_t i = 0; i < 1024; i++)
    kept = kept && out.defined[i] == (i < 640) && out.data[i] == (i < 640 ? bits(static_cast<float>(i)) : 0x7fc0deadu);
  CHECK(kept);
}

TEST_CASE("an output block is visited in one run of steps") {
  auto k = copy("4", "arbitrary", {"16x128xf32", "8x128", "%m, %c0"}, {"16x128xf32", "8x128", "%m, %c0"});
  k.transform_body = "%two = \"arith.constant\"() {value = 2 : i32} : () -> i32\n%m = \"arith.remsi\"(%g0, %two) : (i32, i32) -> i32\n";
  CHECK_THAT(refusal(k, {counting({16, 128})}),
             Contains("output window 0 %o0, grid step (2): block (0, 0) is visited again after another one"));
  k.transform_body = "%two = \"arith.constant\"() {value = 2 : i32} : () -> i32\n%m = \"arith.divsi\"(%g0, %two) : (i32, i32) -> i32\n";
  CHECK(refusal(k, {counting({16, 128})}) == "");
}

namespace {

// B58: three inputs and an output in blocks of 8 MiB, scratch of 1 MiB. The first input moves or stays.
std::string large(const std::string& first_index, const std::string& comments) {
  Kernel k;
  k.bounds = {"2"};
  k.semantics = {"arbitrary"};
  const std::string array = "4096x1024xf32", block = "2048x1024";
  k.inputs = {{array, block, first_index}, {array, block, "%g0, %c0"}, {array, block, "%g0, %c0"}};
  k.outputs = {{array, block, "%g0, %c0"}};
  k.scratch = {"256x1024xf32"};
  k.body = load("%x", "%a0", "2048x1024xf32") + store("%x", "%o0", "2048x1024xf32");
  k.comments = comments;
  return text_of(k);
}

}  // namespace

TEST_CASE("VMEM is counted before anything runs") {
  const auto x = counting({4096, 1024}, 0, 0);
  const std::vector<Array> arrays{x, x, x};
  const auto message = refusal(large("%g0, %c0", "// vmem_limit_bytes: 67108864\n"), arrays);
  CHECK_THAT(message, Contains("the kernel needs 65.00 MiB, the core has 63.94 MiB"));
  CHECK_THAT(message, Contains("16.00 MiB  input window 0 %a0 (2048, 1024) (2 buffers of 8.00 MiB)\n") &&
                          Contains("\n  1.00 MiB  scratch 0 %s0 (256, 1024)"));
  CHECK(message.find("input window 0") < message.find("scratch 0"));
  // One window that stays has one buffer: 57 MiB, also under 0.90 * 64.
  CHECK(simulate(large("%c0, %c0", "// vmem_limit_bytes: 60397977\n"), arrays).vmem_bytes == 57 << 20);
  sim::Options v6e;
  v6e.target = sim::Target::v6e;
  CHECK(simulate(large("%g0, %c0", "// vmem_limit_bytes: 67108864\n"), arrays, v6e).vmem_bytes == 65 << 20);
  // The scoped limit counts windows, and is 32 MiB unless the text says more.
  CHECK_THAT(refusal(large("%g0, %c0", ""), arrays, v6e), Contains("the windows need 64.00 MiB, the scoped limit is 32.00 MiB"));
}

TEST_CASE("the scoped limit by generation, buffers by mode, padding to tiles") {
  const auto k = [](const std::string& type, const std::string& mode) {
    const auto element = type.substr(type.rfind('x'));
    Kernel kernel = copy("2", "arbitrary", {"4096x1024" + element, "2048x1024", "%g0, %c0", mode},
                         {"4096x1024" + element, "2048x1024", "%g0, %c0", mode});
    const auto block = "2048x1024" + element;
    kernel.body = load("%x", "%a0", block) + store("%x", "%o0", block);
    return text_of(kernel);
  };
  const auto x = counting({4096, 1024}, 0, 0);
  sim::Options v5e;
  v5e.target = sim::Target::v5e;
  CHECK(simulate(k("xf32", ""), {x}).vmem_bytes == 32 << 20);
  CHECK_THAT(refusal(k("xf32", ""), {x}, v5e), Contains("the scoped limit is 16.00 MiB"));
  CHECK(simulate(k("xf32", "synchronous"), {x}, v5e).vmem_bytes == 16 << 20);
  // [9, 130] takes 16 x 256 in 32 bits, and the same in 16 bits; a row takes a whole tile.
  const auto bytes = [](const std::string& type, const Array& a) {
    return simulate(op_kernel({type}, type, "%r = \"vector.shape_cast\"(%x0) : (" + vector(type) + ") -> " + vector(type)), {a}).vmem_bytes;
  };
  CHECK(bytes("9x130xf32", counting({9, 130})) == 2 * 16 * 256 * 4);
  CHECK(bytes("17x130xbf16", bits_array(Element::bf16, {17, 130}, std::vector<std::uint32_t>(17 * 130))) == 2 * 32 * 256 * 2);
  CHECK(bytes("3x1x64xf32", counting({3, 1, 64})) == 2 * 3 * 8 * 128 * 4);
  CHECK(bytes("130xf32", counting({130})) == 2 * 1024 * 4);
}

TEST_CASE("block shapes the compiler refuses") {
  // B61
  const auto blocks = [](const std::string& array, const std::string& block, const std::vector<std::int64_t>& shape) {
    auto k = copy("1", "arbitrary", {array, block, rank_of(array) == 1 ? "%c0" : "%c0, %c0"},
                  {array, block, rank_of(array) == 1 ? "%c0" : "%c0, %c0"});
    return refusal(k, {counting(shape)}, {sim::Target::tpu7x, 0, false, true});
  };
  CHECK_THAT(blocks("16x256xf32", "16x96", {16, 256}), Contains("input window 0 %a0: block (16, 96) of array (16, 256): the block rule "
                                                                "wants a last dim that is a multiple of 128 or the array's 256"));
  CHECK_THAT(blocks("16x256xf32", "4x256", {16, 256}), Contains("wants a second-minor dim that is a multiple of 8 or the array's 16"));
  CHECK(blocks("16x256xf32", "16x128", {16, 256}) == "");
  CHECK(blocks("16x96xf32", "8x96", {16, 96}) == "");
  CHECK(blocks("4x256xf32", "4x256", {4, 256}) == "");
  CHECK_THAT(blocks("2000xf32", "100", {2000}), Contains("the block rule for one dim"));
  CHECK(blocks("2000xf32", "1024", {2000}) == "");
  CHECK(blocks("2000xf32", "256", {2000}) == "");
}

TEST_CASE("what the text says must fit together") {
  const auto good = copy("2", "arbitrary", {"16x128xf32", "8x128", "%g0, %c0"}, {"16x128xf32", "8x128", "%g0, %c0"});
  const std::vector<Array> x{counting({16, 128})};
  const auto text = text_of(good);
  const auto with = [&](const std::string& from, const std::string& to) {
    auto changed = text;
    const auto at = changed.find(from);
    REQUIRE(at != changed.npos);
    changed.replace(at, from.size(), to);
    return refusal(changed, x);
  };
  CHECK(refusal(text, x) == "");
  CHECK_THAT(with("scratch_operands = 0", "scratch_operands = 1"),
             Contains("takes 3 arguments; grid axes 1 + scalar_prefetch 0 + inputs 1 + outputs 1 + scratch 1 make 4"));
  CHECK_THAT(with("scalar_prefetch = 0", "scalar_prefetch = 1"), Contains("argument %a0 is a memref"));
  CHECK_THAT(with("iteration_bounds = array<i64: 2>", "iteration_bounds = array<i64: 2, 2>"),
             Contains("dimension_semantics has 1 entries, the grid 2 axes"));
  CHECK_THAT(with("window_bounds = array<i64: 8, 128>", "window_bounds = array<i64: 16, 128>"),
             Contains("window_bounds (16, 128) and the argument's"));
  CHECK_THAT(with("transform_indices = @ta0", "transform_indices = @t"), Contains("no function @t"));
  CHECK_THAT(with(", tpu.core_type = #tpu.core_type<tc>", ""), Contains("no function has tpu.core_type"));
  CHECK_THAT(with("arbitrary", "core_parallel"), Contains("dimension semantics 'core_parallel'"));
  CHECK_THAT(with("// call: (tensor<16x128xf32>)", "// call: (tensor<16x128xbf16>)"),
             Contains("operand 0 is a tensor<16x128xf32>, the text says tensor<16x128xbf16>"));
  CHECK_THAT(with("// call: ", "// "), Contains("kernel text needs a line like '// call:"));
  CHECK_THAT(refusal(text, {}), Contains("the kernel takes 1 arrays, not 0"));
  CHECK_THAT(refusal(text, {counting({16, 64})}), Contains("operand 0 is a tensor<16x64xf32>"));
}

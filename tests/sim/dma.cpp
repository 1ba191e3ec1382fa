// Copies in flight, semaphores, views, scoped allocations, and windows beside them.
#include <catch2/catch.hpp>

#include <gdn/sim/copies.hpp>

#include <algorithm>
#include <set>

#include "simulate.hpp"

using namespace gdn;
using namespace gdn::test;
using Catch::Contains;

namespace {

const std::string tile = "8x128xf32", V = vector(tile), semaphore = "!tpu.dma_semaphore", counter = "!tpu.semaphore";

std::string refusal(const Kernel& k, const std::vector<Array>& inputs, const sim::Options& options = {}) {
  return error_of([&] { simulate(text_of(k), inputs, options); });
}

std::string number(const std::string& name, int value, const std::string& type = "i32") {
  return name + " = \"arith.constant\"() {value = " + std::to_string(value) + " : " + type + "} : () -> " + type + "\n";
}

// A ref, and where it is.
struct Place {
  std::string ref, type, space = "vmem";
  std::string memref() const { return test::memref(type, space); }
};

std::string copy(const Place& from, const Place& to, const std::string& on) {
  return "\"tpu.enqueue_dma\"(" + from.ref + ", " + to.ref + ", " + on +
         ") {operandSegmentSizes = array<i32: 1, 0, 1, 1, 0, 0, 0>, priority = 0 : i32, strict_ordering = false} : (" + from.memref() + ", " +
         to.memref() + ", " + memref(semaphore) + ") -> ()\n";
}
std::string wait(const Place& from, const Place& to, const std::string& on) {
  return "\"tpu.wait_dma2\"(" + on + ", " + from.ref + ", " + to.ref +
         ") {operandSegmentSizes = array<i32: 1, 1, 1, 0, 0>, strict_ordering = false} : (" + memref(semaphore) + ", " + from.memref() +
         ", " + to.memref() + ") -> ()\n";
}
std::string slice(const std::string& to, const Place& from, const std::string& offsets, const std::string& type, const std::string& extents = "") {
  const auto rank = rank_of(from.type), unknown = static_cast<std::int64_t>(std::count(type.begin(), type.end(), '?'));
  return to + " = \"tpu.memref_slice\"(" + from.ref + ", " + offsets + (extents.empty() ? "" : ", " + extents) +
         ") {operandSegmentSizes = array<i32: 1, " + std::to_string(rank) + ", " + std::to_string(unknown) + ">} : (" + from.memref() +
         repeated("i32", rank + unknown) + ") -> " + memref(type, from.space) + "\n";
}
std::string view(const std::string& op, const std::string& to, const Place& from, const std::string& type) {
  return to + " = \"tpu.memref_" + op + "\"(" + from.ref + ") : (" + from.memref() + ") -> " + memref(type, from.space) + "\n";
}

const Place source{"%rows", tile, "any"}, buffer{"%s0", tile};

// out = rows 8..15 of the input, by way of the scratch %s0; `first` copies and `then` goes on.
Kernel through_scratch(const std::string& first, const std::string& then) {
  Kernel k;
  k.inputs = {whole("32x128xf32")};
  k.outputs = {{tile, "", ""}};
  k.scratch = {tile, semaphore, tile, semaphore};
  k.body = number("%c0", 0) + number("%c8", 8) + slice("%rows", {"%a0", "32x128xf32", "any"}, "%c8, %c0", tile) + first + then +
           store("%x", "%o0", tile);
  return k;
}

const Array x = counting({32, 128});
const auto rows_8 = [] { return std::vector<std::uint32_t>(x.data.begin() + 1024, x.data.begin() + 2048); };

const std::string start = copy(source, buffer, "%s1"), finish = wait(source, buffer, "%s1"), take = load("%x", "%s0", tile);

std::string zero_tile(const std::string& name) {
  return name + " = \"arith.constant\"() {value = dense<0.0> : " + V + "} : () -> " + V + "\n";
}

}  // namespace

TEST_CASE("a copy, whenever its elements move") {
  for (std::uint64_t order = 0; order < 12; order++) {
    sim::Options options;
    options.copy_order = order;
    CHECK(simulate(text_of(through_scratch(start, finish + take)), {x}, options).outputs[0].data == rows_8());
  }
}

TEST_CASE("when elements move, by number") {
  // Two copies on one semaphore, from two memories to two others.
  const auto moved_at = [](std::uint64_t order) {
    sim::Copies copies(order);
    std::vector<sim::Memory> m;
    for (int i = 0; i < 4; i++) m.push_back(sim::make_memory("m", sim::Scalar::f32, "vmem", {2}, 1));
    m[0].words = m[1].words = {1, 1};
    auto s = sim::make_memory("s", sim::Scalar::dma_semaphore, "semaphore_mem", {}, 0);
    auto& semaphore = copies.semaphore(sim::ref_to(s));
    copies.start("one", sim::ref_to(m[0]), sim::ref_to(m[2]), semaphore);
    copies.start("two", sim::ref_to(m[1]), sim::ref_to(m[3]), semaphore);
    std::string out;
    const auto look = [&] { out += std::to_string(m[2].words[0]) + std::to_string(m[3].words[0]) + " "; };
    look();
    for (int i = 0; i < 2; i++) copies.pass_time();
    look();
    CHECK(copies.wait(semaphore, 8) == "");
    look();
    CHECK_FALSE(copies.none());
    CHECK(copies.wait(semaphore, 8) == "");
    look();
    CHECK(copies.none());
    CHECK(copies.close(s) == "");
    return out;
  };
  CHECK(moved_at(0) == "11 11 11 11 ");
  CHECK(moved_at(1) == "00 00 01 11 ");
  std::set<std::string> seen;
  for (std::uint64_t order = 2; order < 200; order++) seen.insert(moved_at(order));
  for (const char* some : {"00 00 10 11 ", "00 00 01 11 ", "10 10 10 11 ", "01 01 01 11 ", "11 11 11 11 ", "00 10 10 11 "})
    CHECK(seen.count(some) == 1);
  CHECK(moved_at(5) == moved_at(5));
}

TEST_CASE("B60: races: what is read and written while a copy is in flight") {
  const auto race = [](const std::string& first, const std::string& then) { return refusal(through_scratch(first, then), {x}); };
  const std::string zero = zero_tile("%zero"), clear = store("%zero", "%s0", tile);
  CHECK(race(start, finish + take) == "");
  CHECK_THAT(race(start, take + finish), Contains("vector.load at line 10, without a grid: race: index (0, 0) of scratch 0 %s0 is read while the "
                                                  "copy of tpu.enqueue_dma at line 9, without a grid writes it"));
  CHECK(race(zero + clear + start, finish + take) == "");
  CHECK_THAT(race(zero + start + clear, finish + take), Contains("scratch 0 %s0 is written while the copy of tpu.enqueue_dma"));
  // Out of the scratch: it may be read, not written, until the copy is over.
  const Place target{"%s2", tile};
  const auto out = copy(buffer, target, "%s3"), out_over = wait(buffer, target, "%s3");
  CHECK(race(start + finish + out, take + out_over) == "");
  CHECK(race(start + finish + out, out_over + take + zero + clear) == "");
  CHECK_THAT(race(start + finish + out, take + zero + clear + out_over),
             Contains("index (0, 0) of scratch 0 %s0 is written while the copy of tpu.enqueue_dma at line 11, without a grid reads it"));
  CHECK_THAT(race(start + finish + out, load("%x", "%s2", tile) + out_over), Contains("scratch 2 %s2 is read while"));
  // A copy is held against the copies in flight as well.
  CHECK(race(start, finish + copy(source, buffer, "%s3") + wait(source, buffer, "%s3") + take) == "");
  CHECK_THAT(race(start, copy(source, buffer, "%s3") + wait(source, buffer, "%s3") + finish + take),
             Contains("tpu.enqueue_dma at line 10, without a grid: race: index (0, 0) of scratch 0 %s0 is written while"));
  CHECK_THAT(race(start, out + finish + out_over + take), Contains("scratch 0 %s0 is read while"));
  CHECK(race(start, copy(source, target, "%s3") + wait(source, target, "%s3") + finish + take) == "");  // two may read one source
  CHECK_THAT(race(start + finish, copy(buffer, buffer, "%s3") + wait(buffer, buffer, "%s3") + take),
             Contains("race: source and target are both in scratch 0 %s0 and overlap"));
}

TEST_CASE("races are about elements") {
  // Rows 0..3 are copied; rows 4.. are free.
  const Place four{"%four", "4x128xf32", "any"}, upper{"%upper", "4x128xf32"};
  const auto part = [&](int row) {
    Kernel k = through_scratch("", "");
    k.outputs = {{"4x128xf32", "", ""}};
    k.body = number("%c0", 0) + number("%row", row, "index") + slice("%four", {"%a0", "32x128xf32", "any"}, "%c0, %c0", four.type) +
             slice("%upper", buffer, "%c0, %c0", upper.type) + zero_tile("%zero") + store("%zero", "%s0", tile) +
             copy(four, upper, "%s1") + "%x = \"vector.load\"(%s0, %row, %z) : (" + memref(tile) + ", index, index) -> " + vector(four.type) +
             "\n" + store("%x", "%o0", four.type) + wait(four, upper, "%s1");
    return refusal(k, {x});
  };
  CHECK(part(4) == "");
  CHECK_THAT(part(3), Contains("index (3, 0) of scratch 0 %s0 is read while"));
  CHECK_THAT(part(0), Contains("index (0, 0) of scratch 0 %s0 is read while"));
}

TEST_CASE("copies on one semaphore are over when the waits add up to all of them") {
  const Place target{"%s2", tile};
  const auto both = copy(source, buffer, "%s1") + copy(source, target, "%s1");
  CHECK(refusal(through_scratch(both, finish + finish + take), {x}) == "");
  CHECK_THAT(refusal(through_scratch(both, finish + take + finish), {x}), Contains("scratch 0 %s0 is read while"));
  CHECK_THAT(refusal(through_scratch(both, finish + load("%x", "%s2", tile) + finish), {x}), Contains("scratch 2 %s2 is read while"));
}

TEST_CASE("semaphores must come out even") {
  CHECK_THAT(refusal(through_scratch(start, finish + finish + take), {x}),
             Contains("tpu.wait_dma2 at line 11, without a grid: waits for 4096 bytes on scratch 1 %s1, where copies of 0 are on their way: "
                      "it would never end"));
  CHECK_THAT(refusal(through_scratch(start, finish + take + start), {x}),
             Contains("scratch 1 %s1 is left while the copy of tpu.enqueue_dma at line 12, without a grid is in flight: nothing waits for it"));
  const auto signals = [](const std::string& body) {
    Kernel k;
    k.inputs = {{tile, "", ""}};
    k.outputs = {{"8x128xi32", "", ""}};
    k.scratch = {"2x" + counter};
    k.body = number("%c1", 1) + slice("%one", {"%s0", "2x" + counter, "semaphore_mem"}, "%c1", "1x" + counter) +
             view("squeeze", "%sem", {"%one", "1x" + counter, "semaphore_mem"}, counter) + number("%c2", 2) + number("%c3", 3) +
             number("%m1", -1) + body + "%r = \"tpu.sem_read\"(%sem) : (" + memref(counter) + ") -> i32\n%v = \"vector.broadcast\"(%r) : (i32) -> " +
             vector("8x128xi32") + "\n" + store("%v", "%o0", "8x128xi32");
    return k;
  };
  const auto signal = [](const std::string& n) {
    return "\"tpu.sem_signal\"(%sem, " + n + ") {operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>} : (" + memref(counter) + ", i32) -> ()\n";
  };
  const auto wait_for = [](const std::string& n) { return "\"tpu.sem_wait\"(%sem, " + n + ") : (" + memref(counter) + ", i32) -> ()\n"; };
  const auto ones = counting({8, 128}, 1, 0);
  CHECK(ints(simulate(text_of(signals(signal("%c2") + signal("%c1") + wait_for("%c3"))), {ones}).outputs[0])[7] == 0);
  CHECK_THAT(refusal(signals(signal("%c2") + signal("%c1") + wait_for("%c2")), {ones}), Contains("scratch 0 %s0 (1) is left at 1, not at 0"));
  CHECK_THAT(refusal(signals(signal("%c2") + wait_for("%c3")), {ones}),
             Contains("waits for 3 on scratch 0 %s0 (1), which is at 2: it would never end"));
  CHECK_THAT(refusal(signals(signal("%m1")), {ones}), Contains("an amount of -1"));
  CHECK_THAT(refusal(signals(wait_for("%m1")), {ones}), Contains("an amount of -1"));
  auto outside = text_of(signals(signal("%c2") + wait_for("%c2")));
  CHECK(error_of([&] { simulate(outside, {ones}); }) == "");
  outside.replace(outside.find("(%s0, %c1)"), 10, "(%s0, %c3)");
  outside.replace(outside.find("%c3 = "), 6, "%c9 = ");
  outside.replace(outside.find("%one = "), 0, number("%c3", 3));
  CHECK_THAT(error_of([&] { simulate(outside, {ones}); }), Contains("slice out of bounds: scratch 0 %s0 (2), dim 0: 1 from 3"));
  auto remote = signals("\"tpu.sem_signal\"(%sem, %c1, %c1) {operandSegmentSizes = array<i32: 1, 1, 1, 0, 0>} : (" + memref(counter) +
                        ", i32, i32) -> ()\n");
  CHECK_THAT(refusal(remote, {ones}), Contains("signals to another core or chip are not simulated"));
}

TEST_CASE("copies the compiler would not take, or of other cores") {
  const auto with = [](const std::string& from, const std::string& to) {
    auto text = text_of(through_scratch(start, finish + take));
    const auto at = text.find(from);
    REQUIRE(at != text.npos);
    text.replace(at, from.size(), to);
    return error_of([&] { simulate(text, {x}); });
  };
  const std::string enqueued = "(%rows, %s0, %s1)", types = "(" + memref(tile, "any") + ", " + memref(tile) + ", " + memref(semaphore) + ") -> ()";
  CHECK(with(enqueued, enqueued) == "");
  const std::string local = "array<i32: 1, 0, 1, 1, 0, 0, 0>, priority = 0 : i32, strict_ordering = false} : ";
  const auto remote = types.substr(0, types.size() - 7) + ", i32) -> ()";
  CHECK_THAT(with(enqueued + " {operandSegmentSizes = " + local + types,
                  "(%rows, %s0, %s1, %c0) {operandSegmentSizes = array<i32: 1, 0, 1, 1, 1, 0, 0>} : " + remote),
             Contains("copies to another core or chip are not simulated"));
  CHECK_THAT(with("array<i32: 1, 0, 1, 1, 0, 0, 0>", "array<i32: 1, 0, 1, 1, 0, 0>"), Contains("operandSegmentSizes (1, 0, 1, 1, 0, 0) do not fit"));
  CHECK_THAT(with("array<i32: 1, 0, 1, 1, 0, 0, 0>", "array<i32: 1, 1, 1, 0, 0, 0, 0>"),
             Contains("copies to another core or chip are not simulated"));
  CHECK_THAT(with(enqueued + " {operandSegmentSizes = " + local + types,
                  "(%a0, %s0, %s1) {operandSegmentSizes = array<i32: 1, 0, 1, 1, 0, 0, 0>} : (" + memref("32x128xf32", "any") + ", " +
                      memref(tile) + ", " + memref(semaphore) + ") -> ()"),
             Contains("source and target differ: memref<32x128xf32, any> and memref<8x128xf32, vmem>"));
  CHECK_THAT(with("strict_ordering = false", "strict_ordering = true"), Contains("strict ordering is not for the TensorCore"));
  CHECK_THAT(with("priority = 0", "urgency = 0"), Contains("attribute 'urgency' is not known here"));
  // A copy counts on a DMA semaphore; vectors are loaded from vmem.
  auto k = through_scratch(start, finish + take);
  k.scratch[1] = counter;
  k.body = through_scratch("\"tpu.enqueue_dma\"(%rows, %s0, %s1) {operandSegmentSizes = array<i32: 1, 0, 1, 1, 0, 0, 0>} : (" +
                               memref(tile, "any") + ", " + memref(tile) + ", " + memref(counter) + ") -> ()\n",
                           take)
               .body;
  CHECK_THAT(refusal(k, {x}), Contains("needs one DMA semaphore, not a memref<!tpu.semaphore, semaphore_mem>"));
  k = through_scratch("%y = \"vector.load\"(%rows, %z, %z) : (" + memref(tile, "any") + ", index, index) -> " + V + "\n", take);
  CHECK_THAT(refusal(k, {x}), Contains("vectors live in vmem, not in any"));
}

TEST_CASE("copies to SMEM, and scalars read there") {
  Kernel k;
  k.inputs = {whole("8xi32")};
  k.outputs = {{"8x128xi32", "", ""}};
  k.scratch = {"8xi32 smem", semaphore};
  const Place from{"%a0", "8xi32", "any"}, to{"%s0", "8xi32", "smem"};
  const auto value = "%r = \"memref.load\"(%s0, %three) : (" + to.memref() + ", index) -> i32\n%v = \"vector.broadcast\"(%r) : (i32) -> " +
                     vector("8x128xi32") + "\n" + store("%v", "%o0", "8x128xi32");
  const auto table = i32_array({8}, {5, 6, 7, 8, 9, 10, 11, 12});
  k.body = number("%three", 3, "index") + copy(from, to, "%s1") + wait(from, to, "%s1") + value;
  CHECK(ints(simulate(text_of(k), {table}).outputs[0])[900] == 8);
  k.body = number("%three", 3, "index") + copy(from, to, "%s1") + value + wait(from, to, "%s1");
  CHECK_THAT(refusal(k, {table}), Contains("memref.load at line 8, without a grid: race: index (3) of scratch 0 %s0 is read while"));
  k.body = number("%three", 3, "index") + number("%v0", 1) + copy(from, to, "%s1") + "\"memref.store\"(%v0, %s0, %three) : (i32, " +
           to.memref() + ", index) -> ()\n" + wait(from, to, "%s1") + value;
  CHECK_THAT(refusal(k, {table}), Contains("index (3) of scratch 0 %s0 is written while"));
}

TEST_CASE("a copy from one grid step to the next") {
  // Step g starts the copy of block g into half g % 2 of the scratch, and waits for that of block g - 1.
  const Place block{"%block", tile, "any"}, half{"%half", tile}, other{"%other", tile};
  const auto kernel = [&](const std::string& waits_at) {
    Kernel k;
    k.bounds = {"3"};
    k.semantics = {"arbitrary"};
    k.inputs = {whole("24x128xf32", "hbm")};
    k.outputs = {{"24x128xf32", "8x128", "%g0, %c0"}};
    k.scratch = {"2x8x128xf32", "2x" + semaphore};
    const auto part = [](const std::string& name, const std::string& index) {
      return slice(name + "3", {"%s0", "2x8x128xf32"}, index + ", %c0, %c0", "1x8x128xf32") +
             view("squeeze", name, {name + "3", "1x8x128xf32"}, tile) +
             slice(name + "s1", {"%s1", "2x" + semaphore, "semaphore_mem"}, index, "1x" + semaphore) +
             view("squeeze", name + "s", {name + "s1", "1x" + semaphore, "semaphore_mem"}, semaphore);
    };
    const Place hbm{"%block", tile, "hbm"};
    const auto when = [](const std::string& predicate, const std::string& body) {
      return "\"scf.if\"(" + predicate + ") ({\n" + body + "\"scf.yield\"() : () -> ()\n}, {}) : (i1) -> ()\n";
    };
    k.body = number("%c0", 0) + number("%c1", 1) + number("%c2", 2) + number("%c8", 8) + zero_tile("%zero") +
             "%now = \"arith.remsi\"(%g0, %c2) : (i32, i32) -> i32\n%then = \"arith.subi\"(%c1, %now) : (i32, i32) -> i32\n"
             "%at = \"arith.muli\"(%g0, %c8) : (i32, i32) -> i32\n"
             "%later = \"arith.cmpi\"(%g0, %c0) {predicate = 4 : i64} : (i32, i32) -> i1\n"
             "%last = \"arith.cmpi\"(%g0, %c2) {predicate = 0 : i64} : (i32, i32) -> i1\n" +
             slice("%block", {"%a0", "24x128xf32", "hbm"}, "%at, %c0", tile) + part("%half", "%now") + part("%other", "%then") +
             copy(hbm, half, "%halfs") + store("%zero", "%o0", tile) +
             when("%later", wait(hbm, other, "%others") + load("%x", waits_at, tile) + store("%x", "%o0", tile)) +
             when("%last", wait(hbm, half, "%halfs"));
    return k;
  };
  const auto in = counting({24, 128});
  for (std::uint64_t order : {0, 1, 2, 3, 4, 5}) {
    sim::Options options;
    options.copy_order = order;
    const auto out = floats(simulate(text_of(kernel("%other")), {in}, options).outputs[0]);
    CHECK(out[0] == 0);
    CHECK(out[1024 + 9] == 9);
    CHECK(out[2048 + 9] == 1024 + 9);
  }
  CHECK_THAT(refusal(kernel("%half"), {in}),
             Contains("grid step (1): race: index (1, 0, 0) of scratch 0 %s0 is read while the copy of tpu.enqueue_dma at line 25, grid step (1) "
                      "writes it"));
}

TEST_CASE("views") {
  Kernel k;
  k.inputs = {{"4x8x128xf32", "", ""}};
  k.outputs = {{tile, "", ""}};
  const Place a{"%a0", "4x8x128xf32"};
  const auto with = [&](const std::string& body) {
    k.body = number("%c0", 0) + number("%c1", 1) + number("%c2", 2) + number("%c3", 3) + number("%i1", 1, "index") + number("%i5", 5, "index") +
             body + store("%x", "%o0", tile);
    return text_of(k);
  };
  const auto in = counting({4, 8, 128});
  const auto first = [&](const std::string& body) { return floats(simulate(with(body), {in}).outputs[0])[0]; };
  const auto wrong = [&](const std::string& body) { return error_of([&] { simulate(with(body), {in}); }); };
  const auto two = slice("%two", a, "%c1, %c0, %c0", "2x8x128xf32"), one = slice("%one", {"%two", "2x8x128xf32"}, "%c1, %c0, %c0", "1x8x128xf32");
  CHECK(first(two + one + view("squeeze", "%v", {"%one", "1x8x128xf32"}, tile) + load("%x", "%v", tile)) == 2 * 1024);
  CHECK(first(view("reshape", "%v", a, "32x128xf32") + "%x = \"vector.load\"(%v, %i5, %z) : (" + memref("32x128xf32") + ", index, index) -> " + V +
              "\n") == 5 * 128);
  CHECK(first(two + view("reshape", "%v", {"%two", "2x8x128xf32"}, "16x128xf32") +
              "%x = \"vector.load\"(%v, %i1, %z) : (" + memref("16x128xf32") + ", index, index) -> " + V + "\n") == 1024 + 128);
  // Rows 0 and 2, .. of a view with gaps; strides of the view and of the load multiply.
  const auto gaps = slice("%gaps", a, "%c0, %c1, %c0", "4x4x128xf32");
  CHECK(first(gaps + "%y = \"tpu.strided_load\"(%gaps, %z, %i1, %z) {strides = array<i32: 2, 1, 1>} : (" + memref("4x4x128xf32") +
              ", index, index, index) -> " + vector("2x2x128xf32") + "\n%w = \"vector.extract_strided_slice\"(%y) {offsets = [1, 0, 0], sizes = "
              "[1, 1, 128], strides = [1, 1, 1]} : (" + vector("2x2x128xf32") + ") -> " + vector("1x1x128xf32") +
              "\n%u = \"vector.shape_cast\"(%w) : (" + vector("1x1x128xf32") + ") -> " + vector("1x128xf32") +
              "\n%x = \"vector.broadcast\"(%u) : (" + vector("1x128xf32") + ") -> " + V + "\n") == 2 * 1024 + 2 * 128);
  CHECK_THAT(wrong(gaps + view("reshape", "%v", {"%gaps", "4x4x128xf32"}, "16x128xf32") + load("%y", "%v", "16x128xf32") + zero_tile("%x")),
             Contains("a view of input window 0 %a0 with gaps in dim 0 has no other shape"));
  CHECK_THAT(wrong(view("reshape", "%v", a, tile) + load("%x", "%v", tile)), Contains("sizes differ"));
  CHECK_THAT(wrong(view("squeeze", "%v", a, tile) + load("%x", "%v", tile)),
             Contains("cannot squeeze memref<4x8x128xf32, vmem> to memref<8x128xf32"));
  CHECK_THAT(wrong(slice("%v", a, "%c3, %c0, %c0", "2x8x128xf32") + view("reshape", "%w", {"%v", "2x8x128xf32"}, "16x128xf32") +
                   "%x = \"vector.load\"(%w, %z, %z) : (" + memref("16x128xf32") + ", index, index) -> " + V + "\n"),
             Contains("vector.load at line 14, without a grid: slice out of bounds: input window 0 %a0 (4, 8, 128), dim 0: 2 from 3"));
  CHECK_THAT(wrong(slice("%v", a, "%c0, %c0, %c0", "8x128xf32") + load("%x", "%v", tile)),
             Contains("one offset per dim and one extent per dynamic dim"));
}

TEST_CASE("slices of a size known at run time; a wait looks at nothing but the size") {
  const std::string some = "?x128xf32";
  const Place from{"%from", some, "any"}, to{"%to", some};
  const auto kernel = [&](int n, int wait_at) {
    Kernel k = through_scratch("", "");
    k.body = number("%c0", 0) + number("%n", n) + number("%w", wait_at) + zero_tile("%zero") + store("%zero", "%s0", tile) +
             slice("%from", {"%a0", "32x128xf32", "any"}, "%c0, %c0", some, "%n") + slice("%to", buffer, "%c0, %c0", some, "%n") +
             copy(from, to, "%s1") + slice("%other", buffer, "%w, %c0", some, "%n") + wait(from, {"%other", some}, "%s1") + take +
             store("%x", "%o0", tile);
    return k;
  };
  // Vectors are of known size, and must fit.
  const auto load_five = [&](int n) {
    auto k = kernel(n, 0);
    const auto five = vector("5x128xf32");
    k.body += "%five = \"vector.load\"(%to, %z, %z) : (" + memref(some) + ", index, index) -> " + five + "\n" +
              "%part = \"vector.extract_strided_slice\"(%five) {offsets = [4, 0], sizes = [1, 128], strides = [1, 1]} : (" + five + ") -> " +
              vector("1x128xf32") + "\n%b = \"vector.broadcast\"(%part) : (" + vector("1x128xf32") + ") -> " + V + "\n" +
              store("%b", "%o0", tile);
    return k;
  };
  CHECK(floats(simulate(text_of(load_five(5)), {x}).outputs[0])[128 + 3] == 4 * 128 + 3);
  CHECK_THAT(refusal(load_five(4), {x}), Contains("load out of bounds: scratch 0 %s0 (4, 128) at index (0, 0), dim 0 reaches 4"));
  const auto out = floats(simulate(text_of(kernel(3, 0)), {x}).outputs[0]);
  CHECK(out[2 * 128 + 1] == 257);
  CHECK(out[3 * 128] == 0);
  CHECK(floats(simulate(text_of(kernel(0, 0)), {x}).outputs[0])[0] == 0);
  CHECK(refusal(kernel(3, 7), {x}) == "");
  CHECK_THAT(refusal(kernel(9, 0), {x}),
             Contains("tpu.enqueue_dma at line 13, without a grid: slice out of bounds: scratch 0 %s0 (8, 128), dim 0: 9 from 0"));
  CHECK_THAT(refusal(kernel(-1, 0), {x}), Contains("an extent of -1 in dim 0"));
}

TEST_CASE("a ref bitcast to wider elements: neighbouring rows, the first in the low half") {
  Kernel k;
  k.inputs = {{"16x128xbf16", "", ""}};
  k.outputs = {{"8x128xi32", "", ""}};
  k.scratch = {"16x128xbf16"};
  Array in{Element::bf16, {16, 128}, {}, {}};
  for (std::uint32_t i = 0; i < 16 * 128; i++) in.data.push_back(i);
  const auto words = [] {
    std::vector<std::uint32_t> out;
    for (std::uint32_t r = 0; r < 8; r++)
      for (std::uint32_t c = 0; c < 128; c++) out.push_back((2 * r * 128 + c) | (2 * r + 1) * 128 << 16 | c << 16);
    return out;
  }();
  k.body = view("bitcast", "%v", {"%a0", "16x128xbf16"}, "8x128xi32") + load("%x", "%v", "8x128xi32") + store("%x", "%o0", "8x128xi32");
  CHECK(simulate(text_of(k), {in}).outputs[0].data == words);
  // And the other way: stored as words, loaded as halves.
  Kernel back = k;
  back.inputs = {{"8x128xi32", "", ""}};
  back.outputs = {{"16x128xbf16", "", ""}};
  back.body = load("%x", "%a0", "8x128xi32") + view("bitcast", "%v", {"%s0", "16x128xbf16"}, "8x128xi32") + store("%x", "%v", "8x128xi32") +
              load("%y", "%s0", "16x128xbf16") + store("%y", "%o0", "16x128xbf16");
  CHECK(simulate(text_of(back), {bits_array(Element::i32, {8, 128}, words)}).outputs[0].data == in.data);
  k.body = view("bitcast", "%v", {"%a0", "16x128xbf16"}, "16x128xi32") + load("%y", "%v", "16x128xi32") +
           "%x = \"arith.constant\"() {value = dense<0> : " + vector("8x128xi32") + "} : () -> " + vector("8x128xi32") + "\n" +
           store("%x", "%o0", "8x128xi32");
  CHECK_THAT(refusal(k, {in}), Contains("rows must scale with the width"));
  back.body = view("bitcast", "%v", {"%a0", "8x128xi32"}, "16x128xbf16") + load("%y", "%v", "16x128xbf16") + store("%y", "%o0", "16x128xbf16");
  CHECK_THAT(refusal(back, {bits_array(Element::i32, {8, 128}, words)}), Contains("narrower elements are not simulated"));
}

namespace {

std::string region(const std::string& body) { return "\"tpu.region\"() ({\n" + body + "\"tpu.yield\"() : () -> ()\n}) : () -> ()\n"; }
std::string allocate(const std::string& name, const std::string& type) {
  return type.find('!') == type.npos ? name + " = \"memref.alloca\"() {operandSegmentSizes = array<i32: 0, 0>} : () -> " + memref(type) + "\n"
                                     : name + " = \"tpu.sem_alloc\"() : () -> " + memref(type) + "\n";
}

}  // namespace

TEST_CASE("allocations of a region end with it, and so must copies and semaphores") {
  const Place inside{"%in", tile};
  const auto body = [&](const std::string& inner) {
    Kernel k = through_scratch("", region(allocate("%in", tile) + allocate("%sem", semaphore) + inner));
    k.body = k.body.substr(0, k.body.rfind("\"tpu.vector_store\""));
    return k;
  };
  const auto result = load("%x", "%in", tile) + store("%x", "%o0", tile);
  const auto good = body(copy(source, inside, "%sem") + wait(source, inside, "%sem") + result);
  const auto r = simulate(text_of(good), {x});
  CHECK(r.outputs[0].data == rows_8());
  CHECK(r.vmem_bytes == 4 * 4096);  // output window, two scratch tiles, the allocation
  CHECK_THAT(refusal(body(copy(source, inside, "%sem") + store("%nothing", "%o0", tile)), {x}), Contains("a defined value, not %nothing"));
  CHECK_THAT(refusal(body(zero_tile("%q") + store("%q", "%o0", tile) + copy(source, inside, "%sem")), {x}),
             Contains("semaphore %sem is left while the copy of tpu.enqueue_dma"));
  CHECK_THAT(refusal(body(zero_tile("%q") + store("%q", "%o0", tile) + copy(source, inside, "%s1")), {x}),
             Contains("tpu.region at line 9, without a grid: allocation %in ends while the copy of tpu.enqueue_dma at line 14, without a grid "
                      "is in flight"));
  CHECK_THAT(refusal(body(load("%y", "%in", tile) + "%x = \"arith.addf\"(%y, %y) : (" + V + ", " + V + ") -> " + V + "\n" + store("%x", "%o0", tile)),
                     {x}),
             Contains("is undefined: it comes from allocation %in (not written)"));
  Kernel outside = through_scratch(allocate("%in", tile), load("%x", "%in", tile));
  CHECK_THAT(refusal(outside, {x}), Contains("allocations live in a tpu.region"));
  Kernel large = body(copy(source, inside, "%sem") + wait(source, inside, "%sem") + result + allocate("%large", "160000x128xf32"));
  CHECK_THAT(refusal(large, {x}), Contains("allocation %large (160000, 128)"));
}

TEST_CASE("a region gives values") {
  Kernel k;
  k.inputs = {{tile, "", ""}};
  k.outputs = {{tile, "", ""}};
  k.body = "%x = \"tpu.region\"() ({\n" + load("%y", "%a0", tile) + "\"tpu.yield\"(%y) : (" + V + ") -> ()\n}) : () -> " + V + "\n" +
           store("%x", "%o0", tile);
  CHECK(simulate(text_of(k), {counting({8, 128})}).outputs[0].data == counting({8, 128}).data);
  k.body = "%x = \"tpu.region\"() ({\n" + load("%y", "%a0", tile) + "\"tpu.yield\"() : () -> ()\n}) : () -> " + V + "\n" + store("%x", "%o0", tile);
  CHECK_THAT(refusal(k, {counting({8, 128})}), Contains("a region yields 0 values"));
}

TEST_CASE("outputs in hbm, and one that is an input too") {
  const Place out{"%o0", "32x128xf32", "any"}, target{"%target", tile, "any"};
  Kernel k;
  k.inputs = {whole("32x128xf32")};
  k.outputs = {whole("32x128xf32")};
  k.scratch = {tile, semaphore};
  k.body = number("%c0", 0) + number("%c8", 8) + slice("%rows", {"%a0", "32x128xf32", "any"}, "%c8, %c0", tile) +
           slice("%target", out, "%c0, %c0", tile) + copy(source, buffer, "%s1") + wait(source, buffer, "%s1") + copy(buffer, target, "%s1") +
           wait(buffer, target, "%s1");
  CHECK_THAT(refusal(k, {x}), Contains("output window 0 %o0: index (8, 0) of the output (32, 128) was left undefined: it comes from output 0"));
  sim::Options partly;
  partly.undefined_outputs = true;
  const auto r = simulate(text_of(k), {x}, partly).outputs[0];
  CHECK((r.defined[1023] && !r.defined[1024]));
  k.comments = "// aliases: 0 = 0\n";
  const auto both = floats(simulate(text_of(k), {x}).outputs[0]);
  CHECK(both[5] == 1024 + 5);
  CHECK(both[1024 + 5] == 1024 + 5);
  // An input is written only as an output.
  k.body = number("%c0", 0) + number("%c8", 8) + slice("%rows", {"%a0", "32x128xf32", "any"}, "%c8, %c0", tile) + zero_tile("%zero") +
           store("%zero", "%s0", tile) + copy(buffer, source, "%s1") + wait(buffer, source, "%s1");
  CHECK(refusal(k, {x}) == "");
  k.comments = "";
  CHECK_THAT(refusal(k, {x}), Contains("input 0 is written, but no output shares its memory"));
  k.comments = "// aliases: 0 = 0\n";
  // From rows 8.. to rows 8.. of what is one array.
  k.body = number("%c0", 0) + number("%c8", 8) + slice("%rows", {"%a0", "32x128xf32", "any"}, "%c8, %c0", tile) +
           slice("%target", out, "%c8, %c0", tile) + copy(source, target, "%s1") + wait(source, target, "%s1");
  CHECK_THAT(refusal(k, {x}), Contains("source and target are both in input 0 and overlap"));
}

namespace {

// Per step, block g of %a0 is written to block `to` of %o0, which is the same array: by the kernel's own copy.
Kernel beside_a_window(const std::string& to, const std::string& mode) {
  Kernel k;
  k.bounds = {"3"};
  k.semantics = {"arbitrary"};
  k.inputs = {{"32x128xf32", "8x128", "%g0, %c0", mode}};
  k.outputs = {whole("32x128xf32", "hbm")};
  k.scratch = {tile, semaphore};
  k.comments = "// aliases: 0 = 0\n";
  const Place target{"%target", tile, "hbm"};
  k.body = number("%c0", 0) + number("%c1", 1) + number("%c8", 8) +
           "%next = \"arith.addi\"(%g0, %c1) : (i32, i32) -> i32\n%at = \"arith.muli\"(" + to + ", %c8) : (i32, i32) -> i32\n" +
           slice("%target", {"%o0", "32x128xf32", "hbm"}, "%at, %c0", tile) + load("%x", "%a0", tile) +
           "%y = \"arith.addf\"(%x, %x) : (" + V + ", " + V + ") -> " + V + "\n" + store("%y", "%s0", tile) + copy(buffer, target, "%s1") +
           wait(buffer, target, "%s1");
  return k;
}

}  // namespace

TEST_CASE("windows are copies too: the next block is on its way while a step runs") {
  CHECK(refusal(beside_a_window("%g0", ""), {x}) == "");
  CHECK_THAT(refusal(beside_a_window("%next", ""), {x}),
             Contains("tpu.enqueue_dma at line 16, grid step (0): race: index (8, 0) of input 0 is written while the copy into input window 0 %a0, "
                      "grid step (1), reads it"));
  // A window of one buffer is filled between the steps.
  const auto out = floats(simulate(text_of(beside_a_window("%next", "synchronous")), {x}).outputs[0]);
  CHECK(out[3 * 1024 + 5] == 8 * 5.f);
  sim::Options late;
  late.late_windows = true;
  CHECK(refusal(beside_a_window("%next", ""), {x}, late) == "");
}

TEST_CASE("windows are copies too: a block that is left is written back while the next step runs") {
  // Each step reads block 0 of the output's array; step 0 writes it.
  const auto kernel = [](const std::string& mode) {
    Kernel k;
    k.bounds = {"2"};
    k.semantics = {"arbitrary"};
    k.inputs = {whole("32x128xf32", "hbm")};
    k.outputs = {{"32x128xf32", "8x128", "%g0, %c0", mode}};
    k.scratch = {tile, semaphore};
    k.comments = "// aliases: 0 = 0\n";
    const Place first{"%first", tile, "hbm"};
    k.body = number("%c0", 0) + slice("%first", {"%a0", "32x128xf32", "hbm"}, "%c0, %c0", tile) + copy(first, buffer, "%s1") +
             wait(first, buffer, "%s1") + load("%x", "%s0", tile) + "%y = \"arith.addf\"(%x, %x) : (" + V + ", " + V + ") -> " + V + "\n" +
             store("%y", "%o0", tile);
    return k;
  };
  CHECK_THAT(refusal(kernel(""), {x}), Contains("grid step (1): race: index (0, 0) of input 0 is read while the copy out of output window 0 %o0, "
                                                "grid step (0), writes it"));
  const auto out = floats(simulate(text_of(kernel("synchronous")), {x}).outputs[0]);
  CHECK(out[5] == 2 * 5.f);
  CHECK(out[1024 + 5] == 4 * 5.f);
}

TEST_CASE("a window goes to another block only when no copy uses it") {
  const Place window{"%a0", tile}, result{"%o0", tile};
  const auto kernel = [](const std::string& body) {
    Kernel k;
    k.bounds = {"2"};
    k.semantics = {"arbitrary"};
    k.inputs = {{"16x128xf32", "8x128", "%g0, %c0"}};
    k.outputs = {{"16x128xf32", "8x128", "%g0, %c0"}};
    k.scratch = {tile, semaphore};
    k.body = body;
    return k;
  };
  const auto in = counting({16, 128});
  const auto out = zero_tile("%zero") + store("%zero", "%o0", tile) + copy(window, buffer, "%s1"), over = wait(window, buffer, "%s1");
  CHECK(refusal(kernel(out + over), {in}) == "");
  CHECK_THAT(refusal(kernel(out), {in}),
             Contains("input window 0 %a0, grid step (1): is left for another block, or for good, while the copy of tpu.enqueue_dma at line 8, "
                      "grid step (0) is in flight"));
  const auto to_output = copy(window, result, "%s1"), done = wait(window, result, "%s1");
  CHECK(simulate(text_of(kernel(to_output + done)), {in}).outputs[0].data == in.data);
  CHECK_THAT(refusal(kernel(to_output), {in}),
             Contains("output window 0 %o0, grid step (0): race: index (0, 0) of output window 0 %o0 is read while"));
}

TEST_CASE("undefined elements in arithmetic are carried, if so told") {
  sim::Options carry;
  carry.carry_undefined = carry.undefined_outputs = true;
  Kernel k;
  k.inputs = {{tile, "", ""}};
  k.outputs = {{tile, "", ""}};
  k.scratch = {tile};
  // Rows 1.. of the scratch are defined.
  const std::string first_row = "%i = \"tpu.iota\"() {dimensions = array<i32: 0>} : () -> vector<8x128xi32>\n%one = \"arith.constant\"() {value = "
                                "dense<1> : vector<8x128xi32>} : () -> vector<8x128xi32>\n%rest = \"arith.cmpi\"(%i, %one) {predicate = 5 : i64} : "
                                "(vector<8x128xi32>, vector<8x128xi32>) -> vector<8x128xi1>\n";
  const auto with = [&](const std::string& body) {
    k.body = load("%x", "%a0", tile) + load("%u", "%s0", tile) + first_row + "%h = \"arith.select\"(%rest, %x, %u) : (vector<8x128xi1>, " + V +
             ", " + V + ") -> " + V + "\n" + body + store("%r", "%o0", tile);
    return k;
  };
  const auto in = counting({8, 128}, 1);
  const auto defined = [&](const std::string& body) {
    const auto out = simulate(text_of(with(body)), {in}, carry).outputs[0];
    std::string rows;
    for (std::size_t r = 0; r < 8; r++) rows += out.defined.empty() || out.defined[r * 128] ? '1' : '0';
    return rows;
  };
  const auto add = "%r = \"arith.addf\"(%h, %x) : (" + V + ", " + V + ") -> " + V + "\n";
  CHECK_THAT(refusal(with(add), {in}), Contains("is undefined: it comes from scratch 0 %s0"));
  CHECK(defined(add) == "01111111");
  CHECK(defined("%r = \"math.exp2\"(%h) : (" + V + ") -> " + V + "\n") == "01111111");
  CHECK(defined("%s = \"arith.addf\"(%h, %h) : (" + V + ", " + V + ") -> " + V + "\n%r = \"arith.select\"(%rest, %s, %x) : (vector<8x128xi1>, " +
                V + ", " + V + ") -> " + V + "\n") == "11111111");
  // A condition that is undefined leaves its choice undefined; a branch on one is refused.
  CHECK(defined("%c = \"arith.cmpf\"(%h, %x) {predicate = 1 : i64} : (" + V + ", " + V + ") -> vector<8x128xi1>\n%r = \"arith.select\"(%c, %x, %x) "
                ": (vector<8x128xi1>, " + V + ", " + V + ") -> " + V + "\n") == "01111111");
  const std::string sum = "%zero = \"arith.constant\"() {value = dense<0.0> : vector<128xf32>} : () -> vector<128xf32>\n%t = "
                          "\"vector.multi_reduction\"(%h, %zero) {kind = #vector.kind<add>, reduction_dims = array<i64: 0>} : (" + V +
                          ", vector<128xf32>) -> vector<128xf32>\n%r = \"vector.broadcast\"(%t) : (vector<128xf32>) -> " + V + "\n";
  CHECK(defined(sum) == "00000000");
  const std::string each = "%zero = \"arith.constant\"() {value = dense<0.0> : vector<8xf32>} : () -> vector<8xf32>\n%t = "
                           "\"vector.multi_reduction\"(%h, %zero) {kind = #vector.kind<add>, reduction_dims = array<i64: 1>} : (" + V +
                           ", vector<8xf32>) -> vector<8xf32>\n%q = \"vector.shape_cast\"(%t) : (vector<8xf32>) -> vector<8x1xf32>\n%r = "
                           "\"vector.broadcast\"(%q) : (vector<8x1xf32>) -> " + V + "\n";
  CHECK(defined(each) == "01111111");
  const std::string dot = "%acc = \"arith.constant\"() {value = dense<0.0> : vector<8x8xf32>} : () -> vector<8x8xf32>\n%p = \"tpu.matmul\"(%h, %x, "
                          "%acc) {dimension_numbers = #tpu.dot_dimension_numbers<[1], [1], [0], [0], [0, 0, 1, 0], [], []>, transpose_lhs = false, "
                          "transpose_rhs = false, transpose_lhs_hint = false} : (" + V + ", " + V + ", vector<8x8xf32>) -> vector<8x8xf32>\n"
                          "%q = \"vector.extract_strided_slice\"(%p) {offsets = [0, 0], sizes = [8, 1], strides = [1, 1]} : (vector<8x8xf32>) -> "
                          "vector<8x1xf32>\n%r = \"vector.broadcast\"(%q) : (vector<8x1xf32>) -> " + V + "\n";
  CHECK(defined(dot) == "01111111");
  auto right = dot;
  right.replace(right.find("(%h, %x, %acc)"), 14, "(%x, %h, %acc)");
  CHECK(defined(right) == "00000000");
  // Integer division is by what is there.
  CHECK(defined("%b = \"tpu.bitcast\"(%h) : (" + V + ") -> vector<8x128xi32>\n%d = \"arith.divsi\"(%b, %b) : (vector<8x128xi32>, "
                "vector<8x128xi32>) -> vector<8x128xi32>\n%r = \"tpu.bitcast\"(%d) : (vector<8x128xi32>) -> " + V + "\n") == "01111111");
}

#include <gdn/sim/parse.hpp>

#include <catch2/catch.hpp>

#include "fixtures.hpp"

using namespace gdn;
using Catch::Contains;

namespace {

// A module of one function without arguments.
std::string module_of(const std::string& body, const std::string& attributes = "") {
  return "module " + attributes + "{\n\"func.func\"() ({\n" + body + "\n}) : () -> ()\n}\n";
}

std::string parse_error(const std::string& text) {
  try {
    sim::parse_kernel(text);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

const std::string constant = R"(%z = "arith.constant"() {value = 0 : i32} : () -> i32)";

// Names, values by number, result types and the number of attributes of an op and of all ops in it.
std::string flat(const sim::Node& n) {
  std::string out = n.name;
  for (int v : n.operands) out += " %" + std::to_string(v);
  for (int v : n.results) out += " ->%" + std::to_string(v);
  for (auto& t : n.result_types) out += " " + text_of(t);
  for (auto& key : n.attributes.keys) out += " " + key;
  for (auto& r : n.regions)
    for (auto& inner : r.nodes) out += "\n" + flat(inner);
  return out;
}

std::string flat(const sim::Module& m) {
  std::string out;
  for (auto& f : m.functions) out += flat(f) + "\n";
  return out;
}

}  // namespace

TEST_CASE("types") {
  sim::Reader r(
      "vector<8x128xbf16> memref<2x64xf32, #tpu.memory_space<vmem>> memref<4xi32, #tpu.tiled<(8,128),[1]>, #tpu.memory_space<smem>> "
      "tensor<f32> (i32, index) -> (vector<2xi1>) !tpu.dma_semaphore memref<?x128xi8, #tpu.memory_space<hbm>> "
      "memref<2x!tpu.semaphore, #tpu.memory_space<semaphore_mem>> tensor<4xui32> !tpu.float8");
  const auto v = r.type(), m = r.type(), s = r.type(), t = r.type(), f = r.type(), semaphore = r.type(), some = r.type(), two = r.type(),
             u = r.type(), other = r.type();
  CHECK(text_of(v) == "vector<8x128xbf16>");
  CHECK(v.shape == sim::Shape{8, 128});
  CHECK(m.space == "vmem");
  CHECK(s.space == "smem");
  CHECK((t.kind == sim::Type::Kind::tensor && t.shape.empty() && t.size() == 1));
  REQUIRE((f.inputs.size() == 2 && f.outputs.size() == 1));
  CHECK(f.outputs[0].is(sim::Type::Kind::vector, sim::Scalar::i1));
  CHECK(semaphore.is(sim::Type::Kind::scalar, sim::Scalar::dma_semaphore));
  CHECK(some.shape == sim::Shape{sim::dynamic, 128});
  CHECK(text_of(some) == "memref<?x128xi8, hbm>");
  CHECK((two.element == sim::Scalar::semaphore && two.shape == sim::Shape{2}));
  CHECK(text_of(two) == "memref<2x!tpu.semaphore, semaphore_mem>");
  CHECK(u.element == sim::Scalar::i32);
  CHECK(other.element_name == "!tpu.float8");
  CHECK(other.kind == sim::Type::Kind::other);
  CHECK_THROWS_WITH(sim::Reader("memref<4xf32, strided<[2]>>").type(), Contains("without a layout"));
  CHECK_THROWS_WITH(sim::Reader("vector<f32>").type(), Contains("rank 1 or more"));
}

TEST_CASE("attributes") {
  sim::Reader r(R"({a = -9223372036854775808 : i64, b = array<i64: 1, -2>, c = array<i32>, d = [0, [1]], e = @f, g = "x\22y\\z\"\0Aw",
                   h = #tpu.dot_dimension_numbers<[1], [0], [], [0, 1]>, i = true, j, k = dense<0x7F800000> : vector<2xf32>,
                   l = affine_map<(d0) -> (d0)>, m = 1.500000e+00 : f32, n = {o = 1}, p = (i32) -> ()})");
  const auto a = r.dictionary();
  CHECK(r.at_end());
  const auto text = [&](const char* key) { return a.find(key)->text; };
  CHECK(text("a") == "-9223372036854775808");
  CHECK(a.find("b")->elements[1].text == "-2");
  CHECK(a.find("c")->elements.empty());
  CHECK(a.find("d")->elements[1].elements[0].text == "1");
  CHECK(text("e") == "f");
  CHECK(text("g") == "x\"y\\z\"\nw");
  CHECK((a.find("h")->name == "tpu.dot_dimension_numbers" && text("h") == "[1], [0], [], [0, 1]"));
  CHECK(text("i") == "true");
  CHECK(a.find("j")->kind == sim::Attribute::Kind::unit);
  CHECK((a.find("k")->elements[0].text == "0x7F800000" && text_of(a.find("k")->type) == "vector<2xf32>"));
  CHECK(text("l") == "(d0) -> (d0)");
  CHECK((text("m") == "1.500000e+00" && text_of(a.find("m")->type) == "f32"));
  CHECK(a.find("n")->find("o")->text == "1");
  CHECK(a.find("p")->type.inputs.size() == 1);
  CHECK(a.find("q") == nullptr);
}

TEST_CASE("numeric literals") {
  using sim::literal_bits;
  using sim::Scalar;
  CHECK(literal_bits("1.0", Scalar::f32) == 0x3f800000u);
  CHECK(literal_bits("-0.000000e+00", Scalar::f32) == 0x80000000u);
  CHECK(literal_bits("0xFF800000", Scalar::f32) == 0xff800000u);
  CHECK(literal_bits("0x7FC0", Scalar::bf16) == 0x7fc0u);
  CHECK(literal_bits("1.0", Scalar::bf16) == 0x3f80u);
  CHECK(literal_bits("-1", Scalar::i32) == 0xffffffffu);
  CHECK(literal_bits("0x80000000", Scalar::i32) == 0x80000000u);
  CHECK(literal_bits("true", Scalar::i1) == 1u);
  CHECK(literal_bits("-1", Scalar::i1) == 1u);
  // MLIR takes none of these.
  CHECK_FALSE(literal_bits("1", Scalar::f32));
  CHECK_FALSE(literal_bits("0x3F80", Scalar::f32));
  CHECK_FALSE(literal_bits("1.5", Scalar::i32));
  CHECK_FALSE(literal_bits("5000000000", Scalar::i32));
}

TEST_CASE("values, parts of results, regions and locations") {
  const auto m = sim::parse_kernel(R"(#loc = loc("elsewhere")
module @named attributes {a.b = 1 : i64} {
  "func.func"() <{sym_name = "f"}> ({
  ^bb0(%x: i1 loc("argument"), %y: i32):  // a comment
    %1:2 = "scf.if"(%x) ({ "scf.yield"(%y, %y) : (i32, i32) -> () }, {}) : (i1) -> (i32, i32) loc("label"(#loc))
    %2 = "arith.addi"(%1#0, %1#1) : (i32, i32) -> i32 loc(#loc1)
    %3 = "arith.addi"(%2, %2) : (i32, i32) -> i32 loc("ours")
  }) {extra} : () -> () loc(unknown)
}
#loc1 = loc("file":7:3)
)");
  CHECK(flat(m) ==
        "func.func sym_name extra\nscf.if %0 ->%2 ->%3 i32 i32\nscf.yield %1 %1\narith.addi %2 %3 ->%4 i32\narith.addi %4 %4 ->%5 i32\n");
  CHECK(m.names == std::vector<std::string>{"%x", "%y", "%1#0", "%1#1", "%2", "%3"});
  const auto& nodes = m.functions[0].regions[0].nodes;
  CHECK(nodes[0].where() == "scf.if at line 5 (\"label\")");
  CHECK(nodes[1].where() == "arith.addi at line 6 (\"file:7:3\")");
  CHECK(nodes[2].where() == "arith.addi at line 7 (\"ours\")");
}

TEST_CASE("jaxlib's three ways to print one module have the same tree") {
  const auto generic = sim::parse_kernel(test::running_generic);
  const auto stable = sim::parse_kernel(test::running_stable);
  const auto located = sim::parse_kernel(test::running_with_locations);
  CHECK(generic.version == 0);
  CHECK(stable.version == 13);
  CHECK(flat(generic) == flat(located));
  REQUIRE(generic.functions.size() == 2);
  REQUIRE(stable.functions.size() == 2);
  CHECK(generic.functions[0].regions[0].nodes.size() == stable.functions[0].regions[0].nodes.size());
  CHECK(generic.functions[0].label.empty());
  CHECK(located.functions[0].label == "-:3:3");
  CHECK(located.functions[0].regions[0].nodes[0].label == "-:7:10");
  CHECK(generic.functions[0].regions[0].nodes[0].line == 5);
}

TEST_CASE("the stable form is all or nothing") {
  const std::string plain = "\"func.return\"() : () -> ()";
  const std::string prefixed = "\"stable_mosaic.func.return\"() : () -> ()";
  const auto stable_function = [&](const std::string& body, const std::string& attributes) {
    return "module " + attributes + "{\n\"stable_mosaic.func.func\"() ({\n" + body + "\n}) : () -> ()\n}\n";
  };
  const std::string version = "attributes {stable_mosaic.version = 13 : i64} ";
  CHECK(sim::parse_kernel(stable_function(prefixed, version)).functions[0].regions[0].nodes[0].name == "func.return");
  CHECK(parse_error(module_of(plain)).empty());
  CHECK_THAT(parse_error(stable_function(plain, version)), Contains("func.return at line 3: Operation not in a serialized form"));
  CHECK_THAT(parse_error(module_of(prefixed)), Contains("Missing or invalid version attribute"));
  CHECK_THAT(parse_error(stable_function(prefixed, "attributes {stable_mosaic.version = 99 : i64} ")),
             Contains("Unsupported version: expected <= 20 but got 99"));
}

TEST_CASE("text that does not parse is refused with its line") {
  CHECK(parse_error(module_of(constant)).empty());
  CHECK_THAT(parse_error(module_of(R"(%y = "arith.addi"(%x, %x) : (i32, i32) -> i32)")),
             Contains("line 3: expected a defined value, not %x"));
  CHECK_THAT(parse_error(module_of(constant + "\n" + constant)), Contains("%z is taken"));
  CHECK_THAT(parse_error(module_of(constant + R"( %y = "arith.addi"(%z, %z) : (i32, f32) -> i32)")),
             Contains("operand %z is a i32, not a f32"));
  CHECK_THAT(parse_error(module_of(constant + R"( %y = "arith.addi"(%z, %z) : (i32) -> i32)")),
             Contains("2 operands, but 1 operand types"));
  CHECK_THAT(parse_error(module_of(constant + R"( %y = "arith.addi"(%z, %z#1) : (i32) -> i32)")), Contains("a part of %z below 1"));
  CHECK_THAT(parse_error(module_of(R"(%y:2 = "a.b"() : () -> i32)")), Contains("2 results named, but 1 typed"));
  CHECK_THAT(parse_error(module_of(R"(%y = "a.b"() {a = 1, a = 2} : () -> i32)")), Contains("'a' is given twice"));
  CHECK_THAT(parse_error(module_of(constant) + "x"), Contains("line 6: expected the end of the text before 'x'"));
  CHECK_THAT(parse_error("module {"), Contains("before the end of the text"));
  CHECK_THAT(parse_error(module_of("^bb0: ^bb1: " + constant)), Contains("line 3"));
  // A function sees nothing of what is around it.
  CHECK_THAT(parse_error("module { " + constant + " \"func.func\"() ({ %y = \"arith.negi\"(%z) : (i32) -> i32 }) : () -> () }"),
             Contains("a defined value, not %z"));
}

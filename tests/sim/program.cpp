// The StableHLO program around a kernel.
#include <catch2/catch.hpp>

#include "simulate.hpp"

using namespace gdn;
using namespace gdn::test;
using Catch::Contains;

namespace {

std::string base64(const std::string& text) {
  constexpr char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (std::size_t i = 0; i < text.size(); i += 3) {
    std::uint32_t bits = 0;
    for (std::size_t j = 0; j < 3; j++) bits = (bits << 8) | (i + j < text.size() ? static_cast<unsigned char>(text[i + j]) : 0u);
    for (std::size_t j = 0; j < 4; j++) out += i + j <= text.size() ? digits[(bits >> (18 - 6 * j)) & 63u] : '=';
  }
  return out;
}

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != text.npos; at += to.size()) text.replace(at, from.size(), to);
}

// The stable form of a module made by text_of.
std::string stable(std::string text) {
  for (const char* dialect : {"func", "arith", "vector", "tpu", "memref", "scf"})
    replace_all(text, "\"" + std::string(dialect) + ".", "\"stable_mosaic." + std::string(dialect) + ".");
  replace_all(text, "module {", "module attributes {stable_mosaic.version = 13 : i64} {");
  return text;
}

const std::string tile = "8x128xf32", V = vector(tile);

// out block i = in block i plus in block i, over 4 blocks of 8 rows; the input's index is `in`.
Kernel doubling(const std::string& in, const std::string& transform = "") {
  Kernel k;
  k.bounds = {"4"};
  k.semantics = {"arbitrary"};
  k.inputs = {{"32x128xf32", "8x128", in}};
  k.outputs = {{"32x128xf32", "8x128", "%g0, %c0"}};
  k.transform_body = transform;
  k.body = load("%x", "%a0", tile) + "%y = \"arith.addf\"(%x, %x) : (" + V + ", " + V + ") -> " + V + "\n" + store("%y", "%o0", tile);
  return k;
}

struct Parts {
  std::string body, quote = "\\22", more_config = "", more_attributes = "", format = "1", layouts = "[1, 0]";
};

// @main: a [4, 8, 128] argument through a reshape, the call, and a reshape.
std::string program(const Parts& p) {
  std::string config = "{'custom_call_config': {'body': '" + base64(p.body) + "', 'serialization_format': " + p.format +
                       ", 'needs_layout_passes': true}" + p.more_config + "}";
  replace_all(config, "'", p.quote);
  return "module @kernel attributes {mhlo.num_partitions = 1 : i32} {\n"
         "  func.func public @main(%a0: tensor<4x8x128xf32>) -> (tensor<4096xf32>, tensor<32x128xf32>) {\n"
         "    %0 = stablehlo.reshape %a0 : (tensor<4x8x128xf32>) -> tensor<32x128xf32>\n"
         "    %r = stablehlo.custom_call @tpu_custom_call(%0) {api_version = 1 : i32, kernel_name = \"kernel\", operand_layouts = [dense<" +
         p.layouts + "> : tensor<2xindex>], result_layouts = [dense<[1, 0]> : tensor<2xindex>]" + p.more_attributes +
         ", backend_config = \"" + config +
         "\"} : (tensor<32x128xf32>) -> tensor<32x128xf32> loc(\"kernel\")\n"
         "    %1 = stablehlo.reshape %r : (tensor<32x128xf32>) -> tensor<4096xf32>\n"
         "    return %1, %0 : tensor<4096xf32>, tensor<32x128xf32>\n  }\n}\n";
}

const std::string alias = ", output_operand_aliases = [#stablehlo.output_operand_alias<output_tuple_indices = [], operand_index = 0, "
                          "operand_tuple_indices = []>]";

std::string refusal(const std::string& text, const std::vector<Array>& inputs) {
  return error_of([&] { simulate(text, inputs); });
}

}  // namespace

TEST_CASE("a program: reshapes around a custom call with a stable body") {
  const auto x = counting({4, 8, 128});
  for (const char* quote : {"\\22", "\\\""}) {
    const auto r = simulate(program({stable(text_of(doubling("%g0, %c0"))), quote}), {x});
    REQUIRE(r.outputs.size() == 2);
    CHECK(r.outputs[0].shape == std::vector<std::int64_t>{4096});
    CHECK(r.outputs[0].data == counting({4096}, 0, 2).data);
    CHECK(r.outputs[1].shape == std::vector<std::int64_t>{32, 128});
    CHECK(r.outputs[1].data == x.data);
    CHECK(r.grid_steps == 4);
  }
}

TEST_CASE("several results, one alone among them, and a second call on a first one's") {
  Kernel k = doubling("%g0, %c0");
  k.outputs.push_back(k.outputs[0]);
  k.body += store("%x", "%o1", tile);
  const std::string config = "{\\22custom_call_config\\22: {\\22body\\22: \\22" + base64(stable(text_of(k))) +
                             "\\22, \\22serialization_format\\22: 1, \\22needs_layout_passes\\22: true}}";
  const std::string layout = "dense<[1, 0]> : tensor<2xindex>", t = "tensor<32x128xf32>";
  const auto call = [&](const std::string& operand) {
    return "stablehlo.custom_call @tpu_custom_call(" + operand + ") {operand_layouts = [" + layout + "], result_layouts = [" + layout +
           ", " + layout + "], backend_config = \"" + config + "\"} : (" + t + ") -> (" + t + ", " + t + ")\n";
  };
  const auto r = simulate("func.func public @main(%x: " + t + ") -> (" + t + ", " + t + ") {\n%a:2 = " + call("%x") +
                              "%b:2 = " + call("%a#0") + "return %b#0, %a#1 : " + t + ", " + t + "\n}\n",
                          {counting({32, 128})});
  CHECK(r.outputs[0].data == counting({32, 128}, 0, 4).data);
  CHECK(r.outputs[1].data == counting({32, 128}).data);
  CHECK(r.grid_steps == 8);
}

TEST_CASE("the VMEM limit of the call") {
  const auto body = stable(text_of(doubling("%g0, %c0")));
  const auto limited = [&](int bytes) {
    return refusal(
        program({body, "\\22", ", 'scoped_memory_configs': [{'memory_space': 1, 'offset': 0, 'size': " + std::to_string(bytes) + "}]"}),
        {counting({4, 8, 128})});
  };
  CHECK(limited(16384) == "");
  CHECK_THAT(limited(16383), Contains("VMEM: the windows need 0.02 MiB, the scoped limit is 0.02 MiB"));
}

TEST_CASE("an output that shares its memory with an input") {
  const auto x = counting({4, 8, 128});
  const auto in_place = program({stable(text_of(doubling("%g0, %c0"))), "\\22", "", alias});
  sim::Options late;
  late.late_windows = true;
  CHECK(simulate(in_place, {x}).outputs[0].data == counting({4096}, 0, 2).data);
  CHECK(simulate(in_place, {x}, late).outputs[0].data == counting({4096}, 0, 2).data);
  // Each step reads the block the step before has written: fetched early it is the old one.
  const auto racing = program({stable(text_of(doubling("%p, %c0", R"(%one = "arith.constant"() {value = 1 : i32} : () -> i32
%q = "arith.subi"(%g0, %one) : (i32, i32) -> i32
%p = "arith.maxsi"(%q, %c0) : (i32, i32) -> i32
)"))), "\\22", "", alias});
  CHECK_THAT(refusal(racing, {x}), Contains("output window 0 %o0, grid step (1): race: index (8, 0) of input 0 is written while the copy "
                                           "into input window 0 %a0, grid step (2), reads it"));
  const auto sums = floats(simulate(racing, {x}, late).outputs[0]);
  CHECK(sums[5] == 2 * 5.f);
  CHECK(sums[3 * 1024 + 5] == 8 * 5.f);  // step 1 reads the block step 0 has read: it is not fetched again
  // Blocks the kernel does not write keep the input's content, and a block may be visited again.
  Kernel k = doubling("%m, %c0",
                      "%two = \"arith.constant\"() {value = 2 : i32} : () -> i32\n%m = \"arith.remsi\"(%g0, %two) : (i32, i32) -> i32\n");
  k.outputs[0].index = "%m, %c0";
  const auto twice = floats(simulate(program({stable(text_of(k)), "\\22", "", alias}), {x}, late).outputs[0]);
  CHECK(twice[5] == 4 * 5.f);
  CHECK(twice[3000] == 3000.f);
  CHECK_THAT(refusal(program({stable(text_of(k)), "\\22", "", ""}), {x}), Contains("is visited again"));
}

TEST_CASE("arrays of i1 are converted to i32 in front of a call") {
  const std::string text = "func.func public @main(%a0: tensor<2x3xi1>) -> tensor<2x3xi32> {\n"
                           "  %0 = stablehlo.convert %a0 : (tensor<2x3xi1>) -> tensor<2x3xi32>\n"
                           "  return %0 : tensor<2x3xi32>\n}\n// stablehlo.custom_call\n";
  const auto mask = bits_array(Element::i1, {2, 3}, {1, 0, 0, 1, 1, 0});
  const auto r = simulate(text, {mask});
  CHECK(r.outputs[0].element == Element::i32);
  CHECK(r.outputs[0].data == mask.data);
  auto wide = text;
  replace_all(wide, "xi32>", "xf32>");
  CHECK_THAT(refusal(wide, {mask}), Contains("line 2 of the program: cannot convert tensor<2x3xi1> to tensor<2x3xf32>"));
}

TEST_CASE("programs the compiler or the runtime would not take") {
  const auto x = counting({4, 8, 128});
  const auto body = stable(text_of(doubling("%g0, %c0")));
  CHECK(refusal(program({body}), {x}) == "");
  CHECK_THAT(refusal(program({text_of(doubling("%g0, %c0"))}), {x}), Contains("Missing or invalid version attribute"));
  CHECK_THAT(refusal(program({"ML\xefR"}), {x}), Contains("bytecode"));
  CHECK_THAT(refusal(program({body, "\\22", "", "", "2"}), {x}), Contains("Unsupported serialization format: 2"));
  CHECK_THAT(refusal(program({body, "\\22", "", "", "1", "[0, 1]"}), {x}),
             Contains("line 4 of the program: entry 0 of operand_layouts is not row-major"));
  const auto with = [&](const std::string& from, const std::string& to) {
    auto text = program({body});
    replace_all(text, from, to);
    return refusal(text, {x});
  };
  CHECK_THAT(with("operand_layouts", "other_layouts"), Contains("line 4 of the program: the custom call needs operand_layouts"));
  CHECK_THAT(with("stablehlo.reshape %a0", "stablehlo.negate %a0"),
             Contains("line 3 of the program: stablehlo.negate: this op is not simulated"));
  CHECK_THAT(with("-> tensor<4096xf32>\n", "-> tensor<4097xf32>\n"),
             Contains("line 5 of the program: cannot reshape tensor<32x128xf32> to tensor<4097xf32>"));
  CHECK_THAT(with("tpu_custom_call(%0)", "tpu_custom_call(%7)"), Contains("line 4 of the program: %7 is not defined"));
  CHECK_THAT(with("\\22body\\22: \\22", "\\22body\\22: \\22?"), Contains("corrupt base64"));
  CHECK_THAT(with("needs_layout_passes\\22: true", "needs_layout_passes\\22: false"), Contains("needs_layout_passes must be true"));
  CHECK_THAT(refusal(program({body}), {counting({4, 8, 127})}),
             Contains("argument 0 (%a0) is a tensor<4x8x127xf32>, the text says tensor<4x8x128xf32>"));
  CHECK_THAT(refusal(program({body}), {x, x}), Contains("@main takes 1 arrays, not 2"));
}

// Every op against values written down by hand.
#include <catch2/catch.hpp>

#include <gdn/portable/math.hpp>
#include <gdn/sim/value.hpp>

#include <limits>
#include <random>

#include "simulate.hpp"

using namespace gdn;
using namespace gdn::test;
using Catch::Contains;
using Words = std::vector<std::uint32_t>;

namespace {

constexpr float inf = std::numeric_limits<float>::infinity();
const float nan_ = std::numeric_limits<float>::quiet_NaN();

// The output of a kernel without a grid.
Array evaluate(const std::vector<std::string>& types, const std::string& output, const std::string& body,
               const std::vector<Array>& inputs) {
  return simulate(op_kernel(types, output, body), inputs).outputs[0];
}

std::string refusal(const std::vector<std::string>& types, const std::string& output, const std::string& body,
                    const std::vector<Array>& inputs) {
  return error_of([&] { evaluate(types, output, body, inputs); });
}

Array row(const std::vector<float>& values) { return f32_array({1, static_cast<std::int64_t>(values.size())}, values); }
Array row_i32(const std::vector<std::int32_t>& values) { return i32_array({1, static_cast<std::int64_t>(values.size())}, values); }
Array row_bits(const Words& words) { return bits_array(Element::f32, {1, static_cast<std::int64_t>(words.size())}, words); }

std::string row_type(std::size_t n, const std::string& element) { return "1x" + std::to_string(n) + "x" + element; }

// %r = op(%x0, %x1) on rows.
std::string call(const std::string& op, const std::string& in, const std::string& out, int operands, const std::string& attributes = "") {
  std::string names = "%x0", types = vector(in);
  if (operands == 2) {
    names += ", %x1";
    types += ", " + types;
  }
  return "%r = \"" + op + "\"(" + names + ")" + (attributes.empty() ? "" : " {" + attributes + "}") + " : (" + types + ") -> " +
         vector(out);
}

Words unary(const std::string& op, const Array& x, const std::string& attributes = "") {
  const auto t = row_type(x.data.size(), "f32");
  return evaluate({t}, t, call(op, t, t, 1, attributes), {x}).data;
}
Words binary(const std::string& op, const Array& x, const Array& y) {
  const auto t = row_type(x.data.size(), x.element == Element::f32 ? "f32" : "i32");
  return evaluate({t, t}, t, call(op, t, t, 2), {x, y}).data;
}
std::string binary_refusal(const std::string& op, const Array& x, const Array& y) {
  return error_of([&] { binary(op, x, y); });
}

template <class T>
Words words(std::initializer_list<T> values) {
  Words out;
  for (T v : values) out.push_back(std::bit_cast<std::uint32_t>(v));
  return out;
}

// The i1 result of a compare, as i32.
Words compare(const std::string& op, int predicate, const Array& x, const Array& y) {
  const auto n = x.data.size();
  const auto in = row_type(n, x.element == Element::f32 ? "f32" : "i32"), out = row_type(n, "i32"), mask = row_type(n, "i1");
  return evaluate({in, in}, out,
                  "%m = \"" + op + "\"(%x0, %x1) {predicate = " + std::to_string(predicate) + " : i64} : (" + vector(in) + ", " +
                      vector(in) + ") -> " + vector(mask) + "\n%r = \"arith.extui\"(%m) : (" + vector(mask) + ") -> " + vector(out),
                  {x, y})
      .data;
}

const float tiny = 0x1p-126f;

}  // namespace

TEST_CASE("f32 arithmetic rounds once and flushes subnormals") {
  CHECK(binary("arith.addf", row({1, 1, tiny, -0.f, inf}), row({0x1p-24f, 0x1.000002p-24f, -1.5f * tiny, -0.f, 1})) ==
        words({1.f, 1.0000001f, -0.f, -0.f, inf}));
  CHECK(binary("arith.subf", row({3, 0, -0.f}), row({5, 0, 0})) == words({-2.f, 0.f, -0.f}));
  // Results below 2^-126 and subnormal operands are zeros of their sign.
  CHECK(binary("arith.mulf", row({tiny, -tiny, 0x1p-149f, 3}), row({0.5f, 0.5f, 0x1p100f, 7})) == words({0.f, -0.f, 0.f, 21.f}));
  CHECK(binary("arith.divf", row({1, -1, 1}), row({3, 0, -inf})) == words({1.f / 3.f, -inf, -0.f}));
  // Signs are bits.
  CHECK(unary("arith.negf", row_bits({0, 0x80000000u, 0x7fc00001u, 1, 0x3f800000u})) ==
        Words{0x80000000u, 0, 0xffc00001u, 0x80000001u, 0xbf800000u});
  CHECK(unary("math.absf", row({-0.f, -2, 3, -inf})) == words({0.f, 2.f, 3.f, inf}));
  // The caller's mode is back afterwards.
  volatile float smallest = tiny;
  CHECK(smallest * 0.5f > 0);
}

TEST_CASE("maximumf and minimumf: NaN wins, -0 < +0") {
  const auto x = row({1, -0.f, 0, nan_, 1, -inf}), y = row({2, 0, -0.f, 1, nan_, 5});
  CHECK(binary("arith.maximumf", x, y) == Words{bits(2.f), 0, 0, 0x7fc00000u, 0x7fc00000u, bits(5.f)});
  CHECK(binary("arith.minimumf", x, y) == Words{bits(1.f), 0x80000000u, 0x80000000u, 0x7fc00000u, 0x7fc00000u, bits(-inf)});
  CHECK(binary("arith.maximumf", row_bits({1, 0x80000001u}), row({-1, -1})) == Words{0, 0x80000000u});
}

TEST_CASE("integer arithmetic wraps around") {
  const std::int32_t low = INT32_MIN, high = INT32_MAX;
  CHECK(binary("arith.addi", row_i32({high, 2}), row_i32({1, 3})) == words({low, 5}));
  CHECK(binary("arith.subi", row_i32({low, 2}), row_i32({1, 3})) == words({high, -1}));
  CHECK(binary("arith.muli", row_i32({65536, -7}), row_i32({65536, 6})) == words({0, -42}));
  CHECK(binary("arith.divsi", row_i32({7, -7, 7}), row_i32({2, 2, -2})) == words({3, -3, -3}));
  CHECK(binary("arith.remsi", row_i32({7, -7, 7}), row_i32({2, 2, -2})) == words({1, -1, 1}));
  CHECK(binary("arith.divui", row_i32({7, -1}), row_i32({2, 2})) == words({3, high}));
  CHECK(binary("arith.remui", row_i32({7, -1}), row_i32({2, 10})) == words({1, 5}));
  CHECK_THAT(binary_refusal("arith.remui", row_i32({7}), row_i32({0})), Contains("division by zero: 7 and 0 at index (0, 0)"));
  CHECK(binary("arith.andi", row_i32({12}), row_i32({10})) == words({8}));
  CHECK(binary("arith.ori", row_i32({12}), row_i32({10})) == words({14}));
  CHECK(binary("arith.xori", row_i32({12}), row_i32({10})) == words({6}));
  CHECK(binary("arith.shli", row_i32({3, 1}), row_i32({4, 31})) == words({48, low}));
  CHECK(binary("arith.shrui", row_i32({-1}), row_i32({28})) == words({15}));
  CHECK(binary("arith.shrsi", row_i32({-16}), row_i32({2})) == words({-4}));
  CHECK(binary("arith.minsi", row_i32({-1, 5}), row_i32({1, 4})) == words({-1, 4}));
  CHECK(binary("arith.maxsi", row_i32({-1, 5}), row_i32({1, 4})) == words({1, 5}));
  CHECK_THAT(binary_refusal("arith.divsi", row_i32({1, 2}), row_i32({1, 0})), Contains("division by zero: 2 and 0 at index (0, 1)"));
  CHECK_THAT(binary_refusal("arith.remsi", row_i32({low}), row_i32({-1})), Contains("the quotient overflows"));
  CHECK_THAT(binary_refusal("arith.shli", row_i32({1}), row_i32({32})), Contains("not within 0..31"));
  CHECK_THAT(binary_refusal("arith.addf", row_i32({1}), row_i32({1})), Contains("does not take vector<1x1xi32>"));
}

TEST_CASE("compares") {
  const auto x = row_i32({1, 2, 2, -1}), y = row_i32({2, 2, 1, 1});
  const Words expected[] = {{0, 1, 0, 0}, {1, 0, 1, 1}, {1, 0, 0, 1}, {1, 1, 0, 1}, {0, 0, 1, 0},
                            {0, 1, 1, 0}, {1, 0, 0, 0}, {1, 1, 0, 0}, {0, 0, 1, 1}, {0, 1, 1, 1}};
  for (int p = 0; p < 10; p++) CHECK(compare("arith.cmpi", p, x, y) == expected[p]);
  const auto u = row({1, 2, nan_, 0}), v = row({2, 2, 1, -0.f});
  const Words ordered[] = {{0, 1, 0, 1}, {0, 0, 0, 0}, {0, 1, 0, 1}, {1, 0, 0, 0}, {1, 1, 0, 1}, {1, 0, 0, 0}};
  for (int p = 1; p <= 6; p++) CHECK(compare("arith.cmpf", p, u, v) == ordered[p - 1]);
  // A subnormal is a zero.
  CHECK(compare("arith.cmpf", 1, row_bits({1}), row({0})) == Words{1});
  CHECK_THAT(error_of([&] { compare("arith.cmpf", 13, u, v); }), Contains("une and uno do not"));
}

TEST_CASE("select by a mask and by a scalar") {
  const std::string v = vector("1x2xf32"), m = vector("1x2xi1"), i = vector("1x2xi32");
  CHECK(evaluate({"1x2xi32", "1x2xf32", "1x2xf32"}, "1x2xf32",
                 "%m = \"arith.trunci\"(%x0) : (" + i + ") -> " + m + "\n%r = \"arith.select\"(%m, %x1, %x2) : (" + m + ", " + v + ", " +
                     v + ") -> " + v,
                 {row_i32({1, 2}), row({1, 2}), row({3, 4})})
            .data == words({1.f, 4.f}));
  for (bool first : {true, false})
    CHECK(evaluate({"1x2xf32", "1x2xf32"}, "1x2xf32",
                   std::string("%m = \"arith.constant\"() {value = ") + (first ? "true" : "false") +
                       "} : () -> i1\n%r = \"arith.select\"(%m, %x0, %x1) : (i1, " + v + ", " + v + ") -> " + v,
                   {row({1, 2}), row({3, 4})})
              .data == (first ? words({1.f, 2.f}) : words({3.f, 4.f})));
}

TEST_CASE("casts") {
  const auto cast = [](const std::string& op, const std::string& in, const std::string& out, const Array& x) {
    const auto n = x.data.size();
    return evaluate({row_type(n, in)}, row_type(n, out), call(op, row_type(n, in), row_type(n, out), 1), {x}).data;
  };
  // Ties to even, overflow to infinity, subnormals to zero, one NaN.
  CHECK(cast("arith.truncf", "f32", "bf16", row_bits({0x3f808000u, 0x3f818000u, 0x3f808001u, 0x7f7fffffu, 1, 0x80400000u, 0xff800001u})) ==
        Words{0x3f80, 0x3f82, 0x3f81, 0x7f80, 0, 0x8000, 0x7fc0});
  CHECK(cast("arith.extf", "bf16", "f32", bits_array(Element::bf16, {1, 3}, {0x3f81, 0x8001, 0x7fc0})) ==
        Words{0x3f810000u, 0x80010000u, 0x7fc00000u});
  CHECK(cast("arith.bitcast", "f32", "i32", row({1})) == Words{0x3f800000u});
  CHECK(cast("arith.bitcast", "i32", "f32", row_i32({0x40000000})) == words({2.f}));
  CHECK(cast("arith.sitofp", "i32", "f32", row_i32({-3, 16777217, INT32_MIN})) == words({-3.f, 16777216.f, -0x1p31f}));
  CHECK(cast("arith.fptosi", "f32", "i32", row({-2.7f, 2.7f, -0x1p31f})) == words({-2, 2, INT32_MIN}));
  CHECK_THAT(error_of([&] { cast("arith.fptosi", "f32", "i32", row({1, 0x1p31f})); }), Contains("at index (0, 1) is no i32"));
  CHECK_THAT(error_of([&] { cast("arith.extf", "f32", "f32", row({1})); }), Contains("does not take vector<1x1xf32>"));
  const auto bytes = bits_array(Element::i8, {1, 3}, {0x80, 0x7f, 0xff});
  CHECK(cast("arith.extsi", "i8", "i32", bytes) == words({-128, 127, -1}));
  CHECK(cast("arith.extui", "i8", "i32", bytes) == words({128, 127, 255}));
  CHECK(cast("arith.sitofp", "i8", "f32", bytes) == words({-128.f, 127.f, -1.f}));
  CHECK(cast("arith.trunci", "i32", "i8", row_i32({-128, 256 + 5, -1})) == Words{0x80, 5, 0xff});
  CHECK_THAT(error_of([&] { cast("arith.extsi", "i32", "i32", row_i32({1})); }), Contains("does not take vector<1x1xi32>"));
  CHECK_THAT(error_of([&] { cast("arith.trunci", "i32", "i32", row_i32({1})); }), Contains("does not give vector<1x1xi32>"));
  CHECK_THAT(error_of([&] { cast("arith.sitofp", "bf16", "f32", bits_array(Element::bf16, {1, 1}, {1})); }),
             Contains("does not take vector<1x1xbf16>"));
}

TEST_CASE("transcendental ops have the portable meaning") {
  const auto x = row({0, 1, -3.25f, 0.7f, 100, -200, nan_, inf});
  const auto same = [&](const std::string& op, float (*f)(float), const std::string& attributes = "") {
    Words expected;
    const sim::FlushSubnormals flush;
    for (float v : floats(x)) expected.push_back(bits(f(v)));
    CHECK(unary(op, x, attributes) == expected);
  };
  same("math.exp2", [](float v) { return portable::exp2(v); });
  same("math.exp", [](float v) { return portable::exp(v); });
  same("math.rsqrt", [](float v) { return portable::rsqrt(v); });
  same("tpu.logistic", [](float v) { return portable::sigmoid(v); });
  same("tpu.reciprocal", [](float v) { return portable::reciprocal(v); }, "approx = true, full_range = true");
  CHECK(unary("math.sqrt", row({4, 2, -0.f, 0x1p-130f})) == words({2.f, 0x1.6a09e6p+0f, -0.f, 0.f}));
  CHECK(unary("math.log", row({1, 2, 0, inf})) == words({0.f, 0x1.62e43p-1f, -inf, inf}));
  CHECK(unary("math.tanh", row({0, 1, -inf})) == words({0.f, 0x1.85efacp-1f, -1.f}));
  CHECK(unary("math.exp2", row({0, 3, -1})) == words({1.f, 8.f, 0.5f}));
  CHECK(unary("math.log1p", row({0, 1, 0.25f})) == words({0.f, portable::log1p(1.f), portable::log1p(0.25f)}));
  CHECK_THAT(error_of([] { unary("math.log1p", row({0, 1.5f})); }),
             Contains("1.5 at index (0, 1) is outside [0, 1], which the portable definition of log1p covers"));
}

TEST_CASE("tpu.bitcast between 16 and 32 bits: the even row is the low half") {
  const auto pairs = bits_array(Element::bf16, {2, 2}, {1, 2, 3, 4});
  const auto wide = i32_array({1, 2}, {0x00030001, 0x00040002});
  CHECK(evaluate({"2x2xbf16"}, "1x2xi32", call("tpu.bitcast", "2x2xbf16", "1x2xi32", 1), {pairs}).data == wide.data);
  CHECK(evaluate({"1x2xi32"}, "2x2xbf16", call("tpu.bitcast", "1x2xi32", "2x2xbf16", 1), {wide}).data == pairs.data);
  CHECK(evaluate({"1x2xf32"}, "1x2xi32", call("tpu.bitcast", "1x2xf32", "1x2xi32", 1), {row({1, 2})}).data == words({1.f, 2.f}));
  CHECK_THAT(refusal({"2x2xbf16"}, "2x2xi32", call("tpu.bitcast", "2x2xbf16", "2x2xi32", 1), {pairs}), Contains("rows must scale"));
}

TEST_CASE("constants") {
  const auto splat = [](const std::string& literal, const std::string& type) {
    return evaluate({}, type, "%r = \"arith.constant\"() {value = dense<" + literal + "> : " + vector(type) + "} : () -> " + vector(type),
                    {})
        .data;
  };
  CHECK(splat("0xFF800000", "1x2xf32") == words({-inf, -inf}));
  CHECK(splat("-1.500000e+00", "1x2xf32") == words({-1.5f, -1.5f}));
  CHECK(splat("0x3F80", "1x1xbf16") == Words{0x3f80});
  CHECK(splat("-7", "1x1xi32") == words({-7}));
  CHECK_THAT(error_of([&] { splat("[[1, 2]]", "1x2xi32"); }), Contains("must be a splat"));
  CHECK_THAT(error_of([&] { splat("1", "1x2xf32"); }), Contains("'1' is no f32"));
}

TEST_CASE("iota counts along one dim, or row-major along several") {
  const auto iota = [](const std::string& type, const std::string& dims) {
    return ints(evaluate({}, type, "%r = \"tpu.iota\"() {dimensions = array<i32: " + dims + ">} : () -> " + vector(type), {}));
  };
  CHECK(iota("2x3xi32", "1") == std::vector<std::int32_t>{0, 1, 2, 0, 1, 2});
  CHECK(iota("2x3xi32", "0") == std::vector<std::int32_t>{0, 0, 0, 1, 1, 1});
  CHECK(iota("2x3xi32", "0, 1") == std::vector<std::int32_t>{0, 1, 2, 3, 4, 5});
  CHECK(iota("2x3xi32", "1, 0") == std::vector<std::int32_t>{0, 2, 4, 1, 3, 5});
}

TEST_CASE("moves between shapes") {
  const auto x = counting({2, 3}), y = counting({1, 3}, 10), cube = counting({2, 2, 3});
  const auto moved = [](const std::string& op, const std::string& in, const std::string& out, const Array& a,
                        const std::string& attributes) { return floats(evaluate({in}, out, call(op, in, out, 1, attributes), {a})); };
  using F = std::vector<float>;
  CHECK(moved("tpu.transpose", "2x3xf32", "3x2xf32", x, "permutation = array<i64: 1, 0>") == F{0, 3, 1, 4, 2, 5});
  CHECK(moved("tpu.transpose", "2x2x3xf32", "2x3x2xf32", cube, "permutation = array<i64: 0, 2, 1>") ==
        F{0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11});
  CHECK(moved("tpu.transpose", "2x2x3xf32", "3x2x2xf32", cube, "permutation = array<i64: 2, 0, 1>") ==
        F{0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11});
  CHECK(moved("vector.broadcast", "1x3xf32", "2x3xf32", y, "") == F{10, 11, 12, 10, 11, 12});
  CHECK(moved("vector.broadcast", "2x1xf32", "2x3xf32", counting({2, 1}), "") == F{0, 0, 0, 1, 1, 1});
  CHECK(moved("vector.broadcast", "2x3xf32", "2x2x3xf32", x, "") == F{0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5});
  CHECK(moved("vector.shape_cast", "2x3xf32", "3x2xf32", x, "") == F{0, 1, 2, 3, 4, 5});
  CHECK(moved("vector.extract_strided_slice", "2x3xf32", "1x2xf32", x, "offsets = [1, 1], sizes = [1, 2], strides = [1, 1]") == F{4, 5});
  CHECK(moved("vector.extract", "2x3xf32", "3xf32", x, "static_position = array<i64: 1>") == F{3, 4, 5});
  CHECK_THAT(refusal({"2x3xf32"}, "3x3xf32", call("vector.broadcast", "2x3xf32", "3x3xf32", 1), {x}), Contains("cannot stretch"));
  CHECK_THAT(refusal({"2x3xf32"}, "2x2xf32", call("vector.shape_cast", "2x3xf32", "2x2xf32", 1), {x}), Contains("sizes differ"));
  CHECK_THAT(
      refusal({"2x3xf32"}, "1x3xf32",
              call("vector.extract_strided_slice", "2x3xf32", "1x3xf32", 1, "offsets = [2, 0], sizes = [1, 3], strides = [1, 1]"), {x}),
      Contains("rows 2..2 in dim 0 of vector<2x3xf32> are out of bounds"));
  CHECK_THAT(refusal({"2x3xf32"}, "3x2xf32", call("tpu.transpose", "2x3xf32", "3x2xf32", 1, "permutation = array<i64: 1, 1>"), {x}),
             Contains("is no permutation"));
}

TEST_CASE("a scalar out of a vector and back") {
  const auto body = R"(%e = "vector.extract"(%x0) {static_position = array<i64: 1, 2>} : (vector<2x3xf32>) -> f32
                       %d = "arith.addf"(%e, %e) : (f32, f32) -> f32
                       %r = "vector.broadcast"(%d) : (f32) -> vector<1x2xf32>)";
  CHECK(evaluate({"2x3xf32"}, "1x2xf32", body, {counting({2, 3})}).data == words({10.f, 10.f}));
}

TEST_CASE("concatenate along rows and along lanes") {
  const auto body = [](const std::string& out, int dim) {
    return "%r = \"tpu.concatenate\"(%x0, %x1) {dimension = " + std::to_string(dim) + " : i32} : (vector<2x2xf32>, vector<2x2xf32>) -> " +
           vector(out);
  };
  const auto x = counting({2, 2}), y = counting({2, 2}, 10);
  CHECK(floats(evaluate({"2x2xf32", "2x2xf32"}, "4x2xf32", body("4x2xf32", 0), {x, y})) == std::vector<float>{0, 1, 2, 3, 10, 11, 12, 13});
  CHECK(floats(evaluate({"2x2xf32", "2x2xf32"}, "2x4xf32", body("2x4xf32", 1), {x, y})) == std::vector<float>{0, 1, 10, 11, 2, 3, 12, 13});
  CHECK_THAT(refusal({"2x2xf32", "2x2xf32"}, "2x5xf32", body("2x5xf32", 1), {x, y}),
             Contains("the parts have 4 rows along dim 1, the result 5"));
}

TEST_CASE("dynamic_rotate moves element i to i + amount") {
  const auto rotate = [](int dim, int amount) {
    return floats(evaluate({"2x3xf32"}, "2x3xf32",
                           "%n = \"arith.constant\"() {value = " + std::to_string(amount) +
                               " : i32} : () -> i32\n%r = \"tpu.dynamic_rotate\"(%x0, %n) "
                               "{dimension = " +
                               std::to_string(dim) + " : si32} : (vector<2x3xf32>, i32) -> vector<2x3xf32>",
                           {counting({2, 3})}));
  };
  CHECK(rotate(1, 1) == std::vector<float>{2, 0, 1, 5, 3, 4});
  CHECK(rotate(0, 1) == std::vector<float>{3, 4, 5, 0, 1, 2});
  CHECK(rotate(1, 5) == rotate(1, 2));
  CHECK_THAT(error_of([&] { rotate(1, -1); }), Contains("must not be negative"));
}

TEST_CASE("dynamic_gather takes indices along one dim") {
  const auto gather = [](int dim, const std::vector<std::int32_t>& indices) {
    return floats(evaluate({"2x3xf32", "2x3xi32"}, "2x3xf32",
                           "%r = \"tpu.dynamic_gather\"(%x0, %x1) {dimensions = array<i32: " + std::to_string(dim) +
                               ">} : (vector<2x3xf32>, vector<2x3xi32>) -> vector<2x3xf32>",
                           {counting({2, 3}), i32_array({2, 3}, indices)}));
  };
  CHECK(gather(1, {2, 2, 0, 0, 1, 2}) == std::vector<float>{2, 2, 0, 3, 4, 5});
  CHECK(gather(0, {1, 0, 1, 0, 0, 0}) == std::vector<float>{3, 1, 5, 0, 1, 2});
  CHECK_THAT(error_of([&] { gather(1, {0, 0, 0, 0, 3, 0}); }), Contains("gathers element 3 of 3 at index (1, 1)"));
  CHECK_THAT(error_of([&] { gather(0, {-1, 0, 0, 0, 0, 0}); }), Contains("gathers element -1 of 2"));
}

namespace {

Words reduce(const std::string& kind, const std::string& in, const std::string& out, const std::string& dims, const std::string& neutral,
             const Array& x) {
  return evaluate({in}, out,
                  "%c = \"arith.constant\"() {value = dense<" + neutral + "> : " + vector(out) + "} : () -> " + vector(out) +
                      "\n%r = \"vector.multi_reduction\"(%x0, %c) {kind = #vector.kind<" + kind + ">, reduction_dims = array<i64: " + dims +
                      ">} : (" + vector(in) + ", " + vector(out) + ") -> " + vector(out),
                  {x})
      .data;
}

}  // namespace

TEST_CASE("sums fold halves of the padded power of two, then acc + sum") {
  // Five elements, padded to eight: ((x0 + x4) + (x2 + 0)) + ((x1 + 0) + (x3 + 0)).
  const float a = 0x1p24f, x[5] = {a, 1, 1, -a, 3};
  const float folded = ((x[0] + x[4]) + x[2]) + (x[1] + x[3]), sequential = (((x[0] + x[1]) + x[2]) + x[3]) + x[4];
  REQUIRE(folded != sequential);
  CHECK(reduce("add", "1x5xf32", "1xf32", "1", "0.0", row({x[0], x[1], x[2], x[3], x[4]})) == words({folded}));
  // Rows: the same fold, column by column.
  CHECK(reduce("add", "5x1xf32", "1xf32", "0", "0.0", f32_array({5, 1}, {x[0], x[1], x[2], x[3], x[4]})) == words({folded}));
  // Lanes first, then rows: (a + 1) + (1 - a) loses what (a + 1 + ..) by columns keeps.
  CHECK(reduce("add", "1x2x2xf32", "1xf32", "1, 2", "0.0", f32_array({1, 2, 2}, {a, 1, -a, 1})) == words({(a + 1) + (-a + 1)}));
  CHECK((a + 1) + (-a + 1) != (a + -a) + (1 + 1.f));
  // The accumulator comes last: 1 + (a + -a); and makes -0 to +0.
  CHECK(reduce("add", "1x2xf32", "1xf32", "1", "1.0", row({a, -a})) == words({1.f}));
  CHECK(reduce("add", "1x1xf32", "1xf32", "1", "0.0", row({-0.f})) == words({0.f}));
  CHECK(reduce("add", "1x1xf32", "1xf32", "1", "-0.0", row({-0.f})) == words({-0.f}));
  // Padding is +0.
  CHECK(reduce("add", "1x3xf32", "1xf32", "1", "-0.0", row({-0.f, -0.f, -0.f})) == words({0.f}));
}

TEST_CASE("other reductions") {
  CHECK(reduce("maximumf", "1x3xf32", "1xf32", "1", "0xFF800000", row({-5, -2, -9})) == words({-2.f}));
  CHECK(reduce("minimumf", "1x3xf32", "1xf32", "1", "0x7F800000", row({5, 2, 9})) == words({2.f}));
  CHECK(reduce("maximumf", "1x3xf32", "1xf32", "1", "0xFF800000", row({1, nan_, 2})) == Words{0x7fc00000u});
  CHECK(reduce("add", "1x3xi32", "1xi32", "1", "0", row_i32({5, -2, 9})) == words({12}));
  CHECK(reduce("maxsi", "1x3xi32", "1xi32", "1", "-2147483648", row_i32({-5, -2, -9})) == words({-2}));
  CHECK(reduce("minsi", "1x3xi32", "1xi32", "1", "2147483647", row_i32({5, 2, 9})) == words({2}));
  CHECK_THAT(error_of([] {
               reduce("mul", "1x3xf32", "1xf32", "1", "1.0", row({1, 2, 3}));
             }),
             Contains("'mul' of vector<1x3xf32> is not simulated"));
}

TEST_CASE("fma by way of double is the fused one, flushes included") {
  const sim::FlushSubnormals flush;
  std::mt19937 random(1);
  const auto any = [&] { return std::bit_cast<float>(static_cast<std::uint32_t>(random())); };
  const auto near = [&](int exponent) {
    return std::ldexp(1.0f + static_cast<float>(random() % 0x800000) * 0x1p-23f, exponent) * (random() % 2 ? 1.f : -1.f);
  };
  long differing = 0, halfway = 0;
  for (int i = 0; i < 400000; i++) {
    float a = any(), b = any(), c = any();
    if (i % 4 == 1) a = near(0), b = near(0), c = near(-24 + static_cast<int>(random() % 49));
    if (i % 4 == 2) a = near(-63), b = near(-63 + static_cast<int>(random() % 3)), c = near(-126 + static_cast<int>(random() % 3));
    if (i % 4 == 3) a = near(64), b = near(63), c = near(127);
    // (1 + m 2^-23) (1 - m 2^-23) 2^-24 is half a last place of c, less something that double does not hold.
    if (i % 16 == 0) {
      const float m = static_cast<float>(1 + random() % 300) * 0x1p-23f;
      a = 1 + m, b = (1 - m) * (random() % 2 ? 0x1p-24f : -0x1p-24f), c = near(0);
    }
    halfway += (std::bit_cast<std::uint64_t>(static_cast<double>(a) * b + c) & 0x1fffffffu) == 0x10000000u;
    volatile float va = a, vb = b, vc = c;
    const float fused = std::fma(va, vb, vc), emulated = sim::fma_by_double(a, b, c);
    if (fused != fused ? emulated == emulated : bits(fused) != bits(emulated)) differing++;
  }
  CHECK(differing == 0);
  CHECK(halfway > 100);
  volatile float half = 0.5f;
  CHECK(bits(sim::fma_by_double(tiny, half, 0)) == 0);
  // The check can fail: two roundings are not one.
  CHECK(sim::fma_by_double(1 + 0x1p-12f, 1 + 0x1p-12f, -1 - 0x1p-11f) == 0x1p-24f);
}

namespace {

// acc + a . b with these dimension numbers; K of the left operand etc. are in the types.
std::string matmul(const std::string& a, const std::string& b, const std::string& c, const std::string& numbers,
                   const std::string& precision) {
  return "%r = \"tpu.matmul\"(%x0, %x1, %x2) {dimension_numbers = #tpu.dot_dimension_numbers<" + numbers + ">" +
         (precision.empty() ? "" : ", precision = #tpu.contract_precision<" + precision + ">") +
         ", transpose_lhs = false, transpose_lhs_hint = false, transpose_rhs = false} : (" + vector(a) + ", " + vector(b) + ", " +
         vector(c) + ") -> " + vector(c);
}

const std::string nn = "[1], [0], [0], [1], [0, 0, 1, 1], [], []", nt = "[1], [1], [0], [0], [0, 0, 1, 0], [], []",
                  tn = "[0], [0], [1], [1], [0, 1, 1, 1], [], []", batched = "[2], [1], [1], [2], [0, 0, 0, 1, 1, 2], [0], [0]";

Array product(const std::string& a, const std::string& b, const std::string& c, const std::string& numbers, const std::string& precision,
              const std::vector<Array>& x) {
  return evaluate({a, b, c}, c, matmul(a, b, c, numbers, precision), x);
}

}  // namespace

TEST_CASE("matmul: precision, the order of the chain, the accumulator") {
  const std::string s = "1x1xf32";
  const auto one = [](float x) { return row({x}); };
  // B62
  CHECK(product(s, s, s, nn, "", {one(1 + 0x1p-10f), one(1), one(0)}).data == words({1.f}));
  CHECK(product(s, s, s, nn, "bf16", {one(1 + 0x1p-10f), one(1), one(0)}).data == words({1.f}));
  CHECK(product(s, s, s, nn, "fp32", {one(1 + 0x1p-10f), one(1), one(0)}).data == words({1.0009765625f}));
  // One fma chain, k ascending, from +0.
  const auto a = row({0x1p24f, 1, 1, -0x1p24f}), b = f32_array({4, 1}, {1, 1, 1, 1});
  CHECK(product("1x4xf32", "4x1xf32", s, nn, "fp32", {a, b, one(0)}).data == words({0.f}));
  const auto c = row({1, 1, 0x1p24f, -0x1p24f});
  CHECK(product("1x4xf32", "4x1xf32", s, nn, "fp32", {c, b, one(0)}).data == words({2.f}));
  // The accumulator is added last: 1 + (2^24 - 2^24), not (1 + 2^24) - 2^24.
  CHECK(product("1x2xf32", "2x1xf32", s, nn, "fp32", {row({0x1p24f, -0x1p24f}), f32_array({2, 1}, {1, 1}), one(1)}).data == words({1.f}));
  // Fused: (1 + 2^-12)^2 - 1 - 2^-11 keeps its last bit.
  CHECK(product("1x2xf32", "2x1xf32", s, nn, "fp32", {row({-1 - 0x1p-11f, 1 + 0x1p-12f}), f32_array({2, 1}, {1, 1 + 0x1p-12f}), one(0)})
            .data == words({0x1p-24f}));
  // A chain may flush to -0; with acc = +0 the result is +0, with -0 it is the chain's.
  CHECK(product(s, s, s, nn, "fp32", {one(-tiny), one(0.5f), one(0)}).data == words({0.f}));
  CHECK(product(s, s, s, nn, "fp32", {one(-tiny), one(0.5f), one(-0.f)}).data == words({-0.f}));
  // +0 + -0 * 1 is +0.
  CHECK(product(s, s, s, nn, "fp32", {one(-0.f), one(1), one(-0.f)}).data == words({0.f}));
}

TEST_CASE("matmul: forms") {
  const auto a = counting({2, 3}, 1), b = counting({3, 2}, 1), zero = counting({2, 2}, 0, 0);
  const std::vector<float> expected{22, 28, 49, 64};
  CHECK(floats(product("2x3xf32", "3x2xf32", "2x2xf32", nn, "fp32", {a, b, zero})) == expected);
  const auto b_t = f32_array({2, 3}, {1, 3, 5, 2, 4, 6}), a_t = f32_array({3, 2}, {1, 4, 2, 5, 3, 6});
  CHECK(floats(product("2x3xf32", "2x3xf32", "2x2xf32", nt, "fp32", {a, b_t, zero})) == expected);
  CHECK(floats(product("3x2xf32", "3x2xf32", "2x2xf32", tn, "fp32", {a_t, b, zero})) == expected);
  CHECK(floats(product("2x1x2xf32", "2x2x1xf32", "2x1x1xf32", batched, "fp32",
                       {counting({2, 1, 2}, 1), counting({2, 2, 1}, 1), counting({2, 1, 1}, 0, 0)})) == std::vector<float>{5, 25});
  // Wider than a block of columns, with a remainder.
  const auto wide = product("1x2xf32", "2x70xf32", "1x70xf32", nn, "fp32", {row({1, 2}), counting({2, 70}), counting({1, 70})});
  std::vector<float> sums;
  for (int j = 0; j < 70; j++) sums.push_back(static_cast<float>(j + 2 * (70 + j) + j));
  CHECK(floats(wide) == sums);
  // bf16 operands widen; the two may differ at default precision.
  const auto half = bits_array(Element::bf16, {1, 1}, {0x3f00});
  CHECK(floats(product("1x1xbf16", "1x1xbf16", "1x1xf32", nn, "", {half, half, row({0})})) == std::vector<float>{0.25f});
  CHECK(floats(product("1x1xbf16", "1x1xf32", "1x1xf32", nn, "", {half, row({3}), row({0})})) == std::vector<float>{1.5f});
  const auto refused = [&](const std::string& numbers, const std::string& precision) {
    return error_of([&] { product("2x3xf32", "3x2xf32", "2x2xf32", numbers, precision, {a, b, zero}); });
  };
  CHECK_THAT(error_of([&] { product("1x1xbf16", "1x1xbf16", "1x1xf32", nn, "fp32", {half, half, row({0})}); }), Contains("Bad lhs type"));
  CHECK_THAT(refused(nn, "bf16x3"), Contains("not simulated"));
  CHECK_THAT(refused(nt, ""), Contains("contraction sizes differ"));
  CHECK_THAT(refused("[1], [0], [0], [1], [1, 1, 0, 0], [], []", ""), Contains("output order"));
  CHECK_THAT(refused("[1], [0], [1], [1], [0, 1, 1, 1], [], []", ""), Contains("each dim once"));
}

TEST_CASE("loads and stores of parts, masked, strided, at computed places") {
  Kernel k;
  k.inputs = {{"4x4xf32", "", ""}};
  k.outputs = {{"4x4xf32", "", ""}};
  k.body = R"(%one = "arith.constant"() {value = 1 : index} : () -> index
%i = "arith.constant"() {value = 2 : i32} : () -> i32
%two = "arith.index_cast"(%i) : (i32) -> index
)" + load("%x", "%a0", "4x4xf32") +
           store("%x", "%o0", "4x4xf32") + R"(%p = "vector.load"(%a0, %two, %one) : ()" + memref("4x4xf32") +
           R"(, index, index) -> vector<1x2xf32>
"vector.store"(%p, %o0, %z, %two) : (vector<1x2xf32>, )" +
           memref("4x4xf32") + R"(, index, index) -> ()
%s = "tpu.strided_load"(%a0, %one, %z) {strides = array<i32: 2, 1>} : ()" +
           memref("4x4xf32") + R"(, index, index) -> vector<2x4xf32>
%t = "tpu.iota"() {dimensions = array<i32: 1>} : () -> vector<2x4xi32>
%c = "arith.constant"() {value = dense<2> : vector<2x4xi32>} : () -> vector<2x4xi32>
%m = "arith.cmpi"(%t, %c) {predicate = 2 : i64} : (vector<2x4xi32>, vector<2x4xi32>) -> vector<2x4xi1>
"tpu.vector_store"(%s, %o0, %two, %z, %m) {add = false, operandSegmentSizes = array<i32: 1, 1, 2, 1>, strides = array<i32>} : (vector<2x4xf32>, )" +
           memref("4x4xf32") + R"(, index, index, vector<2x4xi1>) -> ()
)";
  CHECK(floats(simulate(text_of(k), {counting({4, 4})}).outputs[0]) ==
        std::vector<float>{0, 1, 9, 10, 4, 5, 6, 7, 4, 5, 10, 11, 12, 13, 14, 15});
}

TEST_CASE("scf.while goes on while its first region says so") {
  // n, v -> n - 1, v + v while n > 0.
  const std::string t = "1x2xf32", V = vector(t);
  const auto loop = [&](int n, const std::string& condition = "i1, i32, ") {
    return "%n = \"arith.constant\"() {value = " + std::to_string(n) + " : i32} : () -> i32\n" +
           R"(%zero = "arith.constant"() {value = 0 : i32} : () -> i32
%one = "arith.constant"() {value = 1 : i32} : () -> i32
%w:2 = "scf.while"(%n, %x0) ({
^bb0(%i: i32, %v: vector<1x2xf32>):
  %more = "arith.cmpi"(%i, %zero) {predicate = 4 : i64} : (i32, i32) -> i1
  "scf.condition"(%more, %i, %v) : ()" + condition + R"(vector<1x2xf32>) -> ()
}, {
^bb0(%j: i32, %u: vector<1x2xf32>):
  %d = "arith.addf"(%u, %u) : (vector<1x2xf32>, vector<1x2xf32>) -> vector<1x2xf32>
  %next = "arith.subi"(%j, %one) : (i32, i32) -> i32
  "scf.yield"(%next, %d) : (i32, vector<1x2xf32>) -> ()
}) : (i32, vector<1x2xf32>) -> (i32, vector<1x2xf32>)
"tpu.trace_start"() {level = 10 : i32, message = "a mark"} : () -> ()
"tpu.trace_stop"() : () -> ()
%c = "arith.sitofp"(%w#0) : (i32) -> f32
%b = "vector.broadcast"(%c) : (f32) -> vector<1x2xf32>
%r = "arith.addf"(%w#1, %b) : (vector<1x2xf32>, vector<1x2xf32>) -> vector<1x2xf32>)";
  };
  CHECK(evaluate({t}, t, loop(3), {row({1, 2})}).data == words({8.f, 16.f}));
  CHECK(evaluate({t}, t, loop(0), {row({1, 2})}).data == words({1.f, 2.f}));
  CHECK(evaluate({t}, t, loop(-5), {row({1, 2})}).data == words({-4.f, -3.f}));
  auto yields = loop(3);
  yields.replace(yields.find("scf.condition"), 13, "scf.yield");
  CHECK_THAT(refusal({t}, t, yields, {row({1, 2})}), Contains("a region must end in scf.condition"));
  auto types = loop(3);
  types.replace(types.rfind("}) : (i32, vector<1x2xf32>)"), 27, "}) : (i32)");
  CHECK_THAT(refusal({t}, t, types, {row({1, 2})}), Contains("2 operands, but 1 operand types"));
  auto results = loop(3);
  results.replace(results.find("^bb0(%j: i32, %u: vector<1x2xf32>)"), 34, "^bb0(%u: vector<1x2xf32>, %j: i32)");
  CHECK_THAT(refusal({t}, t, results, {row({1, 2})}), Contains("results and the arguments of the second region must have the same types"));
}

TEST_CASE("a strided store writes rows apart") {
  const std::string tile = "8x128xf32", four = "4x128xf32";
  const auto strided = [&](const std::string& stride) {
    Kernel k;
    k.inputs = {{four, "", ""}};
    k.outputs = {{tile, "", ""}};
    k.body = load("%x", "%a0", four) + "%zero = \"arith.constant\"() {value = dense<0.0> : " + vector(tile) + "} : () -> " + vector(tile) + "\n" +
             store("%zero", "%o0", tile) + "\"tpu.strided_store\"(%x, %o0, %z, %z) {strides = array<i32: " + stride + ", 1>} : (" +
             vector(four) + ", " + memref(tile) + ", index, index) -> ()\n";
    return text_of(k);
  };
  const auto out = floats(simulate(strided("2"), {counting({4, 128}, 1)}).outputs[0]);
  CHECK(out[2 * 128] == 129);
  CHECK(out[3 * 128] == 0);
  CHECK(out[6 * 128] == 3 * 128 + 1);
  CHECK_THAT(error_of([&] { simulate(strided("0"), {counting({4, 128})}); }), Contains("stride 0: elements would meet"));
  CHECK_THAT(error_of([&] { simulate(strided("3"), {counting({4, 128})}); }), Contains("store out of bounds"));
}

TEST_CASE("scf.for and scf.if carry values, over nested regions and zero trips") {
  const auto body = [](int trips) {
    return "%lo = \"arith.constant\"() {value = 0 : i32} : () -> i32\n%hi = \"arith.constant\"() {value = " + std::to_string(trips) +
           R"( : i32} : () -> i32
%one = "arith.constant"() {value = 1 : i32} : () -> i32
%f:2 = "scf.for"(%lo, %hi, %one, %x0, %lo) ({
^bb0(%i: i32, %v: vector<1x2xf32>, %sum: i32):
  %even = "arith.andi"(%i, %one) : (i32, i32) -> i32
  %odd = "arith.cmpi"(%even, %one) {predicate = 0 : i64} : (i32, i32) -> i1
  %w = "scf.if"(%odd) ({
    %d = "arith.addf"(%v, %x0) : (vector<1x2xf32>, vector<1x2xf32>) -> vector<1x2xf32>
    "scf.yield"(%d) : (vector<1x2xf32>) -> ()
  }, {
    "scf.yield"(%v) : (vector<1x2xf32>) -> ()
  }) : (i1) -> vector<1x2xf32>
  %next = "arith.addi"(%sum, %i) : (i32, i32) -> i32
  "scf.yield"(%w, %next) : (vector<1x2xf32>, i32) -> ()
}) : (i32, i32, i32, vector<1x2xf32>, i32) -> (vector<1x2xf32>, i32)
%g = "arith.sitofp"(%f#1) : (i32) -> f32
%h = "vector.broadcast"(%g) : (f32) -> vector<1x2xf32>
%r = "arith.addf"(%f#0, %h) : (vector<1x2xf32>, vector<1x2xf32>) -> vector<1x2xf32>)";
  };
  CHECK(floats(evaluate({"1x2xf32"}, "1x2xf32", body(5), {row({1, 2})})) == std::vector<float>{3 + 10, 6 + 10});
  CHECK(floats(evaluate({"1x2xf32"}, "1x2xf32", body(0), {row({1, 2})})) == std::vector<float>{1, 2});
}

TEST_CASE("promises are checked, unknown things refused") {
  const auto scalar = [](const std::string& body) {
    return refusal({"1x2xf32"}, "1x2xf32", body + "\n%r = \"arith.negf\"(%x0) : (vector<1x2xf32>) -> vector<1x2xf32>", {row({1, 2})});
  };
  const std::string six = "%c = \"arith.constant\"() {value = 6 : i32} : () -> i32\n";
  const auto multiple = [&](int n) {
    return scalar(six + "%m = \"tpu.assume_multiple\"(%c) {multiple = " + std::to_string(n) + " : i32} : (i32) -> i32");
  };
  CHECK(multiple(3) == "");
  CHECK_THAT(multiple(8), Contains("6 is no multiple of 8"));
  const auto loop = [&](int step) {
    return scalar(six + "%s = \"arith.constant\"() {value = " + std::to_string(step) +
                  " : i32} : () -> i32\n\"scf.for\"(%c, %c, %s) ({ ^bb0(%i: i32): \"scf.yield\"() : () -> () }) : (i32, i32, i32) -> ()");
  };
  CHECK(loop(1) == "");
  CHECK_THAT(loop(0), Contains("a step of 0: it must be positive"));
  CHECK_THAT(scalar("%q = \"math.sin\"(%x0) : (vector<1x2xf32>) -> vector<1x2xf32> loc(\"squash\")"),
             Contains("math.sin at line 7 (\"squash\"): this op is not simulated"));
  CHECK_THAT(scalar("%q = \"arith.negf\"(%x0) {fast = true} : (vector<1x2xf32>) -> vector<1x2xf32>"),
             Contains("attribute 'fast' is not known here"));
  CHECK_THAT(
      scalar("%q = \"arith.addf\"(%x0, %x0) {fastmath = #arith.fastmath<fast>} : (vector<1x2xf32>, vector<1x2xf32>) -> vector<1x2xf32>"),
      Contains("fastmath<fast>"));
  CHECK_THAT(scalar("%q = \"arith.addf\"(%x0, %x0) : (vector<1x2xf32>, vector<1x2xf32>) -> vector<1x3xf32>"),
             Contains("must have one type"));
  CHECK_THAT(scalar("%q = \"tpu.transpose\"(%x0) : (vector<1x2xf32>) -> vector<2x1xf32>"), Contains("attribute 'permutation' is missing"));
}

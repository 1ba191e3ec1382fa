// The token recurrence against the rule in float64, and chunks continued by tokens.
#include "../support/cases.hpp"
#include "recurrent.hpp"

using namespace gdn;
using namespace gdn::test;

namespace {

struct Result {
  std::vector<f32> out, state;
};
// One row on the CPU, from the state `h0` (or none).
Result tokens(const CoreInput<f32>& in, const Array<f32>& h0, int threads = 1) {
  const std::int64_t T = in.tokens(), Hk = in.key_heads(), H = in.value_heads();
  Result to{std::vector<f32>(in.v.size()), std::vector<f32>(static_cast<std::size_t>(H) * 128 * 128, unwritten)};
  CoreArrays<f32> x;
  x.q = view(in.q.data.data(), {1, T, Hk, 128}), x.k = view(in.k.data.data(), {1, T, Hk, 128}), x.v = view(in.v.data.data(), {1, T, H, 128});
  if (in.g.given()) x.g = view(in.g.data.data(), {1, T, H});
  x.beta = view(in.beta.data.data(), {1, T, H});
  if (h0.given()) x.initial = view(h0.data.data(), {1, H, 128, 128});
  if (!in.ids.empty()) x.ids = view(in.ids.data(), {1, T});
  x.out = view(to.out, {1, T, H, 128}), x.final = view(to.state, {1, H, 128, 128});
  Cpu cpu(threads);
  recurrent(cpu, x, {.scale = static_cast<f32>(in.scale), .use_qk_norm = in.use_qk_norm});
  return to;
}
Result tokens(const CoreInput<f32>& in) { return tokens(in, in.h0); }

// Documents by offsets are calls of their own.
Result tokens(const CoreCase& c) {
  if (c.cu.empty()) return tokens(c.in);
  Result to;
  for (std::size_t d = 0; d + 1 < c.cu.size(); d++) {
    const Result one = tokens(tokens_of(c.in, c.cu[d], c.cu[d + 1]), c.document_h0.given() ? rows(c.document_h0, static_cast<int>(d), static_cast<int>(d) + 1) : Array<f32>());
    to.out.insert(to.out.end(), one.out.begin(), one.out.end());
    to.state.insert(to.state.end(), one.state.begin(), one.state.end());
  }
  return to;
}

constexpr CaseDims dims{128, 128, 128};

}  // namespace

TEST_CASE("tokens: calls with a right answer") {
  for (const auto& c : core_cases(dims)) {
    const Result result = tokens(c);
    INFO(c.name);
    CHECK(miss_out(c, result.out) == "");
    CHECK(miss_state(c, result.state, true) == "");
  }
}

TEST_CASE("tokens: B65 fails where dots read bf16") {
  for (const auto& c : core_cases(dims)) {
    if (!c.name.starts_with("B65")) continue;
    CoreInput<f32> rounded = c.in;
    for (f32& x : rounded.h0.data) x = to_f32(to_bf16(x));
    Result result = tokens(rounded);
    for (std::size_t i = 0; i < result.state.size(); i++) result.state[i] += c.in.h0[i] - rounded.h0[i];  // the update alone was wrong
    CHECK(miss_state(c, result.state, true) != "");
  }
}

TEST_CASE("tokens: rows that must agree") {
  for (const auto& c : same_core_cases(dims)) {
    const Result a = tokens(c.a), b = tokens(c.b);
    INFO(c.name);
    std::vector<f32> left, right;
    const std::size_t width = a.out.size() / static_cast<std::size_t>(c.a.tokens());
    for (auto [i, j] : c.rows)
      for (std::size_t n = 0; n < width; n++) left.push_back(a.out[static_cast<std::size_t>(i) * width + n]), right.push_back(b.out[static_cast<std::size_t>(j) * width + n]);
    CHECK(difference(std::span<const f32>(left), std::span<const f32>(right)) == "");  // every one to the bit: tokens know no chunks
    if (c.states) CHECK(difference(std::span<const f32>(a.state), std::span<const f32>(b.state)) == "");
  }
}

TEST_CASE("tokens: rows in parts are rows") {
  for (const auto& c : split_core_cases(dims)) {
    INFO(c.name);
    const Result whole = tokens(c.in);
    Result parts;
    auto rest = c.in;
    int from = 0;
    std::vector<int> cuts = c.cuts;
    cuts.push_back(c.in.tokens());
    for (int cut : cuts) {
      if (cut == from) continue;
      auto part = tokens_of(c.in, from, cut);
      const Result one = tokens(part, rest.h0);
      parts.out.insert(parts.out.end(), one.out.begin(), one.out.end());
      parts.state = rest.h0.data = one.state;
      from = cut;
    }
    CHECK(difference(std::span<const f32>(whole.out), std::span<const f32>(parts.out)) == "");
    CHECK(difference(std::span<const f32>(whole.state), std::span<const f32>(parts.state)) == "");
  }
}

TEST_CASE("tokens: documents laid into a row in many ways") {
  for (const auto& layout : document_layouts()) {
    const auto in = random_core<f32>(9, {layout.tokens, 1, 2, 128, 128}, layout.ids);
    INFO(layout.name);
    const auto right = recurrence(widen(in));
    const Result result = tokens(in);
    CHECK(max_error(result.out, right.out) <= 1e-6);
    CHECK(max_error(result.state, right.state) <= 1e-6);
  }
}

TEST_CASE("tokens: bf16 activations lose no more than the rounding of what is stored") {
  Tokens<bf16, Head128> call({.tokens = 130, .value_heads = 2, .initial = true});
  const Outputs found = run(Cpu(2), call);
  CoreInput<double> in;
  const auto wide = [](const auto& x, std::vector<int> shape) {
    Array<double> y(std::move(shape));
    for (std::size_t i = 0; i < y.size(); i++) y[i] = to_f32(x[i]);
    return y;
  };
  in.q = wide(call.q, {130, 1, 128}), in.k = wide(call.k, {130, 1, 128}), in.v = wide(call.v, {130, 2, 128});
  in.g = wide(call.g, {130, 2}), in.beta = wide(call.beta, {130, 2}), in.h0 = wide(call.initial, {2, 128, 128});
  const auto right = recurrence(in);
  CHECK(max_error(named(found, "final"), right.state) <= 1e-6);
  CHECK(max_error(named(found, "out"), right.out) <= 0x1p-8);
}

// B22, B51: a prompt in chunks, then token by token.
TEST_CASE("tokens: a row begun in chunks and continued by tokens") {
  for (int prompt : {64, 77}) {
    Core<f32> chunks({.tokens = 140, .key_heads = 1, .value_heads = 2, .initial = true});
    const Outputs right = run(Cpu(2), chunks);
    Core<f32> begun({.tokens = 140, .key_heads = 1, .value_heads = 2, .initial = true});
    auto a = begun.arrays();
    auto first = a;
    for (auto* x : {&first.q, &first.k, &first.v}) x->shape[1] = prompt;
    first.g.shape[1] = first.beta.shape[1] = first.out.shape[1] = prompt;
    first.residual = {}, first.residuals = {};
    Cpu cpu(2);
    forward(cpu, first, begun.options);
    a.residual = {}, a.residuals = {};
    for (int t = prompt; t < 140; t++) decode(cpu, token_of(a, t, a.final, a.final), begun.options);
    CHECK(relative_l2(begun.out, named(right, "out")) <= 1e-6);
    CHECK(relative_l2(begun.final, named(right, "final")) <= 1e-6);
  }
}

TEST_CASE("layer tokens: the layer's rows, and its convolution's bits") {
  const Spec spec{.tokens = 70, .key_heads = 1, .value_heads = 2, .initial = true};
  Layer<f32> chunks(spec);
  SingleLayerTokens<f32, Head128> single(spec);
  const Outputs right = run(Cpu(2), chunks), found = run(Cpu(2), single);
  CHECK(relative_l2(named(found, "out"), named(right, "out")) <= 1e-6);
  CHECK(relative_l2(named(found, "final"), named(right, "final")) <= 1e-6);
  CHECK(difference(std::span<const f32>(named(found, "conv_final")), std::span<const f32>(named(right, "conv_final"))) == "");
}

TEST_CASE("tokens: B46 runs and threads") {
  const auto c = repeat_case(dims);
  const Result first = tokens(c.call.in);
  CHECK(miss_out(c.call, first.out) == "");
  for (int threads : c.threads)
    for (int i = 0; i < c.runs; i++) {
      const Result again = tokens(c.call.in, c.call.in.h0, threads);
      CHECK(difference(std::span<const f32>(first.out), std::span<const f32>(again.out)) == "");
      CHECK(difference(std::span<const f32>(first.state), std::span<const f32>(again.state)) == "");
    }
}

TEST_CASE("tokens: B21 nothing is written beside the state") {
  Guarded<f32> a(128 * 128), b(128 * 128);
  for (auto* state : {&a, &b}) {
    const auto in = random_core<f32>(21, {3, 1, 1, 128, 128});
    std::vector<f32> out(3 * 128);
    CoreArrays<f32> x;
    x.q = view(in.q.data.data(), {1, 3, 1, 128}), x.k = view(in.k.data.data(), {1, 3, 1, 128}), x.v = view(in.v.data.data(), {1, 3, 1, 128});
    x.beta = view(in.beta.data.data(), {1, 3, 1}), x.out = view(out, {1, 3, 1, 128}), x.final = view(state->data(), {1, 1, 128, 128});
    Cpu cpu(1);
    recurrent(cpu, x);
  }
  CHECK(a.intact());
  CHECK(b.intact());
}

TEST_CASE("tokens: what is refused") {
  Tokens<f32, Head128> call({.tokens = 3, .initial = true});
  Cpu cpu(1);
  const auto refused = [&](auto change, const std::string& sentence) {
    auto x = call.arrays();
    change(x);
    CHECK_THROWS_WITH(decode(cpu, x), sentence);
  };
  refused([](auto& x) { x.initial = {}; }, "decode: initial is missing");
  refused([](auto& x) { x.final = {}; }, "decode: final is missing");
  refused([](auto&) {}, "decode: 3 tokens; expected 1");
  auto x = token_of(call.arrays(), 0, call.arrays().initial, call.arrays().final);
  x.ids = view(call.ids.data(), {1, 1});
  CHECK_THROWS_WITH(decode(cpu, x), "decode: ids are given; expected none, a single token continues its row");
  x.ids = {}, x.residual = x.out;
  CHECK_THROWS_WITH(decode(cpu, x), "decode: residual, t_inv and chunk_states are of the chunked form; expected them absent");
  for (const auto& c : refused_cases(dims)) {
    INFO(c.name);
    CHECK_THROWS_WITH(tokens(c.in), Catch::Contains("recurrent: g[0, 66, 1] is 0.5"));
  }
}

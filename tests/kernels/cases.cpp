// Public bug reports as small inputs (support/cases.hpp), through the chunked forward.
#include <sys/mman.h>

#include "oracle_calls.hpp"
#include "same_bits.hpp"

using namespace gdn;
using namespace gdn::test;

namespace {

constexpr CaseDims dims{128, 128, 128};

// Rows of out, side by side.
template <class Act> std::vector<Act> picked(const std::vector<Act>& out, int tokens, const std::vector<std::pair<int, int>>& pairs, bool first) {
  const auto width = static_cast<std::ptrdiff_t>(out.size()) / tokens;
  std::vector<Act> rows;
  for (const auto& [a, b] : pairs) rows.insert(rows.end(), out.begin() + (first ? a : b) * width, out.begin() + ((first ? a : b) + 1) * width);
  return rows;
}
template <class T> std::string near(const Tolerance& within, const std::vector<T>& a, const std::vector<T>& b) {
  return within.kind == Tolerance::Kind::exact ? difference(a, b) : miss(within, a, b);
}
// What a store in bf16 makes of a right answer.
CoreCase stored_in_bf16(CoreCase c) {
  if (c.out_within.kind == Tolerance::Kind::exact) {
    c.out = right_answer(c).out;
    for (double& x : c.out.data) x = to_f32(to_bf16(static_cast<f32>(x)));
  } else {
    c.out_within.value = 0x1p-8;
  }
  return c;
}

}  // namespace

TEST_CASE("calls with a right answer, f32") {
  for (const auto& c : core_cases(dims)) {
    INFO(c.name);
    const auto found = core_call(Cpu(2), c.in, c.cu, c.document_h0);
    CHECK(miss_out(c, found.out) == "");
    CHECK(miss_state(c, found.state) == "");
    // The judge is awake: the outputs of another row are wrong.
    auto wrong = c.in;
    for (f32& x : wrong.v.data) x = -2 * x;
    for (f32& x : wrong.h0.data) x = -2 * x;
    if (c.cu.empty() && !c.update_only) CHECK(miss_state(c, core_call(Cpu(2), wrong).state) + miss_out(c, core_call(Cpu(2), wrong).out) != "");
  }
}

TEST_CASE("calls with a right answer that bf16 reaches") {
  int count = 0;
  for (const auto& all : core_cases(dims)) {
    if (!all.p1) continue;
    const CoreCase c = stored_in_bf16(all);
    INFO(c.name);
    const auto found = core_call<bf16>(Cpu(2), c.in);
    CHECK(miss_out(c, found.out) == "");
    CHECK(miss_state(c, found.state) == "");
    count++;
  }
  CHECK(count >= 5);
}

TEST_CASE("the cases in the simulator") {
  int count = 0;
  for (const auto& c : core_cases(dims)) {
    if (!c.cu.empty() || c.in.tokens() > 200) continue;
    INFO(c.name);
    const auto cpu = core_call(Cpu(1), c.in);
    for (const Schedule& s : placements()) {
      if (c.in.value_heads() == 1 && s.heads == Schedule::Heads::paired) continue;
      const auto found = core_call(Simulate(s), c.in);
      INFO(s.name());
      CHECK(difference(cpu.out, found.out) + difference(cpu.state, found.state) == "");
      CHECK(miss_out(c, found.out) + miss_state(c, found.state) == "");
    }
    if (c.p1) {
      const auto low = core_call<bf16>(Cpu(1), c.in), found = core_call<bf16>(Simulate(), c.in);
      CHECK(difference(low.out, found.out) + difference(low.state, found.state) == "");
    }
    count++;
  }
  CHECK(count >= 15);
}

TEMPLATE_TEST_CASE("calls that must agree", "", f32, bf16) {
  for (const auto& c : same_core_cases(dims)) {
    INFO(c.name);
    const auto a = core_call<TestType>(Cpu(2), c.a), b = core_call<TestType>(Cpu(2), c.b);
    // With bf16 a row at another place of its chunk has other roundings.
    Tolerance within = c.within;
    if (std::is_same_v<TestType, bf16> && within.kind != Tolerance::Kind::exact) within.value = 2e-2;
    CHECK(near(within, picked(a.out, c.a.tokens(), c.rows, true), picked(b.out, c.b.tokens(), c.rows, false)) == "");
    if (c.states) CHECK(near(within, a.state, b.state) == "");
    CHECK(near(within, picked(a.out, c.a.tokens(), c.rows, true), picked(b.out, c.b.tokens(), {c.rows.rbegin(), c.rows.rend()}, false)) != "");
  }
  for (const auto& c : same_layer_cases(dims)) {
    INFO(c.name);
    const auto a = layer_call<TestType>(Cpu(2), c.a), b = layer_call<TestType>(Cpu(2), c.b);
    Tolerance within = c.within;
    if (std::is_same_v<TestType, bf16> && within.kind != Tolerance::Kind::exact) within.value = 2e-2;
    CHECK(near(within, picked(a.out, c.a.tokens(), c.rows, true), picked(b.out, c.b.tokens(), c.rows, false)) == "");
    if (c.states) CHECK(near(within, a.state, b.state) == "");
  }
}

TEST_CASE("calls in parts, states handed on") {
  for (const auto& c : split_core_cases(dims)) {
    INFO(c.name);
    const auto whole = core_call(Cpu(2), c.in);
    auto ends = c.cuts;
    ends.push_back(c.in.tokens());
    std::vector<f32> out;
    Array<f32> h0 = c.in.h0;
    for (int first = 0; const int last : ends) {
      auto part = tokens_of(c.in, first, last);
      part.h0 = h0, first = last;
      const auto found = core_call(Cpu(2), part);
      out.insert(out.end(), found.out.begin(), found.out.end());
      h0.data = found.state;
    }
    CHECK(near(c.within, out, whole.out) == "");
    CHECK(near(c.within, h0.data, whole.state) == "");
    auto forgotten = c.in;
    forgotten.h0 = {};
    CHECK(near(c.within, out, core_call(Cpu(2), forgotten).out) != "");
  }
  for (const auto& c : split_layer_cases(dims)) {
    INFO(c.name);
    const auto whole = layer_call(Cpu(2), c.in);
    auto ends = c.cuts;
    ends.push_back(c.in.tokens());
    std::vector<f32> out;
    auto carried = c.in;
    for (int first = 0; const int last : ends) {
      auto part = tokens_of(c.in, first, last);
      part.h0 = carried.h0, part.conv_state = carried.conv_state, first = last;
      const auto found = layer_call(Cpu(2), part);
      out.insert(out.end(), found.out.begin(), found.out.end());
      carried.h0.data = found.state, carried.conv_state.data = found.conv_state;
    }
    CHECK(near(c.within, out, whole.out) == "");
    CHECK(near(c.within, carried.h0.data, whole.state) == "");
    CHECK(difference(carried.conv_state.data, whole.conv_state) == "");
  }
}

TEST_CASE("B50: states at chunk ends") {
  for (const auto& c : prefix_cases(dims)) {
    const auto whole = core_call(Cpu(2), c.in);
    const std::size_t size = whole.state.size();
    for (int n : c.chunks) {
      const auto before = core_call(Cpu(2), tokens_of(c.in, 0, 64 * n));
      const auto* there = 64 * n < c.in.tokens() ? &whole.chunk_states[static_cast<std::size_t>(n) * size] : whole.state.data();
      CHECK(difference(before.state, std::vector<f32>(there, there + size)) == "");
      CHECK(difference(before.state, std::vector<f32>(whole.chunk_states.begin(), whole.chunk_states.begin() + static_cast<std::ptrdiff_t>(size))) != "");
    }
  }
}

TEST_CASE("B46: runs and threads") {
  const auto repeat = repeat_case(dims);
  const auto first = core_call(Cpu(1), repeat.call.in);
  CHECK(miss_out(repeat.call, first.out) == "");
  for (int threads : repeat.threads)
    for (int run = 0; run < repeat.runs; run++) {
      const auto again = core_call(Cpu(threads), repeat.call.in);
      CHECK(difference(first.out, again.out) + difference(first.state, again.state) == "");
    }
}

TEST_CASE("B07: a decay where its logarithm is wanted is refused, with its place") {
  for (const auto& c : refused_cases(dims)) {
    CHECK_THROWS_WITH(core_call(Cpu(1), c.in), Catch::Contains(text("g[0, ", c.token, ", ", c.head, "] is 0.5")));
    auto fine = c.in;
    for (f32& g : fine.g.data) g = std::min(g, 0.f);
    CHECK_NOTHROW(core_call(Cpu(1), fine));
  }
}

TEST_CASE("B21: nothing is written beside the state") {
  for (const auto& c : core_cases(dims)) {
    if (!c.name.starts_with("B21")) continue;
    std::vector<f32> out(128);
    Guarded<f32> first(128 * 128), second(128 * 128);
    for (auto* state : {&first, &second}) {
      CoreArrays<f32> x;
      x.q = view(c.in.q.data, {1, 1, 1, 128}), x.k = view(c.in.k.data, {1, 1, 1, 128}), x.v = view(c.in.v.data, {1, 1, 1, 128});
      x.g = view(c.in.g.data, {1, 1, 1}), x.beta = view(c.in.beta.data, {1, 1, 1});
      x.out = view(out, {1, 1, 1, 128}), x.final = view(*state, {1, 1, 128, 128});
      Cpu cpu(1);
      forward(cpu, x, {.scale = 1.f});
      CHECK(miss_state(c, std::vector<f32>(state->data(), state->data() + state->size())) == "");
    }
    CHECK(first.intact());
    CHECK(second.intact());
  }
}

TEST_CASE("B43: rows past 2^31 elements") {
  const auto c = stride_case(dims);
  const std::size_t bytes = static_cast<std::size_t>(c.elements) * sizeof(f32);
  struct Map {
    void* data;
    std::size_t bytes;
    explicit Map(std::size_t n) : data(mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)), bytes(n) {}
    ~Map() { munmap(data, bytes); }
  };
  const Map sparse[4] = {Map(bytes), Map(bytes), Map(bytes), Map(bytes)};
  for (auto& m : sparse) REQUIRE(m.data != MAP_FAILED);
  f32* p[4];
  const Array<f32>* in[3] = {&c.in.q, &c.in.k, &c.in.v};
  for (int i = 0; i < 4; i++) p[i] = static_cast<f32*>(sparse[i].data);
  for (int i = 0; i < 3; i++)
    for (int t = 0; t < 64; t++) std::copy_n(in[i]->row(t), 128, p[i] + t * c.token_stride);
  std::vector<f32> state(128 * 128), out(64 * 128);
  const std::int64_t s = c.token_stride;
  CoreArrays<f32> x;
  x.q = view(p[0], {1, 64, 1, 128}, {64 * s, s, 128, 1}), x.k = view(p[1], {1, 64, 1, 128}, {64 * s, s, 128, 1});
  x.v = view(p[2], {1, 64, 1, 128}, {64 * s, s, 128, 1}), x.out = view(p[3], {1, 64, 1, 128}, {64 * s, s, 128, 1});
  x.g = view(c.in.g.data, {1, 64, 1}), x.beta = view(c.in.beta.data, {1, 64, 1}), x.final = view(state, {1, 1, 128, 128});
  Cpu cpu(1);
  forward(cpu, x, {.scale = static_cast<f32>(c.in.scale)});
  for (int t = 0; t < 64; t++) std::copy_n(p[3] + t * s, 128, &out[static_cast<std::size_t>(t) * 128]);
  const auto dense = core_call(Cpu(1), c.in);
  CHECK(difference(dense.out, out) + difference(dense.state, state) == "");
}

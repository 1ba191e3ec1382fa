// Serving calls: every sequence has the bits of a call on it alone, pools keep what no sequence names, and all machines agree.
#include "same_bits.hpp"

using namespace gdn;
using namespace gdn::test;

namespace {

// A ragged batch over random pools.
template <class Act, class G> struct Batch {
  static constexpr int C = G::chunk::size, K = G::key::size, V = G::value::size, W = G::taps::size, Hk = 1, H = 2, slots = 12, D = 2 * Hk * K + H * V;
  std::vector<i32> starts, lengths, in_slots, context, read_slots, snapshots;
  std::int64_t decodes = 0, room = 0;
  std::int64_t tokens = 0;
  std::vector<Act> qkv, a, b, conv_pool, out;
  std::vector<f32> weights, bias, A_log, dt_bias, pool;

  // One token of padding in front, and gaps that fill chunks up if `aligned`.
  Batch(const std::vector<i32>& of_lengths, const std::vector<i32>& of_slots, const std::vector<i32>& of_context, bool aligned, std::int64_t decoded = 0)
      : in_slots(of_slots), context(of_context), decodes(decoded) {
    i32 at = 0;
    for (std::size_t i = 0; i < of_lengths.size(); i++) {
      if (aligned && static_cast<std::int64_t>(i) >= decodes) at = (at + C - 1) / C * C;
      starts.push_back(at), lengths.push_back(of_lengths[i]);
      at += of_lengths[i];
    }
    starts.push_back(at);
    tokens = aligned ? (at + C - 1) / C * C : at;
    Random random(3);
    auto normal = [&](auto& x, std::int64_t n, double scale, double mean = 0) {
      for (std::int64_t i = 0; i < n; i++) x.push_back(activation<typename std::decay_t<decltype(x)>::value_type>(mean + scale * random.normal()));
    };
    normal(qkv, tokens * D, 1), normal(a, tokens * H, 1), normal(b, tokens * H, 1), normal(conv_pool, slots * (W - 1) * D, 1);
    normal(weights, W * D, 0.5), normal(bias, D, 0.1), normal(A_log, H, 1, -2), normal(dt_bias, H, 1), normal(pool, slots * H * K * V, 1);
    out.assign(static_cast<std::size_t>(tokens * H * V), activation<Act>(unwritten));
  }
  Sequences sequences() const { return {starts, lengths, in_slots, context, read_slots, snapshots, decodes, room}; }
  LayerArrays<Act> arrays() {
    LayerArrays<Act> x;
    x.qkv = view(qkv, {1, tokens, D}), x.a = view(a, {1, tokens, H}), x.b = view(b, {1, tokens, H}), x.out = view(out, {1, tokens, H, V});
    x.conv_weights = view(weights, {W, D}), x.conv_bias = view(bias, {D}), x.A_log = view(A_log, {H}), x.dt_bias = view(dt_bias, {H});
    x.conv_initial = x.conv_final = view(conv_pool, {slots, W - 1, D});
    x.initial = x.final = view(pool, {slots, H, K, V});
    return x;
  }
  template <class Machine> Batch after(Machine&& machine) const {
    Batch r = *this;
    layer_serve<G>(machine, r.arrays(), r.sequences(), {.key_heads = Hk});
    return r;
  }
  // What sequence i alone makes of its tokens and its slot, by the calls on rows.
  Batch alone(std::size_t i, bool by_tokens) const {
    Batch r = *this;
    auto x = r.arrays();
    auto part = [](auto v, int dim, std::int64_t from, std::int64_t n) {
      v.data += from * v.strides[static_cast<std::size_t>(dim)];
      v.shape[static_cast<std::size_t>(dim)] = n;
      return v;
    };
    const i32 n = lengths[i], from = starts[i], slot = in_slots[i];
    x.qkv = part(x.qkv, 1, from, n), x.a = part(x.a, 1, from, n), x.b = part(x.b, 1, from, n), x.out = part(x.out, 1, from, n);
    x.initial = part(x.initial, 0, slot, 1), x.final = part(x.final, 0, slot, 1);
    x.conv_initial = part(x.conv_initial, 0, slot, 1), x.conv_final = part(x.conv_final, 0, slot, 1);
    Cpu cpu(1);
    if (context[i] == 0) {
      std::fill_n(x.final.data, H * K * V, 0.f);
      std::fill_n(x.conv_final.data, (W - 1) * D, Act{});
    }
    if (by_tokens) layer_decode<G>(cpu, x, {.key_heads = Hk});
    else layer_forward<G>(cpu, x, {.key_heads = Hk});
    return r;
  }
  std::vector<f32> tokens_of(std::size_t i) const {
    std::vector<f32> x;
    for (std::int64_t k = starts[i] * H * V; k < (starts[i] + lengths[i]) * H * V; k++) x.push_back(to_f32(out[static_cast<std::size_t>(k)]));
    return x;
  }
  std::vector<f32> state(i32 slot) const { return {pool.begin() + slot * H * K * V, pool.begin() + (slot + 1) * H * K * V}; }
  std::vector<f32> conv_state(i32 slot) const {
    std::vector<f32> x;
    for (int k = slot * (W - 1) * D; k < (slot + 1) * (W - 1) * D; k++) x.push_back(to_f32(conv_pool[static_cast<std::size_t>(k)]));
    return x;
  }
};

template <class B> std::string differing(const B& x, const B& y) {
  std::string all;
  for (std::size_t i = 0; i < x.lengths.size(); i++)
    if (const auto d = difference(x.tokens_of(i), y.tokens_of(i)); !d.empty()) all += text("out of sequence ", i, ": ", d, "\n");
  for (i32 s = 0; s < B::slots; s++) {
    if (const auto d = difference(x.state(s), y.state(s)); !d.empty()) all += text("state ", s, ": ", d, "\n");
    if (const auto d = difference(x.conv_state(s), y.conv_state(s)); !d.empty()) all += text("conv state ", s, ": ", d, "\n");
  }
  return all;
}

}  // namespace

TEMPLATE_TEST_CASE("serve: every sequence is a call of its own", "", bf16, f32) {
  const Batch<TestType, Small> before({1, 1, 1, 40, 16, 5, 2}, {7, 3, 0, 5, 1, 9, 2}, {9, 0, 4, 3, 0, 7, 1}, false, 3);
  const auto after = before.after(Cpu(2));
  CHECK(differing(after, before.after(Cpu(1))) == "");
  for (std::size_t i = 0; i < before.lengths.size(); i++) {
    INFO("sequence " << i);
    const i32 slot = before.in_slots[i];
    auto from = before;
    if (slot == 0) from.context[i] = 0;
    const auto alone = from.alone(i, i < 3);
    CHECK(difference(after.tokens_of(i), alone.tokens_of(i)) == "");
    if (slot == 0) continue;
    CHECK(difference(after.state(slot), alone.state(slot)) == "");
    CHECK(difference(after.conv_state(slot), alone.conv_state(slot)) == "");
    CHECK(difference(after.state(slot), before.state(slot)) != "");
  }
  for (i32 slot : {0, 4, 6, 8, 10, 11}) {
    CHECK(difference(after.state(slot), before.state(slot)) == "");
    CHECK(difference(after.conv_state(slot), before.conv_state(slot)) == "");
  }
}
TEMPLATE_TEST_CASE("serve: the simulator has the CPU's bits", "", bf16, f32) {
  const Batch<TestType, Small> chunks({40, 16, 5, 33}, {7, 0, 5, 1}, {9, 0, 4, 0}, true), singles({1, 1, 1, 1}, {4, 2, 1, 6}, {9, 1, 0, 1}, true, 4),
      windows({3, 1, 2}, {4, 0, 6}, {9, 1, 0}, true, 3);
  for (const auto* b : {&chunks, &singles, &windows}) CHECK(differing(b->after(Cpu(2)), b->after(Simulate(Schedule::lifted()))) == "");
  if constexpr (std::is_same_v<TestType, bf16>) {
    const Batch<bf16, Head128> large({130, 64, 5, 1, 90}, {7, 0, 5, 1, 8}, {9, 0, 4, 0, 3}, true);
    for (const Schedule& s : placements()) {
      INFO(s.name());
      Simulate simulate(s);
      CHECK(differing(large.after(Cpu(2)), large.after(simulate)) == "");
      CHECK(simulate.module.schedule == s.name());
    }
  }
}

TEST_CASE("J3: rows of a batch are sequences of whole chunks") {
  const Batch<bf16, Head128> batch({128, 128}, {2, 4}, {9, 0}, true);
  const auto check = [&](auto&& rows, auto&& sequences) {
    auto r = batch;
    auto x = r.arrays();
    const auto cut = [](auto v) {  // [1, 256, ..] -> [2, 128, ..]
      v.shape[0] = 2, v.shape[1] = 128, v.strides[0] = 128 * v.strides[1];
      return v;
    };
    x.qkv = cut(x.qkv), x.a = cut(x.a), x.b = cut(x.b), x.out = cut(x.out);
    const auto slots = [](auto v) {
      v.data += 2 * v.strides[0], v.shape[0] = 2, v.strides[0] *= 2;
      return v;
    };
    x.initial = slots(x.initial), x.final = slots(x.final), x.conv_initial = slots(x.conv_initial), x.conv_final = slots(x.conv_final);
    std::fill_n(x.final.data + x.final.strides[0], r.state(4).size(), 0.f);  // no context
    std::fill_n(x.conv_final.data + x.conv_final.strides[0], r.conv_state(4).size(), bf16{});
    layer_forward(rows, x, {.key_heads = batch.Hk});
    CHECK(differing(r, batch.after(sequences)) == "");
    auto other = batch;
    other.context = {9, 1};
    CHECK(differing(r, other.after(Cpu(1))) != "");
  };
  check(Cpu(2), Cpu(2));
  for (const Schedule& s : placements()) {
    INFO(s.name());
    check(Simulate(s), Simulate(s));
  }
}

// J25
TEST_CASE("serve: states with one buffer have the same bits and need less VMEM") {
  const Batch<bf16, Head128> batch({130, 64, 5, 1, 90}, {7, 0, 5, 1, 8}, {9, 0, 4, 0, 3}, true);
  for (Schedule s : placements()) {
    INFO(s.name());
    Simulate two(s);
    const auto right = batch.after(two);
    s.single_buffered_states = true;
    Simulate one(s);
    CHECK(differing(right, batch.after(one)) == "");
    CHECK(one.result.vmem_bytes + 2 * 2 * 128 * 128 * 4 == two.result.vmem_bytes);  // read and written, two heads
    CHECK(one.module.vmem_bytes + 2 * 2 * 128 * 128 * 4 == two.module.vmem_bytes);
  }
}

TEST_CASE("serve: a kernel with room serves every batch that fits, and skips the rest") {
  const auto check = [](auto large, auto small, const Schedule& s) {
    const auto right_large = large.after(Cpu(2)), right_small = small.after(Cpu(2));
    large.room = small.room = 12;
    CHECK(differing(large.after(Cpu(2)), right_large) == "");
    Simulate one(s), other(s);
    CHECK(differing(large.after(one), right_large) == "");
    CHECK(differing(small.after(other), right_small) == "");
    CHECK(one.module.program() == other.module.program());
    CHECK(3 * other.result.ops < 2 * one.result.ops);
    small.room = 0;
    small.after(other);
    CHECK(one.module.program() != other.module.program());
  };
  const auto of = [](auto batch, std::vector<i32> starts, std::vector<i32> lengths, std::vector<i32> slots, std::vector<i32> context) {
    batch.starts = starts, batch.lengths = lengths, batch.in_slots = slots, batch.context = context;
    if (batch.decodes) batch.decodes = static_cast<std::int64_t>(slots.size());
    return batch;
  };
  const Batch<bf16, Head128> chunks({130, 64, 5, 1, 90}, {7, 0, 5, 1, 8}, {9, 0, 4, 0, 3}, true);
  for (const Schedule& s : placements()) {
    INFO(s.name());
    check(chunks, of(chunks, {64, 192, 256}, {100, 64}, {2, 4}, {0, 9}), s);
  }
  const Batch<f32, Small> tokens({3, 1, 2, 1, 1, 2}, {4, 0, 6, 2, 1, 8}, {9, 1, 0, 1, 1, 1}, false, 6);
  check(tokens, of(tokens, {1, 2, 4}, {1, 2}, {3, 4}, {2, 0}), Schedule::lifted());

  // What such a kernel is given is in the tables.
  Emit emit;
  auto b = of(chunks, {64, 192, 256}, {100, 64}, {2, 4}, {0, 9});
  b.room = 12;
  layer_forward_sequences(emit, b.arrays(), b.sequences(), {.key_heads = b.Hk});
  CHECK(emit.tables.at("limit") == std::vector<i32>{3 * 64});
  CHECK(emit.tables.at("turns").size() == 12 * Turn::entries);
  CHECK(emit.tables.at("turns")[Turn::entries] == 128);  // where the second chunk begins
}

TEMPLATE_TEST_CASE("serve: a window of speculative tokens is as many decodes, each with its own slot", "", bf16, f32) {
  using B = Batch<TestType, Small>;
  B window({3, 1}, {7, 2}, {9, 4}, false, 2);
  window.read_slots = {3, 2};
  window.snapshots = {5, 6, 0, 0};
  const B after = window.after(Cpu(2));
  CHECK(differing(after, window.after(Simulate(Schedule::lifted()))) == "");
  B step = window;
  step.starts = {0, 1}, step.lengths = {1}, step.context = {9}, step.snapshots = {}, step.decodes = 1;
  const std::vector<f32> tokens = after.tokens_of(0);
  i32 from = 3, token = 0;
  for (i32 to : {5, 6, 7}) {
    step.starts = {token, token + 1}, step.in_slots = {to}, step.read_slots = {from};
    step = step.after(Cpu(1));
    CHECK(difference(step.tokens_of(0), std::vector<f32>(tokens.begin() + token * B::H * B::V, tokens.begin() + (token + 1) * B::H * B::V)) == "");
    CHECK(difference(step.state(to), after.state(to)) == "");
    CHECK(difference(step.conv_state(to), after.conv_state(to)) == "");
    from = to, token++;
  }
  CHECK(difference(after.state(3), window.state(3)) == "");
}

TEMPLATE_TEST_CASE("serve: snapshots are the states at chunk ends, and prompts go on from them", "", bf16, f32) {
  using B = Batch<TestType, Small>;
  B whole({40, 20}, {7, 4}, {0, 3}, true);
  whole.snapshots = {5, 6, 0, 8, 0};
  const B after = whole.after(Cpu(2));
  CHECK(differing(after, whole.after(Simulate(Schedule::lifted()))) == "");
  B rest = whole;  // the last 24 tokens of sequence 0, from the state after its first chunk
  rest.pool = after.pool, rest.conv_pool = after.conv_pool;
  rest.starts = {16, 40}, rest.lengths = {24}, rest.in_slots = {1}, rest.read_slots = {5}, rest.context = {16}, rest.snapshots = {};
  rest = rest.after(Cpu(1));
  CHECK(difference(rest.state(1), after.state(7)) == "");
  CHECK(difference(rest.conv_state(1), after.conv_state(7)) == "");
  CHECK(difference(rest.state(5), rest.state(7)) != "");
}

TEST_CASE("serve: what a slot held does not matter to a sequence without a state") {  // case B23
  using B = Batch<f32, Small>;
  B zeros({20, 1}, {7, 3}, {0, 0}, true, 0), sevens = zeros, nans = zeros;
  for (B* b : {&zeros, &sevens, &nans}) {
    const f32 x = b == &zeros ? 0.f : b == &sevens ? 7.f : std::numeric_limits<f32>::quiet_NaN();
    b->pool.assign(b->pool.size(), x), b->conv_pool.assign(b->conv_pool.size(), x);
  }
  for (std::int64_t decodes : {0, 1}) {
    if (decodes) {
      for (B* b : {&zeros, &sevens, &nans}) b->lengths = {1, 20}, b->starts = {0, 16, 36}, b->decodes = 1;
    }
    const B right = zeros.after(Cpu(1));
    for (const B* b : {&sevens, &nans}) {
      const B is = b->after(Cpu(1));
      for (std::size_t i : {0u, 1u}) CHECK(difference(is.tokens_of(i), right.tokens_of(i)) == "");
      for (i32 slot : {7, 3}) CHECK(difference(is.state(slot), right.state(slot)) == "");
      for (i32 slot : {7, 3}) CHECK(difference(is.conv_state(slot), right.conv_state(slot)) == "");
    }
  }
  sevens.context = {1, 1};
  CHECK(difference(sevens.after(Cpu(1)).tokens_of(1), zeros.after(Cpu(1)).tokens_of(1)) != "");
}

TEST_CASE("serve: sequences of the null slot alone write nothing") {
  const Batch<f32, Small> padding({1, 1, 18}, {0, 0, 0}, {1, 0, 5}, true, 2);
  const auto after = padding.after(Cpu(1));
  CHECK(difference(after.pool, padding.pool) == "");
  CHECK(difference(after.conv_pool, padding.conv_pool) == "");
  CHECK(difference(after.tokens_of(2), padding.tokens_of(2)) != "");
}

TEST_CASE("serve: a batch is refused before anything is written") {
  using B = Batch<f32, Small>;
  const B right({1, 20}, {7, 3}, {2, 0}, false, 1);
  auto message = [&](auto change) {
    B b = right;
    change(b);
    const B before = b;
    std::string what;
    try {
      Cpu cpu(1);
      layer_serve<Small>(cpu, b.arrays(), b.sequences(), {.key_heads = B::Hk});
    } catch (const Error& e) {
      what = e.what();
    }
    CHECK(difference(b.out, before.out) == "");
    CHECK(difference(b.pool, before.pool) == "");
    CHECK(difference(b.conv_pool, before.conv_pool) == "");
    return what;
  };
  CHECK(message([](B& b) { b.in_slots = {7, 12}; }) == "layer_serve: sequence 1 uses slot 12; expected 0 to 11");
  CHECK(message([](B& b) { b.in_slots = {-2, 3}; }) == "layer_serve: sequence 0 uses slot -2; expected 0 to 11");
  CHECK(message([](B& b) { b.in_slots = {3, 3}; }) == "layer_serve: slot 3 is used by sequences 0 and 1; expected one");
  CHECK(message([](B& b) { b.read_slots = {3, 3}; }) == "layer_serve: slot 3 is used by sequences 0 and 1; expected one");
  CHECK(message([](B& b) { b.snapshots = {0, 3, 0}; }) == "layer_serve: slot 3 is written twice by sequence 1; expected once");
  CHECK(message([](B& b) { b.snapshots = {0, 7, 0}; }) == "layer_serve: slot 7 is used by sequences 0 and 1; expected one");
  CHECK(message([](B& b) { b.snapshots = {0, 0, 5}; }) == "layer_serve: the last snapshot of sequence 1 is slot 5; expected 0, its state goes to its own slot");
  CHECK(message([](B& b) { b.snapshots = {0, 0}; }) == "layer_serve: snapshots has 2 entries; expected 3");
  CHECK(message([](B& b) { b.starts = {0, 21}; }) == "layer_serve: starts has 2 entries; expected 3");
  CHECK(message([](B& b) { b.starts = {0, 1, 22}; }) == "layer_serve: the sequences end at token 22; expected at most the 21 tokens");
  CHECK(message([](B& b) { b.starts = {-1, 1, 21}; }) == "layer_serve: starts[0] is -1; expected 0 or more");
  CHECK(message([](B& b) { b.starts = {5, 1, 21}; }) == "layer_serve: starts[1] is 1; expected at least starts[0] = 5");
  CHECK(message([](B& b) { b.lengths = {2, 20}; }) == "layer_serve: sequence 0 has 2 tokens; expected 0 to the 1 before the next one");
  CHECK(message([](B& b) { b.context = {-1, 0}; }) == "layer_serve: context[0] is -1; expected 0 or more");
  CHECK(message([](B& b) { b.context = {1}; }) == "layer_serve: context has 1 entries; expected 2");
  CHECK(message([](B& b) { b.room = 1; }) == "layer_serve: room is 1; expected at least the 2 chunks there are");
  CHECK(message([](B& b) { b.decodes = 3; }) == "layer_serve: decodes is 3; expected at most the 2 sequences");
}
TEST_CASE("serve: pools are one array, and TPU kernels want whole chunks") {
  using B = Batch<f32, Small>;
  B b({1, 20}, {7, 3}, {2, 0}, false, 0);
  const LayerOptions options{.key_heads = B::Hk};
  auto x = b.arrays();
  std::vector<f32> other = b.pool;
  x.final = view(other, {B::slots, B::H, B::K, B::V});
  Cpu cpu(1);
  CHECK_THROWS_WITH(layer_serve<Small>(cpu, x, b.sequences(), options), "layer_serve: initial and final differ; expected one pool, which is updated in place");
  x.final = {};
  CHECK_THROWS_WITH(layer_serve<Small>(cpu, x, b.sequences(), options), "layer_serve: final is missing");
  Emit emit;
  CHECK_THROWS_WITH(layer_serve<Small>(emit, b.arrays(), b.sequences(), options), "layer_serve: chunk 1 starts at token 1; expected a multiple of 16 in a TPU kernel");
  b.decodes = 1;
  CHECK_THROWS_WITH(layer_serve<Small>(emit, b.arrays(), b.sequences(), options), "emit: 2 kinds of sequences are as many kernels; expected one");
}

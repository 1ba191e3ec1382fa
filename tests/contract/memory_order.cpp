// Loads and stores happen in the order of the source. The right values are written down: two machines can be wrong together.
#include "tiles.hpp"

using namespace gdn;
using namespace gdn::test;
using mosaic::Schedule;

namespace {

constexpr int C = 64, V = 128, chunks = 3, heads = 2;

// out [T, H, V] and the final value of a carried tile that starts from 1, where x is 10, 20, 30 in the chunks.
struct Values {
  std::vector<f32> out = std::vector<f32>(chunks * C * heads * V, 1e30f), final = std::vector<f32>(heads * C * V, 1e30f);
};
template <class M> struct Refs {
  Ref<M, f32, Chunk<C>, Val<V>> x, out;
  Ref<M, f32, Chunk<C>, Val<V>> memory;
};

template <class Body> auto call_of(Values& to, const std::vector<f32>& x, const std::vector<f32>& ones, Body body) {
  const auto in = view(x, {1, chunks * C, heads, V});
  const auto from = view(ones, {1, heads, C, V});
  const auto out = view(to.out, {1, chunks * C, heads, V});
  const auto final = view(to.final, {1, heads, C, V});
  auto declare = [=]<class M>(gdn::detail::Binding<M>& b) {
    Refs<M> r;
    r.x = b.template ref<f32, Chunk<C>, Val<V>>(b.array("x", Use::in, in), Place::tokens, Use::in, Domain::value_head);
    r.out = b.template ref<f32, Chunk<C>, Val<V>>(b.array("out", Use::out, out), Place::tokens, Use::out, Domain::value_head);
    const auto first = b.template ref<f32, Chunk<C>, Val<V>>(b.array("first", Use::in, from), Place::sequence, Use::in, Domain::value_head);
    const auto last = b.template ref<f32, Chunk<C>, Val<V>>(b.array("last", Use::out, final), Place::sequence, Use::out, Domain::value_head);
    r.memory = b.template carried<Chunk<C>, Val<V>>("memory", Domain::value_head, first.id, last.id);
    return r;
  };
  return LambdaCall("order", {1, chunks * C, C, 1, heads}, declare, [body](auto& m, const auto& r) { m.stage(0, [&] { return body(r), 0; }); });
}

// "" or what is wrong with the values.
std::string judged(const Values& v, const std::array<f32, chunks>& out, f32 final) {
  for (int i = 0; i < static_cast<int>(v.out.size()); i++)
    if (v.out[i] != out[i / (C * heads * V)]) return text("out of chunk ", i / (C * heads * V), " is ", v.out[i], " instead of ", out[i / (C * heads * V)]);
  for (f32 x : v.final)
    if (x != final) return text("last is ", x, " instead of ", final);
  return "";
}

// `late` and `late_final`: what a machine gives that moves loads behind stores.
template <class Body> void check(const char* name, Body body, const std::array<f32, chunks>& out, f32 final, const std::array<f32, chunks>& late, f32 late_final) {
  std::vector<f32> x, ones(heads * C * V, 1.f);
  for (int c = 0; c < chunks; c++) x.insert(x.end(), C * heads * V, 10.f * static_cast<f32>(c + 1));
  Values cpu;
  INFO(name);
  Cpu(1).run(call_of(cpu, x, ones, body));
  CHECK(judged(cpu, out, final) == "");
  CHECK(judged(cpu, late, late_final) != "");
  Schedule one_stage = Schedule::paired();
  one_stage.delay = one_stage.order = {0};
  for (const Schedule& s : {Schedule::lifted(), one_stage}) {
    Values simulated;
    Simulate machine(s);
    simulate(machine, Emit::traced(call_of(simulated, x, ones, body)));
    INFO(machine.module.schedule);
    CHECK(judged(simulated, out, final) == "");
  }
}

}  // namespace

TEST_CASE("a value that was loaded does not change when its memory does") {
  check("load, store, use", [](const auto& r) {
    const auto before = load(r.memory);
    store(r.memory, load(r.x));
    store(r.out, before + before);
  }, {2, 20, 40}, 30, {20, 40, 60}, 30);
}

TEST_CASE("a load behind a store sees what was stored") {
  check("store, load", [](const auto& r) {
    store(r.memory, load(r.x));
    store(r.out, load(r.memory));
  }, {10, 20, 30}, 30, {1, 10, 20}, 30);
}

TEST_CASE("two loads with a store between them differ") {
  check("load, store, load", [](const auto& r) {
    const auto before = load(r.memory);
    store(r.memory, before + load(r.x));
    const auto after = load(r.memory);
    store(r.out, after - before);
  }, {10, 20, 30}, 61, {0, 0, 0}, 61);
  check("load, store, load, store", [](const auto& r) {
    const auto before = load(r.memory);
    store(r.memory, load(r.x));
    const auto after = load(r.memory);
    store(r.memory, before);
    store(r.out, after);
  }, {10, 20, 30}, 1, {1, 1, 1}, 1);
}

TEST_CASE("the last of two stores stays") {
  check("store, store, load", [](const auto& r) {
    const auto x = load(r.x);
    store(r.memory, x + x);
    store(r.memory, x);
    store(r.out, load(r.memory));
  }, {10, 20, 30}, 30, {20, 40, 60}, 60);
  check("an output stored twice", [](const auto& r) {
    const auto x = load(r.x);
    store(r.out, x);
    store(r.out, x + x);
  }, {20, 40, 60}, 1, {10, 20, 30}, 1);
}

TEST_CASE("what happens under a condition or in a loop is seen behind it") {
  // The chunk's number is 0, 1, 2 in `chunk`; the store happens in chunk 1 alone.
  const auto body = [](auto& m, const auto& r) {
    loop(m, 3, [&](const auto& i) {
      when(m, i, [](auto i) { return i == 1; }, [&] { store(r.memory, load(r.memory) + load(r.x)); });
      store(r.memory, load(r.memory) + load(r.memory));
    });
    store(r.out, load(r.memory));
  };
  std::vector<f32> x, ones(heads * C * V, 1.f);
  for (int c = 0; c < chunks; c++) x.insert(x.end(), C * heads * V, 10.f * static_cast<f32>(c + 1));
  // m -> 2m, 2 (2m + x), twice that: 8m + 4x from m = 1.
  const std::array<f32, chunks> right{48, 464, 3832};
  Values cpu;
  auto call = [&](Values& to) {
    auto c = call_of(to, x, ones, [](const auto&) {});
    return LambdaCall(c.name, c.extent, c.declare, body);
  };
  Cpu(1).run(call(cpu));
  CHECK(judged(cpu, right, 3832) == "");
  CHECK(judged(cpu, {44, 464, 3832}, 3832) != "");
  Values simulated;
  Simulate machine(Schedule::lifted());
  simulate(machine, Emit::traced(call(simulated)));
  CHECK(judged(simulated, right, 3832) == "");
}

// The per-head program that tracing leaves: what is shared, what belongs to whom, and that C++'s order of arguments does not show.
#include <catch2/catch.hpp>
#include <gdn/calls/forward.hpp>
#include <gdn/mosaic/passes.hpp>

#include "../kernels/replay.hpp"

using namespace gdn;
using trace::Op;

namespace {

// A machine that keeps the program of a call.
struct Tracer {
  Trace trace;
  template <class Call> void run(const Call& call) { trace = Emit::traced(call); }
  template <class F> void check_data(F) const {}
};

using A = Tile<Trace, f32, Chunk<64>, Val<128>>;
using R = Ref<Trace, f32, Chunk<64>, Val<128>>;

// A machine with refs x, y, out of one value head and `memory`, carried.
struct Bench {
  Trace m;
  R x, y, out, memory;
  explicit Bench(Element element = Element::f32) {
    m.program.name = "bench";
    m.program.extent = {1, 64, 64, 1, 1};
    const auto ref = [&](const char* name, Use use) {
      AnyView v{{name, use, element, {1, 64, 1, 128}}, nullptr, {}};
      return m.declare<f32, Chunk<64>, Val<128>>(
          {.name = name, .place = Place::tokens, .use = use, .element = element, .domain = Domain::value_head, .array = m.array(v)});
    };
    x = ref("x", Use::in), y = ref("y", Use::in), out = ref("out", Use::out);
    memory = m.declare<f32, Chunk<64>, Val<128>>({.name = "memory", .place = Place::carried, .use = Use::in, .element = Element::f32, .domain = Domain::value_head});
  }
  int count(Op op) const {
    int n = 0;
    for (auto& node : m.program.nodes) n += node.op == op;
    return n;
  }
  // Operations in the order of the text.
  std::vector<Op> sorted() {
    mosaic::Passes(m.program).sort();
    std::vector<Op> ops;
    for (auto& node : m.program.nodes) ops.push_back(node.op);
    return ops;
  }
  std::string text() const { return test::emitted(m).program(); }
};

struct Forward {
  Tracer tracer;
  std::vector<f32> memory = std::vector<f32>(1 << 20);
  template <class G> const trace::Program& traced(int key_heads, int value_heads) {
    constexpr int K = G::key::size, V = G::value::size;
    const int T = 2 * G::chunk::size;
    CoreArrays<f32> a;
    f32* p = memory.data();
    const auto next = [&](std::int64_t n) { return std::exchange(p, p + n); };
    a.q = view(next(T * key_heads * K), {1, T, key_heads, K}), a.k = view(next(T * key_heads * K), {1, T, key_heads, K});
    a.v = view(next(T * value_heads * V), {1, T, value_heads, V}), a.g = view(next(T * value_heads), {1, T, value_heads});
    a.beta = view(next(T * value_heads), {1, T, value_heads}), a.out = view(next(T * value_heads * V), {1, T, value_heads, V});
    forward<G>(tracer, a, {.use_qk_norm = true});
    return tracer.trace.program;
  }
};

}  // namespace

TEST_CASE("the same operation on the same operands is one node") {
  Bench b;
  const A x = load(b.x), y = load(b.y);
  const A once = x * y + x;
  const int nodes = b.m.program.size();
  const A twice = x * y + x;
  CHECK(once.h.id == twice.h.id);
  CHECK(b.m.program.size() == nodes);
  CHECK((y * x).h.id != (x * y).h.id);
  CHECK((x * 2.f).h.id == (x * 2.f).h.id);
  CHECK((x * 2.f).h.id != (x * 3.f).h.id);
}

TEST_CASE("loads are one until something is stored to their ref") {
  Bench b;
  const A first = load(b.memory), again = load(b.memory), x = load(b.x);
  CHECK(first.h.id == again.h.id);
  store(b.memory, first + x);
  const A after = load(b.memory);
  CHECK(after.h.id != first.h.id);
  CHECK(load(b.x).h.id == x.h.id);  // another ref
  store(b.memory, after);
  CHECK(load(b.memory).h.id != after.h.id);
}

TEST_CASE("work on keys belongs to the key head, once for all its value heads") {
  Forward f;
  const trace::Program& p = f.traced<Geometry<16, 32, 48>>(1, 4);
  int key_dots = 0, value_dots = 0, key_transposes = 0, norms = 0;
  for (auto& n : p.nodes) {
    const bool key = n.domain == Domain::key_head;
    if (n.op == Op::dot) (key ? key_dots : value_dots)++;
    if (n.op == Op::transpose && n.rows > 1 && n.cols > 1) {
      CHECK(key);
      key_transposes++;
    }
    if (n.op == Op::sum_cols) {
      CHECK(key);
      norms++;
    }
  }
  CHECK(key_dots == 2);  // k k^T and q k^T
  CHECK(value_dots == 5);  // M u, k S, q S, E r, kb r; chunks of 16 have no blocks to merge
  CHECK(key_transposes == 1);
  CHECK(norms == 2);
}

TEST_CASE("a node belongs to the narrowest of its operands' heads, and to the stage that made it") {
  Forward f;
  const trace::Program& p = f.traced<Geometry<16, 32, 48>>(2, 4);
  CHECK(p.stages == 3);
  for (auto& n : p.nodes) {
    Domain most = n.op == Op::load ? n.domain : Domain::constant;
    int stage = 0;
    for (int i : n.in) most = std::max(most, p[i].domain), stage = std::max(stage, p[i].stage);
    CHECK(n.domain == most);
    CHECK(n.stage >= stage);
  }
}

TEST_CASE("the order in which arguments are evaluated does not show in the text") {
  std::string texts[2];
  for (int k : {0, 1}) {
    Bench b;
    A x, y;
    if (k) y = load(b.y), x = load(b.x);
    else x = load(b.x), y = load(b.y);
    A left, right;
    if (k) right = y * y, left = x * x;
    else left = x * x, right = y * y;
    store(b.out, left + right);
    texts[k] = b.text();
  }
  CHECK(texts[0] == texts[1]);
  Bench other;
  const A x = load(other.x), y = load(other.y);
  store(other.out, y * y + x * x);
  CHECK(texts[0] != other.text());
}

TEST_CASE("what nobody stores is dropped, and inputs come first") {
  Bench b;
  const A x = load(b.x), y = load(b.y);
  const A unused = exp2(y);
  (void)unused;
  store(b.out, x + x);
  CHECK(b.sorted() == std::vector{Op::load, Op::add, Op::store});
}

TEST_CASE("rounding moves to where it is cheap: through selects of zero and whole bf16 tiles, never through part of one") {
  Bench b;
  const A x = load(b.x);
  trace::Program& p = b.m.program;
  const auto op_of_rounded = [&](const auto& t) { return p[p.round(t.h.id)].op; };
  CHECK(op_of_rounded(x) == Op::round);
  CHECK(op_of_rounded(tril(dot<Precision::f32>(x, transpose(x)))) == Op::select);
  CHECK(op_of_rounded(rows<16, 32>(x)) == Op::rows);
  CHECK(op_of_rounded(rows<8, 32>(x)) == Op::round);
  CHECK(op_of_rounded(concat_rows(rows<16, 16>(x), rows<0, 16>(x))) == Op::concat);
  CHECK(op_of_rounded(concat_rows(rows<16, 8>(x), rows<0, 8>(x))) == Op::round);
  CHECK(op_of_rounded(x + x) == Op::round);
  const A again = rounded(x);
  CHECK(p.round(again.h.id) == p.round(x.h.id));  // of a widened value: the value itself
  CHECK(p[again.h.id].op == Op::extend);
}

TEST_CASE("bf16 arrays are widened when loaded and rounded when stored") {
  Bench b(Element::bf16);
  const A x = load(b.x);
  CHECK(b.m.program[x.h.id].op == Op::extend);
  store(b.out, x);
  CHECK(b.count(Op::round) == 0);  // the array's own value
  store(b.out, x + x);
  CHECK(b.count(Op::round) == 1);
}

TEST_CASE("a dot of class P3 leaves out low parts that are zeros: of widened bf16, and what is moved and selected of it") {
  const auto dots = [](auto left, auto right) {
    Bench b(Element::bf16);
    const A x = load(b.x), y = load(b.y);
    dot<Precision::bf16x3>(left(x), right(y));
    return b.count(Op::dot);
  };
  const auto exact = [](const A& a) { return tril(a); };
  const auto other = [](const A& a) { return a + a; };
  const auto turned = [](auto f) { return [f](const A& a) { return transpose(f(a)); }; };
  CHECK(dots(exact, turned(exact)) == 1);
  CHECK(dots(other, turned(exact)) == 2);
  CHECK(dots(exact, turned(other)) == 2);
  CHECK(dots(other, turned(other)) == 3);
}

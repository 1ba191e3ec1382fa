// `exact` text: the portable definition of a transcendental function written out in operations that every machine rounds alike.
#pragma once
#include "gdn/mosaic/builder.hpp"
#include "gdn/portable/math.hpp"

namespace gdn::mosaic::exact {

// The operations of one function, before they are written: arguments first, whatever order the compiler evaluated them in.
class Graph {
 public:
  Graph(Builder& b, int argument) : b(b), float_(b.type(argument)) {
    const std::string shape = float_.substr(0, float_.rfind('x') + 1);
    integer_ = shape + "i32>";
    truth_ = shape + "i1>";
    nodes_.push_back({"", "", nullptr, {}, argument});
  }
  int real(const char* op, std::vector<int> in, std::string attributes = "fastmath = #arith.fastmath<none>") {
    return add(op, std::move(attributes), float_, std::move(in));
  }
  int word(const char* op, std::vector<int> in, std::string attributes = "") { return add(op, std::move(attributes), integer_, std::move(in)); }
  int truth(const char* op, std::vector<int> in, std::string attributes) { return add(op, std::move(attributes), truth_, std::move(in)); }
  int constant(std::uint32_t bits, Element e) {
    const std::string& type = e == Element::f32 ? float_ : integer_;
    return add("arith.constant", "value = dense<" + literal(bits, e) + "> : " + type, type, {});
  }
  int written(int i) {
    if (nodes_[i].value < 0) {
      std::vector<int> in;
      for (int j : nodes_[i].in) in.push_back(written(j));
      nodes_[i].value = b.op(nodes_[i].op, in, nodes_[i].attributes, *nodes_[i].type);
    }
    return nodes_[i].value;
  }

 private:
  struct Node {
    const char* op;
    std::string attributes;
    const std::string* type;
    std::vector<int> in;
    int value = -1;
  };
  int add(const char* op, std::string attributes, const std::string& type, std::vector<int> in) {
    nodes_.push_back({op, std::move(attributes), &type, std::move(in)});
    return static_cast<int>(nodes_.size()) - 1;
  }
  Builder& b;
  std::string float_, integer_, truth_;
  std::vector<Node> nodes_;
};

// What portable/math.hpp asks of a value type.
struct Term {
  Graph* g;
  int id;
};
struct Word {
  Graph* g;
  int id;
};
struct Truth {
  Graph* g;
  int id;
};
inline Term operator+(const Term& x, const Term& y) { return {x.g, x.g->real("arith.addf", {x.id, y.id})}; }
inline Term operator-(const Term& x, const Term& y) { return {x.g, x.g->real("arith.subf", {x.id, y.id})}; }
inline Term operator*(const Term& x, const Term& y) { return {x.g, x.g->real("arith.mulf", {x.id, y.id})}; }
inline Truth compared(int predicate, const Term& x, const Term& y) {
  return {x.g, x.g->truth("arith.cmpf", {x.id, y.id}, "fastmath = #arith.fastmath<none>, predicate = " + number(predicate) + " : i64")};
}
inline Truth operator<(const Term& x, const Term& y) { return compared(4, x, y); }
inline Truth operator==(const Term& x, const Term& y) { return compared(1, x, y); }
inline Term select(const Truth& m, const Term& x, const Term& y) { return {x.g, x.g->real("arith.select", {m.id, x.id, y.id}, "")}; }
inline Term constant(const Term& like, float x) { return {like.g, like.g->constant(std::bit_cast<std::uint32_t>(x), Element::f32)}; }
inline Word constant(const Word& like, std::uint32_t x) { return {like.g, like.g->constant(x, Element::i32)}; }
inline Word bits(const Term& x) { return {x.g, x.g->word("arith.bitcast", {x.id})}; }
inline Term from_bits(const Word& x) { return {x.g, x.g->real("arith.bitcast", {x.id}, "")}; }
inline constexpr char wraps[] = "overflowFlags = #arith.overflow<none>";
inline Word operator+(const Word& x, const Word& y) { return {x.g, x.g->word("arith.addi", {x.id, y.id}, wraps)}; }
inline Word operator-(const Word& x, const Word& y) { return {x.g, x.g->word("arith.subi", {x.id, y.id}, wraps)}; }
inline Word operator&(const Word& x, const Word& y) { return {x.g, x.g->word("arith.andi", {x.id, y.id})}; }
template <int n> Word shift_left(const Word& x) { return {x.g, x.g->word("arith.shli", {x.id, constant(x, std::uint32_t{n}).id}, wraps)}; }
template <int n> Word shift_right(const Word& x) { return {x.g, x.g->word("arith.shrui", {x.id, constant(x, std::uint32_t{n}).id})}; }

inline bool has_definition(trace::Op op) { return op >= trace::Op::exp2 && op <= trace::Op::sigmoid; }
[[gnu::noinline]] inline int spelled_out(Builder& b, trace::Op op, int value) {
  Graph graph(b, value);
  const Term x{&graph, 0};
  const Term y = [&] {
    switch (op) {
      case trace::Op::exp2: return portable::exp2(x);
      case trace::Op::exp: return portable::exp(x);
      case trace::Op::log1p: return portable::log1p(x);
      case trace::Op::rsqrt: return portable::rsqrt(x);
      case trace::Op::reciprocal: return portable::reciprocal(x);
      default: return portable::sigmoid(x);
    }
  }();
  return graph.written(y.id);
}

}  // namespace gdn::mosaic::exact

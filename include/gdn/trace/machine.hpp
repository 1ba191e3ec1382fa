// The tracing machine: the kernel body runs once, and what it does becomes a Program.
#pragma once
#include "gdn/calls/view.hpp"
#include "gdn/ops.hpp"
#include "gdn/trace/symbol.hpp"

namespace gdn {

struct Trace {
  struct Handle {
    trace::Program* program = nullptr;
    int id = -1;
  };
  using handle = Handle;
  trace::Program program;
  std::vector<AnyView> views;  // of program.arrays

  int array(AnyView a) {
    program.arrays.push_back(a.info);
    views.push_back(std::move(a));
    return static_cast<int>(program.arrays.size()) - 1;
  }
  const ArrayInfo& info(int array) const { return program.arrays[static_cast<std::size_t>(array)]; }
  template <class T, class R, class C> Ref<Trace, T, R, C> declare(RefInfo info) {
    info.rows = R::size;
    info.cols = C::size;
    program.refs.push_back(std::move(info));
    return {this, static_cast<int>(program.refs.size()) - 1};
  }

  // ---- stages: the tracer only notes them; the schedule decides when they run
  template <class F> auto stage(int number, F f) {
    program.stage = number;
    program.stages = std::max(program.stages, number + 1);
    return f();
  }
  template <class F> auto per_key_head(F f) { return f(); }
  template <class F, class... X> void with_head_sums(F f, const X&... x) {
    const handle sums[] = {make(x, trace::Op::sum_heads, X::rows::size, X::cols::size)...};
    [&]<std::size_t... I>(std::index_sequence<I...>) { f(X{sums[I]}...); }(std::index_sequence_for<X...>{});
  }

  // ---- control
  template <class P, class F> void when(const Scalar<Trace, i32>& x, P predicate, F body) {
    const trace::Condition c = predicate(trace::Integer(&program, x.h.id));
    program.open({.op = trace::Op::when, .in = {c.id}, .element = Element::i1});
    body();
    program.close();
  }
  template <class F> void loop(int n, F body) {
    const int region = program.open({.op = trace::Op::loop, .in = {}, .element = Element::i32, .a = n});
    const int i = program.add({.op = trace::Op::loop_index, .in = {}, .element = Element::i32, .a = region, .domain = Domain::token});
    body(Scalar<Trace, i32>{{&program, i}});
    program.close();
  }

  // ---- memory
  template <class T, class R, class C> handle load(int ref) { return load(ref, R::size, C::size); }
  [[gnu::noinline]] handle load(int ref, int rows, int cols) {
    const auto& r = program.refs[ref];
    const int id = program.add({.op = trace::Op::load, .in = {}, .rows = rows, .cols = cols, .element = r.element, .ref = ref, .domain = r.domain});
    return {&program, r.element == Element::bf16 ? program.extend(id) : id};
  }
  template <class T, class R, class C> void store(int ref, const handle& x) { store(ref, x.id, R::size, C::size); }
  [[gnu::noinline]] void store(int ref, int x, int rows, int cols) {
    const auto& r = program.refs[ref];
    if (r.element == Element::bf16) x = program.round(x);
    program.add({.op = trace::Op::store, .in = {x}, .rows = rows, .cols = cols, .element = r.element, .ref = ref});
  }
  template <class T, class R, class C, class H> void store_rows(int ref, const Tile<Trace, f32, H, C>& history, int plan) {
    program.add({.op = trace::Op::store_rows, .in = {history.h.id}, .rows = R::size, .cols = C::size, .element = program.refs[ref].element,
                 .b = plan, .ref = ref});
  }

  // ---- map
  template <class T> using symbol = std::conditional_t<std::is_same_v<T, i32>, trace::Integer, trace::Real>;
  template <class S> using element_of = std::conditional_t<std::is_same_v<S, trace::Integer>, i32, f32>;
  template <bool Indexed, class F, class... T> struct result_of {
    using type = decltype(std::declval<F>()(std::declval<symbol<T>>()...));
  };
  template <class F, class... T> struct result_of<true, F, T...> {
    using type = decltype(std::declval<F>()(std::declval<trace::Integer>(), std::declval<trace::Integer>(), std::declval<symbol<T>>()...));
  };
  template <bool Indexed, class F, class... T> using result_element = element_of<typename result_of<Indexed, F, T...>::type>;

  template <class T, class R, class C> static handle operand(const Tile<Trace, T, R, C>& x) { return x.h; }
  template <Precision P, class A, class B> static handle operand(const Product<P, A, B>& x) { return dot(x); }
  template <bool Indexed, class T, class R, class C, class F, class... X> static handle map(F f, const X&... x) {
    const handle h[] = {operand(x)...};  // braces: left to right, with every compiler
    trace::Program* p = h[0].program;
    auto run = [&]<std::size_t... I>(std::index_sequence<I...>) {
      if constexpr (Indexed) {
        const trace::Integer i{p, p->add({.op = trace::Op::row_index, .in = {}, .rows = R::size, .cols = C::size, .element = Element::i32})};
        const trace::Integer j{p, p->add({.op = trace::Op::col_index, .in = {}, .rows = R::size, .cols = C::size, .element = Element::i32})};
        return f(i, j, symbol<typename X::element>(p, h[I].id)...);
      } else {
        return f(symbol<typename X::element>(p, h[I].id)...);
      }
    };
    const auto result = run(std::make_index_sequence<sizeof...(X)>{});
    return {p, p->stretch(trace::node_of(p, result), R::size, C::size)};
  }
  template <class A> static handle filled(const A& a, f32 x) {
    return {a.h.program, a.h.program->constant(A::rows::size, A::cols::size, std::bit_cast<std::uint32_t>(x))};
  }

  // ---- dot
  template <Precision P, class A, class B> static handle dot(const Product<P, A, B>& x) { return dot(P, x.a.h, x.b.h); }
  [[gnu::noinline]] static handle dot(Precision precision, handle a, handle b) {
    using trace::Op;
    trace::Program& p = *a.program;
    auto one = [&](Precision q, int x, int y) {
      return p.add({.op = Op::dot, .in = {x, y}, .rows = p[x].rows, .cols = p[y].cols, .precision = q});
    };
    if (precision == Precision::f32) return {&p, one(precision, a.id, b.id)};
    const int a_hi = p.round(a.id), b_hi = p.round(b.id);
    const int hi_hi = one(Precision::bf16, a_hi, b_hi);
    if (precision == Precision::bf16) return {&p, hi_hi};
    // The low part of a bf16 value is +0, a dot with it is +0, and no dot is -0: left out, nothing changes.
    auto low = [&](int x, int hi) { return p.round(p.elementwise(Op::sub, {x, p.extend(hi)}, Element::f32)); };
    int sum = hi_hi;
    if (!p.exact_in_bf16(b.id)) sum = p.elementwise(Op::add, {sum, one(Precision::bf16, a_hi, low(b.id, b_hi))}, Element::f32);
    if (!p.exact_in_bf16(a.id)) sum = p.elementwise(Op::add, {sum, one(Precision::bf16, low(a.id, a_hi), b_hi)}, Element::f32);
    return {&p, sum};
  }

  // ---- structure and reductions
  template <class A> static handle make(const A& a, trace::Op op, int rows, int cols, int x = 0, int y = 0) {
    trace::Program* p = a.h.program;
    const auto element = (*p)[a.h.id].element;
    return {p, p->add({.op = op, .in = {a.h.id}, .rows = rows, .cols = cols, .element = element, .a = x, .b = y})};
  }
  template <int Begin, int N, class A> static handle rows(const A& a) {
    if constexpr (Begin == 0 && N == A::rows::size) return a.h;
    return make(a, trace::Op::rows, N, A::cols::size, Begin, N);
  }
  template <class A, class B> static handle concat_rows(const A& a, const B& b) {
    trace::Program* p = a.h.program;
    std::vector<int> in;
    for (int i : {a.h.id, b.h.id}) {
      const trace::Node& n = (*p)[i];
      if (n.op == trace::Op::concat) in.insert(in.end(), n.in.begin(), n.in.end());
      else in.push_back(i);
    }
    return {p, p->add({.op = trace::Op::concat, .in = in, .rows = A::rows::size + B::rows::size, .cols = A::cols::size})};
  }
  template <class A, class B> static handle concat_cols(const A& a, const B& b) {
    trace::Program* p = a.h.program;
    return {p, p->add({.op = trace::Op::concat_cols, .in = {a.h.id, b.h.id}, .rows = A::rows::size, .cols = A::cols::size + B::cols::size})};
  }
  template <class A> static handle transpose(const A& a) { return make(a, trace::Op::transpose, A::cols::size, A::rows::size); }
  template <int B, class A> static handle diagonal_blocks(const A& a) { return make(a, trace::Op::diagonal_blocks, B, A::cols::size, B); }
  template <int B, int J, class A> static handle block_column(const A& a) {
    return make(a, trace::Op::block_column, A::rows::size, A::cols::size, B, J);
  }
  template <class A> static handle rounded(const A& a) { return {a.h.program, a.h.program->extend(a.h.program->round(a.h.id))}; }
  template <class A> static handle sum_cols(const A& a) { return make(a, trace::Op::sum_cols, A::rows::size, 1); }
  template <class A> static handle sum_rows(const A& a) { return make(a, trace::Op::sum_rows, 1, A::cols::size); }
  template <class A> static handle sums_from(const A& a) { return make(a, trace::Op::sums_from, A::rows::size, 1); }
  template <class A> static handle sums_before(const A& a) { return make(a, trace::Op::sums_before, A::rows::size, 1); }
  template <class A> static handle cumsum(const A& a) { return make(a, trace::Op::cumsum, A::rows::size, 1); }
  template <class I, class A> static handle cumsum_within(const I& id, const A& a) {
    trace::Program* p = a.h.program;
    return {p, p->add({.op = trace::Op::cumsum_within, .in = {id.h.id, a.h.id}, .rows = A::rows::size, .cols = 1})};
  }
};

}  // namespace gdn

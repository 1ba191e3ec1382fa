// The CPU machine: every operation of ops.hpp runs at once. It is the bit-exact reference of all other executions.
#pragma once
#include <gdn/calls/view.hpp>
#include <gdn/cpu/ahead.hpp>
#include <gdn/cpu/environment.hpp>
#include <gdn/cpu/reduce.hpp>
#include <gdn/cpu/short_conv.hpp>
#include <gdn/cpu/threads.hpp>
#include <gdn/cpu/token_step.hpp>
#include <gdn/cpu/value.hpp>
#include <gdn/ops.hpp>
#include <gdn/portable/math.hpp>
#include <memory>
#include <thread>

namespace gdn {
inline namespace GDN_ISA {
namespace cpu {

// ---- what map's lambda may call on vectors
GDN_INLINE F where(M m, F a, F b) { return select(m, a, b); }
GDN_INLINE I where(M m, I a, I b) { return select(m, a, b); }
GDN_INLINE M operator&&(M a, M b) { return a & b; }
GDN_INLINE F exp2(F x) { return portable::exp2(x); }
GDN_INLINE F exp(F x) { return portable::exp(x); }
GDN_INLINE F log1p(F x) { return portable::log1p(x); }
GDN_INLINE F rsqrt(F x) { return portable::rsqrt(x); }
GDN_INLINE F reciprocal(F x) { return portable::reciprocal(x); }
GDN_INLINE F sigmoid(F x) { return portable::sigmoid(x); }
GDN_INLINE F softplus(F x) { return portable::softplus(x); }

// ---- operands of map: the vector at columns c.. of row r, One stretched
template <class T> struct VectorOf { using type = F; };
template <> struct VectorOf<i32> { using type = I; };
template <class T> GDN_INLINE typename VectorOf<T>::type read_vector(const float* p) {
  if constexpr (std::is_same_v<T, i32>) return load(reinterpret_cast<const std::int32_t*>(p));
  else return load(p);
}
template <class T> GDN_INLINE typename VectorOf<T>::type read_scalar(const float* p) {
  if constexpr (std::is_same_v<T, i32>) return I(std::bit_cast<std::int32_t>(*p));
  else return F(*p);
}
// n vectors in step: one as itself.
template <class T, int n> struct SideBySide { using type = std::conditional_t<std::is_same_v<T, i32>, Integers<n>, Floats<n>>; };
template <class T> struct SideBySide<T, 1> { using type = typename VectorOf<T>::type; };
template <class T, bool OneRow, bool OneColumn> struct Access {
  const float* p;
  long pitch;
  struct Line {
    const float* p;
    template <int n> GDN_INLINE auto at(int c) const {
      if constexpr (n == 1) return read_vector<T>(p + c);
      else return detail::each<typename SideBySide<T, n>::type>([&](int i) __attribute__((always_inline)) { return read_vector<T>(p + c + i * W); });
    }
  };
  struct Same {
    typename VectorOf<T>::type x;
    template <int n> GDN_INLINE auto at(int) const { return typename SideBySide<T, n>::type(x); }
  };
  GDN_INLINE auto line(int r) const {
    if constexpr (OneColumn) return Same{read_scalar<T>(p + (OneRow ? 0 : r * pitch))};
    else return Line{p + (OneRow ? 0 : r * pitch)};
  }
  GDN_INLINE auto at(int r, int c, F) const { return line(r).template at<1>(c); }
};
struct InRegisters {
  GDN_INLINE F at(int, int, F d) const { return d; }
};
GDN_INLINE void write(float* p, F x) { store(p, x); }
GDN_INLINE void write(bf16* p, F x) { store(p, x); }
GDN_INLINE void write(float* p, I x) { store(reinterpret_cast<std::int32_t*>(p), x); }
template <class To, class Several> requires requires { Several::count; }
GDN_INLINE void write(To* p, const Several& x) {
  GDN_UNROLL
  for (int i = 0; i < Several::count; i++) write(p + i * W, x.v[i]);
}

// What is done while sums are being computed, after every block of them: rows are fetched that will be wanted later, and the block is
// packed, if it will be a right operand.
class BesideSums {
 public:
  BesideSums() = default;
  BesideSums(const Handle& out, RightUse& use) : from_(out.data()), pitch_(out.pitch()), words_(out.packed_ahead(use, words_row_)) {}
  GDN_INLINE void operator()(int i, int j, int rows, int columns) const {
    fetch_->fetch_some();
    if (words_) detail::pack_block(rows, columns, from_ + i * pitch_ + j, pitch_, words_ + i / 2 * words_row_ + j, words_row_);
  }

 private:
  Ahead* fetch_ = &ahead();
  const float* from_ = nullptr;
  long pitch_ = 0, words_row_ = 0;
  std::uint32_t* words_ = nullptr;
};

struct Position;

class Machine {
 public:
  using handle = Handle;

  explicit Machine(const Extent& extent) : extent(extent) {}

  // ---- arrays
  const Extent extent;
  int array(AnyView a) {
    arrays_.push_back(std::move(a));
    return static_cast<int>(arrays_.size()) - 1;
  }
  const ArrayInfo& info(int array) const { return arrays_[static_cast<std::size_t>(array)].info; }
  template <class T, class R, class C> Ref<Machine, T, R, C> declare(RefInfo r) {
    r.rows = R::size;
    r.cols = C::size;
    steps_.push_back(steps_of(r));
    carries_ |= r.place == Place::carried;
    if (r.place == Place::turns) turns_ = static_cast<const i32*>(arrays_[static_cast<std::size_t>(r.array)].data);
    refs_.push_back(std::move(r));
    return {this, static_cast<int>(refs_.size()) - 1};
  }
  const std::vector<RefInfo>& refs() const { return refs_; }
  int chunks_visited(int batch) const {
    int n = extent.chunks();
    for (const RefInfo& r : refs_)
      if (r.place == Place::limit) n = std::min(n, std::max(limit(r, batch) - 1, 0) / extent.chunk + 1);
    return n;
  }

  bool carries() const { return carries_; }
  // Where pieces of a row begin that share nothing: sequences, chunks if nothing is carried, or the row as it is; and its end.
  std::vector<int> pieces() const {
    std::vector<int> starts;
    for (int step = 0; step < extent.chunks(); step++)
      if (step == 0 || !carries_ || (turns_ && is(Turn::begins, chunk_of(step, extent.chunks())))) starts.push_back(step);
    starts.push_back(extent.chunks());
    return starts;
  }
  // The chunk that a step of `chunks` works on.
  int chunk_of(int step, int chunks) const { return extent.descending ? chunks - 1 - step : step; }
  // Whether carried values are handed on after this step, which works on this chunk.
  bool ends(int step, int chunk) const { return turns_ ? is(Turn::keeps, chunk) : step + 1 == extent.chunks(); }

  // ---- stages and sharing
  template <class F> auto stage(int, F f) { return f(); }
  template <class F> auto per_key_head(F f);
  template <class F, class... X> void with_head_sums(F f, const X&... x);

  // ---- control
  template <class P, class Body> void when(const Scalar<Machine, i32>& x, P predicate, Body body) const {
    float holds[W];
    cpu::store(holds, select(predicate(I(std::bit_cast<std::int32_t>(*x.h.data()))), F(1.f), F(0.f)));
    if (holds[0] == 1.f) body();
  }
  template <class F> void loop(int n, F body) const {
    for (int i = 0; i < n; i++) {
      handle index = handle::fresh(1, 1);
      *index.data() = std::bit_cast<float>(static_cast<std::int32_t>(i));
      body(Scalar<Machine, i32>{index});
    }
  }

  // ---- memory
  template <class T, class R, class C> handle load(int ref) const { return load(ref); }
  template <class T, class R, class C> void store(int ref, const handle& x) const { store(ref, x); }
  template <class T, class R, class C, class H> void store_rows(int ref, const Tile<Machine, f32, H, C>& history, int plan) const {
    store_rows(ref, history.h, plan);
  }
  handle load(int ref) const;
  void store(int ref, const handle& x) const;
  void store_rows(int ref, const handle& history, int plan) const;
  // A carried ref's value before the first chunk that is worked on, and after the last one; the rows before a row.
  handle initial(const RefInfo& r) const;
  void finish(const RefInfo& r, const handle& x) const;

  // ---- map
  template <class T> using vector = typename VectorOf<T>::type;
  template <bool Indexed, class F, class... T> struct result_of { using type = decltype(std::declval<F>()(std::declval<vector<T>>()...)); };
  template <class F, class... T> struct result_of<true, F, T...> {
    using type = decltype(std::declval<F>()(std::declval<I>(), std::declval<I>(), std::declval<vector<T>>()...));
  };
  template <bool Indexed, class F, class... T>
  using result_element = std::conditional_t<std::is_same_v<typename result_of<Indexed, F, T...>::type, I>, i32, f32>;

  static constexpr bool fuses_maps = true;
  template <bool Indexed, class T, class R, class C, class F, class... X> static handle map(F f, const X&... x) {
    static_assert(C::size == 1 || R::size == 1 || C::size % 16 == 0, "map: columns must be a multiple of 16");
    static_assert(C::size > 1 || !(ProductLike<X> || ...), "map: a dot of one column; use dot");
    handle out = handle::fresh(R::size, C::size);
    if constexpr (last_product<X...>() >= 0) {
      static RightUse right_use = false;
      run<Indexed, R, C>(f, out.data(), out.pitch(), BesideSums(out, right_use), std::index_sequence_for<X...>{}, x...);
    } else {
      run<Indexed, R, C>(f, out.data(), out.pitch(), BesideSums(), std::index_sequence_for<X...>{}, x...);
    }
    return out;
  }
  // store(map(f, x...)) without the tile between, f of (i, j, elements...).
  template <class R, class C, class F, class... X> void store_map(int ref, F f, const X&... x) const {
    if constexpr (C::size > 1) {
      const RefInfo& r = refs_[static_cast<std::size_t>(ref)];
      const Window w = r.place == Place::carried ? Window{} : next_window(ref);
      if (w.rows == r.rows && w.column == 1) {
        if (r.element == Element::f32) return run<true, R, C>(f, static_cast<float*>(w.array->data) + w.offset, w.row, BesideSums(), std::index_sequence_for<X...>{}, x...);
        return run<true, R, C>(f, static_cast<bf16*>(w.array->data) + w.offset, w.row, BesideSums(), std::index_sequence_for<X...>{}, x...);
      }
    }
    store(ref, map<true, f32, R, C>(f, x...));
  }
  template <class A> static handle filled(const A&, f32 x) {
    handle out = handle::fresh(A::rows::size, A::cols::size);
    fill(out, x);
    return out;
  }

  // ---- dot
  template <Precision P, class A, class B> static handle dot(const Product<P, A, B>& x) {
    handle out = handle::fresh(A::rows::size, B::cols::size);
    static RightUse right_use = false;
    multiply(P, x.a.h, x.b.h, x.a_lower, x.lower_only, out, P == Precision::bf16x3 ? BesideSums() : BesideSums(out, right_use));
    return out;
  }

  // ---- structure and reductions
  template <int Begin, int N, class A> static handle rows(const A& a) {
    if constexpr (Begin == 0 && N == A::rows::size) return a.h;
    return a.h.part(Begin, N, A::cols::size, a.h.pitch());
  }
  template <class A, class B> static handle concat_rows(const A& a, const B& b) { return stacked(a.h, b.h); }
  template <class A, class B> static handle concat_cols(const A& a, const B& b) { return beside(a.h, b.h); }
  template <class A> static handle transpose(const A& a) {
    constexpr int R = A::rows::size, C = A::cols::size;
    if constexpr (R == 1 || C == 1) return a.h.part(0, C, R, R == 1 ? 1 : padded(R));
    return transposed(a.h);
  }
  template <int B, class A> static handle diagonal_blocks(const A& a) {
    handle out = handle::fresh(B, A::cols::size);
    for (int i = 0; i < B; i++)
      for (int j = 0; j < A::cols::size; j++) out.data()[i * out.pitch() + j] = a.h.data()[(j / B * B + i) * a.h.pitch() + j];
    return out;
  }
  template <int B, int J, class A> static handle block_column(const A& a) {
    handle out = handle::fresh(A::rows::size, A::cols::size);
    for (int i = 0; i < A::rows::size; i++)
      for (int j = 0; j < A::cols::size; j++) out.data()[i * out.pitch() + j] = a.h.data()[i * a.h.pitch() + j / B * B + J];
    return out;
  }
  template <class A> static handle rounded(const A& a) {
    handle out = handle::fresh(A::rows::size, A::cols::size);
    cpu::round_to_bf16(A::rows::size, A::cols::size, a.h.data(), a.h.pitch(), out.data(), out.pitch());
    return out;
  }
  template <class A> static handle sum_cols(const A& a) {
    handle out = handle::fresh(A::rows::size, 1);
    cpu::row_sums(A::rows::size, A::cols::size, a.h.data(), a.h.pitch(), out.data(), 1);
    for (int i = 0; i < A::rows::size; i++) out.data()[i] = 0.f + out.data()[i];
    return out;
  }
  template <class A> static handle sum_rows(const A& a) {
    handle out = handle::fresh(1, A::cols::size);
    cpu::column_sums(A::rows::size, A::cols::size, a.h.data(), a.h.pitch(), out.data());
    for (int j = 0; j < A::cols::size; j++) out.data()[j] = 0.f + out.data()[j];
    return out;
  }
  template <class A> static handle cumsum(const A& a) { return summed(a.h, nullptr); }
  template <class A> static handle sums_from(const A& a) {
    constexpr int n = A::rows::size;
    handle upwards = handle::fresh(n, 1);
    std::reverse_copy(a.h.data(), a.h.data() + n, upwards.data());
    prefix_sums(n, upwards.data());
    std::reverse(upwards.data(), upwards.data() + n);
    return upwards;
  }
  template <class A> static handle sums_before(const A& a) {
    constexpr int n = A::rows::size;
    handle out = handle::fresh(n, 1);
    *out.data() = 0.f;
    std::copy_n(a.h.data(), n - 1, out.data() + 1);
    prefix_sums(n, out.data());
    return out;
  }
  template <class J, class A> static handle cumsum_within(const J& id, const A& a) {
    return summed(a.h, reinterpret_cast<const std::int32_t*>(id.h.data()));
  }

  // ---- overrides of composites; tests compare them with their definitions bit for bit
  // Above the diagonal the decays, which are finite, meet zeros: only beta's sign is left of their product.
  template <class Decay, class G, class B, class... X> static std::tuple<X...> decayed_lower(Decay decay, const G& c, const B& beta, const X&... x) {
    constexpr int n = B::rows::size, count = sizeof...(X);
    const handle from[] = {x.h...}, to[] = {(static_cast<void>(x), handle::fresh(n, n))...};
    struct Line {
      const float* from;
      float* to;
    };
    const float *high = c.high.h.data(), *low = high, *b = beta.h.data();
    if constexpr (requires { c.low; }) low = c.low.h.data();
    for (int i = 0; i < n; i++) {
      Line line[count];
      for (int k = 0; k < count; k++) line[k] = {from[k].data() + i * from[k].pitch(), to[k].data() + i * to[k].pitch()};
      int j = 0;
      for (; j <= i; j += W) {
        cpu::F f;
        if constexpr (requires { c.low; }) f = decay(cpu::F(high[i]), cpu::load(high + j), cpu::F(low[i]), cpu::load(low + j)) * cpu::load(b + j);
        else f = decay(cpu::F(high[i]), cpu::load(high + j)) * cpu::load(b + j);
        for (int k = 0; k < count; k++) cpu::store(line[k].to + j, f * cpu::load(line[k].from + j));
      }
      for (; j < n; j += W)
        for (int k = 0; k < count; k++) cpu::store(line[k].to + j, cpu::load(b + j) * cpu::F(0.f));
    }
    return [&]<std::size_t... K>(std::index_sequence<K...>) { return std::tuple<X...>{X{to[K]}...}; }(std::index_sequence_for<X...>{});
  }
  template <class A> static handle invert_diagonal_blocks(const A& N) { return solved_blocks(N.h); }
  template <Precision P, class A, class X> static handle inverse_from_blocks(const A& N, const X& blocks) { return merged(P, N.h, blocks.h); }
  template <class D, class X, class T, class U, class... B> static handle silu_of_short_conv(const D& documents, const X& x, const T& tail, const U& weights, const B&... bias) {
    const std::int32_t* words = nullptr;
    if constexpr (requires { documents.word; }) words = reinterpret_cast<const std::int32_t*>(documents.word.h.data());
    const float* added = nullptr;
    ((added = bias.h.data()), ...);
    handle out = handle::fresh(X::rows::size, X::cols::size);
    cpu::silu_of_short_conv({.rows = X::rows::size, .columns = X::cols::size, .taps = U::rows::size, .x = x.h.data(), .x_row = x.h.pitch(),
                             .tail = tail.h.data(), .tail_row = tail.h.pitch(), .tail_rows = T::rows::size, .weights = weights.h.data(),
                             .weights_row = weights.h.pitch(), .bias = added, .words = words, .out = out.data(), .out_row = out.pitch()});
    return out;
  }
  template <class D, class X, class G, class S> handle token_step(const D& document, const X& x, const G& decay, const S& state) const {
    bool valid = true, begins = false;
    if constexpr (requires { document.word; }) {
      const i32 word = std::bit_cast<i32>(*document.word.h.data());
      valid = word & D::is_valid;
      begins = word & D::begins;
    }
    const TokenStep step{.q = x.keys.q.h.data(), .k = x.keys.k.h.data(), .v = x.v.h.data(), .decay = *decay.h.data(), .beta = *x.beta.h.data()};
    return token_step(step, valid, begins, state.from.id, state.to.id);
  }

 private:
  // The last dot of a map is worked on in registers; others are finished before. Class P3 is a sum of dots and always is.
  template <class... X> static constexpr int last_product() {
    int k = 0, last = -1;
    auto look = [&]<class Y>() {
      if constexpr (ProductLike<Y>)
        if (Y::precision != Precision::bf16x3) last = k;
      k++;
    };
    (look.template operator()<X>(), ...);
    return last;
  }
  template <bool Indexed, class R, class C, class F, class To, std::size_t... K, class... X>
  static void run(F f, To* to, long pitch, const BesideSums& beside, std::index_sequence<K...>, const X&... x) {
    constexpr int last = last_product<X...>();
    const handle memory[] = {memory_of<K == last>(x)...};
    if constexpr (last < 0) {
      lines<Indexed, C::size == 1 ? 1 : R::size, C::size == 1 ? R::size : C::size, C::size == 1>(f, to, pitch, access<R, C, X>(memory[K])...);
    } else {
      multiply(std::get<last>(std::tie(x...)), [=, ... at = access<R, C, X, K == last>(memory[K])](int i, int j, cpu::F d) __attribute__((always_inline)) {
        if constexpr (Indexed) write(to + i * pitch + j, f(I(i), I(j) + iota(), at.at(i, j, d)...));
        else write(to + i * pitch + j, f(at.at(i, j, d)...));
      }, beside);
    }
  }
  template <bool Last, class X> static handle memory_of(const X& x) {
    if constexpr (!ProductLike<X>) return x.h;
    else if constexpr (Last) return handle();
    else return dot(x);
  }
  template <class R, class C, class X, bool Last = false> static auto access(const handle& memory) {
    constexpr bool one_row = X::rows::size == 1, one_column = X::cols::size == 1;
    if constexpr (Last) return InRegisters{};
    else if constexpr (C::size == 1) return Access<typename X::element, true, one_row>{memory.data(), 0};
    else return Access<typename X::element, one_row, one_column>{memory.data(), memory.pitch()};
  }
  // Down: the line is a column.
  template <bool Indexed, int Rows, int Columns, bool Down, class F, class To, class... A> static void lines(F f, To* to, long pitch, A... a) {
    constexpr int k = Columns % (side_by_side * W) == 0 ? side_by_side : Columns % (2 * W) == 0 ? 2 : 1;
    using Index = typename SideBySide<i32, k>::type;
    const Index lane = lanes<k>();
    for (int r = 0; r < Rows; r++) {
      auto line = [&](auto... l) __attribute__((always_inline)) {
        for (int c = 0; c < Columns; c += k * W) {
          To* const p = to + r * pitch + c;
          if constexpr (!Indexed) write(p, f(l.template at<k>(c)...));
          else if constexpr (Down) write(p, f(Index(c) + lane, Index(0), l.template at<k>(c)...));
          else write(p, f(Index(r), Index(c) + lane, l.template at<k>(c)...));
        }
      };
      line(a.line(r)...);
    }
  }
  template <int k> GDN_INLINE static typename SideBySide<i32, k>::type lanes() {
    if constexpr (k == 1) return iota();
    else return detail::each<Integers<k>>([](int i) __attribute__((always_inline)) { return iota() + I(i * W); });
  }

  static void fill(const handle& out, f32 x);
  // each(i, j, d): gemm_each
  template <class X, class Each> static void multiply(const X& x, Each each, const BesideSums& beside) {
    if constexpr (X::precision == Precision::f32) gemm_each(product_of(x.a.h, x.b.h, x.a_lower, x.lower_only), each, beside);
    else gemm_each(packed_product_of(x.a.h, x.b.h, x.a_lower, x.lower_only), each, beside);
  }
  static Gemm product_of(const handle& a, const handle& b, bool a_lower, bool lower_only);
  static PackedGemm packed_product_of(const handle& a, const handle& b, bool a_lower, bool lower_only);
  static void multiply(Precision p, const handle& a, const handle& b, bool a_lower, bool lower_only, const handle& out, const BesideSums& beside);
  static void multiply(Precision p, const Gemm& g);
  static handle stacked(const handle& a, const handle& b);
  static handle beside(const handle& a, const handle& b);
  static handle head_sum(std::vector<handle> x);
  static handle transposed(const handle& a);
  static handle summed(const handle& x, const std::int32_t* ids);
  static handle solved_blocks(const handle& N);
  static handle merged(Precision p, const handle& N, const handle& blocks);
  handle token_step(TokenStep step, bool valid, bool begins, int from, int to) const;

  struct Window {
    const AnyView* array;
    std::int64_t offset;
    std::int64_t row;     // elements from one row to the next
    std::int64_t column;
    int rows;             // inside the array
  };
  // How far a ref's window moves in its array, in elements.
  struct Steps {
    std::int64_t offset = 0, batch = 0, chunk = 0, head = 0, row = 0, column = 1;
    bool ends_with_row = false;  // the last window may reach beyond the array
    bool pool = false;           // the window is a slot's where there are turns
  };
  Steps steps_of(const RefInfo& r) const;
  Window window(int ref, const Position& at) const;
  Window next_window(int ref) const;
  i32 scalar(const RefInfo& r, int entry) const;
  i32 limit(const RefInfo& r, int batch) const {
    const AnyView& a = arrays_[static_cast<std::size_t>(r.array)];
    return static_cast<const i32*>(a.data)[batch * a.strides[0]];
  }

  bool is(std::int32_t flag, int chunk) const { return turn(Turn::flags, chunk) & flag; }
  std::int32_t turn(Turn::Entry entry, int chunk) const { return turns_[chunk * Turn::entries + entry]; }

  std::vector<AnyView> arrays_;
  std::vector<RefInfo> refs_;
  std::vector<Steps> steps_;  // of refs_
  const std::int32_t* turns_ = nullptr;
  bool carries_ = false;
};

// Where a thread is. The kernel body asks for "its" head and chunk only.
struct Position {
  int batch = 0, key_head = 0, part = 0, chunk = 0;  // part: of the value heads of the key head
};
struct Work : Position {
  std::vector<Handle> carried;                              // [ref][part]
  std::vector<std::shared_ptr<void>> shared;                // results of per_key_head, in the order of their calls
  std::size_t next_shared = 0;
  std::vector<std::vector<Handle>> summands;                // of with_head_sums, in the order of the calls and their operands: [part]
  std::size_t next_sum = 0;
};
inline Work*& position() {
  static thread_local Work* p = nullptr;
  return p;
}

template <class F> auto Machine::per_key_head(F f) {
  using Result = decltype(f());
  if (extent.value_heads == extent.key_heads) return f();
  Work& at = *position();
  const std::size_t i = at.next_shared++;
  if (at.part == 0) {
    if (at.shared.size() <= i) at.shared.resize(i + 1);
    at.shared[i] = std::make_shared<Result>(f());
  }
  return *static_cast<Result*>(at.shared[i].get());
}

template <class F, class... X> void Machine::with_head_sums(F f, const X&... x) {
  Work& at = *position();
  std::vector<Handle>* of = nullptr;
  auto next = [&](const Handle& h) {
    if (at.summands.size() <= at.next_sum) at.summands.emplace_back();
    of = &at.summands[at.next_sum++];
    if (at.part == 0) of->clear();
    of->push_back(h);
    return at.part + 1 == extent.ratio() ? head_sum(std::exchange(*of, {})) : Handle();
  };
  const Handle sums[] = {next(x.h)...};  // braces: left to right
  if (at.part + 1 < extent.ratio()) return;
  [&]<std::size_t... I>(std::index_sequence<I...>) { f(X{sums[I]}...); }(std::index_sequence_for<X...>{});
}

// Runs the body for every head and chunk: heads outside, so that what a head works on stays in the cache; heads over threads.
template <class Body> void for_every_head(Machine& m, int threads, Body body) {
  const Extent& x = m.extent;
  const int ratio = x.ratio();
  const auto& refs = m.refs();
  const std::vector<int> starts = m.pieces();
  const long pieces = static_cast<long>(starts.size()) - 1;
  parallel_for(static_cast<long>(x.batch) * x.key_heads * pieces, threads, [&](long item) {
    Work at;
    const auto piece = static_cast<std::size_t>(item % pieces);
    item /= pieces;
    at.batch = static_cast<int>(item / x.key_heads);
    at.key_head = static_cast<int>(item % x.key_heads);
    if (m.carries()) at.carried.resize(refs.size() * static_cast<std::size_t>(ratio));
    Work* outer = std::exchange(position(), &at);
    struct Restore {
      Work* p;
      ~Restore() { position() = p; }
    } restore{outer};
    auto for_carried = [&](auto f) {
      for (std::size_t r = 0; r < refs.size(); r++)
        if (refs[r].place == Place::carried)
          for (int part = 0; part < (refs[r].domain == Domain::value_head ? ratio : 1); part++) {
            at.part = part;
            f(refs[r], at.carried[r * static_cast<std::size_t>(ratio) + static_cast<std::size_t>(part)]);
          }
    };
    const int chunks = m.chunks_visited(at.batch), end = std::min(chunks, starts[piece + 1]);
    for (int step = starts[piece]; step < end; step++) {
      at.chunk = m.chunk_of(step, chunks);
      if (step == starts[piece]) for_carried([&](const RefInfo& r, Handle& h) { h = m.initial(r); });
      for (at.part = 0; at.part < ratio; at.part++) {
        at.next_shared = 0;
        at.next_sum = 0;
        body(m);
      }
      if (m.ends(step, at.chunk)) for_carried([&](const RefInfo& r, Handle& h) { m.finish(r, h); });
    }
  });
}

}  // namespace cpu

// Runs calls on this machine's cores. The results are the same for every number of threads.
class Cpu {
 public:
  // Inlined, so that it is the caller's flags that are checked.
  GDN_INLINE explicit Cpu(int threads = 0) : threads_(threads > 0 ? threads : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()))) {
    cpu::check_environment();
  }
  int threads() const { return threads_; }

  template <class Call> void run(const Call& call) {
    cpu::FlushGuard guard;
    cpu::Machine m(call.extent);
    const auto refs = call.bind(m);
    cpu::for_every_head(m, threads_, [&](cpu::Machine& machine) { call.head(machine, refs); });
  }
  template <class F> void check_data(F f) const { f(); }  // what only the values tell
  template <class... Text> void check_kernels(std::int64_t, Text...) const {}
  void check_turns(const char*, const std::vector<i32>&, int) const {}

 private:
  int threads_;
};

namespace cpu {

// ---------------------------------------------------------------- memory
inline Machine::Steps Machine::steps_of(const RefInfo& r) const {
  Steps w;
  if (r.place == Place::carried) return w;
  const AnyView& a = arrays_[static_cast<std::size_t>(r.array)];
  const auto& s = a.strides;
  const auto& n = a.info.logical;
  w.column = s.empty() ? 1 : s.back();
  auto heads_of_row = [&](std::size_t d) {  // dims from d on: [H, W], [D], or [H] for one column
    const bool apart = n.size() == d + 2;
    w.head = apart ? s[d] : r.cols * s[d];
    w.offset = apart ? 0 : r.first_column * s[d];
  };
  if (r.place != Place::weights && r.place != Place::per_head) w.batch = s[0];
  switch (r.place) {
    case Place::tokens:
      if (n.size() == 5) {  // [B, N, C, H, C]
        w.chunk = s[1], w.head = s[3], w.row = s[2];
      } else {
        heads_of_row(2);
        w.chunk = extent.chunk * s[1], w.row = s[1], w.ends_with_row = true;
      }
      break;
    case Place::before:
      heads_of_row(2);
      w.chunk = extent.chunk * s[1], w.row = s[1], w.offset -= r.rows * s[1];
      break;
    case Place::words:
      w.row = s.back(), w.ends_with_row = n.size() == 2;
      w.chunk = n.size() == 2 ? extent.chunk * s[1] : s[1];
      break;
    case Place::weights: heads_of_row(1), w.row = s[0]; break;
    case Place::per_head: w.head = s[0]; break;
    case Place::chunk_state: w.chunk = s[1], w.head = s[2], w.row = s[3]; break;
    case Place::sequence: w.head = s[1], w.row = s[2], w.pool = true; break;
    case Place::edge_rows: heads_of_row(2), w.row = s[1], w.pool = true; break;
    case Place::scalars: w.chunk = s[1], w.offset = r.offset * s[1]; break;
    case Place::limit: case Place::turns: case Place::carried: break;
  }
  w.offset += r.first_row * w.row;
  if (r.rows == 1) w.row = 0;
  return w;
}
inline Machine::Window Machine::window(int ref, const Position& at) const {
  const RefInfo& r = refs_[static_cast<std::size_t>(ref)];
  const Steps& s = steps_[static_cast<std::size_t>(ref)];
  const int head = r.domain == Domain::value_head ? at.key_head * extent.ratio() + at.part : r.domain == Domain::key_head ? at.key_head : 0;
  std::int64_t offset = s.offset + at.batch * s.batch + head * s.head;
  int rows = r.rows;
  if (!turns_) {
    offset += at.chunk * s.chunk;
    if (s.ends_with_row) rows = std::clamp(extent.tokens - at.chunk * extent.chunk - r.first_row, 0, r.rows);
  } else if (s.pool) {
    offset += turn(r.use == Use::in ? Turn::from : Turn::to, at.chunk) * s.batch;
  } else if (s.ends_with_row || r.place == Place::before) {
    offset += turn(Turn::row, at.chunk) * (s.chunk / extent.chunk);
    if (s.ends_with_row) rows = std::min(r.rows, turn(Turn::rows, at.chunk));
  } else {
    offset += at.chunk * s.chunk;
  }
  return {&arrays_[static_cast<std::size_t>(r.array)], offset, s.row, s.column, rows};
}
// The window of this head and chunk; the one that will be asked for next is fetched while dots are computed.
inline Machine::Window Machine::next_window(int ref) const {
  const RefInfo& r = refs_[static_cast<std::size_t>(ref)];
  Position at = *position();
  const Window here = window(ref, at);
  if (r.place != Place::tokens || here.column != 1 || r.cols == 1) return here;
  const int first = extent.descending ? extent.chunks() - 1 : 0, last = extent.chunks() - 1 - first;
  if (r.domain != Domain::value_head || ++at.part == extent.ratio()) {
    at.part = 0;
    if (at.chunk == last) at.chunk = first, at.key_head++;
    else at.chunk += extent.descending ? -1 : 1;
  }
  if (at.key_head == extent.key_heads) return here;
  const Window next = window(ref, at);
  const long bytes = r.element == Element::bf16 ? 2 : 4;
  ahead().add(static_cast<const char*>(next.array->data) + next.offset * bytes, next.row * bytes, next.rows, static_cast<int>(r.cols * bytes),
              r.use == Use::out);
  return here;
}
inline i32 Machine::scalar(const RefInfo& r, int entry) const {
  const AnyView& a = arrays_[static_cast<std::size_t>(r.array)];
  return static_cast<const i32*>(a.data)[position()->batch * a.strides[0] + (position()->chunk * r.per_chunk + entry) * a.strides[1]];
}
namespace detail {
template <class T> void copy_in(const T* p, std::int64_t row, std::int64_t column, int rows, int columns, float* to, long pitch) {
  for (int i = 0; i < rows; i++)
    for (int j = 0; j < columns; j++) {
      const T x = p[i * row + j * column];
      if constexpr (std::is_same_v<T, i32>) to[i * pitch + j] = std::bit_cast<float>(x);
      else to[i * pitch + j] = to_f32(x);
    }
}
template <class T> void copy_out(const float* from, long pitch, int rows, int columns, T* p, std::int64_t row, std::int64_t column) {
  for (int i = 0; i < rows; i++)
    for (int j = 0; j < columns; j++) {
      if constexpr (std::is_same_v<T, bf16>) p[i * row + j * column] = to_bf16(from[i * pitch + j]);
      else p[i * row + j * column] = from[i * pitch + j];
    }
}
}  // namespace detail

inline Handle Machine::load(int ref) const {
  const RefInfo& r = refs_[static_cast<std::size_t>(ref)];
  Work& at = *position();
  if (r.place == Place::carried) {  // tiles are never changed, so the value itself is handed out
    const int part = r.domain == Domain::value_head ? at.part : 0;
    return at.carried[static_cast<std::size_t>(ref * extent.ratio() + part)];
  }
  if (r.place == Place::limit) {
    Handle h = Handle::fresh(1, 1);
    *h.data() = std::bit_cast<float>(limit(r, at.batch) - at.chunk * extent.chunk);
    return h;
  }
  if (r.place == Place::before && (turns_ ? is(Turn::first, at.chunk) : at.chunk == 0)) return initial(r);
  const Window w = next_window(ref);
  const void* data = w.array->data;
  const bool whole = w.rows == r.rows && w.column == 1 && r.cols > 1;
  if (r.element == Element::f32 && whole) return Handle::view(r.rows, r.cols, static_cast<const float*>(data) + w.offset, w.row);
  if (r.element == Element::bf16 && whole) return Handle::view(r.rows, r.cols, static_cast<const bf16*>(data) + w.offset, w.row);
  Handle h = Handle::fresh(r.rows, r.cols);
  if (w.rows < r.rows) fill(h, 0.f);
  const std::int64_t column = r.cols == 1 ? 1 : w.column;
  if (r.element == Element::f32) detail::copy_in(static_cast<const float*>(data) + w.offset, w.row, column, w.rows, r.cols, h.data(), h.pitch());
  else if (r.element == Element::bf16) detail::copy_in(static_cast<const bf16*>(data) + w.offset, w.row, column, w.rows, r.cols, h.data(), h.pitch());
  else detail::copy_in(static_cast<const i32*>(data) + w.offset, w.row, column, w.rows, r.cols, h.data(), h.pitch());
  return h;
}
inline void Machine::store(int ref, const Handle& x) const {
  const RefInfo& r = refs_[static_cast<std::size_t>(ref)];
  Work& at = *position();
  if (r.place == Place::carried) {
    const int part = r.domain == Domain::value_head ? at.part : 0;
    at.carried[static_cast<std::size_t>(ref * extent.ratio() + part)] = x;
    return;
  }
  const Window w = next_window(ref);
  if (r.element == Element::f32) {
    auto* p = static_cast<float*>(w.array->data) + w.offset;
    if (w.column != 1) return detail::copy_out(x.data(), x.pitch(), w.rows, r.cols, p, w.row, w.column);
    for (int i = 0; i < w.rows; i++) std::memcpy(p + i * w.row, x.data() + i * x.pitch(), sizeof(float) * static_cast<std::size_t>(r.cols));
  } else {
    auto* p = static_cast<bf16*>(w.array->data) + w.offset;
    if (w.column != 1) return detail::copy_out(x.data(), x.pitch(), w.rows, r.cols, p, w.row, w.column);
    narrow(w.rows, r.cols, x.data(), x.pitch(), p, w.row);
  }
}
inline void Machine::store_rows(int ref, const Handle& history, int plan) const {
  const RefInfo &r = refs_[static_cast<std::size_t>(ref)], &s = refs_[static_cast<std::size_t>(plan)];
  if (scalar(s, 0) != position()->chunk) return;
  Handle rows = Handle::fresh(r.rows, r.cols);
  for (int i = 0; i < r.rows; i++) {
    const i32 from = scalar(s, 1 + i);
    float* to = rows.data() + i * rows.pitch();
    if (from < 0) std::memset(to, 0, sizeof(float) * static_cast<std::size_t>(r.cols));
    else std::memcpy(to, history.data() + from * history.pitch(), sizeof(float) * static_cast<std::size_t>(r.cols));
  }
  store(ref, rows);
}
inline Handle Machine::initial(const RefInfo& r) const {
  Handle h = Handle::fresh(r.rows, r.cols);
  fill(h, 0.f);
  for (int i = 0; r.identity && i < r.rows; i++) h.data()[i * h.pitch() + i] = 1.f;
  if (r.initial < 0 || (r.place == Place::carried && turns_ && !is(Turn::reads, position()->chunk))) return h;
  const Handle from = load(r.initial);
  for (int i = 0; i < from.rows(); i++)  // fewer rows than carried are the last ones
    std::memcpy(h.data() + (r.rows - from.rows() + i) * h.pitch(), from.data() + i * from.pitch(), sizeof(float) * static_cast<std::size_t>(r.cols));
  return h;
}
inline void Machine::finish(const RefInfo& r, const Handle& x) const {
  if (r.final < 0) return;
  const int rows = refs_[static_cast<std::size_t>(r.final)].rows;
  store(r.final, rows < r.rows ? x.part(r.rows - rows, rows, r.cols, x.pitch()) : x);
}

// ---------------------------------------------------------------- tiles
inline void Machine::fill(const Handle& out, f32 x) {
  for (int i = 0; i < out.rows(); i++) std::fill_n(out.data() + i * out.pitch(), out.columns(), x);
}
[[gnu::noinline]] inline Gemm Machine::product_of(const Handle& a, const Handle& b, bool a_lower, bool lower_only) {
  return {.m = a.rows(), .n = b.columns(), .k = a.columns(), .a = a.data(), .a_row = a.pitch(), .a_col = 1, .b = b.data(), .b_row = b.pitch(),
          .c = nullptr, .c_row = 0, .a_part = a_lower ? Part::lower : Part::full, .c_lower = lower_only};
}
[[gnu::noinline]] inline PackedGemm Machine::packed_product_of(const Handle& a, const Handle& b, bool a_lower, bool lower_only) {
  PackedGemm g = packed_gemm(a.rows(), b.columns(), a.columns(), a.packed(false), b.packed(true), nullptr, 0);
  g.a_part = a_lower ? Part::lower : Part::full;
  g.c_lower = lower_only;
  return g;
}
[[gnu::noinline]] inline void Machine::multiply(Precision p, const Handle& a, const Handle& b, bool a_lower, bool lower_only, const Handle& out,
                                                const BesideSums& beside) {
  float* const c = out.data();
  const long c_row = out.pitch();
  const auto each = [=](int i, int j, cpu::F d) __attribute__((always_inline)) { cpu::store(c + i * c_row + j, d); };
  if (p == Precision::f32) return gemm_each(product_of(a, b, a_lower, lower_only), each, beside);
  PackedGemm g = packed_product_of(a, b, a_lower, lower_only);
  if (p == Precision::bf16) return gemm_each(g, each, beside);
  g.c = c;
  g.c_row = c_row;
  gemm_p3(g, a.packed(false, Piece::low).words(), b.packed(true, Piece::low).words());
}
// The same for operands in f32 that are used once.
[[gnu::noinline]] inline void Machine::multiply(Precision p, const Gemm& g) {
  if (p == Precision::f32) return gemm(g);
  const Packed left = Packed::columns(g.m, g.k, g.a, g.a_row), right = Packed::rows(g.k, g.n, g.b, g.b_row);
  PackedGemm packed = packed_gemm(g.m, g.n, g.k, left, right, g.c, g.c_row);
  packed.finish = g.finish;
  packed.x = g.x;
  packed.x_row = g.x_row;
  packed.x_is_column = g.x_is_column;
  packed.a_part = g.a_part;
  packed.b_part = g.b_part;
  if (p == Precision::bf16) return gemm(packed);
  const Packed left_low = Packed::columns(g.m, g.k, g.a, g.a_row, Piece::low), right_low = Packed::rows(g.k, g.n, g.b, g.b_row, Piece::low);
  gemm_p3(packed, left_low.words(), right_low.words());
}
inline Handle Machine::stacked(const Handle& a, const Handle& b) {
  Handle out = Handle::fresh(a.rows() + b.rows(), a.columns());
  const std::size_t bytes = sizeof(float) * static_cast<std::size_t>(a.columns());
  for (int i = 0; i < a.rows(); i++) std::memcpy(out.data() + i * out.pitch(), a.data() + i * a.pitch(), bytes);
  for (int i = 0; i < b.rows(); i++) std::memcpy(out.data() + (a.rows() + i) * out.pitch(), b.data() + i * b.pitch(), bytes);
  return out;
}
inline Handle Machine::beside(const Handle& a, const Handle& b) {
  Handle out = Handle::fresh(a.rows(), a.columns() + b.columns());
  for (int i = 0; i < a.rows(); i++) {
    float* to = out.data() + i * out.pitch();
    std::memcpy(to, a.data() + i * a.pitch(), sizeof(float) * static_cast<std::size_t>(a.columns()));
    std::memcpy(to + a.columns(), b.data() + i * b.pitch(), sizeof(float) * static_cast<std::size_t>(b.columns()));
  }
  return out;
}
inline Handle Machine::head_sum(std::vector<Handle> x) {
  for (std::size_t half = std::bit_ceil(x.size()) / 2; half > 0; half /= 2) {
    for (std::size_t h = half; h < x.size(); h++) {
      const Handle &a = x[h - half], &b = x[h];
      Handle sum = Handle::fresh(a.rows(), a.columns());
      for (int i = 0; i < a.rows(); i++)
        for (int j = 0; j < a.columns(); j += W)
          cpu::store(sum.data() + i * sum.pitch() + j, cpu::load(a.data() + i * a.pitch() + j) + cpu::load(b.data() + i * b.pitch() + j));
      x[h - half] = sum;
    }
    x.resize(half);
  }
  return x[0];
}
inline Handle Machine::transposed(const Handle& a) {
  Handle out = Handle::fresh(a.columns(), a.rows());
  if (a.narrow()) cpu::transpose(a.rows(), a.columns(), a.narrow(), a.narrow_pitch(), out.data(), out.pitch());
  else cpu::transpose(a.rows(), a.columns(), static_cast<const float*>(a.data()), a.pitch(), out.data(), out.pitch());
  return out;
}
inline Handle Machine::summed(const Handle& x, const std::int32_t* ids) {
  Handle out = Handle::fresh(x.rows(), 1);
  std::memcpy(out.data(), x.data(), sizeof(float) * static_cast<std::size_t>(x.rows()));
  prefix_sums(x.rows(), out.data(), ids);
  return out;
}
// The definition's operations in its order, one block after the other, in registers and without its moves.
[[gnu::noinline]] inline Handle Machine::solved_blocks(const Handle& N) {
  constexpr int B = 16, V = B / W;
  Handle out = Handle::fresh(B, N.columns());
  const long pitch = N.pitch();
  for (int at = 0; at < N.columns(); at += B) {
    const float* n = N.data() + at * pitch + at;
    F x[B][V];
    GDN_UNROLL
    for (int i = 0; i < B; i++)
      GDN_UNROLL
      for (int v = 0; v < V; v++) x[i][v] = select(iota() + I(v * W) == I(i), F(1.f), F(0.f));
    GDN_UNROLL
    for (int j = 0; j < B - 1; j++) {
      F row[V];
      GDN_UNROLL
      for (int v = 0; v < V; v++) row[v] = x[j][v];
      GDN_UNROLL
      for (int i = j < 7 ? 0 : 8; i < B; i++) {
        const F f(n[i * pitch + j]);
        GDN_UNROLL
        for (int v = 0; v < V; v++) x[i][v] = x[i][v] - f * row[v];
      }
    }
    GDN_UNROLL
    for (int i = 0; i < B; i++)
      GDN_UNROLL
      for (int v = 0; v < V; v++) cpu::store(out.data() + i * out.pitch() + at + v * W, x[i][v]);
  }
  return out;
}
// The blocks of the definition that are not zero: M21 = 0 - M22 (N21 M11), in place; the last N21 in two parts, if it is rounded.
[[gnu::noinline]] inline Handle Machine::merged(Precision p, const Handle& N, const Handle& blocks) {
  constexpr int B = 16;
  Handle out = Handle::fresh(N.rows(), N.columns());
  const long pitch = out.pitch();
  float* M = out.data();
  for (int i = 0; i < N.rows(); i++)
    for (int j = 0; j < N.columns(); j += W) {
      const bool diagonal = i / B == j / B;
      cpu::store(M + i * pitch + j, diagonal ? cpu::load(blocks.data() + i % B * blocks.pitch() + j) : cpu::F(0.f));
    }
  const float zero = 0.f;
  for (int S = B; S < N.rows(); S *= 2) {
    const Storage products(static_cast<std::size_t>(S * S));
    for (int at = 0; at < N.rows(); at += 2 * S) {
      const float *N21 = N.data() + (at + S) * N.pitch() + at, *M11 = M + at * pitch + at, *M22 = M + (at + S) * pitch + at + S;
      Gemm inner{.m = S, .n = S, .k = S, .a = N21, .a_row = N.pitch(), .a_col = 1, .b = M11, .b_row = pitch, .c = products.data(), .c_row = S};
      inner.b_part = Part::lower;
      multiply(p, inner);
      if (p == Precision::bf16 && 2 * S == N.rows()) {
        const Storage low(static_cast<std::size_t>(S * S));
        const Packed rest = Packed::columns(S, S, N21, N.pitch(), Piece::low), right = Packed::rows(S, S, M11, pitch);
        PackedGemm of_low = packed_gemm(S, S, S, rest, right, low.data(), S);
        of_low.b_part = Part::lower;
        gemm(of_low);
        for (int i = 0; i < S * S; i += W) cpu::store(products.data() + i, cpu::load(products.data() + i) + cpu::load(low.data() + i));
      }
      Gemm outer{.m = S, .n = S, .k = S, .a = M22, .a_row = pitch, .a_col = 1, .b = products.data(), .b_row = S, .c = M + (at + S) * pitch + at, .c_row = pitch};
      outer.a_part = Part::lower;
      outer.finish = Finish::minus;
      outer.x = &zero;
      outer.x_is_column = true;
      multiply(p, outer);
    }
  }
  return out;
}

// The state is read where it lies and written where it goes: in place if it is carried.
[[gnu::noinline]] inline Handle Machine::token_step(TokenStep step, bool valid, bool begins, int from, int to) const {
  const RefInfo& r = refs_[static_cast<std::size_t>(to)];
  const auto at = [&](int ref) -> Handle& {
    return position()->carried[static_cast<std::size_t>(ref * extent.ratio() + (r.domain == Domain::value_head ? position()->part : 0))];
  };
  Handle out = Handle::fresh(1, r.cols);
  if (!valid) {
    fill(out, 0.f);
    if (from != to) store(to, load(from));
    return out;
  }
  const bool carried = r.place == Place::carried;
  Handle before;
  if (begins) fill(before = Handle::fresh(1, r.cols), 0.f);
  else if (from != to || !carried || !at(to).own_data()) before = load(from);
  const Window w = carried ? Window{} : window(to, *position());
  Handle after;
  if (carried && at(to).own_data()) after = at(to);
  else if (carried || w.column != 1) after = Handle::fresh(r.rows, r.cols);
  step.rows = r.rows;
  step.columns = r.cols;
  step.to = after ? after.data() : static_cast<float*>(w.array->data) + w.offset;
  step.to_row = after ? after.pitch() : w.row;
  step.from = before ? before.data() : step.to;
  step.from_row = begins ? 0 : before ? before.pitch() : step.to_row;
  if (before && !begins && refs_[static_cast<std::size_t>(from)].place == Place::sequence)  // of the next head: it mostly follows in memory
    step.next = step.from + steps_[static_cast<std::size_t>(from)].head;
  step.out = out.data();
  cpu::token_step(step);
  if (after) store(to, after);
  return out;
}

}  // namespace cpu
}  // namespace GDN_ISA
}  // namespace gdn

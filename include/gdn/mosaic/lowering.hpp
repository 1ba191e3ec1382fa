// What all placements share: windows of the call's arrays, scratch, the grid, and the module around the kernel's body.
#pragma once
#include <functional>
#include <numeric>
#include <set>
#include <tuple>

#include "gdn/mosaic/exact.hpp"
#include "gdn/mosaic/module.hpp"
#include "gdn/mosaic/schedule.hpp"

namespace gdn::mosaic {

using trace::Node;
using trace::Op;
using trace::Program;

inline std::int64_t padded_bytes(const Shape& s, Element e) {
  const int row_tile = e == Element::bf16 ? 16 : 8;
  const auto up = [](std::int64_t n, std::int64_t m) { return (n + m - 1) / m * m; };
  std::int64_t n = up(s.back(), 128) * (e == Element::bf16 ? 2 : 4);
  if (s.size() > 1) n *= up(s[s.size() - 2], row_tile);
  for (std::size_t i = 0; i + 2 < s.size(); i++) n *= s[i];
  return n;
}

class Lowering {
 public:
  Lowering(Program program, Schedule schedule) : p(std::move(program)), s(std::move(schedule)) {
    x = p.extent;
    if (s.heads_per_step == 0) s.heads_per_step = x.value_heads;
    require(s.heads_per_step > 0 && x.value_heads % s.heads_per_step == 0, "heads_per_step is ", s.heads_per_step,
            "; expected a divisor of the ", x.value_heads, " value heads");
    require(s.heads_per_step % x.ratio() == 0, "heads_per_step is ", s.heads_per_step, "; a step needs whole key heads, so a multiple of ",
            x.ratio(), " value heads");
    batch_index = b.value("%b", "i32");
    block_index = b.value("%g", "i32");
    step_index = b.value("%t", "i32");
  }

 protected:
  struct Index {
    enum Kind {
      zero, batch, chunk,
      before,  // the block of `rows_before` rows that ends where the chunk begins; for the first chunk, its own first block
      block,
      block_of_first, block_of_last,         // block 0 in every other step
      token_block, read_slot, written_slot,  // named by the chunk's turn
    } kind = zero;
    int scale = 1, offset = 0;  // of block
    auto operator<=>(const Index&) const = default;
  };
  struct Window {
    int array;
    Shape block;
    std::vector<Index> index;
    int delay;
    Element element;
    Use use;
    int value;
    bool state = false;  // a sequence's, which stays for many steps
  };
  struct Scratch {
    Shape shape;
    Element element;
    int value;
  };
  struct At {  // a place in a window
    const Window* window;
    int lane;
  };

  Program p;
  Schedule s;
  Extent x;
  Builder b;
  int batch_index, block_index, step_index;
  std::vector<Window> windows_;
  std::vector<Scratch> scratch_;
  std::map<int, int> prefetched_;  // array -> value

  int blocks() const { return x.value_heads / s.heads_per_step; }
  // Where all heads of a token share a window of an output, its blocks of heads are visited one after the other: inside the chunks.
  bool blocks_inside() const {
    return s.heads == Schedule::Heads::lifted && blocks() > 1 &&
           std::any_of(p.refs.begin(), p.refs.end(), [](const RefInfo& r) { return r.use == Use::out && r.place == Place::tokens && r.cols == 1; });
  }
  static bool of_heads(const Index& i) { return i.kind == Index::block || i.kind == Index::block_of_first || i.kind == Index::block_of_last; }
  // The grid in its order: names of the indices, and extents.
  std::vector<std::pair<std::string, int>> grid() const {
    std::vector<std::pair<std::string, int>> axes{{"%b", x.batch}, {"%g", blocks()}, {"%t", x.chunks() + most_delay()}};
    if (blocks_inside()) std::swap(axes[1], axes[2]);
    return axes;
  }
  int heads_in_step(Domain d) const { return d == Domain::value_head ? s.heads_per_step : d == Domain::key_head ? s.heads_per_step / x.ratio() : 1; }
  int heads_of(Domain d) const { return d == Domain::value_head ? x.value_heads : x.key_heads; }
  // Columns of a token's row, over all heads and parts; arrays by chunks, [B, N, C, ..], have one dim more before it.
  int row_width(int array) const { return rest_of(array, by_chunks(array) ? 3 : 2); }
  bool by_chunks(int array) const { return p.arrays[array].logical.size() == 5; }

  // ---- windows
  static constexpr int rows_before = 16;  // the height of a bf16 tile
  const Window& window(int array, Shape block, std::vector<Index> index, int delay, Use use) {
    for (const Window& w : windows_)
      if (w.array == array && w.block == block && w.index == index && w.delay == delay) return w;
    const Element e = p.arrays[array].element;
    const int v = b.value("%w" + number(static_cast<long>(windows_.size())), memref_type(block, e));
    windows_.reserve(256);  // references stay good
    const bool state = std::any_of(p.refs.begin(), p.refs.end(), [&](const RefInfo& r) { return r.array == array && r.place == Place::sequence; });
    windows_.push_back({array, std::move(block), std::move(index), delay, e, use, v, state});
    return windows_.back();
  }
  // The window and lane where columns [column, column + n) of the step's part of a row lie.
  At row_window(const RefInfo& r, int column, int n, Shape leading, std::vector<Index> index, int delay) {
    const int width = r.place == Place::weights ? rest_of(r.array, 1) : row_width(r.array);
    if (blocks() == 1 || r.domain < Domain::key_head) {
      leading.push_back(width);
      index.push_back({});
      return {&window(r.array, leading, index, delay, r.use), r.first_column + column};
    }
    const int part = heads_in_step(r.domain) * r.cols;
    const int w = std::gcd(r.first_column, part);
    require(w % 128 == 0 && column / w == (column + n - 1) / w, "heads_per_step is ", s.heads_per_step, ": blocks of ", part,
            " columns at column ", r.first_column, " of ", p.arrays[r.array].name, " are no multiple of 128 lanes; take all heads in one step");
    leading.push_back(w);
    index.push_back({Index::block, part / w, r.first_column / w + column / w});
    return {&window(r.array, leading, index, delay, r.use), column % w};
  }
  // Rows at the edge of a sequence: one window for all blocks of heads, so that blocks of an output meet in it.
  const Window& edge_window(const RefInfo& r, int delay) {
    require(!turns() || r.use == Use::in || blocks() == 1 || blocks_inside(), "heads_per_step is ", s.heads_per_step, ": a slot of ", p.arrays[r.array].name,
            " is written at once; take all heads in one step");
    return window(r.array, {1, r.rows, row_width(r.array)}, {state_index(r), {}, {}}, turns() ? delay : 0, r.use);
  }
  // Lane of column `column` + 128 `blocks_of_lanes` (an i32 value, or -1) of the step's part of such a row.
  int edge_lane(const RefInfo& r, int column, int blocks_of_lanes = -1) {
    if (blocks() == 1 && blocks_of_lanes < 0) return b.index(r.first_column + column);
    int lane = b.i32(r.first_column + column);
    if (blocks() > 1) {
      const int part = heads_in_step(r.domain) * r.cols;
      require(part % 128 == 0, "heads_per_step is ", s.heads_per_step, ": blocks of ", part, " columns of ", p.arrays[r.array].name,
              " are no multiple of 128 lanes; take all heads in one step");
      lane = b.op("arith.addi", {lane, b.op("arith.muli", {block_index, b.i32(part)}, "", "i32")}, "", "i32");
    }
    if (blocks_of_lanes >= 0) lane = b.op("arith.addi", {lane, b.op("arith.muli", {blocks_of_lanes, b.i32(128)}, "", "i32")}, "", "i32");
    return b.as_index(b.op("tpu.assume_multiple", {lane}, "multiple = 128 : i32", "i32"));
  }
  // Rows of tokens: of the chunk, or of the turn that the chunk is.
  Index tokens_index(const RefInfo& r) const { return {turns() && !by_chunks(r.array) ? Index::token_block : Index::chunk}; }
  // The sequence that a state is of, or the slot in a pool of states.
  Index state_index(const RefInfo& r) const { return {!turns() ? Index::batch : r.use == Use::in ? Index::read_slot : Index::written_slot}; }
  At tokens_window(const RefInfo& r, int column, int n, int delay) {
    if (x.chunk == 1) return row_window(r, column, n, {1, 1, 1}, {{Index::batch}, tokens_index(r), {}}, delay);
    return row_window(r, column, n, {1, x.chunk}, {{Index::batch}, tokens_index(r)}, delay);
  }
  At before_window(const RefInfo& r, int column, int n, int delay) {
    require(r.rows <= rows_before && x.chunk % rows_before == 0, p.name, ": ", r.rows, " rows before chunks of ", x.chunk,
            " tokens; expected at most ", rows_before, " and a multiple of it");
    return row_window(r, column, n, {1, rows_before}, {{Index::batch}, {Index::before}}, delay);
  }
  const Window& gates_window(const RefInfo& r, int delay) {
    const int width = row_width(r.array);
    if (x.chunk == 1) return window(r.array, {1, 1, 1, width}, {{Index::batch}, tokens_index(r), {}, {}}, delay, r.use);
    return window(r.array, {1, x.chunk, width}, {{Index::batch}, tokens_index(r), {}}, delay, r.use);
  }
  const Window& words_window(const RefInfo& r, int delay) {
    if (p.arrays[r.array].logical.size() == 2) return window(r.array, {1, 1, x.chunk}, {{Index::batch}, {}, {Index::chunk}}, delay, r.use);
    return window(r.array, {1, 1, 1, x.chunk}, {{Index::batch}, {Index::chunk}, {}, {}}, delay, r.use);
  }
  const Window& per_head_window(const RefInfo& r) { return window(r.array, {1, p.arrays[r.array].logical[0]}, {{}, {}}, 0, r.use); }
  const Window& chunk_state_window(const RefInfo& r, int delay) {
    return window(r.array, {1, 1, heads_in_step(r.domain), r.rows, r.cols}, {{Index::batch}, {Index::chunk}, {Index::block}, {}, {}}, delay, r.use);
  }
  const Window& sequence_window(const RefInfo& r, int delay) {
    const Index::Kind at = !blocks_inside() ? Index::block : r.use == Use::in ? Index::block_of_first : Index::block_of_last;
    return window(r.array, {1, heads_in_step(r.domain), r.rows, r.cols}, {state_index(r), {at}, {}, {}}, turns() ? delay : 0, r.use);
  }
  int rest_of(int array, std::size_t from) const {
    int n = 1;
    const auto& shape = p.arrays[array].logical;
    for (std::size_t i = from; i < shape.size(); i++) n *= shape[i];
    return n;
  }
  Shape physical(int array) const {
    const auto& shape = p.arrays[array].logical;
    const RefInfo* r = nullptr;
    for (const RefInfo& q : p.refs)
      if (q.array == array) r = &q;
    switch (r->place) {
      case Place::tokens: case Place::before:
        if (x.chunk == 1) return {shape[0], shape[1], 1, row_width(array)};
        return {shape[0], by_chunks(array) ? shape[1] * shape[2] : shape[1], row_width(array)};
      case Place::words:
        if (shape.size() == 2) return {shape[0], 1, shape[1]};
        return {shape[0], x.chunks(), 1, x.chunk};
      case Place::weights: return {shape[0], rest_of(array, 1)};
      case Place::per_head: return {1, shape[0]};
      case Place::edge_rows: return {shape[0], shape[1], rest_of(array, 2)};
      case Place::scalars: case Place::limit: case Place::turns: return {rest_of(array, 0)};
      default: return Shape(shape.begin(), shape.end());
    }
  }

  // ---- scratch
  int scratch(const Shape& shape, Element e) {
    const int v = b.value("%s" + number(static_cast<long>(scratch_.size())), memref_type(shape, e));
    scratch_.push_back({shape, e, v});
    return v;
  }

  // ---- memory access
  // Vectors of memory's rank are loaded and stored; the kernel's tiles are their last two dims.
  int load(int ref, const std::vector<int>& index, const Shape& tile, Element e, int rank) {
    Shape shape(static_cast<std::size_t>(rank), 1);
    std::copy(tile.begin(), tile.end(), shape.end() - static_cast<long>(tile.size()));
    std::vector<int> in{ref};
    in.insert(in.end(), index.begin(), index.end());
    const int v = b.op("vector.load", in, "", vector_type(shape, e), false);
    return reshape(v, tile, e);
  }
  void store(int ref, const std::vector<int>& index, int v, const Shape& tile, Element e) {
    Shape shape(index.size(), 1);
    std::copy(tile.begin(), tile.end(), shape.end() - static_cast<long>(tile.size()));
    std::vector<int> in{reshape(v, shape, e), ref};
    in.insert(in.end(), index.begin(), index.end());
    b.op("tpu.vector_store", in, "add = false, operandSegmentSizes = array<i32: 1, 1, " + number(static_cast<long>(index.size())) +
                                     ", 0>, strides = array<i32>", "", false);
  }
  int reshape(int v, const Shape& shape, Element e) {
    const std::string t = vector_type(shape, e);
    return b.type(v) == t ? v : b.op("vector.shape_cast", {v}, "", t);
  }
  std::vector<int> zeros(std::size_t n) { return std::vector<int>(n, b.index(0)); }

  // The chunk that a stage with this delay works on, held inside the row; repeats at both ends do the same work again.
  int chunk_at(int delay) {
    const int c = work_at(delay);
    return x.descending ? b.op("arith.subi", {b.i32(x.chunks() - 1), c}, "", "i32") : c;
  }
  // The same, counted from the first that is worked on.
  int work_at(int delay) {
    if (delay == 0 && most_delay() == 0) return step_index;
    int c = delay ? b.op("arith.subi", {step_index, b.i32(delay)}, "", "i32") : step_index;
    if (delay) c = b.op("arith.maxsi", {c, b.i32(0)}, "", "i32");
    return b.op("arith.minsi", {c, limiting() ? last_chunk(limit(*limiting())) : b.i32(x.chunks() - 1)}, "", "i32");
  }
  int most_delay() const { return s.heads == Schedule::Heads::lifted ? 0 : *std::max_element(s.delay.begin(), s.delay.end()); }
  // Entry c + offset of the row's scalars.
  int scalar(const RefInfo& r, int delay) { return scalar_at(r, b.op("arith.addi", {chunk_at(delay), b.i32(r.offset)}, "", "i32")); }
  // Tokens of this row of the batch that are worked on, and the last chunk with one of them.
  int limit(const RefInfo& r) { return scalar_of(r, batch_index); }
  int last_chunk(int limit) {
    const int last = b.op("arith.maxsi", {b.op("arith.subi", {limit, b.i32(1)}, "", "i32"), b.i32(0)}, "", "i32");
    return b.op("arith.divsi", {last, b.i32(x.chunk)}, "", "i32");
  }
  const RefInfo* limiting() const { return ref_at(Place::limit); }
  const RefInfo* turns() const { return ref_at(Place::turns); }
  const RefInfo* ref_at(Place place) const {
    const auto at = std::find_if(p.refs.begin(), p.refs.end(), [&](const RefInfo& r) { return r.place == place; });
    return at == p.refs.end() ? nullptr : &*at;
  }
  // Whether the chunk of a stage with this delay has the flag.
  int is_turn(std::int32_t flag, int delay) {
    const int at = b.op("arith.addi", {b.op("arith.muli", {chunk_at(delay), b.i32(Turn::entries)}, "", "i32"), b.i32(Turn::flags)}, "", "i32");
    const int set = b.op("arith.andi", {scalar_of(*turns(), at), b.i32(flag)}, "", "i32");
    return b.compare(1, set, b.i32(0), "i1");
  }
  // Whether a carried ref of a stage with this delay starts, or hands its value on, in this step; `step` is the one when rows are not turns.
  int begins(int step, int delay) { return turns() ? is_turn(Turn::begins, delay) : b.compare(0, step_index, b.i32(step), "i1"); }
  // Whether no tokens of the row lie before the chunk.
  int opens(int delay) { return turns() ? is_turn(Turn::first, delay) : b.compare(0, chunk_at(delay), b.i32(0), "i1"); }
  int ends(int delay) {
    return turns() ? is_turn(Turn::keeps, delay) : b.compare(0, step_index, b.i32(x.chunks() - 1 + delay), "i1");
  }
  // What a carried ref starts from: v, or zeros where a turn reads nothing.
  int read_or_zeros(int v, const Shape& shape, Element e, int delay) {
    return turns() ? b.op("arith.select", {is_turn(Turn::reads, delay), v, b.splat(shape, e, 0)}, "", vector_type(shape, e)) : v;
  }
  int scalar_at(const RefInfo& r, int entry) {
    const int row = b.op("arith.muli", {batch_index, b.i32(rest_of(r.array, 1))}, "", "i32");
    return scalar_of(r, b.op("arith.addi", {row, entry}, "", "i32"));
  }
  int scalar_of(const RefInfo& r, int index) {
    return b.op("memref.load", {prefetched(r), b.as_index(index)}, "", "i32");
  }
  int prefetched(const RefInfo& r) {
    auto [at, fresh] = prefetched_.try_emplace(r.array, 0);
    if (fresh) at->second = b.value("%p" + number(static_cast<long>(prefetched_.size() - 1)),
                                    memref_type({rest_of(r.array, 0)}, Element::i32, "smem"));
    return at->second;
  }

  // What the plan of a store_rows says in this row of the batch.
  struct PlannedRow {
    int row, named;  // index, and whether the plan names one
  };
  int plan_entry(const Node& n, int entry, int delay) {
    const RefInfo& plan = p.refs[n.b];
    if (!plan.per_chunk) return scalar_at(plan, b.i32(entry));
    return scalar_at(plan, b.op("arith.addi", {b.op("arith.muli", {chunk_at(delay), b.i32(plan.per_chunk)}, "", "i32"), b.i32(entry)}, "", "i32"));
  }
  std::vector<PlannedRow> planned(const Node& n, int delay) {
    std::vector<PlannedRow> rows;
    for (int j = 0; j < n.rows; j++) {
      const int row = plan_entry(n, 1 + j, delay);
      rows.push_back({b.as_index(b.op("arith.maxsi", {row, b.i32(0)}, "", "i32")), b.compare(5, row, b.i32(0), "i1")});
    }
    return rows;
  }
  // Those rows of one slot of a memory [slots, total, w]; zeros where none is named.
  int planned_rows(const Node& n, const std::vector<PlannedRow>& plan, int memory, int slot, int w) {
    std::vector<int> rows;
    for (const PlannedRow& r : plan) {
      const int v = load(memory, {slot, r.row, b.index(0)}, {1, w}, Element::f32, 3);
      rows.push_back(b.op("arith.select", {r.named, v, b.splat({1, w}, Element::f32, 0)}, "", vector_type({1, w}, Element::f32)));
    }
    int v = concat(rows, 0, {n.rows, w}, Element::f32);
    if (n.element == Element::bf16) v = b.op("arith.truncf", {v}, "", vector_type({n.rows, w}, Element::bf16));
    return v;
  }
  int is_planned_chunk(const Node& n, int delay) {
    const int planned = plan_entry(n, 0, delay);
    return b.compare(0, chunk_at(delay), planned, "i1");
  }

  // The identity, of any number of leading entries.
  int identity(const Shape& shape) {
    const int rank = static_cast<int>(shape.size());
    const int row = iota(shape, rank - 2), column = iota(shape, rank - 1);
    const int diagonal = b.compare(0, row, column, vector_type(shape, Element::i1));
    return b.op("arith.select", {diagonal, b.splat(shape, Element::f32, 0x3f800000), b.splat(shape, Element::f32, 0)}, "", vector_type(shape, Element::f32));
  }

  // ---- elementwise operations
  int elementwise(const Node& n, const std::vector<int>& in, Element operand, const std::string& type) {
    static const std::string none = "fastmath = #arith.fastmath<none>";
    if (s.exact_functions && exact::has_definition(n.op)) return exact::spelled_out(b, n.op, in[0]);
    switch (n.op) {
      case Op::equal: case Op::less: case Op::less_equal: {
        const bool real = operand == Element::f32;
        const int predicate = n.op == Op::equal ? (real ? 1 : 0) : n.op == Op::less ? (real ? 4 : 2) : (real ? 5 : 3);
        return b.op(real ? "arith.cmpf" : "arith.cmpi", in, (real ? none + ", " : "") + "predicate = " + number(predicate) + " : i64", type);
      }
      case Op::reciprocal: return b.op("tpu.reciprocal", in, "approx = false, full_range = true", type);
      case Op::extend: case Op::sigmoid: case Op::both: case Op::and_i: case Op::shift_right: return b.op(trace::info(n.op).mosaic, in, "", type);
      case Op::round: return b.op("arith.truncf", in, "", type);
      case Op::add_i: case Op::sub_i: return b.op(trace::info(n.op).mosaic, in, "overflowFlags = #arith.overflow<none>", type);
      default: return b.op(trace::info(n.op).mosaic, in, none, type);
    }
  }
  int matmul(int lhs, int rhs, int M, int N, Precision precision, bool rhs_transposed = false) {
    return b.op("tpu.matmul", {lhs, rhs, b.splat({M, N}, Element::f32, 0)},
                std::string("dimension_numbers = #tpu.dot_dimension_numbers<[1], ") +
                    (rhs_transposed ? "[1], [0], [0], [0, 0, 1, 0], [], []>, " : "[0], [0], [1], [0, 0, 1, 1], [], []>, ") +
                    (precision == Precision::f32 ? "precision = #tpu.contract_precision<fp32>, " : "") +
                    "transpose_lhs = false, transpose_lhs_hint = false, transpose_rhs = false",
                vector_type({M, N}, Element::f32));
  }
  int iota(const Shape& shape, int dim) {
    return b.op("tpu.iota", {}, "dimensions = array<i32: " + number(dim) + ">", vector_type(shape, Element::i32));
  }
  int slice(int v, const std::vector<int>& offsets, const Shape& sizes, Element e) {
    const std::string t = vector_type(sizes, e);
    if (b.type(v) == t) return v;
    return b.op("vector.extract_strided_slice", {v},
                "offsets = [" + list(offsets) + "], sizes = [" + list(sizes) + "], strides = [" + list(std::vector<int>(sizes.size(), 1)) + "]", t);
  }
  int concat(const std::vector<int>& in, int dim, const Shape& shape, Element e) {
    return in.size() == 1 ? in[0] : b.op("tpu.concatenate", in, "dimension = " + number(dim) + " : i32", vector_type(shape, e));
  }
  int broadcast(int v, const Shape& shape, Element e) {
    const std::string t = vector_type(shape, e);
    return b.type(v) == t ? v : b.op("vector.broadcast", {v}, "", t);
  }
  int transpose(int v, const std::vector<int>& permutation, const Shape& shape, Element e) {
    return b.op("tpu.transpose", {v}, "permutation = array<i64: " + list(permutation) + ">", vector_type(shape, e));
  }
  // A mask made of row and column numbers alone, evaluated now.
  i32 evaluate(int n, int row, int col) const {
    const Node& q = p[n];
    auto in = [&](int k) { return evaluate(q.in[static_cast<std::size_t>(k)], row, col); };
    switch (q.op) {
      case Op::constant: return static_cast<i32>(q.value);
      case Op::row_index: return row;
      case Op::col_index: return col;
      case Op::stretch: return in(0);
      case Op::add_i: return in(0) + in(1);
      case Op::sub_i: return in(0) - in(1);
      case Op::and_i: return in(0) & in(1);
      case Op::shift_right: return static_cast<i32>(static_cast<std::uint32_t>(in(0)) >> in(1));
      case Op::equal: return in(0) == in(1);
      case Op::less: return in(0) < in(1);
      case Op::less_equal: return in(0) <= in(1);
      case Op::both: return in(0) && in(1);
      default: throw Error(text(p.name, ": ", trace::info(q.op).name, " in a mask of indices"));
    }
  }

  // ---- the program
  std::vector<char> used;
  std::vector<std::vector<int>> users;
  void mark_used() {
    used.assign(static_cast<std::size_t>(p.size()), 0);
    users.assign(static_cast<std::size_t>(p.size()), {});
    for (int i = p.size() - 1; i >= 0; i--) {
      if (trace::is_store(p[i].op) || trace::is_region(p[i].op)) used[i] = 1;
      if (used[i])
        for (int j : p[i].in) used[j] = 1;
    }
    for (int i = 0; i < p.size(); i++)
      if (used[i])
        for (int j : p[i].in) users[j].push_back(i);
  }

  // ---- the module
  // Everything the step needs before its work: `first` is written in front of what the Builder holds.
  template <class F> void prepend(F first) {
    Builder main = b;
    b.body.clear();
    b.forget();
    first();
    b.body += main.body;
  }
  // Scratch that steps before a row's first chunk read is zero, so that they compute on numbers; their results are overwritten.
  void zero_scratch(const std::vector<int>& values) {
    for (const Scratch& q : scratch_) {
      if (std::find(values.begin(), values.end(), q.value) == values.end()) continue;
      Shape tile(q.shape.end() - 2, q.shape.end());
      auto put = [&](int i) {
        std::vector<int> at = zeros(q.shape.size());
        if (q.shape.size() > 2) at[0] = b.as_index(i);
        store(q.value, at, b.splat(tile, q.element, 0), tile, q.element);
      };
      require(q.shape.size() <= 3, "scratch has at most one leading axis");
      if (q.shape.size() < 3 || q.shape[0] == 1) put(b.i32(0));
      else b.loop(q.shape[0], put);
    }
  }
  // Steps behind the last chunk that is worked on do nothing, and as their windows stay where they are, nothing is fetched.
  void skip_steps_behind(const RefInfo& r) {
    const Builder main = b;
    b.body.clear();
    b.forget();
    const int last = b.op("arith.addi", {last_chunk(limit(r)), b.i32(most_delay())}, "", "i32");
    b.when(b.compare(3, step_index, last, "i1"), [&] { b.body += main.body; });
  }
  Module module_of() {
    if (turns() && limiting()) skip_steps_behind(*limiting());
    std::vector<int> order;  // windows: inputs first
    for (Use use : {Use::in, Use::out})
      for (int i = 0; i < static_cast<int>(windows_.size()); i++)
        if (windows_[i].use == use) order.push_back(i);
    Module m;
    m.name = p.name;
    m.vmem_limit_bytes = s.vmem_limit_bytes;
    if (turns()) prefetched(*turns());
    m.prefetched = static_cast<int>(prefetched_.size());
    m.limited = limiting() || turns();
    std::string arguments, bounds, types = "i32, i32, i32", prefetch_arguments, prefetch_types;
    for (const auto& [index, extent] : grid()) {
      arguments += (arguments.empty() ? "" : ", ") + index + ": i32";
      bounds += (bounds.empty() ? "" : ", ") + number(extent);
    }
    std::vector<std::pair<int, int>> scalars(prefetched_.begin(), prefetched_.end());
    std::sort(scalars.begin(), scalars.end(), [](auto& u, auto& v) { return u.second < v.second; });
    for (auto [array, value] : scalars) {
      prefetch_arguments += ", " + b.name(value) + ": " + b.type(value);
      prefetch_types += ", " + b.type(value);
      m.inputs.push_back({p.arrays[array].name, Element::i32, physical(array)});
    }
    arguments += prefetch_arguments;
    types += prefetch_types;
    bool blocks_meet = false;  // in an output window: blocks of heads then have an order
    for (const Window& w : windows_)
      blocks_meet |= blocks() > 1 && w.use == Use::out &&
                     std::none_of(w.index.begin(), w.index.end(), of_heads);
    std::string params, functions;
    std::map<int, int> seen;
    int k = 0;
    for (int i : order) {
      const Window& w = windows_[i];
      arguments += ", " + b.name(w.value) + ": " + b.type(w.value);
      types += ", " + b.type(w.value);
      params += (k ? ", " : "") + ("{transform_indices = @transform_" + number(k)) + ", window_bounds = array<i64: " + list(w.block) + ">" +
                (w.state && s.single_buffered_states ? ", pipeline_mode = #tpu.pipeline_mode<synchronous>" : "") + "}";
      functions += transform(w, k++, prefetch_arguments, prefetch_types);
      const Argument a{p.arrays[w.array].name, w.element, physical(w.array)};
      (w.use == Use::in ? m.inputs : m.outputs).push_back(a);
      if (const int updated = p.arrays[w.array].updates; updated >= 0) {
        const auto at = std::find_if(m.inputs.begin(), m.inputs.end(), [&](const Argument& in) { return in.name == p.arrays[updated].name; });
        require(at != m.inputs.end(), p.name, ": ", p.arrays[updated].name, " is updated but not read");
        m.updates[m.outputs.size() - 1] = static_cast<std::size_t>(at - m.inputs.begin());
      }
      bool moves = false;
      for (auto& j : w.index) moves |= j.kind == Index::batch ? x.batch > 1 : of_heads(j) ? blocks() > 1 : j.kind != Index::zero && x.chunks() > 1;
      m.vmem_bytes += padded_bytes(w.block, w.element) * (moves && !(w.state && s.single_buffered_states) ? 2 : 1);
    }
    for (const Scratch& q : scratch_) {
      arguments += ", " + b.name(q.value) + ": " + b.type(q.value);
      types += ", " + b.type(q.value);
      m.vmem_bytes += padded_bytes(q.shape, q.element);
    }
    const std::string op(1, mark_op);
    m.marked = "  \"" + op + "func.func\"() ({\n  ^bb0(" + arguments + "):\n" + b.body + "    \"" + op + "func.return\"() : () -> ()\n  }) {" +
               "dimension_semantics = [#tpu.dimension_semantics<parallel>, #tpu.dimension_semantics<" + (blocks_meet || blocks_inside() ? "arbitrary" : "parallel") + ">, "
               "#tpu.dimension_semantics<arbitrary>], function_type = (" + types + ") -> (), iteration_bounds = array<i64: " + bounds + ">, scalar_prefetch = " + number(m.prefetched) +
               " : i64, scratch_operands = " + number(static_cast<long>(scratch_.size())) + " : i64, sym_name = \"" + p.name +
               "\", tpu.core_type = #tpu.core_type<tc>, window_params = [" + params + "]} : () -> ()\n" + functions;
    return m;
  }

 private:
  std::string transform(const Window& w, int k, const std::string& prefetch_arguments, const std::string& prefetch_types) const {
    const std::string op(1, mark_op), pad = "    ";
    std::string body;
    std::set<std::string> known;  // several indices may ask for the same
    auto line = [&](const std::string& n, const std::string& what) {
      if (known.insert(n).second) body += pad + n + " = \"" + op + what + "\n";
      return n;
    };
    auto constant = [&](const std::string& n, long v) { return line(n, "arith.constant\"() {value = " + number(v) + " : i32} : () -> i32"); };
    auto binary = [&](const std::string& n, const char* o, const std::string& l, const std::string& r) {
      return line(n, o + ("\"(" + l + ", " + r) + ") : (i32, i32) -> i32");
    };
    auto scalar = [&](const std::string& n, int array, const std::string& index_name, const std::string& index) {
      const int scalars = prefetched_.at(array);
      line(index_name, "arith.index_cast\"(" + index + ") : (i32) -> index");
      return line(n, "memref.load\"(" + b.name(scalars) + ", " + index_name + ") : (" + b.type(scalars) + ", index) -> i32");
    };
    auto chunk = [&] {
      std::string v = "%t";
      if (w.delay) {
        constant("%delay", w.delay);
        binary("%back", "arith.subi", v, "%delay");
        v = binary("%first", "arith.maxsi", "%back", "%zero");
      }
      if (const RefInfo* r = limiting()) {
        scalar("%limit", r->array, "%row", "%b");
        constant("%one", 1);
        constant("%tokens", x.chunk);
        binary("%before", "arith.subi", "%limit", "%one");
        binary("%last_token", "arith.maxsi", "%before", "%zero");
        binary("%last", "arith.divsi", "%last_token", "%tokens");
        v = binary("%visited", "arith.minsi", v, "%last");
      } else if (most_delay()) {
        constant("%end", x.chunks() - 1);
        v = binary("%work", "arith.minsi", v, "%end");
      }
      if (x.descending) {
        constant("%latest", x.chunks() - 1);
        v = binary("%chunk", "arith.subi", "%latest", v);
      }
      return v;
    };
    auto of_turn = [&](Turn::Entry entry) {
      static const char* const names[] = {"row", "rows", "from", "to", "flags"};
      const std::string n = names[entry], of = chunk();
      constant("%entries", Turn::entries);
      constant("%entry_" + n, entry);
      binary("%turn", "arith.muli", of, "%entries");
      binary("%scalar_" + n, "arith.addi", "%turn", "%entry_" + n);
      return scalar("%turn_" + n, turns()->array, "%index_" + n, "%scalar_" + n);
    };
    constant("%zero", 0);
    std::string result, result_types;
    int next = 0;
    for (const Index& i : w.index) {
      std::string v = "%zero";
      switch (i.kind) {
        case Index::zero: break;
        case Index::batch: v = "%b"; break;
        case Index::chunk: v = chunk(); break;
        case Index::read_slot: v = of_turn(Turn::from); break;
        case Index::written_slot: v = of_turn(Turn::to); break;
        case Index::token_block:
          v = of_turn(Turn::row);
          if (x.chunk > 1) constant("%tokens", x.chunk), v = binary("%token_block", "arith.divsi", v, "%tokens");
          break;
        case Index::before:
          constant("%unit", 1);
          if (turns()) constant("%tokens_of_block", rows_before), binary("%first_block", "arith.divsi", of_turn(Turn::row), "%tokens_of_block");
          else constant("%blocks", x.chunk / rows_before), binary("%first_block", "arith.muli", chunk(), "%blocks");
          binary("%block_before", "arith.subi", "%first_block", "%unit");
          v = binary("%held", "arith.maxsi", "%block_before", "%zero");
          break;
        case Index::block: {
          const std::string n = number(next++);
          constant("%scale" + n, i.scale);
          constant("%offset" + n, i.offset);
          binary("%block" + n, "arith.muli", "%g", "%scale" + n);
          v = binary("%at" + n, "arith.addi", "%block" + n, "%offset" + n);
          break;
        }
        case Index::block_of_first: case Index::block_of_last: {  // %g times 1 in that step, times 0 in the others
          const bool first = i.kind == Index::block_of_first;
          if (turns()) {
            const int flag = first ? Turn::begins : Turn::keeps;
            constant("%flag", flag);
            binary("%set", "arith.andi", of_turn(Turn::flags), "%flag");
            binary("%here", "arith.divsi", "%set", "%flag");
          } else {
            constant("%edge", first ? 1 : x.chunks() - 2);
            binary("%from", "arith.subi", first ? "%edge" : "%t", first ? "%t" : "%edge");
            binary("%here", "arith.maxsi", "%from", "%zero");
          }
          v = binary("%visited_block", "arith.muli", "%here", "%g");
          break;
        }
      }
      result += (result.empty() ? "" : ", ") + v;
      result_types += (result_types.empty() ? "" : ", ") + std::string("i32");
    }
    std::string indices;
    for (const auto& axis : grid()) indices += (indices.empty() ? "" : ", ") + axis.first + ": i32";
    return "  \"" + op + "func.func\"() ({\n  ^bb0(" + indices + prefetch_arguments + "):\n" + body + pad + "\"" + op +
           "func.return\"(" + result + ") : (" + result_types + ") -> ()\n  }) {function_type = (i32, i32, i32" + prefetch_types + ") -> (" +
           result_types + "), sym_name = \"transform_" + number(k) + "\"} : () -> ()\n";
  }
};

}  // namespace gdn::mosaic

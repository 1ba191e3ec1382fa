// Placement `lifted`: every value of the per-head program gets a leading axis of heads. No order to choose, nothing in flight.
#pragma once
#include "gdn/mosaic/lowering.hpp"

namespace gdn::mosaic {

class Lifted : Lowering {
 public:
  Lifted(Program program, Schedule schedule) : Lowering(std::move(program), std::move(schedule)) {}

  Module run() {
    mark_used();
    stored_.assign(p.refs.size(), false);
    for (const Node& n : p.nodes)
      if (trace::is_store(n.op)) stored_[n.ref] = true;
    for (int i = 0; i < static_cast<int>(p.refs.size()); i++)
      if (p.refs[i].place == Place::carried) begin(i);
    const auto body = [&] { write_down(0, p.size()); };
    if (const RefInfo* r = turns() ? nullptr : limiting()) b.when(b.compare(3, step_index, last_chunk(limit(*r)), "i1"), body);
    else body();
    b.label.clear();
    for (int i = 0; i < static_cast<int>(p.refs.size()); i++)
      if (p.refs[i].final >= 0) finish(i);
    return module_of();
  }

 private:
  // Effects in their order; what they are made of when it is first needed, so that the order in which a compiler evaluates arguments
  // leaves no trace in the text.
  void write_down(int from, int to) {
    for (int i = from; i < to; i++) {
      if (!used[i]) continue;
      b.label = p.name + ": stage " + number(p[i].stage) + ", " + trace::info(p[i].op).name;
      if (p[i].ref >= 0) b.label += " " + p.refs[p[i].ref].name;
      switch (p[i].op) {
        case Op::store: put(p[i]); break;
        case Op::store_rows: put_rows(p[i]); break;
        case Op::load:
          if (stored_[p[i].ref]) get(i);  // where it stands: a later store must not change it
          break;
        case Op::when: case Op::loop: i = region(i); break;
        default: break;
      }
    }
  }
  // Returns where the region ends.
  int region(int begin) {
    int end = begin + 1;
    for (int depth = 1; depth; end++) depth += p[end].op == Op::end ? -1 : trace::is_region(p[end].op) ? 1 : 0;
    const auto outside = made_;
    if (p[begin].op == Op::when) {
      b.when(get(p[begin].in[0]), [&] { write_down(begin + 1, end - 1); });
    } else {
      b.loop(p[begin].a, [&](int i) {
        for (int n = begin + 1; n < end; n++)
          if (p[n].op == Op::loop_index && p[n].a == begin) made_[n] = i;
        write_down(begin + 1, end - 1);
      });
    }
    made_ = outside;  // what was made inside may not be used outside
    return end - 1;
  }

  std::map<int, int> made_;
  std::map<int, int> carried_;
  std::vector<bool> stored_;  // by ref

  int heads(Domain d) const { return d == Domain::value_head ? s.heads_per_step : d == Domain::key_head ? s.heads_per_step / x.ratio() : 1; }
  Shape shape_of(const Node& n) const { return {heads(n.domain), n.rows, n.cols}; }
  // Rows and columns over the tokens of a chunk are kept as [H, C], heads on sublanes and tokens on lanes: one register holds eight heads,
  // and a row is a column.
  bool flat(int n) const {
    const Node& q = p[n];
    if (x.chunk == 1 || q.domain < Domain::key_head || std::min(q.rows, q.cols) != 1 || std::max(q.rows, q.cols) != x.chunk) return false;
    switch (q.op) {
      case Op::load: return p.refs[q.ref].place == Place::tokens && q.cols == 1;
      case Op::select: return p[q.in[0]].domain != Domain::constant;
      case Op::stretch: return p[q.in[0]].rows == 1 && p[q.in[0]].cols == 1;
      case Op::transpose: case Op::sum_cols: case Op::sum_rows: case Op::cumsum: case Op::cumsum_within: case Op::sums_from: case Op::sums_before:
        return true;
      default: return trace::elementwise(q.op);
    }
  }
  // Any vector or scalar as [H, C].
  int flat_value(int n, int H) {
    const Node& q = p[n];
    const Shape to{H, x.chunk};
    if (q.op == Op::constant) return b.splat(to, q.element, q.value);
    if (is_scalar(n)) return broadcast(get(n), to, q.element);
    if (q.domain == Domain::token) return flat_token(n, H);
    if (flat(n)) return over_heads(get(n), heads(q.domain), H, {x.chunk}, q.element);
    const int v = lift(n, H), count = std::max(q.rows, q.cols);
    return broadcast(reshape(v, {H, count}, q.element), to, q.element);
  }
  // What is known of tokens alone, from where it is loaded on.
  int flat_token(int n, int H) {
    const Node& q = p[n];
    const Shape to{H, x.chunk};
    if (q.op == Op::constant || is_scalar(n)) return flat_value(n, H);
    if (q.op == Op::stretch || q.op == Op::transpose) return flat_token(q.in[0], H);
    if (q.op == Op::load) {
      const RefInfo& r = p.refs[q.ref];
      const Window& w = words_window(r, 0);
      return broadcast(load(w.value, words_index(r, w), {1, r.rows}, r.element, static_cast<int>(w.block.size())), to, q.element);
    }
    std::vector<int> in;
    for (int j : q.in) in.push_back(flat_token(j, H));
    const std::string type = vector_type(to, q.element);
    return q.op == Op::select ? b.op("arith.select", in, "", type) : elementwise(q, in, p[q.in[0]].element, type);
  }
  int make_flat(int n) {
    const Node& q = p[n];
    const int H = heads(q.domain);
    const Shape shape{H, x.chunk};
    const std::string type = vector_type(shape, q.element);
    switch (q.op) {
      case Op::load: return columns(p.refs[q.ref], 0);
      case Op::stretch: case Op::transpose: return flat_value(q.in[0], H);
      case Op::sum_cols: case Op::sum_rows: return sums(q, H);
      case Op::cumsum: case Op::cumsum_within: case Op::sums_from: case Op::sums_before: return prefix_sums(q, H);
      default: {
        std::vector<int> in;
        for (int j : q.in) in.push_back(flat_value(j, H));
        return q.op == Op::select ? b.op("arith.select", in, "", type) : elementwise(q, in, p[q.in[0]].element, type);
      }
    }
  }
  int sums(const Node& q, int H) {
    const int n = q.rows * q.cols;
    const std::string dim = q.op == Op::sum_cols ? "2" : "1";
    return b.op("vector.multi_reduction", {lift(q.in[0], H), b.splat({H, n}, Element::f32, 0)},
                "kind = #vector.kind<add>, reduction_dims = array<i64: " + dim + ">", vector_type({H, n}, Element::f32));
  }
  // [H, length], summed along sublanes, where a shift by a few entries is cheap.
  int prefix_sums(const Node& q, int H) {
    const int C = q.rows, all = (H + 7) / 8 * 8;
    const Shape shape{C, all};
    auto along_sublanes = [&](int n) {
      const Node& a = p[n];
      const bool flat = C == x.chunk, shared = flat && a.domain < Domain::key_head;
      int v = shared ? flat_value(n, all) : flat ? flat_value(n, H) : reshape(lift(n, H), {H, C}, a.element);
      if (H < all && !shared) v = concat({v, b.splat({all - H, C}, a.element, 0)}, 0, {all, C}, a.element);
      return transpose(v, {1, 0}, shape, a.element);
    };
    const bool within = q.op == Op::cumsum_within;
    int v = along_sublanes(q.in[within]);
    const int id = within ? along_sublanes(q.in[0]) : -1;
    if (q.op == Op::sums_before) v = moved_down(v, shape, 1, q.element);
    for (int d = 1; d < C; d *= 2) {
      int addend = q.op == Op::sums_from ? moved_up(v, shape, d, q.element) : moved_down(v, shape, d, q.element);
      if (within) {
        const int same = b.compare(0, id, moved_down(id, shape, d, Element::i32), vector_type(shape, Element::i1));
        addend = b.op("arith.select", {same, addend, b.splat(shape, q.element, 0)}, "", vector_type(shape, q.element));
      }
      v = b.op("arith.addf", {v, addend}, "fastmath = #arith.fastmath<none>", vector_type(shape, q.element));
    }
    return slice(transpose(v, {1, 0}, {all, C}, q.element), {0, 0}, {H, C}, q.element);
  }
  int moved_down(int v, const Shape& shape, int d, Element e) {
    return concat({b.splat({d, shape[1]}, e, 0), slice(v, {0, 0}, {shape[0] - d, shape[1]}, e)}, 0, shape, e);
  }
  int moved_up(int v, const Shape& shape, int d, Element e) {
    return concat({slice(v, {d, 0}, {shape[0] - d, shape[1]}, e), b.splat({d, shape[1]}, e, 0)}, 0, shape, e);
  }
  // [have, rest] for every one of H heads.
  int over_heads(int v, int have, int H, const Shape& rest, Element e) {
    if (have == H) return v;
    auto with = [&](std::vector<int> leading) {
      leading.insert(leading.end(), rest.begin(), rest.end());
      return leading;
    };
    if (have == 1) return broadcast(v, with({H}), e);
    return reshape(broadcast(reshape(v, with({have, 1}), e), with({have, H / have}), e), with({H}), e);
  }

  int carried(int ref) {
    auto [at, fresh] = carried_.try_emplace(ref, 0);
    const RefInfo& r = p.refs[ref];
    if (fresh) at->second = scratch({blocks_inside() ? heads_of(r.domain) : heads_in_step(r.domain), r.rows, r.cols}, r.element);
    return at->second;
  }
  std::vector<int> carried_index(int ref) {
    if (!blocks_inside()) return zeros(3);
    return {b.as_index(b.op("arith.muli", {block_index, b.i32(heads_in_step(p.refs[ref].domain))}, "", "i32")), b.index(0), b.index(0)};
  }
  // Row by row of heads, a ref of any place as [H, rows, cols].
  int read(const RefInfo& r, int delay) {
    const int H = heads_in_step(r.domain);
    const Shape all{H, r.rows, r.cols};
    switch (r.place) {
      case Place::tokens:
        require(r.cols > 1 || r.rows == x.chunk, p.name, ": ", r.name, " is read as columns of ", r.rows, " tokens; expected the ", x.chunk, " of a chunk");
        if (r.cols == 1) return reshape(columns(r, delay), all, r.element);
        [[fallthrough]];
      case Place::weights:
      case Place::edge_rows: {
        std::vector<int> in;
        for (int h = 0; h < H; h++) {
          auto [window, index] = lanes(r, h * r.cols, delay);
          in.push_back(reshape(load(window->value, index, {r.rows, r.cols}, r.element, static_cast<int>(index.size())), {1, r.rows, r.cols}, r.element));
        }
        return concat(in, 0, all, r.element);
      }
      case Place::before: {
        std::vector<int> in;
        for (int h = 0; h < H; h++) {
          const At at = before_window(r, h * r.cols, r.cols, delay);
          const int all_rows = load(at.window->value, {b.index(0), b.index(0), b.index(at.lane)}, {rows_before, r.cols}, r.element, 3);
          in.push_back(reshape(slice(as_f32(all_rows, {rows_before, r.cols}, r.element), {rows_before - r.rows, 0}, {r.rows, r.cols}, Element::f32),
                               {1, r.rows, r.cols}, Element::f32));
        }
        const int first = opens(delay);
        int v = b.op("arith.select", {first, start_of(r), concat(in, 0, all, Element::f32)}, "", vector_type(all, Element::f32));
        return r.element == Element::f32 ? v : b.op("arith.truncf", {v}, "", vector_type(all, r.element));
      }
      case Place::words: {
        const Window& w = words_window(r, delay);
        return column_of_row(load(w.value, words_index(r, w), {1, r.rows}, r.element, static_cast<int>(w.block.size())), r.rows, r.element);
      }
      case Place::per_head: {
        const Window& w = per_head_window(r);
        int v = load(w.value, zeros(2), {1, x.value_heads}, r.element, 2);
        v = to_lanes(v, 1, r.element);
        v = transpose(broadcast(v, {8, 128}, r.element), {1, 0}, {128, 8}, r.element);
        return reshape(slice(v, {0, 0}, {H, 1}, r.element), all, r.element);
      }
      case Place::chunk_state: return reshape(load(chunk_state_window(r, delay).value, zeros(5), all, r.element, 5), all, r.element);
      case Place::sequence: return reshape(load(sequence_window(r, 0).value, zeros(4), all, r.element, 4), all, r.element);
      default: throw Error(text(p.name, ": ", r.name, " cannot be read as a tile"));
    }
  }
  // The window and index of a head's columns.
  std::pair<const Window*, std::vector<int>> lanes(const RefInfo& r, int column, int delay) {
    if (r.place == Place::edge_rows) return {&edge_window(r, delay), {b.index(0), b.index(0), edge_lane(r, column)}};
    const At at = r.place == Place::tokens ? tokens_window(r, column, r.cols, delay) : row_window(r, column, r.cols, {r.rows}, {{}}, delay);
    std::vector<int> index = zeros(at.window->block.size());
    if (r.first_row) index[index.size() - 2] = b.index(r.first_row);
    index.back() = b.index(at.lane);
    return {at.window, index};
  }
  // A row [rows, H of the array] with the step's first head in lane 0 of 128.
  int to_lanes(int v, int rows, Element e) {
    const int H = x.value_heads;
    require(H <= 128, p.name, ": ", H, " value heads; expected at most 128");
    if (H < 128) v = concat({v, b.splat({rows, 128 - H}, e, 0)}, 1, {rows, 128}, e);
    if (blocks() == 1) return v;
    const int back = b.op("arith.subi", {b.i32(128), b.op("arith.muli", {block_index, b.i32(s.heads_per_step)}, "", "i32")}, "", "i32");
    return b.op("tpu.dynamic_rotate", {v, back}, "dimension = 1 : si32", vector_type({rows, 128}, e));
  }
  int columns(const RefInfo& r, int delay) {  // [C, H] -> [H, C]; bf16 is moved as f32
    const Window& w = gates_window(r, delay);
    const int rank = static_cast<int>(w.block.size());
    int v = load(w.value, zeros(w.block.size()), {x.chunk, x.value_heads}, r.element, rank);
    Element e = r.element;
    if (e == Element::bf16) {
      v = b.op("arith.extf", {v}, "", vector_type({x.chunk, x.value_heads}, Element::f32));
      e = Element::f32;
    }
    v = to_lanes(v, x.chunk, e);
    if (x.chunk < 8) v = broadcast(v, {8, 128}, e);
    const int rows = std::max(x.chunk, 8);
    v = transpose(v, {1, 0}, {128, rows}, e);
    v = slice(v, {0, 0}, {s.heads_per_step, x.chunk}, e);
    return r.element == e ? v : b.op("arith.truncf", {v}, "", vector_type({s.heads_per_step, x.chunk}, r.element));
  }
  void write_columns(const RefInfo& r, int v) {  // [H, C] or [H, C, 1] -> [C, H]; bf16 is moved as f32
    const int H = heads_in_step(r.domain), all = heads_of(r.domain), rows = (r.rows + 7) / 8 * 8;
    require(all <= 128, p.name, ": ", all, " heads; expected at most 128");
    const Element e = r.element == Element::bf16 ? Element::f32 : r.element;
    const Shape shape{r.rows, all};
    const Window& w = gates_window(r, 0);
    std::vector<int> at = zeros(w.block.size());
    if (r.first_row) at[at.size() - 2] = b.index(r.first_row);
    v = r.rows < x.chunk ? side_by_side(v, H, r.rows, r.element) : transposed_columns(v, H, r.rows, r.element);
    if (blocks() > 1) {  // the other blocks' columns stay
      const int first = b.op("arith.muli", {block_index, b.i32(H)}, "", "i32"), end = b.op("arith.addi", {first, b.i32(H)}, "", "i32");
      v = b.op("tpu.dynamic_rotate", {v, first}, "dimension = 1 : si32", vector_type({rows, 128}, e));
      const std::string mask = vector_type(shape, Element::i1);
      const int lane = iota(shape, 1);
      const int from = b.op("vector.broadcast", {first}, "", vector_type(shape, Element::i32));
      const int to = b.op("vector.broadcast", {end}, "", vector_type(shape, Element::i32));
      const int inside = b.op("arith.andi", {b.compare(3, from, lane, mask), b.compare(2, lane, to, mask)}, "", mask);
      int others = load(w.value, at, shape, r.element, static_cast<int>(at.size()));
      if (e != r.element) others = b.op("arith.extf", {others}, "", vector_type(shape, e));
      v = b.op("arith.select", {inside, slice(v, {0, 0}, shape, e), others}, "", vector_type(shape, e));
    }
    v = slice(v, {0, 0}, shape, e);
    if (e != r.element) v = b.op("arith.truncf", {v}, "", vector_type(shape, r.element));
    store(w.value, at, v, shape, r.element);
  }
  // [H, n, 1] or [H, n] -> [n up to a multiple of 8, 128], as f32.
  int transposed_columns(int v, int H, int n, Element e) {
    const int rows = (n + 7) / 8 * 8;
    v = as_f32(reshape(v, {H, n}, e), {H, n}, e);
    e = Element::f32;
    if (rows > n) v = concat({v, b.splat({H, rows - n}, e, 0)}, 1, {H, rows}, e);
    if (H < 128) v = concat({v, b.splat({128 - H, rows}, e, 0)}, 0, {128, rows}, e);
    return transpose(v, {1, 0}, {rows, 128}, e);
  }
  // The same for a part of the rows, whose columns are sums over lanes: in all lanes already.
  int side_by_side(int v, int H, int n, Element e) {
    const Shape all{n, 128};
    v = as_f32(v, {H, n, 1}, e);
    e = Element::f32;
    const int lane = iota(all, 1);
    int result = b.splat(all, e, 0);
    for (int h = 0; h < H; h++) {
      const int here = b.compare(0, lane, b.splat(all, Element::i32, static_cast<std::uint32_t>(h)), vector_type(all, Element::i1));
      const int column = broadcast(reshape(slice(v, {h, 0, 0}, {1, n, 1}, e), {n, 1}, e), all, e);
      result = b.op("arith.select", {here, column, result}, "", vector_type(all, e));
    }
    return result;
  }
  std::vector<int> words_index(const RefInfo& r, const Window& w) {
    std::vector<int> index = zeros(w.block.size());
    index.back() = b.index(r.first_row);
    return index;
  }
  void write_word_row(const RefInfo& r, int v) {  // [1, n, 1] -> [1, n]
    v = broadcast(reshape(v, {r.rows, 1}, r.element), {r.rows, 128}, r.element);
    v = slice(transpose(v, {1, 0}, {128, r.rows}, r.element), {0, 0}, {1, r.rows}, r.element);
    const Window& w = words_window(r, 0);
    store(w.value, words_index(r, w), v, {1, r.rows}, r.element);
  }
  int column_of_row(int v, int n, Element e) {  // [1, n] -> [1, n, 1]
    v = transpose(broadcast(v, {8, n}, e), {1, 0}, {n, 8}, e);
    return reshape(slice(v, {0, 0}, {n, 1}, e), {1, n, 1}, e);
  }
  void write(const RefInfo& r, int v) {
    const int H = heads_in_step(r.domain);
    const Shape all{H, r.rows, r.cols}, one{r.rows, r.cols};
    switch (r.place) {
      case Place::tokens:
        if (r.cols == 1) return write_columns(r, v);
        [[fallthrough]];
      case Place::edge_rows:
        // Neighbours at once: a register of bf16 holds 8 rows of two heads.
        for (int h = 0, n; h < H; h += n) {
          n = r.element == Element::bf16 && r.cols % 128 == 0 && h + 1 < H && lanes(r, h * r.cols, 0).first == lanes(r, (h + 1) * r.cols, 0).first ? 2 : 1;
          auto [window, index] = lanes(r, h * r.cols, 0);
          std::vector<int> in;
          for (int k = h; k < h + n; k++) in.push_back(reshape(slice(v, {k, 0, 0}, {1, r.rows, r.cols}, r.element), one, r.element));
          const Shape together{r.rows, n * r.cols};
          store(window->value, index, concat(in, 1, together, r.element), together, r.element);
        }
        break;
      case Place::words: write_word_row(r, v); break;
      case Place::chunk_state: store(chunk_state_window(r, 0).value, zeros(5), v, all, r.element); break;
      case Place::sequence: store(sequence_window(r, 0).value, zeros(4), v, all, r.element); break;
      default: throw Error(text(p.name, ": ", r.name, " cannot be written"));
    }
  }
  int as_f32(int v, const Shape& shape, Element e) { return e == Element::f32 ? v : b.op("arith.extf", {v}, "", vector_type(shape, Element::f32)); }
  // What a ref with `initial` starts from, in f32.
  int start_of(const RefInfo& r) {
    const Shape all{heads_in_step(r.domain), r.rows, r.cols};
    if (r.initial < 0) return r.identity ? identity(all) : b.splat(all, Element::f32, 0);
    const RefInfo& from = p.refs[r.initial];
    const int v = as_f32(read(from, 0), {all[0], from.rows, from.cols}, from.element);
    return from.rows == r.rows ? v : concat({b.splat({all[0], r.rows - from.rows, r.cols}, Element::f32, 0), v}, 1, all, Element::f32);
  }
  void begin(int ref) {
    const RefInfo& r = p.refs[ref];
    const Shape all{heads_in_step(r.domain), r.rows, r.cols};
    b.when(begins(0, 0), [&] {
      int v = start_of(r);
      if (r.initial >= 0) v = read_or_zeros(v, all, r.element, 0);
      store(carried(ref), carried_index(ref), v, all, r.element);
    });
  }
  void finish(int ref) {
    const RefInfo& r = p.refs[ref];
    const RefInfo& to = p.refs[r.final];
    const Shape all{heads_in_step(r.domain), r.rows, r.cols};
    b.when(ends(0), [&] {
      int v = load(carried(ref), carried_index(ref), all, r.element, 3);
      v = slice(v, {0, r.rows - to.rows, 0}, {all[0], to.rows, to.cols}, r.element);
      if (to.element == Element::bf16) v = b.op("arith.truncf", {v}, "", vector_type({all[0], to.rows, to.cols}, Element::bf16));
      write(to, v);
    });
  }
  void put(const Node& n) {
    const RefInfo& r = p.refs[n.ref];
    const int v = lift(n.in[0], heads_in_step(r.domain));
    if (r.place == Place::carried) store(carried(n.ref), carried_index(n.ref), v, {heads_in_step(r.domain), r.rows, r.cols}, r.element);
    else write(r, v);
  }

  void put_rows(const Node& n) {
    const RefInfo& r = p.refs[n.ref];
    const int H = heads_in_step(r.domain), total = p[n.in[0]].rows;
    const int history = lift(n.in[0], H);
    const int memory = scratch({H, total, r.cols}, Element::f32);
    b.when(is_planned_chunk(n, 0), [&] {
      store(memory, zeros(3), history, {H, total, r.cols}, Element::f32);
      const auto plan = planned(n, 0);
      for (int h = 0; h < H; h++) {
        auto [window, index] = lanes(r, h * r.cols, 0);
        store(window->value, index, planned_rows(n, plan, memory, b.index(h), r.cols), {r.rows, r.cols}, r.element);
      }
    });
  }

  bool is_scalar(int n) const { return p[n].domain == Domain::token && p[n].rows == 1 && p[n].cols == 1; }

  // The value with H leading entries.
  int lift(int n, int H) {
    const Node& q = p[n];
    if (q.op == Op::constant) return b.splat({H, q.rows, q.cols}, q.element, q.value);
    const Shape to{H, q.rows, q.cols};
    if (flat(n)) return reshape(flat_value(n, H), to, q.element);
    const int v = get(n);
    if (is_scalar(n)) return broadcast(v, to, q.element);
    return over_heads(v, heads(q.domain), H, {q.rows, q.cols}, q.element);
  }
  // Rounding to bf16 commutes with moves: half as much is moved.
  int narrow(int n, int H) {
    const Node& q = p[n];
    if (q.op == Op::extend) return lift(q.in[0], H);
    if (q.op == Op::concat_cols) return concat({narrow(q.in[0], H), narrow(q.in[1], H)}, 2, {H, q.rows, q.cols}, Element::bf16);
    if (q.op == Op::transpose && q.rows % 16 == 0 && q.cols % 16 == 0)
      return transpose(narrow(q.in[0], H), {0, 2, 1}, {H, q.rows, q.cols}, Element::bf16);
    return b.op("arith.truncf", {lift(n, H)}, "", vector_type({H, q.rows, q.cols}, Element::bf16));
  }
  int get(int n) {
    if (auto at = made_.find(n); at != made_.end()) return at->second;
    const int v = make(n);
    return made_[n] = v;
  }
  int mask(int n, int H) {
    const Node& q = p[n];
    if (q.domain != Domain::constant) return lift(n, H);
    return static_mask(n, {H, q.rows, q.cols});
  }
  int static_mask(int n, const Shape& shape) {
    const Node& q = p[n];
    const std::string type = vector_type(shape, q.element);
    auto in = [&](int k) { return static_mask(q.in[static_cast<std::size_t>(k)], shape); };
    switch (q.op) {
      case Op::constant: return b.splat(shape, q.element, q.value);
      case Op::row_index: return iota(shape, 1);
      case Op::col_index: return iota(shape, 2);
      case Op::stretch: return in(0);
      default: {
        std::vector<int> operands;
        for (std::size_t k = 0; k < q.in.size(); k++) operands.push_back(in(static_cast<int>(k)));
        return elementwise(q, operands, p[q.in[0]].element, type);
      }
    }
  }
  int make(int n) {
    const Node q = p[n];
    const int H = heads(q.domain);
    const Shape shape = shape_of(q);
    const std::string type = vector_type(shape, q.element);
    if (q.domain == Domain::constant && q.element != Element::f32 && q.element != Element::bf16) return static_mask(n, shape);
    if (is_scalar(n) && trace::elementwise(q.op)) {
      std::vector<int> in;
      for (int j : q.in) in.push_back(p[j].op == Op::constant ? b.i32(static_cast<i32>(p[j].value)) : get(j));
      return elementwise(q, in, p[q.in[0]].element, name_of(q.element));
    }
    if (flat(n)) return make_flat(n);
    if (q.op == Op::round && p[q.in[0]].domain != Domain::constant) return narrow(q.in[0], H);
    if (trace::elementwise(q.op)) {
      std::vector<int> in;
      for (int j : q.in) in.push_back(lift(j, H));
      return elementwise(q, in, p[q.in[0]].element, type);
    }
    switch (q.op) {
      case Op::constant: return b.splat(shape, q.element, q.value);
      case Op::load: {
        const RefInfo& r = p.refs[q.ref];
        if (r.place == Place::scalars) return scalar(r, 0);
        if (r.place == Place::limit) {
          const int first = b.op("arith.muli", {chunk_at(0), b.i32(x.chunk)}, "", "i32");
          return b.op("arith.subi", {limit(r), first}, "overflowFlags = #arith.overflow<none>", "i32");
        }
        if (r.place == Place::carried) return load(carried(q.ref), carried_index(q.ref), shape, r.element, 3);
        return read(r, 0);
      }
      case Op::select:
        if (is_scalar(q.in[0])) return b.op("arith.select", {get(q.in[0]), lift(q.in[1], H), lift(q.in[2], H)}, "", type);
        return b.op("arith.select", {mask(q.in[0], H), lift(q.in[1], H), lift(q.in[2], H)}, "", type);
      case Op::stretch:
        if (is_scalar(q.in[0])) return broadcast(get(q.in[0]), shape, q.element);
        return stretched(lift(q.in[0], H), p[q.in[0]], shape, q.element);
      case Op::dot: {
        const Precision precision = q.precision;
        return b.op("tpu.matmul", {lift(q.in[0], H), lift(q.in[1], H), b.splat(shape, Element::f32, 0)},
                    std::string("dimension_numbers = #tpu.dot_dimension_numbers<[2], [1], [1], [2], [0, 0, 0, 1, 1, 2], [0], [0]>, ") +
                        (precision == Precision::f32 ? "precision = #tpu.contract_precision<fp32>, " : "") +
                        "transpose_lhs = false, transpose_lhs_hint = false, transpose_rhs = false",
                    type);
      }
      case Op::transpose: {
        const Node& a = p[q.in[0]];
        const int v = lift(q.in[0], H);
        return a.rows == 1 || a.cols == 1 ? reshape(v, shape, q.element) : transpose(v, {0, 2, 1}, shape, q.element);
      }
      case Op::rows:
        if (flat(q.in[0])) return reshape(slice(flat_value(q.in[0], H), {0, q.a}, {H, q.rows}, q.element), shape, q.element);
        return slice(lift(q.in[0], H), {0, q.a, 0}, shape, q.element);
      case Op::concat: {
        std::vector<int> in;
        for (int j : q.in) in.push_back(lift(j, H));
        return concat(in, 1, shape, q.element);
      }
      case Op::concat_cols: return concat({lift(q.in[0], H), lift(q.in[1], H)}, 2, shape, q.element);
      case Op::sum_rows: case Op::sum_cols: return reshape(sums(q, H), shape, q.element);
      case Op::sum_heads: {
        int have = x.ratio();
        const Shape apart{H, have, q.rows, q.cols};
        int v = reshape(lift(q.in[0], heads_in_step(Domain::value_head)), apart, q.element);
        auto part = [&](int from, int n) { return slice(v, {0, from, 0, 0}, {H, n, q.rows, q.cols}, q.element); };
        for (int half = static_cast<int>(std::bit_ceil(static_cast<unsigned>(have))) / 2; half > 0; have = half, half /= 2) {
          const int pairs = have - half;
          const int sums = b.op("arith.addf", {part(0, pairs), part(half, pairs)}, "fastmath = #arith.fastmath<none>",
                                vector_type({H, pairs, q.rows, q.cols}, q.element));
          v = pairs < half ? concat({sums, part(pairs, half - pairs)}, 1, {H, half, q.rows, q.cols}, q.element) : sums;
        }
        return reshape(v, shape, q.element);
      }
      case Op::cumsum: case Op::cumsum_within: case Op::sums_from: case Op::sums_before: return reshape(prefix_sums(q, H), shape, q.element);
      case Op::diagonal_blocks: {
        const int a = lift(q.in[0], H), blocks = q.cols / q.a;
        auto block = [&](int k) { return slice(a, {0, k * q.a, 0}, shape, q.element); };
        int v = block(blocks - 1);
        for (int k = blocks - 2; k >= 0; k--) {
          const int at = b.op("arith.shrui", {iota(shape, 2), b.splat(shape, Element::i32, static_cast<std::uint32_t>(log2(q.a)))}, "", vector_type(shape, Element::i32));
          const int here = b.compare(0, at, b.splat(shape, Element::i32, static_cast<std::uint32_t>(k)), vector_type(shape, Element::i1));
          v = b.op("arith.select", {here, block(k), v}, "", type);
        }
        return v;
      }
      case Op::block_column: {
        const int a = lift(q.in[0], H);
        int v = -1;
        for (int k = 0; k < q.cols / q.a; k++) {
          const int column = broadcast(slice(a, {0, 0, k * q.a + q.b}, {H, q.rows, 1}, q.element), shape, q.element);
          if (v < 0) {
            v = column;
            continue;
          }
          const int at = b.op("arith.shrui", {iota(shape, 2), b.splat(shape, Element::i32, static_cast<std::uint32_t>(log2(q.a)))}, "", vector_type(shape, Element::i32));
          const int here = b.compare(0, at, b.splat(shape, Element::i32, static_cast<std::uint32_t>(k)), vector_type(shape, Element::i1));
          v = b.op("arith.select", {here, column, v}, "", type);
        }
        return v;
      }
      default: throw Error(text(p.name, ": ", trace::info(q.op).name, " has no lifted form"));
    }
  }
  // One op may not broadcast rows and columns at a time.
  int stretched(int v, const Node& from, const Shape& shape, Element e) {
    if (from.rows == 1 && from.cols == 1 && shape[1] > 1 && shape[2] > 1) v = broadcast(v, {shape[0], 1, shape[2]}, e);
    return broadcast(v, shape, e);
  }
  static int log2(int n) { return n <= 1 ? 0 : 1 + log2(n / 2); }
};

}  // namespace gdn::mosaic

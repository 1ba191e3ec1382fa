// Placement `paired`: two value heads of one key head side by side on the lanes of one tile, stages skewed over chunks.
//
// One rule covers nearly everything: a value head's tile [R, X] becomes [R, 2X]. A key head's tile is `single` [R, X] or `dup`
// [R, 2X], both halves equal, as its readers ask. A dot of a pair takes the block diagonal of its right operand: zero blocks cost
// nothing on a 256x256 matrix unit. A vector of a value head is a `table`: all heads of the step at once.
//   column [C, 1] -> [C, 128]: lane p is head 2p, lane 64 + p head 2p + 1      row [1, C] -> [pairs, 2C]      scalar -> [1, 128]
#pragma once
#include "gdn/mosaic/lowering.hpp"
#include "gdn/mosaic/passes.hpp"

namespace gdn::mosaic {

class Paired : Lowering {
 public:
  // Why the program cannot be placed in pairs, or "".
  static std::string objection(const Program& p, const Schedule& s) {
    const auto& x = p.extent;
    const int heads = s.heads_per_step ? s.heads_per_step : x.value_heads;
    if (x.chunk != 64) return text("chunks of ", x.chunk, " tokens; pairs need 64");
    if (heads % 2 || (x.ratio() > 1 && x.ratio() % 2)) return text(heads, " heads a step, ", x.ratio(), " a key head: no partner for every head");
    if (x.value_heads > 128) return text(x.value_heads, " value heads; at most 128");
    if (p.stages == 1 && s.delay.size() > 1) return text("one stage; the schedule has ", s.delay.size());
    std::set<int> stored;
    for (auto& n : p.nodes) {
      if (trace::is_region(n.op)) return "control flow in the body";
      for (int i : n.in) {
        const bool later = n.stage > p[i].stage && (n.rows == 1 || n.cols == 1);
        if (p[i].op == Op::sum_rows && !(Passes::collected(p, i) && later)) return "a sum of rows is read where it is made, or is no head's; pairs collect them";
      }
      if (n.op == Op::concat_cols && n.rows > 1 && !std::all_of(n.in.begin(), n.in.end(), [&](int i) { return p[i].cols == 64; }))
        return "columns side by side are not 64 each";
      if (n.op == Op::sum_heads && x.ratio() > 1 && 2 * s.group % x.ratio()) return text("a group is ", 2 * s.group, " value heads; sums over ", x.ratio(), " need whole key heads");
      if (n.op == Op::store && p[n.in[0]].cols == 1 && n.cols == 1 && (heads < x.value_heads || n.element != Element::f32))
        return text("vectors are written for all heads at once, in f32; a step has ", heads, " of ", x.value_heads);
      if (n.op == Op::load && stored.count(n.ref)) return text(p.refs[n.ref].name, " is read after it is written; pairs read first");
      if (trace::is_store(n.op) && !stored.insert(n.ref).second) return text(p.refs[n.ref].name, " is written twice");
    }
    for (auto& r : p.refs)
      if ((r.place == Place::limit && !p.extent.turns) || r.first_row)
        return text(r.name, r.first_row ? " begins inside its window" : " is a limit", "; pairs have no form for it");
    for (auto& r : p.refs)
      if ((r.place == Place::tokens && r.cols != 1 && r.cols % 64) || (r.place == Place::weights && r.cols % 128))
        return text(r.name, " has ", r.cols, " columns; pairs need multiples of 64 lanes");
    return "";
  }

  Paired(Program program, Schedule schedule) : Lowering(std::move(program), std::move(schedule)) {
    require(static_cast<int>(s.delay.size()) == p.stages && static_cast<int>(s.order.size()) == p.stages, p.name, ": the schedule has ",
            s.delay.size(), " delays and ", s.order.size(), " places in the order; expected ", p.stages, " of each, one a stage");
    if (s.vectors_ahead) {
      for (int& d : s.delay) d++;
      s.delay.insert(s.delay.begin(), 0);
      for (int& o : s.order) o++;
      s.order.insert(s.order.begin(), 0);
      if (!s.start.empty()) s.start.insert(s.start.begin(), 0);
    }
    pairs_ = s.heads_per_step / 2;
    ratio_ = x.ratio();
    const int heads_in_group = 2 * s.group;
    require(s.group > 0 && (heads_in_group % ratio_ == 0 || ratio_ % heads_in_group == 0), p.name, ": groups of ", s.group, " pairs and ",
            ratio_, " value heads a key head; expected one to divide the other");
  }

  Module run() {
    Passes passes(p);
    if (ratio_ == 1) {
      passes.promote_keys();
      ratio_ = 2;
    }
    passes.recompute_in_later_stages();
    passes.widen_late();
    passes.scalars_by_rows();
    if (s.vectors_ahead) passes.vectors_ahead();
    passes.round_where_made();
    if (s.turn_narrow) passes.turn_narrow();
    passes.sort();
    mark_used();
    is_table_ = passes.tables();
    find_segments();
    find_parts();
    find_phases();
    find_forms();
    body();
    b.label = p.name + ": last chunk";
    for (int n = 0; n < p.size(); n++)
      if (p[n].op == Op::store_rows) put_rows(p[n]);
    for (int i = 0; i < static_cast<int>(p.refs.size()); i++)
      if (p.refs[i].final >= 0) finish(i);
    b.label = p.name + ": first chunk";
    prepend([&] {
      std::vector<int> early = rings_;  // read in steps before their first chunk
      for (auto& [ref, scratch] : carried_)
        if (!doubled(ref) && delay(stage_of(ref)) > 0) early.push_back(scratch);
      b.when(b.compare(0, step_index, b.i32(0), "i1"), [&] { zero_scratch(early); });
      for (auto& [ref, scratch] : carried_) begin(ref);
    });
    return module_of();
  }

 private:
  // part + k: the k-th 128 lanes of a paired tile. Chains of moves and pointwise work go part by part, so that few registers are live.
  enum Form { single, dup, paired, table, part };
  struct Piece {
    int value, rows;
    bool zero = false;  // has no text until somebody needs it
  };
  struct Tiles {
    std::vector<Piece> pieces;
    int width;
    Element element;
    int rows() const {
      int n = 0;
      for (auto& q : pieces) n += q.rows;
      return n;
    }
  };
  static constexpr int never = 1 << 20;

  int pairs_, ratio_;
  std::vector<char> is_table_, has_parts_, in_segments_;
  std::vector<int> dots_before_, phase_, phases_;
  std::vector<std::set<int>> forms_;
  std::map<std::tuple<int, int, int, int>, Tiles> made_;
  std::map<std::tuple<int, int, int, int>, int> token_vectors_;
  std::map<int, std::pair<std::vector<bool>, int>> kept_lanes_;
  std::map<std::pair<int, int>, int> ring_of_;
  std::vector<int> rings_;  // scratch that must start as zeros
  std::map<int, int> carried_, staging_;
  std::set<std::tuple<int, int, int, int>> staged_;  // what this step has put there
  int stage_ = 0, current_phase_ = 0;

  // ---------------------------------------------------------------- when things happen
  int delay(int stage) const { return s.delay[static_cast<std::size_t>(stage)]; }
  bool per_head(int n) const { return p[n].domain >= Domain::key_head; }
  // Made group by group; tables are made for all heads at once.
  bool in_groups(int n) const { return !is_table_[n] || Passes::collected(p, n); }
  bool is_scalar(int n) const { return p[n].domain == Domain::token && p[n].rows == 1 && p[n].cols == 1; }
  // Goes to a later stage by way of scratch, because that stage lags.
  bool lags(int n, int stage) const { return per_head(n) && p[n].op != Op::load && stage > p[n].stage && delay(stage) > delay(p[n].stage); }
  bool saved(int n) const {
    return std::any_of(users[n].begin(), users[n].end(), [&](int u) { return lags(n, p[u].stage); });
  }
  bool crosses(int n) const {
    return per_head(n) && p[n].op != Op::load && p[n].op != Op::extend &&
           std::any_of(users[n].begin(), users[n].end(), [&](int u) { return p[u].stage > p[n].stage; });
  }
  // Phase of a node: the dots of its own stage on the longest way to it. Each phase of a group is one tick later than the one before.
  void find_phases() {
    const int n = p.size();
    dots_before_.assign(n, 0);
    phase_.assign(n, never);
    phases_.assign(p.stages, 0);
    std::vector<int> last(p.stages, 0);
    auto count = [&] {
      for (int i = 0; i < n; i++) {
        for (int j : p[i].in)
          if (p[j].stage == p[i].stage) dots_before_[i] = std::max(dots_before_[i], dots_before_[j] + (p[j].op == Op::dot));
        if (used[i] && per_head(i)) last[p[i].stage] = std::max(last[p[i].stage], dots_before_[i]);
      }
    };
    count();
    for (int i = 0; i < n; i++)  // dots that are made as one wait for each other
      if (used[i] && p[i].op == Op::dot)
        for (int j : of_one_right(i)) dots_before_[i] = std::max(dots_before_[i], dots_before_[j]);
    count();
    for (int i = n - 1; i >= 0; i--) {
      if (!used[i]) continue;
      const Node& q = p[i];
      int e = never;
      for (int u : users[i])
        if (p[u].stage == q.stage) e = std::min(e, phase_[u]);
      if (q.op == Op::store_rows) continue;  // written when the step's work is done
      if (q.op == Op::dot || q.op == Op::store || (crosses(i) && !saved(i)) || spreads(i)) e = std::min(e, dots_before_[i]);
      else if (saved(i) && in_groups(i)) e = std::min(e, last[q.stage]);
      if (q.domain == Domain::value_head && q.op != Op::load && q.op != Op::extend) e = std::min(e, dots_before_[i]);
      phase_[i] = e;
      if (per_head(i) && in_groups(i) && e < never) phases_[q.stage] = std::max(phases_[q.stage], e + 1);
    }
  }
  // Columns side by side that only left operands of dots are made of: in a pair [A B] is [A0 A1 B0 B1], which costs no moves.
  void find_segments() {
    in_segments_.assign(p.size(), 0);
    for (int i = 0; i < p.size(); i++)
      in_segments_[i] = p[i].op == Op::concat_cols && p[i].rows > 1 && p[i].domain == Domain::value_head &&
                        std::all_of(users[i].begin(), users[i].end(), [&](int u) { return p[u].op == Op::dot && p[u].in[0] == i && p[u].in[1] != i; });
  }
  // Tiles of a value head of whole registers, made without crossing lanes.
  void find_parts() {
    has_parts_.assign(p.size(), 0);
    for (int i = 0; i < p.size(); i++) {
      const Node& q = p[i];
      if (q.domain != Domain::value_head || is_table_[i] || q.cols != 128) continue;
      const bool from_memory = q.op == Op::load && p.refs[q.ref].place != Place::sequence;
      const bool from_vector = q.op == Op::stretch && (p[q.in[0]].cols == q.cols || is_table_[q.in[0]] || p[q.in[0]].domain <= Domain::token);
      has_parts_[i] = from_memory || from_vector || trace::elementwise(q.op) || q.op == Op::select || q.op == Op::rows || q.op == Op::concat ||
                      (q.op == Op::concat_cols && !in_segments_[i]);
    }
  }
  // A tile that other tiles of its phase are made of, part by part, has no place of its own in the order.
  bool inside_chain(int n) const {
    return has_parts_[n] && !spreads(n) && std::any_of(users[n].begin(), users[n].end(), [&](int u) {
      return has_parts_[u] && p[u].stage == p[n].stage && phase_[u] == phase_[n];
    });
  }
  // A column of all heads spread over the lanes of one: as soon as the column is there.
  bool spreads(int n) const {
    const Node& q = p[n];
    return q.op == Op::stretch && !is_table_[n] && is_table_[q.in[0]] && p[q.in[0]].cols == 1 && p[q.in[0]].rows > 1;
  }

  // The forms that readers ask of shared values.
  void find_forms() {
    forms_.assign(p.size(), {});
    auto want = [&](int i, int f) {
      if (per_head(i)) forms_[i].insert(is_table_[i] ? table : p[i].domain == Domain::value_head ? paired : f);
    };
    for (int i = p.size() - 1; i >= 0; i--) {
      if (!used[i]) continue;
      const Node& q = p[i];
      if (q.op == Op::store_rows) continue;
      if (q.op == Op::store) want(q.in[0], paired_or_single(q));
      for (int f : std::set<int>(forms_[i])) {
        const int beside_paired = f != paired ? f : has_parts_[i] ? single : dup;
        if (q.op == Op::dot) {
          want(q.in[0], single);
          want(pushes_transposed(i) ? p[q.in[1]].in[0] : q.in[1], p[q.in[0]].domain == Domain::value_head || f != single ? dup : single);
        } else if (q.op == Op::transpose) {
          want(q.in[0], f == paired ? paired : single);
        } else if (const int inner = selected_twice(i); inner >= 0) {
          for (int j : {q.in[0], p[inner].in[0], p[inner].in[1]}) want(j, beside_paired);
        } else if (f == single && two_halves(i)) {
          for (int j : q.in) want(j, dup);
        } else {
          for (int j : q.in) want(j, beside_paired);
        }
      }
    }
  }
  // Tiles of a key head that fill the two halves of a register: chosen by lane from tiles which fill it twice.
  bool two_halves(int n) const {
    const Node& q = p[n];
    return q.op == Op::concat_cols && q.domain == Domain::key_head && p[q.in[0]].cols == 64 && p[q.in[1]].cols == 64;
  }
  // The matrix unit transposes the right operand: twice the cycles of a push, and none of the unit that moves lanes.
  bool pushes_transposed(int n) const {
    const int r = p[n].in[1];
    if (p[n].op != Op::dot || p[r].op != Op::transpose || p[r].stage != p[n].stage || p[r].domain != Domain::value_head || p[r].rows % 128) return false;
    return p[r].cols >= s.push_transposed_from && std::all_of(users[r].begin(), users[r].end(), [&](int u) { return p[u].op == Op::dot && p[u].in[0] != r; });
  }
  // The dots of a pair that share their right operand, if the schedule makes them one: their rows are one left operand.
  std::vector<int> of_one_right(int n) const {
    auto stacks = [&](int u) { return p[p[u].in[0]].domain == Domain::value_head && !in_segments_[p[u].in[0]]; };
    if (!s.stack_dots || !stacks(n)) return {n};
    std::vector<int> all;
    for (int u : users[p[n].in[1]])
      if (p[u].op == Op::dot && p[u].in[1] == p[n].in[1] && p[u].stage == p[n].stage && p[u].precision == p[n].precision && stacks(u) &&
          std::find(all.begin(), all.end(), u) == all.end())
        all.push_back(u);
    return all;
  }
  Form paired_or_single(const Node& store) const { return p.refs[store.ref].domain == Domain::value_head ? paired : single; }

  void body() {
    for (int k = s.vectors_ahead; k < p.stages; k++)
      if (!waits(k)) make_tables(k);
    std::vector<std::vector<int>> groups;
    for (int u = 0; u < pairs_; u += s.group) {
      groups.emplace_back();
      for (int k = u; k < std::min(pairs_, u + s.group); k++) groups.back().push_back(k);
    }
    std::vector<int> first = s.start;  // tick of a stage's first phase
    first.resize(static_cast<std::size_t>(p.stages), 0);
    for (int k = 1; k < p.stages; k++)
      if (delay(k) == delay(k - 1)) first[k] += first[k - 1] + phases_[k - 1];
    struct Event {
      int tick, order, phase, stage, group;
      auto operator<=>(const Event&) const = default;
    };
    std::vector<Event> events;
    for (int g = 0; g < static_cast<int>(groups.size()); g++)
      for (int k = 0; k < p.stages; k++)
        for (int i = 0; i < phases_[k]; i++) events.push_back({first[k] + g + i, s.order[k], i, k, g});
    const int all_groups = static_cast<int>(groups.size());
    if (s.vectors_ahead) events.push_back({s.vectors_tick, p.stages, 0, 0, all_groups});
    for (int k = 0; k < p.stages; k++)
      if (waits(k)) events.push_back({first[k] + all_groups - 1, -1, 0, k, all_groups});
    std::sort(events.begin(), events.end());

    // What stage k of a group keeps for later is stored once the later stages have read the old value: one slot, no false dependence.
    std::map<std::pair<int, int>, int> done;
    std::set<std::pair<int, int>> kept;
    auto last_read = [&](int stage, int later) {
      int r = -1;
      for (int n = 0; n < p.size(); n++)
        if (used[n] && p[n].stage == stage && !is_table_[n] && lags(n, later))
          for (int u : users[n])
            if (p[u].stage == later) r = std::max(r, phase_[u]);
      return r;
    };
    auto keep_when_read = [&](int stage, int g) {
      if (kept.count({stage, g}) || done[{stage, g}] < phases_[stage]) return;
      for (int k = stage + 1; k < p.stages; k++)
        if (done[{k, g}] <= last_read(stage, k)) return;
      kept.insert({stage, g});
      stage_ = stage;
      current_phase_ = phases_[stage];
      for (int n = 0; n < p.size(); n++)
        if (used[n] && p[n].stage == stage && !is_table_[n] && saved(n))
          for (int f : forms_[n])
            for (int u : groups[g]) keep(n, u, static_cast<Form>(f));
    };
    for (const Event& e : events) {
      if (e.group == all_groups) {
        make_tables(e.stage);
        continue;
      }
      emit(e.stage, e.phase, groups[e.group]);
      done[{e.stage, e.group}] = e.phase + 1;
      for (int k = 0; k < p.stages; k++) keep_when_read(k, e.group);
    }
    for (int n = 0; n < p.size(); n++)
      if (used[n] && !in_groups(n) && saved(n)) {
        stage_ = p[n].stage;
        keep(n, 0, table);
      }
  }
  // Tables of rows that this very step collects.
  bool waits(int stage) const {
    for (int n = 0; n < p.size(); n++)
      if (used[n] && p[n].stage == stage)
        for (int j : p[n].in)
          if (Passes::collected(p, j) && delay(p[j].stage) == delay(stage)) return true;
    return false;
  }
  void make_tables(int stage) {
    stage_ = stage;
    current_phase_ = 0;
    for (int n = 0; n < p.size(); n++) {
      if (!used[n] || in_groups(n)) continue;
      note(n);
      if (p[n].op == Op::store) {
        if (p[n].stage == stage) put_table(n);
        continue;
      }
      const bool mine = p[n].stage == stage && p[n].op != Op::load;
      const bool old = lags(n, stage) && std::any_of(users[n].begin(), users[n].end(), [&](int u) { return p[u].stage == stage; });
      if (mine || old) get(n, 0, table);
    }
  }
  void note(int n) { b.label = p.name + ": stage " + number(p[n].stage) + ", " + trace::info(p[n].op).name + " #" + number(n); }
  // Pair after pair, each in program order; but the solve, one dependent chain a pair, goes row by row over all pairs, and narrow dots
  // of two pairs are one.
  void emit(int stage, int phase, const std::vector<int>& pairs) {
    stage_ = stage;
    current_phase_ = phase;
    auto mine = [&](int n) {
      return used[n] && p[n].stage == stage && phase_[n] == phase && per_head(n) && in_groups(n) && p[n].op != Op::load;
    };
    auto chained = [&](int n) { return p[n].rows == 8 && p[n].cols == x.chunk; };
    auto one = [&](int n, int pair) {
      note(n);
      if (p[n].op == Op::store) {
        put(n, pair);
        return;
      }
      if (inside_chain(n)) return;
      if (Passes::collected(p, n)) {
        collect(n, pair);
        return;
      }
      for (int f : forms_[n]) {
        if (p[n].op == Op::dot && f == paired) {
          const std::vector<int> one_right = of_one_right(n);
          if (p[p[n].in[1]].domain == Domain::constant) stacked_dots({n}, pairs);
          else if (one_right.size() > 1) stacked_dots(one_right, {pair});
          else if (s.join_narrow_dots && 2 * p[n].cols == 128 && !pushes_transposed(n)) joined_dots(n, pairs);
        }
        get(n, pair, static_cast<Form>(f));
      }
    };
    for (int from = 0; from < p.size();) {
      int to = from;
      const bool chain = chained(from);
      while (to < p.size() && chained(to) == chain) to++;
      if (chain) {
        for (int n = from; n < to; n++)
          if (mine(n))
            for (int u : pairs) one(n, u);
      } else {
        for (int u : pairs)
          for (int n = from; n < to; n++)
            if (mine(n)) one(n, u);
      }
      from = to;
    }
  }

  // ---------------------------------------------------------------- pieces of tiles
  int width(int n, Form f) const { return f >= part ? 128 : f == single ? p[n].cols : 2 * p[n].cols; }
  int first_lane(Form f) const { return f >= part ? 128 * (f - part) : 0; }
  static Form nth_part(int k) { return static_cast<Form>(part + k); }
  int parts_of(int n) const { return 2 * p[n].cols / 128; }
  int table_rows(int n) const { return p[n].cols == 1 ? p[n].rows : pairs_; }
  int table_width(int n) const { return p[n].cols == 1 ? 128 : 2 * p[n].cols; }
  int zero(int rows, int w, Element e) { return b.splat({rows, w}, e, 0); }
  int value(const Piece& q, const Tiles& t) { return q.zero ? zero(q.rows, t.width, t.element) : q.value; }
  int cut(int v, int row, int rows, int column, int columns, Element e) { return slice(v, {row, column}, {rows, columns}, e); }
  int beside(const std::vector<int>& in, int rows, int w, Element e) { return concat(in, 1, {rows, w}, e); }
  int whole(const Tiles& t) {
    std::vector<int> in;
    for (auto& q : t.pieces) in.push_back(value(q, t));
    return concat(in, 0, {t.rows(), t.width}, t.element);
  }
  Tiles rows_of(const Tiles& t, int from, int n) {
    Tiles out{{}, t.width, t.element};
    int at = 0;
    for (auto& q : t.pieces) {
      const int begin = std::max(from, at), end = std::min(from + n, at + q.rows);
      if (begin < end) {
        if (q.zero) out.pieces.push_back({-1, end - begin, true});
        else out.pieces.push_back({cut(q.value, begin - at, end - begin, 0, t.width, t.element), end - begin});
      }
      at += q.rows;
    }
    return out;
  }
  // Row ranges in which no operand changes its piece.
  static std::vector<std::pair<int, int>> segments(const std::vector<Tiles>& operands) {
    std::set<int> edges{0};
    for (auto& t : operands) {
      int at = 0;
      for (auto& q : t.pieces) edges.insert(at += q.rows);
    }
    std::vector<std::pair<int, int>> out;
    for (auto i = edges.begin(); std::next(i) != edges.end(); ++i) out.push_back({*i, *std::next(i) - *i});
    return out;
  }

  // ---------------------------------------------------------------- masks
  // Where two arguments would write operations, one is made first: their order in the text must not be the compiler's choice.
  int same_type(const char* op, int l, int r) { return b.op(op, {l, r}, "", b.type(l)); }
  int compared(int predicate, int l, int r, int rows, int w) { return b.compare(predicate, l, r, vector_type({rows, w}, Element::i1)); }
  // The shortest compare that is true on this set of lanes.
  int lane_mask(const std::vector<bool>& lanes, int rows) {
    const int w = static_cast<int>(lanes.size());
    auto c = [&](int k) { return b.splat({rows, w}, Element::i32, static_cast<std::uint32_t>(k)); };
    const int lane = iota({rows, w}, 1);
    for (int period : {w, w / 2}) {
      bool repeats = true, range = true;
      int lo = -1, hi = -1;
      for (int i = 0; i < w; i++) repeats &= lanes[i] == lanes[i % period];
      for (int i = 0; i < period; i++)
        if (lanes[i]) lo = lo < 0 ? i : lo, hi = i + 1;
      for (int i = std::max(lo, 0); i < hi; i++) range &= lanes[i];
      if (!repeats || !range || lo < 0) continue;
      const int v = period == w ? lane : same_type("arith.andi", lane, c(period - 1));
      if (lo == 0) return compared(2, v, c(hi), rows, w);
      if (hi == period) return compared(5, v, c(lo), rows, w);
      if (hi - lo == 16 && lo % 16 == 0) {
        const int wanted = c(lo / 16);
        return compared(0, same_type("arith.shrui", v, c(4)), wanted, rows, w);
      }
    }
    int blocks = 0;
    for (int i = 0; i < w; i++) {
      require(lanes[i] == lanes[i / 16 * 16], p.name, ": a lane mask of blocks other than 16 lanes");
      blocks |= static_cast<int>(lanes[i]) << (i / 16);
    }
    const int zero = c(0), chosen = c(blocks);
    const int block = same_type("arith.shrui", lane, c(4));
    return compared(1, same_type("arith.andi", same_type("arith.shli", c(1), block), chosen), zero, rows, w);
  }
  // v on these lanes, else +0. A select of a select is one.
  int on_lanes(std::vector<bool> lanes, int v, int rows, Element e) {
    if (auto inner = kept_lanes_.find(v); inner != kept_lanes_.end()) {
      for (std::size_t i = 0; i < lanes.size(); i++) lanes[i] = lanes[i] && inner->second.first[i];
      v = inner->second.second;
    }
    const int w = static_cast<int>(lanes.size());
    const int r = b.op("arith.select", {lane_mask(lanes, rows), v, zero(rows, w, e)}, "", vector_type({rows, w}, e));
    kept_lanes_[r] = {lanes, v};
    return r;
  }
  static std::vector<bool> lane_set(int w, std::function<bool(int)> f) {
    std::vector<bool> l(static_cast<std::size_t>(w));
    for (int i = 0; i < w; i++) l[i] = f(i);
    return l;
  }
  int static_mask(int n, int row, int rows, int w, int cols) {
    const Node& q = p[n];
    auto c = [&](int k) { return b.splat({rows, w}, Element::i32, static_cast<std::uint32_t>(k)); };
    switch (q.op) {
      case Op::constant: return c(static_cast<i32>(q.value));
      case Op::row_index: {
        const int first = row ? c(row) : -1, i = iota({rows, w}, 0);
        return row ? same_type("arith.addi", i, first) : i;
      }
      case Op::col_index: {
        const int mask = cols == w ? -1 : c(cols - 1), j = iota({rows, w}, 1);
        return cols == w ? j : same_type("arith.andi", j, mask);
      }
      case Op::stretch: return static_mask(q.in[0], row, rows, w, cols);
      default: {
        const int l = static_mask(q.in[0], row, rows, w, cols);
        const int r = static_mask(q.in[1], row, rows, w, cols);
        return elementwise(q, {l, r}, p[q.in[0]].element, vector_type({rows, w}, q.element));
      }
    }
  }

  // ---------------------------------------------------------------- tokens: the same for all heads
  // A per-token vector over w lanes: as a column [C, w], every lane the same, or as a row [1, w], repeated every C lanes.
  int token_vector(int n, bool column, int w) {
    const Node& q = p[n];
    auto [at, fresh] = token_vectors_.try_emplace({n, column, w, 0}, -1);
    if (!fresh) return at->second;
    const int rows = column ? x.chunk : 1;
    const std::string type = vector_type({rows, w}, q.element);
    int v;
    if (is_scalar(n)) {
      v = broadcast(scalar_value(n), {rows, w}, q.element);
    } else if (q.op == Op::constant) {
      v = b.splat({rows, w}, q.element, q.value);
    } else if (q.op == Op::load) {
      const Window& window = words_window(p.refs[q.ref], delay(q.stage));
      v = load(window.value, zeros(4), {1, x.chunk}, q.element, 4);
      if (column) {
        v = transpose(broadcast(v, {128, x.chunk}, q.element), {1, 0}, {x.chunk, 128}, q.element);
        v = w <= 128 ? cut(v, 0, x.chunk, 0, w, q.element) : beside(std::vector<int>(static_cast<std::size_t>(w / 128), v), x.chunk, w, q.element);
      } else if (w > x.chunk) {
        v = beside(std::vector<int>(static_cast<std::size_t>(w / x.chunk), v), 1, w, q.element);
      }
    } else if (q.op == Op::transpose || (q.op == Op::stretch && (p[q.in[0]].rows == 1) == (q.rows == 1))) {
      v = token_vector(q.in[0], column, w);
    } else if (q.op == Op::stretch) {  // from one to a vector
      v = token_vector(q.in[0], column, w);
    } else {
      std::vector<int> in;
      for (int j : q.in) in.push_back(token_vector(j, column, w));
      v = q.op == Op::select ? b.op("arith.select", in, "", type) : elementwise(q, in, p[q.in[0]].element, type);
    }
    return token_vectors_[{n, column, w, 0}] = v;
  }
  int scalar_value(int n) {
    const Node& q = p[n];
    if (q.op == Op::load) return scalar(p.refs[q.ref], delay(q.stage));
    std::vector<int> in;
    for (int j : q.in) in.push_back(p[j].op == Op::constant ? b.i32(static_cast<i32>(p[j].value)) : scalar_value(j));
    return elementwise(q, in, p[q.in[0]].element, name_of(q.element));
  }

  // ---------------------------------------------------------------- tables
  int lane_of_head(int pair, int half) const { return pair + 64 * half; }
  // Lanes of [rows, 128], by the same 128 indices in every row.
  int gathered(int v, int rows, const std::vector<int>& index) {
    const Shape tile{8, 128};
    const std::string type = vector_type(tile, Element::i32);
    auto c = [&](int k) { return b.splat(tile, Element::i32, static_cast<std::uint32_t>(k)); };
    auto first_half = [&] { return lane_mask(lane_set(128, [](int i) { return i < 64; }), 8); };
    auto is = [&](auto f) {
      for (int k = 0; k < 128; k++)
        if (index[k] != f(k)) return false;
      return true;
    };
    int lanes;
    if (is([&](int) { return index[0]; })) lanes = c(index[0]);
    else if (is([&](int k) { return index[k / 64 * 64]; })) lanes = b.op("arith.select", {first_half(), c(index[0]), c(index[64])}, "", type);
    else if (is([&](int k) { return k / 16 * 16 + index[0]; })) {
      const int in_block = c(index[0]), mask = c(~15);
      lanes = same_type("arith.addi", same_type("arith.andi", iota(tile, 1), mask), in_block);
    } else if (is([&](int k) { return k / 2 + k % 2 * 64; })) {
      const int lane = iota(tile, 1), one = c(1), six = c(6);
      const int half = same_type("arith.shrui", lane, one), odd = same_type("arith.andi", lane, one);
      lanes = same_type("arith.addi", half, same_type("arith.shli", odd, six));
    } else if (is([&](int k) { return k < 64 ? 2 * k : 2 * k - 127; })) {
      const int twice = same_type("arith.addi", iota(tile, 1), iota(tile, 1));
      lanes = b.op("arith.select", {first_half(), twice, same_type("arith.subi", twice, c(127))}, "", type);
    } else {
      throw Error(text(p.name, ": a lane gather of no known pattern"));
    }
    auto eight = [&](int from) { return b.op("tpu.dynamic_gather", {from, lanes}, "dimensions = array<i32: 1>", vector_type(tile, Element::f32)); };
    if (rows == 1) return cut(eight(broadcast(v, tile, Element::f32)), 0, 1, 0, 128, Element::f32);
    std::vector<int> out;
    for (int r = 0; r < rows; r += 8) out.push_back(eight(cut(v, r, 8, 0, 128, Element::f32)));
    return concat(out, 0, {rows, 128}, Element::f32);
  }
  // A column of every head -> [rows, 2 cols] of one pair.
  int spread(int v, int rows, int pair, int cols) {
    std::vector<int> index(128);
    if (cols < 128) {
      for (int k = 0; k < 128; k++) index[k] = lane_of_head(pair, k / 64);
      return cut(gathered(v, rows, index), 0, rows, 0, 2 * cols, Element::f32);
    }
    std::vector<int> halves;
    for (int h = 0; h < 2; h++) {
      index.assign(128, lane_of_head(pair, h));
      const int one = gathered(v, rows, index);
      halves.insert(halves.end(), static_cast<std::size_t>(cols / 128), one);
    }
    return beside(halves, rows, 2 * cols, Element::f32);
  }
  int table_row(int n, int pair) { return cut(whole(get(n, pair, table)), pair, 1, 0, table_width(n), p[n].element); }
  int lanes_of_row(int n, int pair, Form f) {
    return f >= part ? cut(table_row(n, pair), 0, 1, first_lane(f), 128, p[n].element) : table_row(n, pair);
  }
  // Heads of the array's row [rows, H] as a table: even heads in the lower lanes, odd ones in the upper.
  int table_of(int v, int rows, Element e) {
    const int H = x.value_heads;
    if (e == Element::bf16) v = b.op("arith.extf", {v}, "", vector_type({rows, H}, Element::f32));
    if (H < 128) v = beside({v, zero(rows, 128 - H, Element::f32)}, rows, 128, Element::f32);
    if (blocks() > 1) {
      const int back = b.op("arith.subi", {b.i32(128), b.op("arith.muli", {block_index, b.i32(s.heads_per_step)}, "", "i32")}, "", "i32");
      v = b.op("tpu.dynamic_rotate", {v, back}, "dimension = 1 : si32", vector_type({rows, 128}, Element::f32));
    }
    std::vector<int> index(128);
    for (int k = 0; k < 128; k++) index[k] = k < 64 ? 2 * k : 2 * k - 127;
    return gathered(v, rows, index);
  }

  // ---------------------------------------------------------------- one node for one pair
  int unit_of(int n, int pair) const { return p[n].domain == Domain::value_head ? pair : p[n].domain == Domain::key_head ? pair * 2 / ratio_ : 0; }
  int units_of(Domain d) const { return d == Domain::value_head ? pairs_ : pairs_ * 2 / ratio_; }
  Form operand_form(int n, Form f) const {
    if (is_table_[n]) return table;
    if (p[n].domain == Domain::value_head) return f >= part ? f : paired;
    return f >= part ? single : f == paired ? dup : f;  // a part is one head's columns
  }
  const Tiles& get(int n, int pair, Form f) {
    if (is_table_[n]) f = table;
    const bool from_memory = p[n].op == Op::load || Passes::collected(p, n) || lags(n, stage_);
    const std::tuple key{n, static_cast<int>(f), f == table ? 0 : unit_of(n, pair),
                         from_memory ? 1 + stage_ * 64 + (f == table ? 0 : current_phase_) : 0};
    if (auto at = made_.find(key); at != made_.end()) return at->second;
    Tiles t = Passes::collected(p, n) || lags(n, stage_) ? reload(n, pair, f)
              : f == paired && has_parts_[n] ? joined(n, pair)
              : f >= part && p[n].domain == Domain::value_head && !has_parts_[n] ? cut_out(n, pair, f)
                                               : make(n, pair, f);
    return made_[key] = std::move(t);
  }
  Tiles joined(int n, int pair) {
    std::vector<Tiles> parts;
    for (int k = 0; k < parts_of(n); k++) parts.push_back(get(n, pair, nth_part(k)));
    Tiles out{{}, 2 * p[n].cols, p[n].element};
    for (auto [from, count] : segments(parts)) {
      std::vector<int> values;
      bool zeros = true;
      for (auto& t : parts) zeros &= rows_of(t, from, count).pieces[0].zero;
      if (zeros) {
        out.pieces.push_back({-1, count, true});
        continue;
      }
      for (auto& t : parts) values.push_back(value(rows_of(t, from, count).pieces[0], t));
      out.pieces.push_back({beside(values, count, out.width, out.element), count});
    }
    return out;
  }
  Tiles cut_out(int n, int pair, Form f) {
    const Tiles& t = get(n, pair, paired);
    Tiles out{{}, 128, t.element};
    for (auto& q : t.pieces)
      out.pieces.push_back(q.zero ? q : Piece{cut(q.value, 0, q.rows, first_lane(f), 128, t.element), q.rows});
    return out;
  }
  Tiles make(int n, int pair, Form f) {
    const Node q = p[n];
    const int w = f == table ? table_width(n) : width(n, f);
    const int rows = f == table ? table_rows(n) : q.rows;
    auto as_one = [&](int v) { return Tiles{{{v, rows}}, w, q.element}; };
    auto operand = [&](int k) -> const Tiles& { return get(q.in[static_cast<std::size_t>(k)], pair, f == table ? table : operand_form(q.in[static_cast<std::size_t>(k)], f)); };
    if (f == table && trace::elementwise(q.op)) return table_elementwise(n, rows, w);
    if (q.domain == Domain::token && (q.rows == 1 || q.cols == 1)) return as_one(token_vector(n, q.rows > 1, w));
    if (trace::elementwise(q.op)) {
      if (q.op == Op::extend && p[q.in[0]].op == Op::load && is_table_[n]) return operand(0);
      std::vector<Tiles> in;
      for (int j : q.in) in.push_back(tiles_of(j, pair, f, rows));
      Tiles out{{}, w, q.element};
      for (auto [from, count] : segments(in)) {
        std::vector<Piece> now;
        std::vector<int> values;
        for (auto& t : in) now.push_back(rows_of(t, from, count).pieces[0]);
        if ((q.op == Op::round || q.op == Op::extend) && now[0].zero) out.pieces.push_back({-1, count, true});
        else if (q.op == Op::sub && now[1].zero) out.pieces.push_back(now[0]);
        else {
          for (std::size_t k = 0; k < now.size(); k++) values.push_back(value(now[k], in[k]));
          out.pieces.push_back({elementwise(q, values, p[q.in[0]].element, vector_type({count, w}, q.element)), count});
        }
      }
      return out;
    }
    switch (q.op) {
      case Op::constant:
        if (q.value == 0 && f != table) return {{{-1, rows, true}}, w, q.element};
        return as_one(b.splat({rows, w}, q.element, q.value));
      case Op::load: return read(n, pair, f);
      case Op::select: return f == table ? table_select(n, rows, w) : selected(n, pair, f, w);
      case Op::stretch: return stretched(n, pair, f, rows, w);
      case Op::dot: {
        auto [lhs, rhs] = dot_operands(n, pair, f);
        const int right = whole(rhs), left = whole(lhs);
        return {{{product(n, left, right, lhs.rows(), rhs), lhs.rows()}}, columns(n, rhs), Element::f32};
      }
      case Op::transpose: return transposed(n, pair, f, rows, w);
      case Op::rows:
        if (f == table) return as_one(cut(whole(operand(0)), q.a, q.b, 0, 128, q.element));
        if (q.a % 8 && p[q.in[0]].op == Op::concat) return shifted_rows(n, pair, f);
        return rows_of(operand(0), q.a, q.b);
      case Op::concat: {
        Tiles out{{}, w, q.element};
        for (std::size_t k = 0; k < q.in.size(); k++) {
          const Tiles& t = operand(static_cast<int>(k));
          out.pieces.insert(out.pieces.end(), t.pieces.begin(), t.pieces.end());
        }
        return out;
      }
      case Op::concat_cols: {
        std::vector<int> in;
        if (f == single && two_halves(n)) {
          for (int j : q.in) in.push_back(whole(get(j, pair, dup)));
          return as_one(halves_of(in[0], in[1], rows, q.element));
        }
        if (f >= part) {  // head h of the pair: from half h of both
          const int upper = f - part;
          for (int k = 0; k < 2; k++) {
            const int v = whole(get(q.in[static_cast<std::size_t>(k)], pair, paired));
            in.push_back(k == upper ? v : rotated(v, 64));
          }
          return as_one(halves_of(in[0], in[1], rows, q.element));
        }
        const int halves = f == table ? 2 : 1;  // of rows of all heads every head's columns stay together
        for (int h = 0; h < halves; h++)
          for (int j : q.in) {
            const int v = whole(get(j, pair, operand_form(j, f))), part = (f == table ? table_width(j) : width(j, f)) / halves;
            in.push_back(cut(v, 0, rows, h * part, part, q.element));
          }
        return as_one(beside(in, rows, w, q.element));
      }
      case Op::sum_cols: return f == table ? as_one(sums_of_rows(n)) : row_sums(n, pair, f);
      case Op::sum_heads: {
        const int v = whole(sum_of_pairs(n, pair));
        if (q.cols % 128 == 0) {
          const int lower = cut(v, 0, rows, 0, q.cols, q.element), upper = cut(v, 0, rows, q.cols, q.cols, q.element);
          const int sum = added(lower, upper);
          return as_one(f == single ? sum : beside({sum, sum}, rows, w, q.element));
        }
        const int other = rotated(v, q.cols);
        return as_one(cut(added(v, other), 0, rows, 0, w, q.element));  // both halves are the sum
      }
      case Op::cumsum: case Op::cumsum_within: case Op::sums_from: case Op::sums_before: return as_one(prefix_sums(n));
      case Op::diagonal_blocks: {
        const Tiles& t = operand(0);
        const int blocks = q.cols / q.a;
        int v = whole(rows_of(t, q.a * (blocks - 1), q.a));
        for (int k = blocks - 2; k >= 0; k--) {
          const int here = lane_mask(lane_set(w, [&](int j) { return j % q.cols / q.a == k; }), q.a);
          v = b.op("arith.select", {here, whole(rows_of(t, q.a * k, q.a)), v}, "", vector_type({q.a, w}, q.element));
        }
        return as_one(v);
      }
      case Op::block_column: {
        std::vector<int> index(128);
        for (int k = 0; k < 128; k++) index[k] = k / q.a * q.a + q.b;
        int v = whole(operand(0));
        if (w < 128) v = beside({v, zero(rows, 128 - w, q.element)}, rows, 128, q.element);
        return as_one(cut(gathered(v, rows, index), 0, rows, 0, w, q.element));
      }
      default: throw Error(text(p.name, ": ", trace::info(q.op).name, " has no paired form"));
    }
  }
  // An operand of an elementwise op, in the form that op has.
  Tiles tiles_of(int j, int pair, Form f, int rows) {
    if (is_table_[j]) return {{{lanes_of_row(j, pair, f), 1}}, width(j, f), p[j].element};
    if (p[j].domain == Domain::constant && p[j].op == Op::constant)
      return p[j].value == 0 ? Tiles{{{-1, rows, true}}, width(j, f), p[j].element}
                             : Tiles{{{b.splat({rows, width(j, f)}, p[j].element, p[j].value), rows}}, width(j, f), p[j].element};
    return get(j, pair, operand_form(j, f));
  }
  int table_operand(int j, int rows, int w, bool column) {
    if (p[j].op == Op::constant) return b.splat({rows, w}, p[j].element, p[j].value);
    if (is_scalar(j)) return broadcast(scalar_value(j), {rows, w}, p[j].element);
    if (p[j].domain <= Domain::token) return column ? token_vector(j, true, w) : broadcast(token_vector(j, false, w), {rows, w}, p[j].element);
    return whole(get(j, 0, table));
  }
  Tiles table_elementwise(int n, int rows, int w) {
    const Node q = p[n];
    if (q.op == Op::extend && p[q.in[0]].op == Op::load) return get(q.in[0], 0, table);  // tables are read as f32
    std::vector<int> in;
    for (int j : q.in) in.push_back(table_operand(j, rows, w, q.cols == 1));
    return {{{elementwise(q, in, p[q.in[0]].element, vector_type({rows, w}, q.element)), rows}}, w, q.element};
  }
  Tiles table_select(int n, int rows, int w) {
    const Node q = p[n];
    const int mask = q.in[0];
    const int scalar = scalar_mask(mask);
    const int m = scalar >= 0 ? scalar_value(scalar) : table_operand(mask, rows, w, q.cols == 1);
    const int yes = table_operand(q.in[1], rows, w, q.cols == 1), no = table_operand(q.in[2], rows, w, q.cols == 1);
    return {{{b.op("arith.select", {m, yes, no}, "", vector_type({rows, w}, q.element)), rows}}, w, q.element};
  }
  // The scalar a mask is stretched from, or -1.
  int scalar_mask(int n) const {
    while (p[n].op == Op::stretch) n = p[n].in[0];
    return is_scalar(n) ? n : -1;
  }
  // The select whose result a select keeps in part, zeros elsewhere: one select of both masks.
  int selected_twice(int n) const {
    const auto or_zero = [&](int i) {
      return p[i].op == Op::select && !is_table_[i] && p.is_zero(p[i].in[2]) && p[i].domain >= Domain::key_head &&
             (p[p[i].in[0]].domain == Domain::constant || scalar_mask(p[i].in[0]) < 0);
    };
    const int inner = or_zero(n) ? p[n].in[1] : -1;
    return inner >= 0 && or_zero(inner) && users[inner].size() == 1 && p[inner].stage == p[n].stage ? inner : -1;
  }
  // Rows of a mask: true or false everywhere, the same lanes in every row, or a value.
  struct Mask {
    enum { all, none, some_lanes, some } kind;
    std::vector<bool> lanes;
    int value;
  };
  Mask mask_rows(int n, int pair, Form f, int from, int count, int cols, int w) {
    if (p[n].domain != Domain::constant) {
      const int scalar = scalar_mask(n);
      return {Mask::some, {}, scalar >= 0 ? scalar_value(scalar) : whole(rows_of(get(n, pair, operand_form(n, f)), from, count))};
    }
    bool all = true, none = true, by_lane = true;
    std::vector<bool> lanes(static_cast<std::size_t>(w));
    for (int i = 0; i < count; i++)
      for (int j = 0; j < cols; j++) {
        const bool m = evaluate(n, from + i, j);
        all &= m;
        none &= !m;
        by_lane &= m == static_cast<bool>(evaluate(n, from, j));
        if (i == 0)
          for (int k = j; k < w; k += cols) lanes[k] = m;
      }
    if (all || none) return {all ? Mask::all : Mask::none, {}, -1};
    if (by_lane) return {Mask::some_lanes, lanes, -1};
    return {Mask::some, {}, static_mask(n, from, count, w, cols)};
  }
  Tiles selected(int n, int pair, Form f, int w) {
    const Node q = p[n];
    const int inner = selected_twice(n);
    const std::vector<Tiles> in{tiles_of(inner >= 0 ? p[inner].in[1] : q.in[1], pair, f, q.rows), tiles_of(q.in[2], pair, f, q.rows)};
    Tiles out{{}, w, q.element};
    for (auto [from, count] : segments(in)) {
      const Piece yes = rows_of(in[0], from, count).pieces[0], no = rows_of(in[1], from, count).pieces[0];
      if (yes.zero && no.zero) {
        out.pieces.push_back(yes);
        continue;
      }
      Mask mask = mask_rows(q.in[0], pair, f, from, count, q.cols, w);
      if (inner >= 0) {
        const Mask second = mask_rows(p[inner].in[0], pair, f, from, count, q.cols, w);
        if (mask.kind == Mask::all || second.kind == Mask::none) mask = second;
        else if (mask.kind != Mask::none && second.kind != Mask::all) {
          const int l = mask_value(mask, count), r = mask_value(second, count);
          mask = {Mask::some, {}, same_type("arith.andi", l, r)};
        }
      }
      if (mask.kind == Mask::all || mask.kind == Mask::none) {
        out.pieces.push_back(mask.kind == Mask::all ? yes : no);
      } else if (mask.kind == Mask::some_lanes && no.zero) {
        out.pieces.push_back({on_lanes(mask.lanes, yes.value, count, q.element), count});
      } else {
        const int m = mask_value(mask, count), v = value({yes.value, count, yes.zero}, in[0]), other = value({no.value, count, no.zero}, in[1]);
        out.pieces.push_back({b.op("arith.select", {m, v, other}, "", vector_type({count, w}, q.element)), count});
      }
    }
    return out;
  }
  int mask_value(const Mask& m, int rows) { return m.kind == Mask::some_lanes ? lane_mask(m.lanes, rows) : m.value; }
  Tiles stretched(int n, int pair, Form f, int rows, int w) {
    const Node q = p[n];
    const int y = q.in[0];
    auto as_one = [&](int v) { return Tiles{{{v, rows}}, w, q.element}; };
    if (p[y].domain == Domain::token) {
      if (is_scalar(y)) return as_one(broadcast(scalar_value(y), {rows, w}, q.element));
      if (p[y].cols == 1) return as_one(token_vector(y, true, w));
      return as_one(broadcast(token_vector(y, false, w), {rows, w}, q.element));
    }
    if (f == table) {
      if (q.cols == 1) return as_one(broadcast(table_operand(y, 1, 128, true), {rows, w}, q.element));
      // [1, 128 heads] -> [pairs, 2 cols]
      const int v = transpose(broadcast(whole(get(y, pair, table)), {8, 128}, q.element), {1, 0}, {128, 8}, q.element);
      std::vector<int> halves;
      for (int h = 0; h < 2; h++) halves.push_back(broadcast(cut(v, 64 * h, pairs_, 0, 1, q.element), {pairs_, q.cols}, q.element));
      return as_one(beside(halves, pairs_, w, q.element));
    }
    if (is_table_[y]) {
      if (p[y].cols > 1) return as_one(broadcast(lanes_of_row(y, pair, f), {rows, w}, q.element));
      if (f >= part) {
        const int v = gathered(whole(get(y, pair, table)), p[y].rows, std::vector<int>(128, lane_of_head(pair, f - part)));
        return as_one(broadcast(v, {rows, w}, q.element));
      }
      const int v = spread(whole(get(y, pair, table)), p[y].rows, pair, q.cols);
      return as_one(broadcast(v, {rows, w}, q.element));
    }
    if (in_all_lanes(y, single) && q.cols == 128 && f != dup && lags(y, stage_)) {
      const int at = ring_slot(y, single, pair, delay(stage_) - delay(p[y].stage));
      return as_one(load(ring(y, single), {at, b.index(0), b.index(0)}, {rows, w}, q.element, 3));
    }
    const int v = whole(get(y, pair, operand_form(y, f)));
    if (p[y].cols == 1 && operand_form(y, f) == paired) {  // one column a half
      std::vector<int> halves;
      for (int h = 0; h < 2; h++) halves.push_back(broadcast(cut(v, 0, p[y].rows, h, 1, q.element), {rows, q.cols}, q.element));
      return as_one(beside(halves, rows, w, q.element));
    }
    return as_one(broadcast(v, {rows, w}, q.element));
  }
  // A key head's column is kept in every lane of its registers: the reader need not spread it.
  bool in_all_lanes(int n, Form f) const { return f == single && p[n].domain == Domain::key_head && p[n].cols == 1 && p[n].rows > 1 && !is_table_[n]; }
  Tiles transposed(int n, int pair, Form f, int rows, int w) {
    const Node q = p[n];
    const Node& a = p[q.in[0]];
    auto as_one = [&](int v) { return Tiles{{{v, rows}}, w, q.element}; };
    if (f == table && q.cols == 1) {  // rows [pairs, 2C] -> a column of every head [C, 128]
      int v = whole(get(q.in[0], pair, table));
      if (pairs_ < 64) v = concat({v, zero(64 - pairs_, 2 * rows, q.element)}, 0, {64, 2 * rows}, q.element);
      v = transpose(v, {1, 0}, {2 * rows, 64}, q.element);
      return as_one(beside({cut(v, 0, rows, 0, 64, q.element), cut(v, rows, rows, 0, 64, q.element)}, rows, 128, q.element));
    }
    if (f == table) {  // a column of every head [C, 128] -> rows [pairs, 2C]
      const int v = transpose(whole(get(q.in[0], pair, table)), {1, 0}, {128, a.rows}, q.element);
      return as_one(beside({cut(v, 0, pairs_, 0, a.rows, q.element), cut(v, 64, pairs_, 0, a.rows, q.element)}, pairs_, w, q.element));
    }
    if (a.op == Op::sum_heads && a.cols % 128 && f == single) {  // sums of pairs are turned, and their halves then lie on top of each other
      const int v = transpose(whole(sum_of_pairs(q.in[0], pair)), {1, 0}, {2 * q.rows, q.cols}, q.element);
      const int upper = cut(v, 0, q.rows, 0, q.cols, q.element), lower = cut(v, q.rows, q.rows, 0, q.cols, q.element);
      return as_one(added(upper, lower));
    }
    if (f == paired && q.element == Element::bf16 && a.rows == 64 && a.cols == 64 && s.group % 2 == 0 && (pair | 1) < pairs_) {
      // [A B] on top of [C D], turned, is [A C] on top of [B D]: one turn for two pairs.
      const int first = pair & ~1;
      std::vector<int> both;
      for (int u : {first, first | 1}) both.push_back(whole(get(q.in[0], u, paired)));
      const int v = transpose(concat(both, 0, {128, 128}, q.element), {1, 0}, {128, 128}, q.element);
      const int ac = cut(v, 0, 64, 0, 128, q.element), bd = cut(v, 64, 64, 0, 128, q.element);
      const int ab = halves_of(ac, rotated(bd, 64), 64, q.element), cd = halves_of(rotated(ac, 64), bd, 64, q.element);
      made_[{n, static_cast<int>(paired), pair ^ 1, 0}] = {{{pair == first ? cd : ab, rows}}, w, q.element};
      return as_one(pair == first ? ab : cd);
    }
    // Both halves at once: the tile on top of itself, or its halves on top of each other.
    int v = whole(get(q.in[0], pair, f == paired ? paired : single));
    if (f == single) return as_one(transpose(v, {1, 0}, {a.cols, a.rows}, q.element));
    const int upper = f == paired ? cut(v, 0, a.rows, 0, a.cols, q.element) : v;
    const int lower = f == paired ? cut(v, 0, a.rows, a.cols, a.cols, q.element) : v;
    v = concat({upper, lower}, 0, {2 * a.rows, a.cols}, q.element);
    return as_one(transpose(v, {1, 0}, {a.cols, 2 * a.rows}, q.element));
  }
  // The lower lanes of one, the upper ones of the other.
  int halves_of(int lower, int upper, int rows, Element e) {
    const int mask = lane_mask(lane_set(128, [](int i) { return i < 64; }), rows);
    return b.op("arith.select", {mask, lower, upper}, "", vector_type({rows, 128}, e));
  }
  int rotated(int v, int lanes) { return b.op("tpu.dynamic_rotate", {v, b.i32(lanes)}, "dimension = 1 : si32", b.type(v)); }
  int added(int l, int r) { return b.op("arith.addf", {l, r}, "fastmath = #arith.fastmath<none>", b.type(l)); }
  // The sum over a key head's pairs, in the order of a sum over its heads, which ends with the two halves.
  Tiles sum_of_pairs(int n, int pair) {
    const int source = p[n].in[0], all = ratio_ / 2, first = pair / all * all;
    std::vector<int> v;
    for (int k = 0; k < all; k++) v.push_back(whole(get(source, first + k, paired)));
    for (int half = static_cast<int>(std::bit_ceil(static_cast<unsigned>(all))) / 2; half > 0; half /= 2) {
      for (int k = 0; k + half < static_cast<int>(v.size()); k++) v[k] = added(v[k], v[k + half]);
      v.resize(static_cast<std::size_t>(half));
    }
    return {{{v[0], p[n].rows}}, 2 * p[n].cols, p[n].element};
  }
  // A tile's sums along a dimension, as a row or a column.
  int summed(int v, int dim, const Shape& to) {
    const int n = std::max(to[0], to[1]);
    const int sums = b.op("vector.multi_reduction", {v, b.splat({n}, Element::f32, 0)},
                          "kind = #vector.kind<add>, reduction_dims = array<i64: " + number(dim) + ">", vector_type({n}, Element::f32));
    return reshape(sums, to, Element::f32);
  }
  // Of rows of all heads, the sum of each: [pairs, 2 cols] -> [1, 128].
  int sums_of_rows(int n) {
    const int y = p[n].in[0], cols = p[y].cols, v = whole(get(y, 0, table));
    std::vector<int> in;
    for (int h = 0; h < 2; h++) {
      in.push_back(broadcast(summed(cut(v, 0, pairs_, h * cols, cols, Element::f32), 1, {pairs_, 1}), {pairs_, 128}, Element::f32));
      if (pairs_ < 64) in.push_back(zero(64 - pairs_, 128, Element::f32));
    }
    return cut(transpose(concat(in, 0, {128, 128}, Element::f32), {1, 0}, {128, 128}, Element::f32), 0, 1, 0, 128, Element::f32);
  }
  void collect(int n, int pair) {
    const Node q = p[n];
    const int y = q.in[0], memory = ring(n, table), slot = ring_slot(n, table, 0, 0);
    const bool parts = has_parts_[y];
    const int w = parts ? 128 : 2 * q.cols;
    for (int k = 0; k < (parts ? parts_of(y) : 1); k++) {
      const int sums = summed(whole(get(y, pair, parts ? nth_part(k) : paired)), 0, {1, w});
      store(memory, {slot, b.index(pair), b.index(128 * k)}, sums, {1, w}, Element::f32);
    }
  }
  Tiles row_sums(int n, int pair, Form f) {
    const Node q = p[n];
    const Node& a = p[q.in[0]];
    const int v = whole(get(q.in[0], pair, operand_form(q.in[0], f)));
    auto sum = [&](int tile) { return summed(tile, 1, {q.rows, 1}); };
    if (width(q.in[0], operand_form(q.in[0], f)) == a.cols) return {{{sum(v), q.rows}}, 1, Element::f32};
    std::vector<int> halves;
    for (int h = 0; h < 2; h++) halves.push_back(sum(cut(v, 0, q.rows, h * a.cols, a.cols, Element::f32)));
    return {{{beside(halves, q.rows, 2, Element::f32), q.rows}}, 2, Element::f32};
  }
  int prefix_sums(int n) {
    const Node q = p[n];
    const bool within = q.op == Op::cumsum_within;
    const int C = q.rows;
    int v = whole(get(q.in[within], 0, table));
    const int id = within ? token_vector(q.in[0], true, 128) : -1;
    const std::string type = vector_type({C, 128}, q.element);
    const bool from_below = q.op == Op::sums_from;
    auto moved = [&](int t, int d, Element e) {  // by d rows; zeros follow only where d is a multiple of 8
      if (d >= 8 && from_below) return concat({cut(t, d, C - d, 0, 128, e), zero(d, 128, e)}, 0, {C, 128}, e);
      if (d >= 8) return concat({zero(d, 128, e), cut(t, 0, C - d, 0, 128, e)}, 0, {C, 128}, e);
      return b.op("tpu.dynamic_rotate", {t, b.i32(from_below ? C - d : d)}, "dimension = 0 : si32", vector_type({C, 128}, e));
    };
    auto inside = [&](int d) {  // rows whose addend is one
      const int edge = b.splat({C, 128}, Element::i32, static_cast<std::uint32_t>(from_below ? C - d : d));
      return compared(from_below ? 2 : 5, iota({C, 128}, 0), edge, C, 128);
    };
    auto or_zero = [&](int mask, int t) { return b.op("arith.select", {mask, t, zero(C, 128, q.element)}, "", type); };
    if (q.op == Op::sums_before) {
      const int mask = inside(1);
      v = or_zero(mask, moved(v, 1, q.element));
    }
    for (int d = 1; d < C; d *= 2) {
      int mask = d < 8 ? inside(d) : -1;
      if (within) {
        const int same = compared(0, id, moved(id, d, Element::i32), C, 128);
        mask = mask < 0 ? same : b.op("arith.andi", {mask, same}, "", b.type(same));
      }
      int addend = moved(v, d, q.element);
      if (mask >= 0) addend = or_zero(mask, addend);
      v = added(v, addend);
    }
    return v;
  }
  // Rows of a tile and the rows above it, at an offset inside a register: through memory, where any row may start a load.
  Tiles shifted_rows(int n, int pair, Form f) {
    const Node q = p[n];
    const int source = q.in[0], w = width(n, f);
    const int all = q.domain == Domain::value_head ? parts_of(n) : q.cols / 128, first_part = first_lane(f) / 128, parts = w / 128;
    const Tiles& t = get(source, pair, operand_form(source, f));
    const int total = t.rows();
    auto [at, fresh] = staging_.try_emplace(source, -1);
    if (fresh) at->second = scratch({units_of(q.domain) * all, total, 128}, q.element);
    const int memory = at->second, unit = unit_of(n, pair);
    auto [written, first] = staged_.insert({source, unit, first_part, stage_});
    std::vector<int> out;
    for (int k = 0; k < parts; k++) {
      const int slot = b.index(unit * all + first_part + k);
      if (first) {
        int row = 0;
        for (auto& piece : t.pieces) {
          const int v = cut(value(piece, t), 0, piece.rows, 128 * k, 128, q.element);
          store(memory, {slot, b.index(row), b.index(0)}, v, {piece.rows, 128}, q.element);
          row += piece.rows;
        }
      }
      out.push_back(load(memory, {slot, b.index(q.a), b.index(0)}, {q.rows, 128}, q.element, 3));
    }
    return {{{beside(out, q.rows, w, q.element), q.rows}}, w, q.element};
  }

  // ---------------------------------------------------------------- dots
  // Head h of the pair keeps its lanes and gets rows of its own.
  Tiles block_diagonal(const Tiles& t) {
    Tiles out{{}, t.width, t.element};
    const int half = t.width / 2;
    for (int h = 0; h < 2; h++) {
      if (half % 128) {
        for (auto& q : t.pieces) {
          if (q.zero) out.pieces.push_back(q);
          else out.pieces.push_back({on_lanes(lane_set(t.width, [&](int i) { return i / half == h; }), q.value, q.rows, t.element), q.rows});
        }
      } else {
        const int v = cut(whole(t), 0, t.rows(), h * half, half, t.element), z = zero(t.rows(), half, t.element);
        out.pieces.push_back({beside(h ? std::vector{z, v} : std::vector{v, z}, t.rows(), t.width, t.element), t.rows()});
      }
    }
    return out;
  }
  // The same for every segment of the left operand's columns.
  Tiles diagonal_of_segments(int left, const Tiles& t) {
    if (!in_segments_[left]) return block_diagonal(t);
    Tiles out{{}, t.width, t.element};
    int at = 0;
    for (int j : p[left].in) {
      const Tiles segment = block_diagonal(rows_of(t, at, p[j].cols));
      out.pieces.insert(out.pieces.end(), segment.pieces.begin(), segment.pieces.end());
      at += p[j].cols;
    }
    return out;
  }
  std::pair<Tiles, Tiles> dot_operands(int n, int pair, Form f) {
    const int l = p[n].in[0], r = p[n].in[1];
    const bool pair_left = p[l].domain == Domain::value_head;
    Tiles lhs = get(l, pair, pair_left ? paired : single);
    Tiles rhs = pushes_transposed(n) ? get(p[r].in[0], pair, paired) : get(r, pair, p[r].domain == Domain::value_head ? paired : pair_left || f != single ? dup : single);
    if (pair_left) rhs = diagonal_of_segments(l, rhs);
    return {lhs, rhs};
  }
  // Of the product with a right operand.
  int columns(int n, const Tiles& rhs) const { return pushes_transposed(n) ? rhs.rows() : rhs.width; }
  int product(int n, int left, int right, int rows, const Tiles& rhs) {
    return matmul(left, right, rows, columns(n, rhs), p[n].precision, pushes_transposed(n));
  }
  // Nodes of pairs that share their right operand: their rows are one left operand.
  void stacked_dots(const std::vector<int>& nodes, const std::vector<int>& pairs) {
    if (made_.count({nodes[0], static_cast<int>(paired), pairs[0], 0})) return;
    struct Dot {
      int node, pair, rows;
    };
    std::vector<Dot> dots;
    std::vector<int> left;
    Tiles lhs, rhs;
    int all = 0;
    for (int n : nodes)
      for (int u : pairs) {
        std::tie(lhs, rhs) = dot_operands(n, u, paired);
        left.push_back(whole(lhs));
        dots.push_back({n, u, lhs.rows()});
        all += lhs.rows();
      }
    const int N = columns(nodes[0], rhs), stacked = concat(left, 0, {all, lhs.width}, lhs.element), right = whole(rhs);
    const int v = product(nodes[0], stacked, right, all, rhs);
    int row = 0;
    for (const Dot& d : dots) {
      made_[{d.node, static_cast<int>(paired), d.pair, 0}] = {{{cut(v, row, d.rows, 0, N, Element::f32), d.rows}}, N, Element::f32};
      row += d.rows;
    }
  }
  // [A0; A1] x [B0 | B1]: of the product of two pairs the diagonal blocks are wanted, and the weights are pushed once.
  void joined_dots(int n, const std::vector<int>& pairs) {
    for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) {
      const std::tuple key{n, static_cast<int>(paired), pairs[i], 0}, other{n, static_cast<int>(paired), pairs[i + 1], 0};
      if (made_.count(key)) continue;
      auto [l0, r0] = dot_operands(n, pairs[i], paired);
      auto [l1, r1] = dot_operands(n, pairs[i + 1], paired);
      const int M = l0.rows(), K = r0.rows(), N = r0.width;
      const int lhs = concat({whole(l0), whole(l1)}, 0, {2 * M, l0.width}, l0.element);
      const int rhs = beside({whole(r0), whole(r1)}, K, 2 * N, r0.element);
      const int v = matmul(lhs, rhs, 2 * M, 2 * N, p[n].precision);
      made_[key] = {{{cut(v, 0, M, 0, N, Element::f32), M}}, N, Element::f32};
      made_[other] = {{{cut(v, M, M, N, N, Element::f32), M}}, N, Element::f32};
    }
  }

  // ---------------------------------------------------------------- memory
  int step_and(int mask, int offset) {
    const int t = offset ? b.op("arith.addi", {step_index, b.i32(offset)}, "", "i32") : step_index;
    return b.op("arith.andi", {t, b.i32(mask)}, "", "i32");
  }
  int slot_index(int slot, int count, int unit) {
    return b.as_index(b.op("arith.addi", {b.op("arith.muli", {slot, b.i32(count)}, "", "i32"), b.i32(unit)}, "", "i32"));
  }
  // Slots of a value kept for lagging stages: their distance, rounded up to a power of two.
  int slots_of(int n) const {
    int distance = 1, slots = 1;
    for (int u : users[n]) distance = std::max(distance, delay(p[u].stage) - delay(p[n].stage));
    while (slots < distance) slots *= 2;
    return slots;
  }
  int kept_width(int n, Form f) const { return in_all_lanes(n, f) ? 128 : width(n, f); }
  int ring(int n, Form f) {
    if (f >= part) f = paired;
    auto [at, fresh] = ring_of_.try_emplace({n, f}, -1);
    const Node& q = p[n];
    const int slots = slots_of(n);
    if (fresh) {
      at->second = f == table ? scratch({slots, table_rows(n), table_width(n)}, q.element)
                              : scratch({slots * units_of(q.domain), q.rows, kept_width(n, f)}, q.element);
      rings_.push_back(at->second);
    }
    return at->second;
  }
  int ring_slot(int n, Form f, int pair, int back) {
    const int slots = slots_of(n), units = f == table ? 1 : units_of(p[n].domain), unit = f == table ? 0 : unit_of(n, pair);
    if (slots == 1) return b.index(unit);
    return slot_index(step_and(slots - 1, (slots - back % slots) % slots), units, unit);
  }
  Tiles reload(int n, int pair, Form f) {
    const int rows = f == table ? table_rows(n) : p[n].rows, w = f == table ? table_width(n) : width(n, f);
    const int at = ring_slot(n, f, pair, delay(stage_) - delay(p[n].stage));
    return {{{load(ring(n, f), {at, b.index(0), b.index(first_lane(f))}, {rows, w}, p[n].element, 3), rows}}, w, p[n].element};
  }
  void keep(int n, int pair, Form f) {
    note(n);
    const int rows = f == table ? table_rows(n) : p[n].rows, w = f == table ? table_width(n) : kept_width(n, f);
    const int v = broadcast(whole(get(n, pair, f)), {rows, w}, p[n].element);
    const int at = ring_slot(n, f, pair, 0);
    store(ring(n, f), {at, b.index(0), b.index(0)}, v, {rows, w}, p[n].element);
  }

  // Carried refs: the last stage owns its value; a stage that repeats its work at the end of a row keeps the value of chunk c in slot
  // c & 1, so that a repeat reads what the first time read.
  int stage_of(int ref) const {
    int stage = 0;
    for (int i = 0; i < p.size(); i++)
      if (used[i] && p[i].ref == ref) stage = p[i].stage;
    return stage;
  }
  bool doubled(int ref) const { return delay(stage_of(ref)) < most_delay(); }
  Shape carried_tile(const RefInfo& r) const { return {r.rows, r.domain == Domain::value_head ? 2 * r.cols : r.cols}; }
  int carried(int ref) {
    auto [at, fresh] = carried_.try_emplace(ref, -1);
    const RefInfo& r = p.refs[ref];
    const Shape tile = carried_tile(r);
    if (fresh) at->second = scratch({units_of(r.domain) * (doubled(ref) ? 2 : 1), tile[0], tile[1]}, r.element);
    return at->second;
  }
  int carried_slot(int ref, int unit, bool writes) {
    if (!doubled(ref)) return b.index(unit);
    int c = work_at(delay(stage_of(ref)));
    if (!writes) c = b.op("arith.addi", {c, b.i32(1)}, "", "i32");
    return slot_index(b.op("arith.andi", {c, b.i32(1)}, "", "i32"), units_of(p.refs[ref].domain), unit);
  }

  Tiles read(int n, int pair, Form f) {
    const Node q = p[n];
    const RefInfo& r = p.refs[q.ref];
    const int unit = unit_of(n, pair), d = delay(q.stage);
    const int all = r.domain == Domain::value_head ? 2 * r.cols : r.cols, w = f >= part ? 128 : all, lane = first_lane(f);
    if (f == table) {
      if (r.place == Place::per_head) {
        const int v = load(per_head_window(r).value, zeros(2), {1, x.value_heads}, r.element, 2);
        return {{{table_of(v, 1, r.element), 1}}, 128, Element::f32};
      }
      const Window& window = gates_window(r, d);
      const int v = load(window.value, zeros(3), {x.chunk, x.value_heads}, r.element, 3);
      return {{{table_of(v, x.chunk, r.element), x.chunk}}, 128, Element::f32};
    }
    int v;
    switch (r.place) {
      case Place::carried: v = load(carried(q.ref), {carried_slot(q.ref, unit, false), b.index(0), b.index(lane)}, {r.rows, w}, r.element, 3); break;
      case Place::tokens: case Place::weights: {
        const At at = r.place == Place::tokens ? tokens_window(r, unit * all + lane, w, d) : row_window(r, unit * all + lane, w, {r.rows}, {{}}, 0);
        std::vector<int> index = zeros(at.window->block.size());
        index.back() = b.index(at.lane);
        v = load(at.window->value, index, {r.rows, w}, r.element, static_cast<int>(index.size()));
        break;
      }
      case Place::chunk_state: {
        std::vector<int> halves;
        for (int h = f >= part ? f - part : 0; h < (f >= part ? f - part + 1 : 2); h++) {
          std::vector<int> index = zeros(5);
          index[2] = b.index(2 * unit + h);
          halves.push_back(load(chunk_state_window(r, d).value, index, {r.rows, r.cols}, r.element, 5));
        }
        v = beside(halves, r.rows, w, r.element);
        break;
      }
      default: throw Error(text(p.name, ": ", r.name, " cannot be read in pairs"));
    }
    if (f == dup) return {{{beside({v, v}, r.rows, 2 * w, r.element), r.rows}}, 2 * w, r.element};
    return {{{v, r.rows}}, w, r.element};
  }
  void put(int n, int pair) {
    const Node q = p[n];
    const RefInfo& r = p.refs[q.ref];
    const int unit = r.domain == Domain::value_head ? pair : pair * 2 / ratio_;
    if (r.domain == Domain::key_head && unit * ratio_ != pair * 2) return;  // the key head's first pair stores
    const int w = r.domain == Domain::value_head ? 2 * r.cols : r.cols, d = delay(q.stage);
    const int v = whole(get(q.in[0], pair, operand_form(q.in[0], paired_or_single(q))));
    if (r.place == Place::carried && !doubled(q.ref))  // one slot: whoever reads the old value has to have it
      for (int m = 0; m < p.size(); m++)
        if (used[m] && p[m].op == Op::load && p[m].ref == q.ref && p[m].stage == q.stage) get(m, pair, paired_or_single(q));
    switch (r.place) {
      case Place::carried: store(carried(q.ref), {carried_slot(q.ref, unit, true), b.index(0), b.index(0)}, v, {r.rows, w}, r.element); break;
      case Place::tokens: {
        const At at = tokens_window(r, unit * w, w, d);
        std::vector<int> index = zeros(at.window->block.size());
        index.back() = b.index(at.lane);
        store(at.window->value, index, v, {r.rows, w}, r.element);
        break;
      }
      case Place::chunk_state:
        for (int h = 0; h < 2; h++) {
          std::vector<int> index = zeros(5);
          index[2] = b.index(2 * unit + h);
          store(chunk_state_window(r, d).value, index, cut(v, 0, r.rows, h * r.cols, r.cols, r.element), {r.rows, r.cols}, r.element);
        }
        break;
      default: throw Error(text(p.name, ": ", r.name, " cannot be written in pairs"));
    }
  }
  // A column of every head, back in the order of the array.
  void put_table(int n) {
    const RefInfo& r = p.refs[p[n].ref];
    std::vector<int> index(128);
    for (int k = 0; k < 128; k++) index[k] = lane_of_head(k / 2, k % 2);
    const int v = cut(gathered(whole(get(p[n].in[0], 0, table)), x.chunk, index), 0, x.chunk, 0, x.value_heads, Element::f32);
    store(gates_window(r, delay(p[n].stage)).value, zeros(3), v, {x.chunk, x.value_heads}, Element::f32);
  }
  // From what the step staged of the rows and those above them, 128 lanes at a time.
  void put_rows(const Node& n) {
    const RefInfo& r = p.refs[n.ref];
    const int source = n.in[0], width = heads_in_step(r.domain) * r.cols, total = p[source].rows;
    const bool staged = staging_.count(source);
    if (!staged) staging_[source] = scratch({width / 128, total, 128}, Element::f32);
    const int memory = staging_[source];
    b.when(is_planned_chunk(n, delay(n.stage)), [&] {
      if (!staged) stage_rows(source, memory);  // no convolution has done so
      const auto plan = planned(n, delay(n.stage));
      const int slots = width / 128, at_once = std::gcd(slots, 8);
      b.loop(slots / at_once, [&](int i) {
        for (int k = 0; k < at_once; k++) {
          const int slot = plus(times(i, at_once), k);
          const int v = planned_rows(n, plan, memory, b.as_index(slot), 128);
          store(edge_window(r, delay(n.stage)).value, {b.index(0), b.index(0), edge_lane(r, 0, slot)}, v, {r.rows, 128}, r.element);
        }
      });
    });
  }
  void stage_rows(int source, int memory) {
    const auto outside = made_;
    stage_ = p[source].stage;
    current_phase_ = phases_[stage_];
    const bool value_head = p[source].domain == Domain::value_head;
    for (int u = 0; u < units_of(p[source].domain); u++) {
      const Tiles t = get(source, value_head ? u : u * ratio_ / 2, value_head ? paired : single);
      for (int k = 0; k < t.width / 128; k++) {
        int row = 0;
        for (auto& q : t.pieces) {
          const int v = cut(value(q, t), 0, q.rows, 128 * k, 128, t.element);
          store(memory, {b.index(u * t.width / 128 + k), b.index(row), b.index(0)}, v, {q.rows, 128}, t.element);
          row += q.rows;
        }
      }
    }
    made_ = outside;
  }
  int plus(int v, int k) { return k ? b.op("arith.addi", {v, b.i32(k)}, "", "i32") : v; }
  int times(int v, int k) { return b.op("arith.muli", {v, b.i32(k)}, "", "i32"); }

  void begin(int ref) {
    const RefInfo& r = p.refs[ref];
    const int units = units_of(r.domain), memory = carried(ref), d = delay(stage_of(ref));
    const Shape tile = carried_tile(r);
    b.when(begins(doubled(ref) ? 0 : d, d), [&] {
      b.loop(units, [&](int i) {
        int v = b.splat(tile, r.element, 0);
        if (r.identity) v = beside(std::vector<int>(static_cast<std::size_t>(tile[1] / r.cols), identity({r.rows, r.cols})), r.rows, tile[1], r.element);
        if (r.initial >= 0) v = read_or_zeros(initial(r, i, tile, d), tile, r.element, d);
        store(memory, {first_slot(ref, i), b.index(0), b.index(0)}, v, tile, r.element);
      });
    });
  }
  // The one that the chunk which begins reads; chunk 0, if rows are not turns.
  int first_slot(int ref, int unit) {
    const int units = units_of(p.refs[ref].domain);
    if (!doubled(ref)) return b.as_index(unit);
    if (!turns()) return b.as_index(plus(unit, units));
    const int slot = b.op("arith.andi", {plus(work_at(delay(stage_of(ref))), 1), b.i32(1)}, "", "i32");
    return b.as_index(b.op("arith.addi", {times(slot, units), unit}, "", "i32"));
  }
  // The one that the chunk which ends has written.
  int last_slot(int ref, int unit) {
    if (!doubled(ref)) return b.as_index(unit);
    const int slot = b.op("arith.andi", {work_at(delay(stage_of(ref))), b.i32(1)}, "", "i32");
    return b.as_index(b.op("arith.addi", {times(slot, units_of(p.refs[ref].domain)), unit}, "", "i32"));
  }
  int initial(const RefInfo& r, int unit, const Shape& tile, int d) {
    const RefInfo& from = p.refs[r.initial];
    int v;
    if (from.place == Place::sequence) {
      const Window& window = sequence_window(from, d);
      std::vector<int> halves;
      for (int h = 0; h < tile[1] / from.cols; h++) {
        const int head = tile[1] == from.cols ? unit : plus(times(unit, 2), h);
        halves.push_back(load(window.value, {b.index(0), b.as_index(head), b.index(0), b.index(0)}, {from.rows, from.cols}, from.element, 4));
      }
      v = beside(halves, from.rows, tile[1], from.element);
    } else {
      const int lane = edge_lane(from, 0, times(unit, tile[1] / 128));
      v = load(edge_window(from, d).value, {b.index(0), b.index(0), lane}, {from.rows, tile[1]}, from.element, 3);
    }
    if (from.element == Element::bf16) v = b.op("arith.extf", {v}, "", vector_type({from.rows, tile[1]}, Element::f32));
    if (from.rows < tile[0]) v = concat({zero(tile[0] - from.rows, tile[1], r.element), v}, 0, tile, r.element);
    return v;
  }
  void finish(int ref) {
    const RefInfo& r = p.refs[ref];
    const RefInfo& to = p.refs[r.final];
    require(to.place == Place::sequence, p.name, ": ", to.name, " is no state of a sequence");
    const Shape tile = carried_tile(r);
    const int d = delay(stage_of(ref));
    b.when(ends(d), [&] {
      b.loop(units_of(r.domain), [&](int i) {
        const int v = load(carried(ref), {last_slot(ref, i), b.index(0), b.index(0)}, tile, r.element, 3);
        for (int h = 0; h < tile[1] / r.cols; h++) {
          const int head = tile[1] == r.cols ? i : plus(times(i, 2), h);
          const int state = cut(v, 0, r.rows, h * r.cols, r.cols, r.element);
          store(sequence_window(to, d).value, {b.index(0), b.as_index(head), b.index(0), b.index(0)}, state, {r.rows, r.cols}, r.element);
        }
      });
    });
  }
};

}  // namespace gdn::mosaic

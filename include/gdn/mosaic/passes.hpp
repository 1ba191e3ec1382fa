// Rewrites of the per-head program before it is placed. Each is exact: it moves work or repeats it, and changes no value.
#pragma once
#include <functional>
#include <map>

#include "gdn/trace/program.hpp"

namespace gdn::mosaic {

class Passes {
  using Op = trace::Op;
  using Node = trace::Node;

 public:
  explicit Passes(trace::Program& program) : p(program) { sort(); }

  // Every value head has keys of its own: nothing is shared.
  void promote_keys() {
    for (Node& n : p.nodes)
      if (n.domain == Domain::key_head) n.domain = Domain::value_head;
    for (auto& r : p.refs)
      if (r.domain == Domain::key_head) r.domain = Domain::value_head;
    for (Node& n : p.nodes)
      for (int& j : n.in)
        while (p[j].op == Op::sum_heads) j = p[j].in[0];
    sort();
  }

  // Reads of inputs, what is selected from them, and everything about tokens is made again in the stage that wants it, for its chunk.
  void recompute_in_later_stages() {
    std::vector<char> again(p.nodes.size());
    for (int i = 0; i < p.size(); i++) {
      const Node& n = p[i];
      auto all = [&](auto f) { return std::all_of(n.in.begin(), n.in.end(), f); };
      if (n.op == Op::load) again[i] = p.refs[n.ref].place != Place::carried;
      else if (n.domain == Domain::constant) again[i] = 0;
      else if (n.domain == Domain::token) again[i] = 1;
      else if (n.op == Op::extend || n.op == Op::select || n.op == Op::round)
        again[i] = !vector(n) && all([&](int j) { return again[j] || p[j].domain == Domain::constant; });
    }
    clone_into_users([&](int i) { return again[i]; });
  }
  // bf16 is what is kept for later; each stage widens it again.
  void widen_late() {
    clone_into_users([&](int i) { return p[i].op == Op::extend && p[i].domain >= Domain::key_head; });
  }
  // A scalar of a head goes to a tile by way of a row: rows of all heads are made at once.
  void scalars_by_rows() {
    const int n = p.size();
    p.forget_identities();
    for (int i = 0; i < n; i++) {
      const int y = p[i].op == Op::stretch ? p[i].in[0] : -1;
      if (y < 0 || p[i].rows == 1 || p[i].cols == 1 || p[y].rows > 1 || p[y].cols > 1 || p[y].domain != Domain::value_head) continue;
      p.stage = p[y].stage;
      const int cols = p[i].cols;
      const int row = p.add({.op = Op::stretch, .in = {y}, .rows = 1, .cols = cols, .element = p[y].element});
      p.nodes[i].in[0] = row;
    }
    sort();
  }
  // Vectors of heads are one long chain of latencies at the top of a step: a stage of their own, one chunk earlier. Those that are made
  // of tiles stay where they are.
  void vectors_ahead() {
    const std::vector<char> is_table = tables();
    std::vector<char> of_tiles(is_table.size());
    for (int i = 0; i < p.size(); i++) {
      Node& n = p.nodes[i];
      int stage = 0;
      for (int j : n.in) {
        if (p[j].domain >= Domain::key_head) stage = std::max(stage, p[j].stage);
        of_tiles[i] |= of_tiles[j] || collected(p, j);
      }
      if (!is_table[i] || collected(p, i) || of_tiles[i]) n.stage++;
      else if (n.op != Op::load) n.stage = stage;
    }
    p.stages++;
    clone_into_users([&](int i) { return p[i].domain == Domain::token || (p[i].op == Op::load && is_table[i]); }, true);
  }
  // A rounding belongs to the stage of its input, if nobody later needs the unrounded value.
  void round_where_made() {
    std::vector<char> needed(p.nodes.size());
    for (int i = 0; i < p.size(); i++)
      for (int j : p[i].in)
        if (p[i].op != Op::round && p[i].stage > p[j].stage) needed[j] = 1;
    for (Node& n : p.nodes)
      if (n.op == Op::round && !needed[n.in[0]]) n.stage = p[n.in[0]].stage;
  }

  // Transposes of tiles that are rounded before or right after are done in bf16: half the registers.
  void turn_narrow() {
    const int count = p.size();
    std::vector<char> only_rounded(static_cast<std::size_t>(count), 1);
    for (int i = 0; i < count; i++)
      for (int j : p[i].in)
        if (p[i].op != Op::round || p[i].stage != p[j].stage) only_rounded[j] = 0;
    std::map<int, int> narrow, rounded;
    for (int i = 0; i < count; i++) {
      const Node n = p[i];
      if (n.op == Op::round && narrow.count(n.in[0])) rounded[i] = narrow[n.in[0]];
      if (n.op == Op::concat_cols && std::all_of(n.in.begin(), n.in.end(), [&](int j) { return p[j].op == Op::extend; })) {
        p.stage = n.stage;
        const int beside = p.add({.op = Op::concat_cols, .in = {p[n.in[0]].in[0], p[n.in[1]].in[0]}, .rows = n.rows, .cols = n.cols, .element = Element::bf16});
        p.nodes[i] = {.op = Op::extend, .in = {beside}, .rows = n.rows, .cols = n.cols, .stage = n.stage, .domain = n.domain};
      }
      if (n.op != Op::transpose || vector(n) || n.rows % 16 || n.cols % 16 || n.element != Element::f32) continue;
      const bool widened = p[n.in[0]].op == Op::extend;
      if (!widened && !only_rounded[i]) continue;
      p.stage = n.stage;
      const int source = widened ? p[n.in[0]].in[0] : p.round(n.in[0]);
      narrow[i] = p.add({.op = Op::transpose, .in = {source}, .rows = n.rows, .cols = n.cols, .element = Element::bf16});
      if (widened) p.nodes[i] = {.op = Op::extend, .in = {narrow[i]}, .rows = n.rows, .cols = n.cols, .stage = n.stage, .domain = n.domain};
    }
    for (Node& n : p.nodes)
      for (int& j : n.in)
        if (auto at = rounded.find(j); at != rounded.end()) j = at->second;
    widen_late();
  }
  // A row that is the sum of a head's tile: collected from head to head, for later work on all of them.
  static bool collected(const trace::Program& p, int i) {
    return p[i].op == Op::sum_rows && p[i].domain == Domain::value_head && p[p[i].in[0]].rows > 1;
  }
  // Vectors made of vectors of heads alone, and of such sums; they are worked on for all heads at once.
  std::vector<char> tables() const {
    std::vector<char> t(p.nodes.size());
    for (int i = 0; i < p.size(); i++) {
      const Node& n = p[i];
      if (n.domain != Domain::value_head || !vector(n)) continue;
      t[i] = n.op == Op::load ? (p.refs[n.ref].place == Place::tokens && n.cols == 1) || p.refs[n.ref].place == Place::per_head
                              : collected(p, i) || std::all_of(n.in.begin(), n.in.end(), [&](int j) { return p[j].domain <= Domain::token || t[j]; });
    }
    return t;
  }

  // Depth first from the stores: inputs first, nothing unused, and no trace of the order in which C++ evaluated arguments.
  void sort() {
    std::vector<int> at(p.nodes.size(), -1);
    std::vector<Node> sorted;
    std::function<void(int)> visit = [&](int i) {
      if (at[i] >= 0) return;
      Node n = p[i];
      for (int& j : n.in) {
        visit(j);
        j = at[j];
      }
      at[i] = static_cast<int>(sorted.size());
      sorted.push_back(std::move(n));
    };
    for (int i = 0; i < p.size(); i++)
      if (trace::is_store(p[i].op)) visit(i);
    p.nodes = std::move(sorted);
    p.forget_identities();
  }

 private:
  static bool vector(const Node& n) { return n.rows == 1 || n.cols == 1; }

  // Nodes that `chosen` accepts get a copy in every stage that reads them (`any_stage`: also where it is an earlier one).
  template <class F> void clone_into_users(F chosen, bool any_stage = false) {
    std::map<std::pair<int, int>, int> copies;
    const int count = p.size();
    std::function<int(int, int)> in_stage = [&](int i, int stage) -> int {
      if (i >= count || !chosen(i) || p[i].stage == stage || (p[i].stage > stage && !any_stage)) return i;
      if (auto at = copies.find({i, stage}); at != copies.end()) return at->second;
      Node n = p[i];
      n.stage = stage;
      for (int& j : n.in) j = in_stage(j, stage);
      p.nodes.push_back(n);
      return copies[{i, stage}] = p.size() - 1;
    };
    for (int i = 0; i < count; i++)
      for (std::size_t k = 0; k < p[i].in.size(); k++) {
        const int j = in_stage(p[i].in[k], p[i].stage);
        p.nodes[i].in[k] = j;
      }
    sort();
  }

  trace::Program& p;
};

}  // namespace gdn::mosaic

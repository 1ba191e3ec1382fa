// Mutants of emitted text: one operation changed at a time. A check that the simulator agrees with the CPU is worth what it catches.
#pragma once
#include <array>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "../kernels/same_bits.hpp"
#include "../support/random_inputs.hpp"

namespace gdn::test {

struct Mutant {
  std::size_t line;
  std::string op, change, label;
  std::string text;  // instead of the line
};

namespace detail {

// One line of the Builder's text:  %r = "op"(%a, %b) {attributes} : (types) -> type  label
struct Line {
  std::string indent, result, op, attributes, label;
  std::vector<std::string> operands, types;
  std::string result_type;

  static std::vector<std::string> split(std::string_view s) {  // at commas outside brackets
    std::vector<std::string> parts;
    int depth = 0;
    std::string now;
    for (char c : s) {
      depth += c == '<' || c == '(' || c == '[' || c == '{';
      depth -= c == '>' || c == ')' || c == ']' || c == '}';
      if (c == ',' && depth == 0) {
        parts.push_back(now);
        now.clear();
      } else if (c != ' ' || !now.empty()) {
        now += c;
      }
    }
    if (!now.empty()) parts.push_back(now);
    return parts;
  }
  static std::optional<Line> parse(const std::string& s) {
    Line l;
    const std::size_t quote = s.find('"'), open = s.find("\"(", quote + 1);
    if (quote == s.npos || open == s.npos || s.find("({") != s.npos) return {};
    const std::size_t start = s.find_first_not_of(' ');
    l.indent = s.substr(0, start);
    if (s[start] == '%') l.result = s.substr(start, s.find(" = ") - start);
    l.op = s.substr(quote + 2, open - quote - 2);  // behind the mark
    const std::size_t close = s.find(')', open);
    l.operands = split(std::string_view(s).substr(open + 2, close - open - 2));
    std::size_t types = s.find(" : (", close);
    if (s.compare(close + 1, 2, " {") == 0) {
      types = s.find("} : (", close) + 1;
      l.attributes = s.substr(close + 3, types - 1 - (close + 3));
    }
    const std::size_t arrow = s.find(") -> ", types);
    l.types = split(std::string_view(s).substr(types + 4, arrow - types - 4));
    const std::size_t mark = s.find(mosaic::mark_label, arrow);
    l.result_type = s.substr(arrow + 5, mark == s.npos ? s.npos : mark - arrow - 5);
    if (mark != s.npos) l.label = s.substr(mark + 1, s.size() - mark - 2);
    return l;
  }
  std::string written() const {
    const auto join = [](const std::vector<std::string>& v) {
      std::string s;
      for (auto& x : v) s += (s.empty() ? "" : ", ") + x;
      return s;
    };
    return indent + (result.empty() ? "" : result + " = ") + "\"" + mosaic::mark_op + op + "\"(" + join(operands) + ")" +
           (attributes.empty() ? "" : " {" + attributes + "}") + " : (" + join(types) + ") -> " + result_type +
           (label.empty() ? "" : mosaic::mark_label + label + mosaic::mark_label);
  }
};

// The extents in vector<2x3xf32> or memref<2x3xf32, ..>.
inline std::vector<int> extents(const std::string& type) {
  std::vector<int> n;
  std::size_t at = type.find('<');
  for (at = at == type.npos ? type.size() : at + 1; at < type.size() && std::isdigit(static_cast<unsigned char>(type[at]));) {
    n.push_back(std::atoi(type.c_str() + at));
    at = type.find('x', at) + 1;
  }
  return n;
}

class Mutator {
 public:
  explicit Mutator(const std::string& text) {
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = text.find('\n', at);
      lines_.push_back(text.substr(at, end - at));
      at = end + 1;
    }
    const std::vector<bool> live = read_by_a_store();
    for (std::size_t i = 0; i < lines_.size(); i++) {
      if (lines_[i].find("func.func") != std::string::npos) visible_.clear(), constants_.clear(), cast_of_.clear();
      const auto l = Line::parse(lines_[i]);
      if (l && live[i]) visit(i, *l);
      else dead_ += l && l->op != "func.return" && l->op != "scf.yield";
    }
  }
  int dead() const { return dead_; }
  const std::vector<Mutant>& all() const { return mutants_; }
  std::string text_with(const Mutant& m) const {
    std::string s;
    for (std::size_t i = 0; i < lines_.size(); i++) {
      if (i != m.line) s += lines_[i] + "\n";
      else if (!m.text.empty()) s += m.text + "\n";
    }
    return s;
  }
  const std::string& line(std::size_t i) const { return lines_[i]; }

 private:
  void add(std::size_t i, const Line& old, const std::string& change, const Line& changed) { add(i, old, change, changed.written()); }
  void add(std::size_t i, const Line& old, const std::string& change, std::string text) { mutants_.push_back({i, old.op, change, old.label, std::move(text)}); }
  static void replace(std::string& s, const std::string& from, const std::string& to) {
    if (const auto at = s.find(from); at != s.npos) s.replace(at, from.size(), to);
  }

  // Operations whose results reach a store, a condition or a block index. The others are no part of the kernel: the compiler drops them.
  std::vector<bool> read_by_a_store() const {
    std::vector<bool> live(lines_.size());
    std::map<std::string, bool> read;
    for (std::size_t i = lines_.size(); i-- > 0;) {
      const std::string& s = lines_[i];
      const auto l = Line::parse(s);
      if (!l) {
        for (std::size_t at = s.find('%'); at != s.npos; at = s.find('%', at + 1)) read[s.substr(at, s.find_first_of(" ,:)=", at) - at)] = true;
        continue;
      }
      live[i] = l->result.empty() || read[l->result];
      if (!l->result.empty()) read.erase(l->result);  // the next function has names of its own
      if (live[i])
        for (auto& x : l->operands) read[x] = true;
    }
    return live;
  }
  void visit(std::size_t i, const Line& l) {
    rename(i, l);
    swap(i, l);
    attributes(i, l);
    other_operand(i, l);
    neighbour(i, l);
    if (l.op == "tpu.vector_store") add(i, l, "dropped", "");
    if (l.op == "vector.shape_cast") cast_of_[l.result] = uncast(l.operands[0]);
    if (!l.result.empty()) {
      if (l.indent.size() <= 4) visible_[l.result_type].push_back(l.result);
      if (l.op == "arith.constant" && (l.result_type == "index" || l.result_type == "i32"))
        constants_[l.result] = std::atoi(l.attributes.c_str() + l.attributes.find("= ") + 2);
      if (l.op == "arith.constant" && l.attributes.find("dense<0> ") != std::string::npos) constants_[l.result] = 0;
    }
  }
  // The value behind changes of shape.
  std::string uncast(const std::string& v) const {
    const auto at = cast_of_.find(v);
    return at == cast_of_.end() ? v : at->second;
  }
  // Another operation of the same type.
  void rename(std::size_t i, const Line& l) {
    static const std::map<std::string, std::string> other{
        {"arith.addf", "arith.subf"},         {"arith.subf", "arith.addf"},         {"arith.mulf", "arith.addf"}, {"arith.maximumf", "arith.minimumf"},
        {"arith.minimumf", "arith.maximumf"}, {"arith.addi", "arith.subi"},         {"arith.subi", "arith.addi"}, {"arith.muli", "arith.addi"},
        {"arith.minsi", "arith.maxsi"},       {"arith.maxsi", "arith.minsi"},       {"arith.andi", "arith.ori"},  {"arith.shrui", "arith.shli"},
        {"math.exp2", "math.exp"},            {"math.exp", "math.exp2"},            {"math.rsqrt", "math.exp2"},  {"tpu.logistic", "math.exp2"},
        {"math.log1p", "math.absf"},          {"math.absf", "math.exp2"},           {"arith.shli", "arith.shrui"}};
    const auto to = other.find(l.op);
    if (to == other.end()) return;
    if (l.op == "arith.addi" && constants_.count(l.operands[1]) && constants_.at(l.operands[1]) == 0) return;  // x + 0 is x - 0
    Line m = l;
    m.op = to->second;
    if (m.op.starts_with("math.") && m.attributes.empty()) m.attributes = "fastmath = #arith.fastmath<none>";
    if (m.op == "arith.ori" || m.op == "arith.shrui") m.attributes.clear();
    else if ((m.op == "arith.addi" || m.op == "arith.subi" || m.op == "arith.shli") && m.attributes.empty()) m.attributes = "overflowFlags = #arith.overflow<none>";
    if (m.op == "arith.minsi" || m.op == "arith.maxsi") m.attributes.clear();
    add(i, l, "to " + m.op, m);
  }
  // Operands the other way round, where that means something else.
  void swap(std::size_t i, const Line& l) {
    const bool ordered = l.op == "arith.subf" || l.op == "arith.subi" || l.op == "tpu.matmul" || l.op == "tpu.concatenate" || l.op == "arith.select";
    const std::size_t from = l.op == "arith.select";
    if (!ordered) return;
    for (std::size_t k = from; k + 1 < l.operands.size(); k++) {
      if (l.types[k] != l.types[k + 1] || l.operands[k] == l.operands[k + 1]) continue;
      if (l.op == "tpu.matmul" && k > 0) return;
      Line m = l;
      std::swap(m.operands[k], m.operands[k + 1]);
      return add(i, l, "operands swapped", m);
    }
  }
  void attributes(std::size_t i, const Line& l) {
    Line m = l;
    std::string& a = m.attributes;
    if (l.op == "arith.cmpi" || l.op == "arith.cmpf") {
      const auto at = a.find("predicate = ") + 12;
      const char was = a[at];
      // cmpi: eq ne, slt sle, sgt sge.  cmpf: olt ogt, ole oge.
      const std::map<char, char> next = l.op == "arith.cmpi" ? std::map<char, char>{{'0', '1'}, {'1', '0'}, {'2', '3'}, {'3', '2'}, {'4', '5'}, {'5', '4'}}
                                                             : std::map<char, char>{{'1', '6'}, {'4', '2'}, {'5', '3'}, {'2', '4'}, {'3', '5'}};
      if (!next.count(was)) return;
      a[at] = next.at(was);
      return add(i, l, std::string("predicate ") + was + " to " + a[at], m);
    }
    if (l.op == "arith.constant") {
      const auto at = a.find("= ") + 2;
      if (a.compare(at, 8, "dense<0x") == 0) {
        const auto end = a.find('>', at);
        const std::string bits = a.substr(at + 8, end - at - 8);
        const bool zero = bits.find_first_not_of('0') == bits.npos;
        std::string changed = bits;
        if (zero) changed.replace(0, 4, "3F80");
        else changed[0] = "89ABCDEF01234567"[std::stoi(bits.substr(0, 1), nullptr, 16)];  // the sign
        a.replace(at + 8, bits.size(), changed);
        return add(i, l, zero ? "0 to 1" : "sign", m);
      }
      if (a.compare(at, 5, "false") == 0 || a.compare(at, 4, "true") == 0) return;
      const auto number = a.compare(at, 6, "dense<") == 0 ? at + 6 : at;
      const auto end = a.find_first_not_of("-0123456789", number);
      const long was = std::stol(a.substr(number, end - number));
      a.replace(number, end - number, std::to_string(was + 1));
      return add(i, l, std::to_string(was) + " to " + std::to_string(was + 1), m);
    }
    if (l.op == "vector.extract_strided_slice") {
      const auto whole = extents(l.types[0]), part = extents(l.result_type);
      const auto at = a.find('[') + 1, end = a.find(']');
      auto offsets = Line::split(a.substr(at, end - at));
      for (std::size_t d = 0; d < whole.size(); d++) {
        const int was = std::atoi(offsets[d].c_str()), to = was + part[d] < whole[d] ? was + 1 : was - 1;
        if (to < 0) continue;
        auto moved = offsets;
        moved[d] = std::to_string(to);
        std::string list;
        for (auto& o : moved) list += (list.empty() ? "" : ", ") + o;
        Line s = l;
        s.attributes.replace(at, end - at, list);
        add(i, l, "offset " + std::to_string(was) + " to " + std::to_string(to) + " of dim " + std::to_string(d), s);
      }
      return;
    }
    if (l.op == "tpu.iota" || l.op == "tpu.dynamic_rotate") {
      const auto at = a.find(l.op == "tpu.iota" ? "i32: " : "dimension = ") + (l.op == "tpu.iota" ? 5 : 12);
      if (extents(l.result_type).size() != 2) a[at] = a[at] == '1' ? '2' : '1';
      else a[at] = a[at] == '0' ? '1' : '0';
      return add(i, l, "the other dimension", m);
    }
    if (l.op == "vector.multi_reduction") {
      replace(a, "kind<add>", "kind<maximumf>");
      return add(i, l, "to a maximum", m);
    }
    if (l.op == "tpu.matmul" && a.find("precision = ") != a.npos) {
      replace(a, "precision = #tpu.contract_precision<fp32>, ", "");
      return add(i, l, "in bf16", m);
    }
  }
  // The last value before it of the same type instead of an operand.
  void other_operand(std::size_t i, const Line& l) {
    static const std::array ops{"tpu.matmul", "tpu.dynamic_gather", "tpu.transpose", "vector.broadcast", "vector.shape_cast", "arith.truncf", "arith.extf",
                                "vector.extract_strided_slice", "tpu.vector_store", "arith.index_cast", "vector.multi_reduction", "tpu.reciprocal"};
    if (std::find(ops.begin(), ops.end(), l.op) == ops.end()) return;
    for (std::size_t k = 0; k < std::min<std::size_t>(l.operands.size(), l.op == "tpu.matmul" ? 2 : 1); k++) {
      const auto found = visible_.find(l.types[k]);
      if (found == visible_.end()) continue;
      for (auto v = found->second.rbegin(); v != found->second.rend(); ++v) {
        if (uncast(*v) == uncast(l.operands[k])) continue;
        Line m = l;
        m.operands[k] = *v;
        add(i, l, "operand " + std::to_string(k) + " is " + *v, m);
        break;
      }
    }
  }
  // A load or store one block further, or one back.
  void neighbour(std::size_t i, const Line& l) {
    const bool load = l.op == "vector.load", store = l.op == "tpu.vector_store";
    if (!load && !store) return;
    const auto whole = extents(l.types[store]), part = extents(load ? l.result_type : l.types[0]);
    for (std::size_t d = 0; d < whole.size() && d < part.size(); d++) {
      const std::size_t k = d + 1 + store;
      const auto was = constants_.find(l.operands[k]);
      if (was == constants_.end()) continue;
      const int to = was->second + 2 * part[d] <= whole[d] ? was->second + part[d] : was->second - part[d];
      if (to < 0) continue;
      Line m = l;
      m.operands[k] = "%neighbour";
      return add(i, l, "neighbour in dim " + std::to_string(d),
                 l.indent + "%neighbour = \"" + mosaic::mark_op + "arith.constant\"() {value = " + std::to_string(to) + " : index} : () -> index\n" + m.written());
    }
  }

  std::vector<std::string> lines_;
  std::vector<Mutant> mutants_;
  std::map<std::string, std::vector<std::string>> visible_;  // by type: values defined outside nested regions
  std::map<std::string, int> constants_;
  std::map<std::string, std::string> cast_of_;
  int dead_ = 0;
};

}  // namespace detail

struct Verdict {
  int mutants = 0, refused = 0, differing = 0, dead_operations = 0;
  std::vector<Mutant> survivors;
  double caught() const { return mutants ? (refused + differing) / static_cast<double>(mutants) : 0; }
};

// Data that reads every part of the text: two rows, of which the first has a chunk that is one document and passes its state through,
// changes of documents inside chunks, padding in front, between and behind.
inline const Spec mutated_spec{.batch = 2, .tokens = 170, .key_heads = 2, .value_heads = 4, .documents = true, .initial = true};
inline std::vector<i32> mutated_ids() {
  auto ids = document_ids({{1, 40}, {0, 5}, {2, 95}, {3, 3}, {4, 1}, {5, 16}, {0, 10}});
  const auto other = document_ids({{0, 3}, {1, 70}, {2, 90}, {0, 2}, {3, 5}});
  ids.insert(ids.end(), other.begin(), other.end());
  return ids;
}

// Runs the call's text under `schedule` with one operation changed at a time; at most `limit` mutants, evenly spread.
template <class Call> Verdict mutate(const Schedule& schedule, std::size_t limit) {
  Call call(mutated_spec);
  call.ids = mutated_ids();
  const Outputs right = run(Cpu(2), call);
  std::optional<detail::Mutator> mutator;
  {
    Simulate simulate(schedule);
    REQUIRE(differences(right, run(simulate, call)) == "");
    mutator.emplace(simulate.module.marked);
  }
  Verdict v{};
  v.dead_operations = mutator->dead();
  const auto& all = mutator->all();
  const std::size_t n = std::min(limit, all.size());
  for (std::size_t i = 0; i < n; i++) {
    const Mutant& m = all[i * all.size() / n];
    Simulate simulate(schedule);
    simulate.text_of = [&](mosaic::Module module) {
      module.marked = mutator->text_with(m);
      return module.program();
    };
    v.mutants++;
    try {
      if (differences(right, run(simulate, call)).empty()) v.survivors.push_back(m);
      else v.differing++;
    } catch (const Error&) {
      v.refused++;
    }
  }
  return v;
}

// Prints what was caught, and the survivors.
// Why a change of this kind can be one of nothing: what was found behind the survivors that were looked at.
inline const char* reason(const Mutant& m) {
  const auto is = [](const std::string& x, const char* part) { return x.find(part) != std::string::npos; };
  if (m.label.empty()) return "a bound of a window's index that no step of this grid reaches";
  if (is(m.label, "first chunk")) return "scratch that is zeroed so that early steps compute on numbers; they are overwritten";
  if (is(m.change, "offset")) return "neighbours that hold the same value, after a broadcast";
  if (is(m.change, "swapped") || is(m.change, "predicate") || m.op == "arith.constant") return "both sides of a choice are equal, or meet zeros in the dot behind it";
  return "the value that is taken instead is the same here";
}
inline void report(const std::string& name, const Verdict& v) {
  std::printf("%s: %d mutants, %d differ, %d refused, %zu survive: %.1f %% caught (%d operations that nobody reads are left out)\n", name.c_str(),
              v.mutants, v.differing, v.refused, v.survivors.size(), 100 * v.caught(), v.dead_operations);
  for (const Mutant& m : v.survivors) std::printf("  line %zu, %s, %s (%s): %s\n", m.line + 1, m.op.c_str(), m.change.c_str(), m.label.c_str(), reason(m));
}

}  // namespace gdn::test

// Mosaic text, one operation a line. Identical pure operations of a region are one.
//
// The text is kept once, with marks where its forms differ: an operation's name is preceded by `mark_op`, and its label stands
// between two `mark_label`. generic() and stable() resolve them.
#pragma once
#include <cstdio>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "gdn/trace/program.hpp"

namespace gdn::mosaic {

using Shape = std::vector<int>;

inline constexpr char mark_op = '\x01', mark_label = '\x02';

inline const char* name_of(Element e) {
  switch (e) {
    case Element::f32: return "f32";
    case Element::bf16: return "bf16";
    case Element::i32: return "i32";
    default: return "i1";
  }
}
inline std::string number(long i) { return std::to_string(i); }
inline std::string list(const std::vector<int>& v, const char* separator = ", ") {
  std::string s;
  for (std::size_t i = 0; i < v.size(); i++) s += (i ? separator : "") + number(v[i]);
  return s;
}
inline std::string dims(const Shape& s) {
  std::string r;
  for (int n : s) r += number(n) + "x";
  return r;
}
inline std::string vector_type(const Shape& s, Element e) { return "vector<" + dims(s) + name_of(e) + ">"; }
inline std::string tensor_type(const Shape& s, Element e) { return "tensor<" + dims(s) + name_of(e) + ">"; }
inline std::string memref_type(const Shape& s, Element e, const char* space = "vmem") {
  return "memref<" + dims(s) + name_of(e) + ", #tpu.memory_space<" + space + ">>";
}
// The bit pattern of a constant in MLIR's syntax: hex for floats, which keeps every bit.
inline std::string literal(std::uint32_t bits, Element e) {
  char s[16];
  std::snprintf(s, sizeof s, e == Element::f32 ? "0x%08X" : e == Element::bf16 ? "0x%04X" : "%d", bits);
  return s;
}

class Builder {
 public:
  std::string body;
  std::string label;  // of the operations that follow

  int value(std::string name, std::string type) {
    names_.push_back(std::move(name));
    types_.push_back(std::move(type));
    return static_cast<int>(names_.size()) - 1;
  }
  const std::string& type(int v) const { return types_[v]; }
  const std::string& name(int v) const { return names_[v]; }

  // The result, or -1 where `result_type` is empty.
  int op(std::string_view name, const std::vector<int>& in, std::string_view attributes, const std::string& result_type, bool pure = true) {
    std::string line = std::string("\"") + mark_op + std::string(name) + "\"(" + operands(in) + ")";
    if (!attributes.empty()) (line += " {") += std::string(attributes) + "}";
    line += " : (" + operand_types(in) + ") -> " + (result_type.empty() ? "()" : result_type);
    if (pure) {
      if (auto found = seen_.find(line); found != seen_.end()) return found->second;
    }
    int id = -1;
    body += indent_;
    if (!result_type.empty()) {
      id = value("%" + number(next_++), result_type);
      body += names_[id] + " = ";
      if (pure) seen_.emplace(line, id);
    }
    (body += line) += suffix() + "\n";
    return id;
  }
  // What was written so far may no longer be used for what follows.
  void forget() { seen_.clear(); }

  int i32(long k) { return op("arith.constant", {}, "value = " + number(k) + " : i32", "i32"); }
  int index(long k) { return op("arith.constant", {}, "value = " + number(k) + " : index", "index"); }
  int as_index(int v) { return op("arith.index_cast", {v}, "", "index"); }
  int splat(const Shape& s, Element e, std::uint32_t bits) {
    const std::string t = vector_type(s, e);
    return op("arith.constant", {}, "value = dense<" + literal(bits, e) + "> : " + t, t);
  }
  int compare(int predicate, int a, int b, const std::string& type) {
    return op("arith.cmpi", {a, b}, "predicate = " + number(predicate) + " : i64", type);
  }

  template <class F> void when(int condition, F body_of) {
    open("\"" + std::string(1, mark_op) + "scf.if\"(" + names_[condition] + ") ({\n", body_of);
    body += indent_ + "}, {\n" + indent_ + "  \"" + mark_op + "scf.yield\"() : () -> ()\n" + indent_ + "}) : (i1) -> ()" + suffix() + "\n";
  }
  // body_of(i), i an i32 from 0 to n - 1
  template <class F> void loop(long n, F body_of) {
    const int lo = i32(0), hi = i32(n), step = i32(1);
    const int i = value("%i" + number(next_++), "i32");
    open("\"" + std::string(1, mark_op) + "scf.for\"(" + operands({lo, hi, step}) + ") ({\n" + indent_ + "^bb0(" + names_[i] + ": i32):\n",
         [&] { body_of(i); });
    body += indent_ + "}) : (i32, i32, i32) -> ()" + suffix() + "\n";
  }

 private:
  std::string operands(const std::vector<int>& in) const {
    std::string s;
    for (std::size_t i = 0; i < in.size(); i++) s += (i ? ", " : "") + names_[in[i]];
    return s;
  }
  std::string operand_types(const std::vector<int>& in) const {
    std::string s;
    for (std::size_t i = 0; i < in.size(); i++) s += (i ? ", " : "") + types_[in[i]];
    return s;
  }
  std::string suffix() const { return label.empty() ? "" : std::string(1, mark_label) + label + mark_label; }
  template <class F> void open(const std::string& head, F body_of) {
    const auto outside = seen_;
    const std::string indent = indent_;
    body += indent + head;
    indent_ += "  ";
    body_of();
    body += indent_ + "\"" + mark_op + "scf.yield\"() : () -> ()\n";
    indent_ = indent;
    seen_ = outside;
  }

  std::string indent_ = "    ";
  std::vector<std::string> names_, types_;
  std::unordered_map<std::string, int> seen_;
  int next_ = 0;
};

// Text for people: generic MLIR, each operation with the part of the kernel it comes from.
inline std::string generic(std::string_view marked) {
  std::string out;
  bool in_label = false;
  for (char c : marked) {
    if (c == mark_op) continue;
    if (c == mark_label) {
      out += in_label ? "\")" : " loc(\"";
      in_label = !in_label;
    } else {
      out += c;
    }
  }
  return out;
}
// Text for the compiler: every operation prefixed, without labels.
inline std::string stable(std::string_view marked) {
  std::string out;
  bool in_label = false;
  for (char c : marked) {
    if (c == mark_label) in_label = !in_label;
    else if (in_label) continue;
    else if (c == mark_op) out += "stable_mosaic.";
    else out += c;
  }
  return out;
}

}  // namespace gdn::mosaic

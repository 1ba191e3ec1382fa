// Reads kernel text: MLIR's generic form, plain or stable (prefixed names and a version), into a tree of nodes.
#pragma once
#include <algorithm>
#include <bit>
#include <charconv>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../error.hpp"

namespace gdn::sim {

using Shape = std::vector<std::int64_t>;

inline std::int64_t volume(const Shape& shape) {
  std::int64_t n = 1;
  for (auto d : shape) n *= d;
  return n;
}

// Distance in elements between neighbours along each dim of a row-major array.
inline Shape strides_of(const Shape& shape) {
  Shape strides(shape.size());
  std::int64_t n = 1;
  for (std::size_t d = shape.size(); d-- > 0; n *= shape[d]) strides[d] = n;
  return strides;
}

inline std::string join(const std::vector<std::int64_t>& numbers, std::string_view between) {
  std::string out;
  for (std::size_t i = 0; i < numbers.size(); i++) out += (i ? std::string(between) : std::string()) + std::to_string(numbers[i]);
  return out;
}

inline std::string tuple_text(const std::vector<std::int64_t>& numbers) { return "(" + join(numbers, ", ") + ")"; }

// "(2, 5)": where the element at `offset` of a row-major array stands.
inline std::string index_text(std::int64_t offset, const Shape& shape) {
  Shape index(shape.size());
  for (std::size_t d = shape.size(); d-- > 0;) {
    index[d] = offset % shape[d];
    offset /= shape[d];
  }
  return tuple_text(index);
}

// i16 and i8 are storage: their low bits. The two semaphores are elements of memory that only copies, signals and waits touch.
enum class Scalar { f32, bf16, i32, i16, i8, i1, index, semaphore, dma_semaphore, other };

inline int bits_of(Scalar s) { return s == Scalar::bf16 || s == Scalar::i16 ? 16 : s == Scalar::i8 ? 8 : 32; }
inline bool is_semaphore(Scalar s) { return s == Scalar::semaphore || s == Scalar::dma_semaphore; }

constexpr std::int64_t dynamic = INT64_MIN;  // an extent known at run time, of a slice of a memref: '?' in the text

struct Type {
  enum class Kind { scalar, vector, memref, tensor, function, other };
  Kind kind = Kind::other;
  Scalar element = Scalar::other;
  std::string element_name;
  Shape shape;
  std::string space;                  // of a memref: vmem, smem, ..
  std::vector<Type> inputs, outputs;  // of a function

  bool is(Kind k, Scalar e) const { return kind == k && element == e; }
  std::int64_t size() const { return volume(shape); }
  friend bool operator==(const Type&, const Type&) = default;
};

inline std::string text_of(const Type& t) {
  std::string body;
  for (auto d : t.shape) body += (d == dynamic ? std::string("?") : std::to_string(d)) + "x";
  body += t.element_name;
  switch (t.kind) {
    case Type::Kind::scalar: return t.element_name;
    case Type::Kind::vector: return "vector<" + body + ">";
    case Type::Kind::tensor: return "tensor<" + body + ">";
    case Type::Kind::memref: return "memref<" + body + ", " + t.space + ">";
    case Type::Kind::function: return "a function type";
    case Type::Kind::other: break;
  }
  return t.element_name;
}

// A piece of a sentence, written out only when the sentence is: types and shapes are turned into text in errors alone.
// text() and require() below mean what gdn::text and gdn::require do.
class Part {
 public:
  Part(std::string_view s) : text_(s) {}
  Part(const std::string& s) : text_(s) {}
  Part(const char* s) : text_(s) {}
  Part(char c) : kind_(Kind::character), whole_(c) {}
  template <std::integral T>
  Part(T n) : kind_(Kind::whole), whole_(static_cast<std::int64_t>(n)) {}
  Part(float x) : kind_(Kind::real), real_(x) {}
  Part(const Type& t) : kind_(Kind::type), type_(&t) {}
  Part(const Shape& s) : kind_(Kind::shape), shape_(&s) {}

  void append_to(std::ostream& out) const {
    if (kind_ == Kind::text) out << text_;
    else if (kind_ == Kind::character) out << static_cast<char>(whole_);
    else if (kind_ == Kind::whole) out << whole_;
    else if (kind_ == Kind::real) out << real_;
    else if (kind_ == Kind::type) out << text_of(*type_);
    else out << tuple_text(*shape_);
  }

 private:
  enum class Kind { text, character, whole, real, type, shape };
  Kind kind_ = Kind::text;
  std::string_view text_;
  std::int64_t whole_ = 0;
  float real_ = 0;
  const Type* type_ = nullptr;
  const Shape* shape_ = nullptr;
};

[[gnu::noinline, gnu::cold]] inline std::string joined(std::initializer_list<Part> parts) {
  std::ostringstream out;
  for (auto& p : parts) p.append_to(out);
  return out.str();
}

template <class... Parts>
std::string text(const Parts&... parts) {
  return joined({Part(parts)...});
}

template <class... Parts>
void require(bool condition, const Parts&... parts) {
  if (!condition) throw Error(joined({Part(parts)...}));
}

struct Attribute {
  enum class Kind { unit, number, string, symbol, array, dictionary, dense, type, tagged };
  Kind kind = Kind::unit;
  std::string name;                 // of a tagged one: #name<text>
  std::string text;                 // literal, string, symbol, or what stands between the < > of a tagged one
  std::vector<Attribute> elements;  // of an array, a dense one or a dictionary
  std::vector<std::string> keys;    // of a dictionary, one per element
  Type type;                        // after the colon, or the type itself

  const Attribute* find(std::string_view key) const {
    const auto at = std::find(keys.begin(), keys.end(), key);
    return at == keys.end() ? nullptr : &elements[static_cast<std::size_t>(at - keys.begin())];
  }
};

struct Node;

struct Region {
  std::vector<int> arguments;
  std::vector<Type> types;
  std::vector<Node> nodes;
};

// One op. Values are numbered over the whole module.
struct Node {
  std::string name;
  int line = 0, version = 0;  // version of the stable form; 0: not stable
  std::string label;          // of its trailing loc("label")
  std::vector<int> operands, results;
  std::vector<Type> operand_types, result_types;
  Attribute attributes;  // a dictionary
  std::vector<Region> regions;

  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    fail_with({Part(parts)...});
  }
  template <class... Parts>
  void check(bool condition, const Parts&... parts) const {
    if (!condition) fail(parts...);
  }
  [[noreturn, gnu::noinline, gnu::cold]] void fail_with(std::initializer_list<Part> parts) const {
    throw Error(where() + ": " + joined(parts));
  }
  std::string where() const { return text(name, " at line ", line, label.empty() ? "" : " (\"" + label + "\")"); }

  const Attribute& attribute(std::string_view key) const {
    const auto* a = attributes.find(key);
    check(a, "attribute '", key, "' is missing");
    return *a;
  }
  std::int64_t integer(std::string_view key) const { return integer(key, attribute(key)); }
  bool boolean(std::string_view key) const {
    const auto& t = attribute(key).text;
    check(t == "true" || t == "false", "attribute '", key, "' must be true or false, not ", t);
    return t == "true";
  }
  std::vector<std::int64_t> integers(std::string_view key) const {
    const auto& a = attribute(key);
    check(a.kind == Attribute::Kind::array, "attribute '", key, "' must be a list of integers");
    std::vector<std::int64_t> out;
    for (auto& e : a.elements) out.push_back(integer(key, e));
    return out;
  }
  // The text of #tag<text>.
  const std::string& tagged(std::string_view key, std::string_view tag) const {
    const auto& a = attribute(key);
    check(a.kind == Attribute::Kind::tagged && a.name == tag, "attribute '", key, "' must be #", tag, "<..>");
    return a.text;
  }

 private:
  std::int64_t integer(std::string_view key, const Attribute& a) const {
    std::int64_t n = 0;
    const char* end = a.text.data() + a.text.size();
    const bool whole = a.kind == Attribute::Kind::number && std::from_chars(a.text.data(), end, n).ptr == end;
    check(whole, "attribute '", key, "' must be an integer, not '", a.text, "'");
    return n;
  }
};

struct Module {
  std::vector<Node> functions;
  int version = 0;                 // of the stable form; 0: not stable
  std::vector<std::string> names;  // of the values, by number
};

// Characters, words, attributes and types; the base of both parsers (kernel and StableHLO program).
class Reader {
 public:
  explicit Reader(std::string_view source) : source_(source) {
    for (std::size_t i = 0; i < source.size(); i++)
      if (source[i] == '\n') line_starts_.push_back(i + 1);
  }

  int line() {
    skip();
    const auto after = std::upper_bound(line_starts_.begin(), line_starts_.end(), at_);
    return static_cast<int>(after - line_starts_.begin()) + 1;
  }

  [[noreturn]] void fail(std::string_view wanted) {
    const int n = line();
    auto rest = source_.substr(std::min(at_, source_.size()), 40);
    rest = rest.substr(0, rest.find('\n'));
    throw Error(text("line ", n, ": expected ", wanted, rest.empty() ? " before the end of the text" : text(" before '", rest, "'")));
  }

  bool at_end() { return skip(), at_ >= source_.size(); }

  bool is(std::string_view token) { return skip(), source_.substr(at_, token.size()) == token; }

  bool eat(std::string_view token) {
    if (!is(token)) return false;
    at_ += token.size();
    return true;
  }

  void want(std::string_view token) {
    if (!eat(token)) fail(text("'", token, "'"));
  }

  // A bare word token that is not the beginning of a longer one.
  bool eat_word(std::string_view token) {
    if (!is(token) || (at_ + token.size() < source_.size() && in_word(source_[at_ + token.size()]))) return false;
    at_ += token.size();
    return true;
  }

  bool is_word() { return skip(), at_ < source_.size() && in_word(source_[at_]); }

  std::string word() {
    skip();
    const auto begin = at_;
    while (at_ < source_.size() && in_word(source_[at_])) at_++;
    if (begin == at_) fail("a name");
    return std::string(source_.substr(begin, at_ - begin));
  }

  std::string string() {
    want("\"");
    std::string out;
    for (;; at_++) {
      if (at_ >= source_.size()) fail("'\"'");
      if (source_[at_] == '"') break;
      out += source_[at_] == '\\' ? escape() : source_[at_];
    }
    at_++;
    return out;
  }

  // Everything up to the bracket that closes the one just read, which is eaten too.
  std::string balanced() {
    const auto begin = at_;
    for (int depth = 1;; at_++) {
      if (at_ >= source_.size()) fail("a closing bracket");
      const char c = source_[at_];
      if (c == '"') {
        string();
        at_--;
      } else if (c == '(' || c == '[' || c == '{' || c == '<') {
        depth++;
      } else if (c == ')' || c == ']' || c == '}' || (c == '>' && source_[at_ - 1] != '-')) {
        if (--depth == 0) break;
      }
    }
    return std::string(source_.substr(begin, at_++ - begin));
  }

  // item, item, .. up to `close`, which is eaten.
  template <class Item>
  void list(std::string_view close, Item item) {
    if (eat(close)) return;
    do item();
    while (eat(","));
    want(close);
  }

  Attribute attribute() {
    using Kind = Attribute::Kind;
    Attribute a;
    if (is("\"")) {
      a.kind = Kind::string;
      a.text = string();
    } else if (eat("@")) {
      a.kind = Kind::symbol;
      a.text = is("\"") ? string() : word();
    } else if (eat("[")) {
      a.kind = Kind::array;
      list("]", [&] { a.elements.push_back(attribute()); });
    } else if (is("{")) {
      a = dictionary();
    } else if (eat("#")) {
      a.kind = Kind::tagged;
      a.name = word();
      if (eat("<")) a.text = balanced();
      else if (const auto alias = aliases_.find(a.name); alias != aliases_.end()) return alias->second;
    } else if (eat("dense<")) {
      a.kind = Kind::dense;
      if (!eat(">")) {
        a.elements.push_back(attribute());
        want(">");
      }
    } else if (eat("array<")) {
      a.kind = Kind::array;
      word();
      if (eat(":")) list(">", [&] { a.elements.push_back(attribute()); });
      else want(">");
    } else if (is("affine_map<") || is("loc(") || is("strided<")) {
      a.kind = Kind::tagged;
      a.name = word();
      at_++;
      a.text = balanced();
    } else if (is_number()) {
      a.kind = Kind::number;
      a.text = number();
    } else if (eat_word("unit")) {
      a.kind = Kind::unit;
    } else if (is("true") || is("false")) {
      a.kind = Kind::number;
      a.text = word();
    } else {
      a.kind = Kind::type;
      a.type = type();
      return a;
    }
    if ((a.kind == Kind::number || a.kind == Kind::string || a.kind == Kind::dense) && eat(":")) a.type = type();
    return a;
  }

  // {name = attribute, name, ..}
  Attribute dictionary() {
    Attribute a;
    a.kind = Attribute::Kind::dictionary;
    want("{");
    list("}", [&] {
      a.keys.push_back(is("\"") ? string() : word());
      a.elements.push_back(eat("=") ? attribute() : Attribute{});
    });
    return a;
  }

  Type type() {
    using Kind = Type::Kind;
    Type t;
    if (is("(")) {
      t.kind = Kind::function;
      t.inputs = types();
      want("->");
      t.outputs = types();
    } else if (eat("vector<")) {
      t.kind = Kind::vector;
      shaped(t);
      if (t.shape.empty()) fail("a vector of rank 1 or more");
      want(">");
    } else if (eat("tensor<")) {
      t.kind = Kind::tensor;
      shaped(t);
      want(">");
    } else if (eat("memref<")) {
      t.kind = Kind::memref;
      shaped(t);
      while (eat(",")) {
        const auto a = attribute();
        if (a.name == "tpu.memory_space") t.space = a.text.substr(0, a.text.find(','));
        else if (a.name != "tpu.tiled") fail("a memref without a layout, not #" + a.name + ",");
      }
      want(">");
    } else {
      element(t);
      t.kind = t.element == Scalar::other ? Kind::other : Kind::scalar;
    }
    return t;
  }

  // One type, or several in parentheses.
  std::vector<Type> types() {
    std::vector<Type> out;
    if (eat("(")) list(")", [&] { out.push_back(type()); });
    else out.push_back(type());
    return out;
  }

  // #name = attribute, at the top of the text.
  bool eat_alias() {
    if (!eat("#")) return false;
    auto name = word();
    want("=");
    aliases_[name] = attribute();
    return true;
  }

  // A trailing loc(..), as written; empty if there is none.
  std::string location() { return eat("loc(") ? balanced() : std::string(); }

  // The name in a location: of "label", "label"(..), "file":1:2 or an alias of one of these.
  std::string label_of(const std::string& location) const {
    if (location.empty()) return {};
    if (location[0] == '#') {
      const auto alias = aliases_.find(location.substr(1));
      return alias == aliases_.end() ? std::string() : label_of(alias->second.text);
    }
    if (location[0] != '"') return {};
    const auto end = location.find('"', 1);
    const auto label = location.substr(1, end - 1);
    const auto rest = location.substr(end + 1);
    return rest.starts_with(":") ? label + rest : label;
  }

 private:
  static bool in_word(char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '.' || c == '$';
  }

  void skip() {
    while (at_ < source_.size()) {
      const char c = source_[at_];
      if (c == ' ' || c == '\n' || c == '\t' || c == '\r') at_++;
      else if (c == '/' && source_.substr(at_, 2) == "//") at_ = std::min(source_.find('\n', at_), source_.size());
      else break;
    }
  }

  // Stands on a backslash; leaves at_ on the last character of the escape.
  char escape() {
    const auto rest = source_.substr(at_ + 1, 2);
    at_++;
    if (rest.empty()) fail("an escaped character");
    if (rest[0] == '"' || rest[0] == '\\') return rest[0];
    if (rest[0] == 'n') return '\n';
    if (rest[0] == 't') return '\t';
    unsigned code = 0;
    if (std::from_chars(rest.data(), rest.data() + rest.size(), code, 16).ptr != rest.data() + 2) fail("two hex digits after '\\'");
    at_++;
    return static_cast<char>(code);
  }

  bool is_number() {
    skip();
    const auto digit = [&](std::size_t i) { return i < source_.size() && source_[i] >= '0' && source_[i] <= '9'; };
    return digit(at_) || (at_ < source_.size() && source_[at_] == '-' && digit(at_ + 1));
  }

  std::string number() {
    const auto begin = at_;
    const auto digits = [&](std::string_view set) {
      while (at_ < source_.size() && set.find(source_[at_]) != set.npos) at_++;
    };
    if (source_[at_] == '-') at_++;
    if (source_.substr(at_, 2) == "0x") {
      at_ += 2;
      digits("0123456789abcdefABCDEF");
    } else {
      digits("0123456789");
      if (at_ < source_.size() && source_[at_] == '.') {
        at_++;
        digits("0123456789");
      }
      if (at_ < source_.size() && (source_[at_] == 'e' || source_[at_] == 'E')) {
        at_++;
        if (at_ < source_.size() && (source_[at_] == '+' || source_[at_] == '-')) at_++;
        digits("0123456789");
      }
    }
    return std::string(source_.substr(begin, at_ - begin));
  }

  void element(Type& t) {
    t.element_name = eat("!") ? "!" + word() : word();
    static const std::unordered_map<std::string_view, Scalar> known{
        {"f32", Scalar::f32}, {"bf16", Scalar::bf16},   {"i32", Scalar::i32}, {"ui32", Scalar::i32},
        {"i16", Scalar::i16}, {"i8", Scalar::i8},       {"i1", Scalar::i1},   {"index", Scalar::index},
        {"!tpu.semaphore", Scalar::semaphore},          {"!tpu.dma_semaphore", Scalar::dma_semaphore}};
    const auto found = known.find(t.element_name);
    t.element = found == known.end() ? Scalar::other : found->second;
  }

  // 64x128xf32, of a memref also ?x128xf32
  void shaped(Type& t) {
    skip();
    for (;;) {
      const auto begin = at_;
      if (t.kind == Type::Kind::memref && source_.substr(at_, 2) == "?x") {
        t.shape.push_back(dynamic);
        at_ += 2;
        continue;
      }
      while (at_ < source_.size() && source_[at_] >= '0' && source_[at_] <= '9') at_++;
      if (begin == at_ || at_ >= source_.size() || source_[at_] != 'x') {
        at_ = begin;
        break;
      }
      std::int64_t n = 0;
      std::from_chars(source_.data() + begin, source_.data() + at_, n);
      t.shape.push_back(n);
      at_++;
    }
    element(t);
  }

  std::string_view source_;
  std::size_t at_ = 0;
  std::vector<std::size_t> line_starts_;
  std::unordered_map<std::string, Attribute> aliases_;
};

// The ops of a kernel. Names are resolved to value numbers and every use is checked against the type of its definition.
class KernelParser {
 public:
  explicit KernelParser(std::string_view source) : in_(source) {}

  Module module() {
    while (in_.eat_alias()) {}
    scopes_.emplace_back();
    if (in_.eat_word("module")) {
      if (in_.eat("@")) in_.word();
      if (in_.eat_word("attributes")) version(in_.dictionary());
      in_.want("{");
      while (!in_.eat("}")) out_.functions.push_back(node());
      in_.location();
    } else {
      auto whole = node();
      whole.check(whole.name == "builtin.module" && whole.regions.size() == 1, "expected one builtin.module");
      version(whole.attributes);
      out_.functions = std::move(whole.regions[0].nodes);
    }
    while (in_.eat_alias()) {}
    if (!in_.at_end()) in_.fail("the end of the text");
    for (auto& f : out_.functions) finish(f);
    return std::move(out_);
  }

 private:
  struct Definition {
    int first;
    int count;
  };

  void version(const Attribute& attributes) {
    const auto* v = attributes.find("stable_mosaic.version");
    if (!v) return;
    std::from_chars(v->text.data(), v->text.data() + v->text.size(), out_.version);
    // What libtpu 0.0.52 reads.
    require(out_.version >= 1 && out_.version <= 20, "Unsupported version: expected <= 20 but got ", v->text);
  }

  Node node() {
    Node n;
    n.line = in_.line();
    std::string name;
    int count = 0;
    if (in_.eat("%")) {
      name = in_.word();
      count = 1;
      if (in_.eat(":")) count = small_integer();
      in_.want("=");
    }
    n.name = in_.string();
    in_.want("(");
    in_.list(")", [&] { n.operands.push_back(use()); });
    n.attributes.kind = Attribute::Kind::dictionary;
    if (in_.eat("<")) {
      add_attributes(n);
      in_.want(">");
    }
    if (in_.eat("(")) in_.list(")", [&] { n.regions.push_back(region(n.name.ends_with("func.func"))); });
    if (in_.is("{")) add_attributes(n);
    in_.want(":");
    if (!in_.is("(")) in_.fail("'('");
    n.operand_types = in_.types();
    in_.want("->");
    n.result_types = in_.types();
    n.label = in_.location();
    n.check(n.operands.size() == n.operand_types.size(), n.operands.size(), " operands, but ", n.operand_types.size(), " operand types");
    for (std::size_t i = 0; i < n.operands.size(); i++) {
      const auto& defined = types_[static_cast<std::size_t>(n.operands[i])];
      n.check(defined == n.operand_types[i], "operand ", out_.names[static_cast<std::size_t>(n.operands[i])], " is a ", defined,
              ", not a ", n.operand_types[i]);
    }
    n.check(static_cast<int>(n.result_types.size()) == count || name.empty(), count, " results named, but ", n.result_types.size(),
            " typed");
    if (name.empty() && !n.result_types.empty()) name = text("an unnamed result of line ", n.line);
    if (!n.result_types.empty()) {
      const int first = define(name, n.result_types);
      for (int i = 0; i < static_cast<int>(n.result_types.size()); i++) n.results.push_back(first + i);
    }
    return n;
  }

  void add_attributes(Node& n) {
    auto more = in_.dictionary();
    for (std::size_t i = 0; i < more.keys.size(); i++) {
      n.check(!n.attributes.find(more.keys[i]), "attribute '", more.keys[i], "' is given twice");
      n.attributes.keys.push_back(std::move(more.keys[i]));
      n.attributes.elements.push_back(std::move(more.elements[i]));
    }
  }

  Region region(bool isolated) {
    Region r;
    in_.want("{");
    auto outside = isolated ? std::exchange(scopes_, {}) : std::vector<Scope>();
    scopes_.emplace_back();
    if (in_.eat("^")) {
      in_.word();
      in_.want("(");
      in_.list(")", [&] {
        in_.want("%");
        auto name = in_.word();
        in_.want(":");
        r.types.push_back(in_.type());
        in_.location();
        r.arguments.push_back(define(name, {r.types.back()}));
      });
      in_.want(":");
    }
    while (!in_.eat("}")) {
      if (in_.is("^")) in_.fail("one block per region");
      r.nodes.push_back(node());
    }
    scopes_.pop_back();
    if (isolated) scopes_ = std::move(outside);
    return r;
  }

  int define(const std::string& name, const std::vector<Type>& types) {
    const int first = static_cast<int>(out_.names.size());
    if (!scopes_.back().emplace(name, Definition{first, static_cast<int>(types.size())}).second)
      in_.fail("a new name, %" + name + " is taken,");
    for (std::size_t i = 0; i < types.size(); i++) {
      out_.names.push_back(types.size() == 1 ? "%" + name : text("%", name, "#", i));
      types_.push_back(types[i]);
    }
    return first;
  }

  int use() {
    in_.want("%");
    const auto name = in_.word();
    int part = 0;
    if (in_.eat("#")) part = small_integer();
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope)
      if (const auto found = scope->find(name); found != scope->end()) {
        if (part >= found->second.count) in_.fail(text("a part of %", name, " below ", found->second.count));
        return found->second.first + part;
      }
    in_.fail("a defined value, not %" + name + ",");
  }

  int small_integer() {
    const auto digits = in_.word();
    int n = 0;
    if (std::from_chars(digits.data(), digits.data() + digits.size(), n).ptr != digits.data() + digits.size()) in_.fail("an integer");
    return n;
  }

  // Strips the prefix of the stable form, of which there is all or nothing, and resolves locations, whose aliases come last.
  void finish(Node& n) {
    constexpr std::string_view prefix = "stable_mosaic.";
    const bool prefixed = n.name.starts_with(prefix);
    n.check(!out_.version || prefixed, "Operation not in a serialized form: the module has a version, the op no '", prefix, "' prefix");
    n.check(out_.version || !prefixed,
            "Missing or invalid version attribute: the op has the prefix of the stable form, the module no version");
    if (prefixed) n.name.erase(0, prefix.size());
    n.version = out_.version;
    n.label = in_.label_of(n.label);
    for (auto& r : n.regions)
      for (auto& inner : r.nodes) finish(inner);
  }

  using Scope = std::unordered_map<std::string, Definition>;
  Reader in_;
  Module out_;
  std::vector<Type> types_;  // of the values, by number
  std::vector<Scope> scopes_;
};

inline Module parse_kernel(std::string_view source) { return KernelParser(source).module(); }

// The bits of a numeric literal as an element of the given type; empty if it is none.
inline std::optional<std::uint32_t> literal_bits(const std::string& literal, Scalar element) {
  const char *begin = literal.data(), *end = begin + literal.size();
  const bool hex = literal.starts_with("0x");
  if (element == Scalar::i1) {
    if (literal == "true" || literal == "1" || literal == "-1") return 1u;
    if (literal == "false" || literal == "0") return 0u;
    return std::nullopt;
  }
  if (element == Scalar::f32 || element == Scalar::bf16) {
    const std::size_t digits = element == Scalar::f32 ? 8 : 4;
    if (hex) {
      std::uint32_t bits = 0;
      if (literal.size() != 2 + digits || std::from_chars(begin + 2, end, bits, 16).ptr != end) return std::nullopt;
      return bits;
    }
    float value = 0;
    if (literal.find('.') == literal.npos) return std::nullopt;
    if (const auto r = std::from_chars(begin, end, value); r.ptr != end || r.ec != std::errc()) return std::nullopt;
    const auto bits = std::bit_cast<std::uint32_t>(value);
    return element == Scalar::f32 ? bits : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  }
  const bool narrow = element == Scalar::i16 || element == Scalar::i8;
  if (!narrow && element != Scalar::i32 && element != Scalar::index) return std::nullopt;
  std::int64_t n = 0;
  if (std::from_chars(begin + (hex ? 2 : 0), end, n, hex ? 16 : 10).ptr != end) return std::nullopt;
  if (narrow) {
    const std::int64_t limit = std::int64_t{1} << bits_of(element);
    if (n < -limit / 2 || n >= limit) return std::nullopt;
    return static_cast<std::uint32_t>(n & (limit - 1));
  }
  if (n < INT32_MIN || n > (hex || element == Scalar::i32 ? std::int64_t{UINT32_MAX} : INT32_MAX)) return std::nullopt;
  return static_cast<std::uint32_t>(n);
}

}  // namespace gdn::sim

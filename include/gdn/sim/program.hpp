// The text around a kernel: a StableHLO program with custom calls, or the kernel alone with a comment that types its call.
#pragma once
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../error.hpp"
#include "grid.hpp"
#include "parse.hpp"

namespace gdn::sim {

inline std::string decode_base64(std::string_view text) {
  std::string out;
  std::uint32_t bits = 0;
  int held = 0;
  while (text.ends_with('=')) text.remove_suffix(1);
  for (char c : text) {
    const std::uint32_t digit = c >= 'A' && c <= 'Z'   ? static_cast<std::uint32_t>(c - 'A')
                                : c >= 'a' && c <= 'z' ? static_cast<std::uint32_t>(c - 'a' + 26)
                                : c >= '0' && c <= '9' ? static_cast<std::uint32_t>(c - '0' + 52)
                                : c == '+'             ? 62u
                                : c == '/'             ? 63u
                                                       : 64u;
    require(digit < 64, "corrupt base64: '", c, "' in the body");
    bits = (bits << 6) | digit;
    held += 6;
    if (held >= 8) {
      held -= 8;
      out += static_cast<char>((bits >> held) & 0xffu);
    }
  }
  return out;
}

// The little of JSON a backend_config needs: every value keeps its literal text.
struct Json {
  std::string text;
  std::vector<Json> elements;
  std::vector<std::string> keys;  // of an object, one per element

  const Json* find(std::string_view key) const {
    const auto at = std::find(keys.begin(), keys.end(), key);
    return at == keys.end() ? nullptr : &elements[static_cast<std::size_t>(at - keys.begin())];
  }
};

inline Json read_json(Reader& in) {
  Json j;
  if (in.eat("{")) {
    in.list("}", [&] {
      j.keys.push_back(in.string());
      in.want(":");
      j.elements.push_back(read_json(in));
    });
  } else if (in.eat("[")) {
    in.list("]", [&] { j.elements.push_back(read_json(in)); });
  } else if (in.is("\"")) {
    j.text = in.string();
  } else {
    j.text = in.attribute().text;
  }
  return j;
}

inline std::int64_t whole_number(const std::string& digits, std::string_view what) {
  std::int64_t n = 0;
  const char* end = digits.data() + digits.size();
  require(std::from_chars(digits.data(), end, n).ptr == end && !digits.empty(), what, " must be an integer, not '", digits, "'");
  return n;
}

// What the runtime would hand to the kernel: its text and limits.
struct BackendConfig {
  std::string body;
  std::optional<std::int64_t> vmem_limit;
};

inline BackendConfig read_backend_config(const std::string& json) {
  Reader in(json);
  const auto all = read_json(in);
  const auto* config = all.find("custom_call_config");
  require(config && config->find("body"), "backend_config: custom_call_config with a body is needed");
  const auto* format = config->find("serialization_format");
  const auto* layouts = config->find("needs_layout_passes");
  require(format && format->text == "1", "Unsupported serialization format: ", format ? format->text : "none", " (expected 1)");
  require(layouts && layouts->text == "true", "needs_layout_passes must be true: otherwise all memref arguments need a tiled layout");
  BackendConfig out;
  out.body = decode_base64(config->find("body")->text);
  require(!out.body.starts_with("ML\xefR"), "the body is MLIR bytecode; only stable text is simulated");
  require(out.body.find("stable_mosaic.version") != out.body.npos,
          "Missing or invalid version attribute: the body is not in the stable form");
  if (const auto* scoped = all.find("scoped_memory_configs"))
    for (auto& memory : scoped->elements) {
      const auto *space = memory.find("memory_space"), *size = memory.find("size");
      require(space && size, "scoped_memory_configs: memory_space and size are needed");
      if (space->text == "1") out.vmem_limit = whole_number(size->text, "the size of scoped memory");
    }
  return out;
}

// func.func public @main: reshapes and conversions of i1 around custom calls.
class Program {
 public:
  Program(std::string_view text, std::vector<Array> inputs, const Options& options)
      : in_(text), inputs_(std::move(inputs)), options_(options) {}

  Result run() {
    while (in_.eat_alias()) {}
    const bool module = in_.eat_word("module");
    if (module) {
      if (in_.eat("@")) in_.word();
      if (in_.eat_word("attributes")) in_.dictionary();
      in_.want("{");
    }
    in_.want("func.func");
    in_.eat_word("public");
    in_.want("@main");
    signature();
    in_.want("{");
    while (!in_.eat_word("return") && !in_.eat_word("func.return")) statement();
    finish();
    in_.location();
    in_.want("}");
    in_.location();
    if (module) {
      in_.want("}");
      in_.location();
    }
    while (in_.eat_alias()) {}
    if (!in_.at_end()) in_.fail("the end of the program");
    return std::move(result_);
  }

 private:
  struct Typed {
    Type type;
    Array array;
  };

  void signature() {
    std::size_t count = 0;
    in_.want("(");
    in_.list(")", [&] {
      in_.want("%");
      const auto name = in_.word();
      in_.want(":");
      const auto type = in_.type();
      if (in_.is("{")) in_.dictionary();
      in_.location();
      require(count < inputs_.size(), "@main takes more than the ", inputs_.size(), " arrays given");
      check_array(inputs_[count], type, text("argument ", count, " (%", name, ")"));
      values_[name] = {type, std::move(inputs_[count++])};
    });
    require(count == inputs_.size(), "@main takes ", count, " arrays, not ", inputs_.size());
    in_.want("->");
    if (in_.eat("(")) in_.list(")", [&] {
        result_types_.push_back(in_.type());
        if (in_.is("{")) in_.dictionary();
      });
    else result_types_.push_back(in_.type());
    if (in_.eat_word("attributes")) in_.dictionary();
  }

  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) {
    throw Error(text("line ", line_, " of the program: ", parts...));
  }

  void statement() {
    line_ = in_.line();
    in_.want("%");
    const auto name = in_.word();
    std::size_t count = 1;
    if (in_.eat(":")) count = static_cast<std::size_t>(whole_number(in_.word(), "the number of results"));
    in_.want("=");
    const auto op = in_.word();
    std::vector<Typed> results;
    if (op == "stablehlo.reshape") results = {reshape()};
    else if (op == "stablehlo.convert") results = {convert()};
    else if (op == "stablehlo.custom_call") results = custom_call();
    else fail(op, ": this op is not simulated");
    in_.location();
    if (results.size() != count) fail(op, ": ", count, " results are named, it gives ", results.size());
    for (std::size_t i = 0; i < count; i++) values_[count == 1 ? name : text(name, "#", i)] = std::move(results[i]);
  }

  const Typed& use() {
    in_.want("%");
    auto name = in_.word();
    if (in_.eat("#")) name += "#" + in_.word();
    const auto found = values_.find(name);
    if (found == values_.end()) fail("%", name, " is not defined");
    return found->second;
  }

  void want_type(const Type& stated, const Type& defined) {
    if (stated != defined) fail("a value is a ", defined, ", not a ", stated);
  }

  Typed reshape() {
    Typed value = use();
    in_.want(":");
    in_.want("(");
    want_type(in_.type(), value.type);
    in_.want(")");
    in_.want("->");
    const auto to = in_.type();
    const bool fits = to.kind == Type::Kind::tensor && to.element == value.type.element && to.size() == value.type.size();
    if (!fits) fail("cannot reshape ", value.type, " to ", to);
    value.type = to;
    value.array.shape = to.shape;
    return value;
  }

  // From i1 to i32: kernels take no i1 arrays.
  Typed convert() {
    Typed value = use();
    in_.want(":");
    in_.want("(");
    want_type(in_.type(), value.type);
    in_.want(")");
    in_.want("->");
    auto to = in_.type();
    const bool fits = to.is(Type::Kind::tensor, Scalar::i32) && value.type.element == Scalar::i1 && to.shape == value.type.shape;
    if (!fits) fail("cannot convert ", value.type, " to ", to);
    value.type = to;
    value.array.element = Element::i32;
    return value;
  }

  std::vector<Typed> custom_call() {
    in_.want("@tpu_custom_call");
    in_.want("(");
    std::vector<Array> operands;
    Call call;
    in_.list(")", [&] {
      const auto& v = use();
      operands.push_back(v.array);
      call.operands.push_back(v.type);
    });
    const auto attributes = in_.dictionary();
    in_.want(":");
    const auto stated = in_.types();
    in_.want("->");
    call.results = in_.types();
    if (stated.size() != call.operands.size())
      fail("the custom call has ", call.operands.size(), " operands, but ", stated.size(), " operand types");
    for (std::size_t i = 0; i < stated.size(); i++) want_type(stated[i], call.operands[i]);
    const auto* config = attributes.find("backend_config");
    if (!config) fail("the custom call has no backend_config");
    const auto backend = read_backend_config(config->text);
    call.vmem_limit = backend.vmem_limit;
    call.text = backend.body;
    check_layouts(attributes, "operand_layouts", call.operands);
    check_layouts(attributes, "result_layouts", call.results);
    if (const auto* aliases = attributes.find("output_operand_aliases"))
      for (auto& a : aliases->elements) read_alias(a, call);
    GridRun grid(call, operands, options_);
    auto r = grid.run();
    result_.ops += r.ops;
    result_.grid_steps += r.grid_steps;
    result_.vmem_bytes = std::max(result_.vmem_bytes, r.vmem_bytes);
    std::vector<Typed> out;
    for (std::size_t i = 0; i < r.outputs.size(); i++) out.push_back({call.results[i], std::move(r.outputs[i])});
    return out;
  }

  // Without row-major layouts written down, XLA picks its own, and narrow arrays arrive transposed.
  void check_layouts(const Attribute& attributes, std::string_view key, const std::vector<Type>& types) {
    const auto* layouts = attributes.find(key);
    if (!layouts || layouts->elements.size() != types.size()) fail("the custom call needs ", key, ", one per array");
    for (std::size_t i = 0; i < types.size(); i++) {
      std::vector<std::string> order, wanted;
      for (auto& list : layouts->elements[i].elements)
        for (auto& e : list.kind == Attribute::Kind::array ? list.elements : layouts->elements[i].elements) order.push_back(e.text);
      for (std::size_t d = types[i].shape.size(); d-- > 0;) wanted.push_back(std::to_string(d));
      if (order != wanted) fail("entry ", i, " of ", key, " is not row-major");
    }
  }

  // #stablehlo.output_operand_alias<output_tuple_indices = [1], operand_index = 0, operand_tuple_indices = []>
  static void read_alias(const Attribute& a, Call& call) {
    require(a.name == "stablehlo.output_operand_alias", "output_operand_aliases holds #", a.name);
    const std::string braced = "{" + a.text + "}";
    Reader in(braced);
    const auto fields = in.dictionary();
    const auto *output = fields.find("output_tuple_indices"), *operand = fields.find("operand_index");
    require(output && operand && output->elements.size() <= 1, "an output_operand_alias needs output_tuple_indices and operand_index");
    const auto o = output->elements.empty() ? 0 : whole_number(output->elements[0].text, "output_tuple_indices");
    const auto i = whole_number(operand->text, "operand_index");
    require(call.aliases.emplace(static_cast<std::size_t>(o), static_cast<std::size_t>(i)).second, "output ", o, " aliases two operands");
  }

  void finish() {
    line_ = in_.line();
    std::vector<Type> types;
    do {
      const auto& v = use();
      types.push_back(v.type);
      result_.outputs.push_back(v.array);
    } while (in_.eat(","));
    in_.want(":");
    for (std::size_t i = 0; i < types.size(); i++) {
      if (i) in_.want(",");
      want_type(in_.type(), types[i]);
    }
    if (types != result_types_) fail("the results are not of the types of the signature");
  }

  Reader in_;
  std::vector<Array> inputs_;
  const Options& options_;
  std::unordered_map<std::string, Typed> values_;
  std::vector<Type> result_types_;
  int line_ = 0;  // of the statement being read
  Result result_;
};

// The call of a kernel on its own: comment lines "// call: (types) -> types", "// vmem_limit_bytes: N", "// aliases: 0 = 1, 1 = 2".
inline Call read_call(std::string_view text) {
  Call call;
  call.text = text;
  bool found = false;
  for (auto rest = text; !rest.empty();) {
    auto line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    constexpr std::string_view types = "// call:", limit = "// vmem_limit_bytes:", aliases = "// aliases:";
    if (line.starts_with(types)) {
      require(!found, "two lines beginning '// call:'");
      found = true;
      Reader in(line.substr(types.size()));
      call.operands = in.types();
      in.want("->");
      call.results = in.types();
    } else if (line.starts_with(aliases)) {
      Reader in(line.substr(aliases.size()));
      do {
        const auto output = static_cast<std::size_t>(whole_number(in.word(), "an output"));
        in.want("=");
        call.aliases[output] = static_cast<std::size_t>(whole_number(in.word(), "an operand"));
      } while (in.eat(","));
    } else if (line.starts_with(limit)) {
      line.remove_prefix(limit.size());
      while (line.starts_with(' ')) line.remove_prefix(1);
      while (line.ends_with(' ') || line.ends_with('\r')) line.remove_suffix(1);
      call.vmem_limit = whole_number(std::string(line), "vmem_limit_bytes");
    }
  }
  require(found, "kernel text needs a line like '// call: (tensor<256x512xbf16>) -> tensor<256x512xbf16>'");
  return call;
}

inline Result run(std::string_view text, std::vector<Array> inputs, const Options& options = {}) {
  if (text.find("stablehlo.custom_call") != text.npos) return Program(text, std::move(inputs), options).run();
  return GridRun(read_call(text), inputs, options).run();
}

}  // namespace gdn::sim

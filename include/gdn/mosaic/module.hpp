// An emitted kernel: its arrays, its text in every form, and what it needs of a TPU.
#pragma once
#include <algorithm>
#include <cstdint>
#include <map>

#include "gdn/mosaic/builder.hpp"

namespace gdn::mosaic {

// One array of the call, in the shape its windows are cut from: a token's heads stand side by side in one row, because any other
// shape would make XLA copy it.
struct Argument {
  std::string name;
  Element element;
  Shape shape;
};

struct Module {
  std::string name;
  std::vector<Argument> inputs;  // operands of the kernel, scalar prefetch first; an array with several windows stands there several times
  std::vector<Argument> outputs;
  int prefetched = 0;
  std::map<std::size_t, std::size_t> updates;  // output -> the input whose memory it is: blocks that it does not write stay
  bool limited = false;                   // some rows of outputs are not written: those behind a limit, or of no turn
  std::string marked;                     // the module's functions, with the Builder's marks
  std::string schedule;                   // as placed
  std::int64_t vmem_limit_bytes = 0;
  std::int64_t vmem_bytes = 0;            // windows with their copies, and scratch

  // The arrays a caller passes: every input once, in order.
  std::vector<Argument> parameters() const {
    std::vector<Argument> unique;
    for (const Argument& a : inputs)
      if (std::none_of(unique.begin(), unique.end(), [&](const Argument& u) { return u.name == a.name; })) unique.push_back(a);
    return unique;
  }
  // Generic MLIR with locations, and the comments that tell the types of the call.
  std::string generic() const {
    return "// call: " + call() + "\n// vmem_limit_bytes: " + number(vmem_limit_bytes) + "\nmodule {\n" + mosaic::generic(marked) + "}\n";
  }
  // What goes into the custom call: serialised Mosaic of version 13 as text.
  std::string stable() const { return "module attributes {stable_mosaic.version = 13 : i64} {\n" + mosaic::stable(marked) + "}\n"; }
  // The custom call's backend_config: JSON, with that text in it.
  std::string backend_config() const;
  // A complete StableHLO program that a PJRT client compiles as it is.
  std::string program() const;

 private:
  std::string call() const {
    auto types = [](const std::vector<Argument>& v) {
      std::string s;
      for (auto& a : v) s += (s.empty() ? "" : ", ") + tensor_type(a.shape, a.element);
      return s;
    };
    return "(" + types(inputs) + ") -> (" + types(outputs) + ")";
  }
};

inline std::string base64(std::string_view bytes) {
  static constexpr char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t v = 0;
    const std::size_t n = std::min<std::size_t>(3, bytes.size() - i);
    for (std::size_t k = 0; k < 3; k++) v = v << 8 | (k < n ? static_cast<unsigned char>(bytes[i + k]) : 0u);
    for (std::size_t k = 0; k < 4; k++) out += k <= n ? digits[v >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

inline std::string Module::backend_config() const {
  std::string in, out;  // every array stays in HBM
  const auto color = [](std::string& s, const std::string& array) { s += (s.empty() ? "{" : ", {") + array + "}"; };
  for (std::size_t i = static_cast<std::size_t>(prefetched); i < inputs.size(); i++)
    color(in, "\"operand_index\": " + number(static_cast<long>(i)) + ", \"color\": 0");
  for (std::size_t i = 0; i < outputs.size(); i++)
    color(out, "\"color\": 0" + (outputs.size() == 1 ? "" : ", \"shape_index\": [" + number(static_cast<long>(i)) + "]"));
  return "{\"custom_call_config\": {\"body\": \"" + base64(stable()) +
         "\", \"serialization_format\": 1, \"needs_layout_passes\": true, \"disable_bounds_checks\": true, \"input_memory_space_colors\": [" + in +
         "], \"output_memory_space_colors\": [" + out + "]}, \"scoped_memory_configs\": [{\"memory_space\": 1, \"offset\": 0, \"size\": " +
         number(vmem_limit_bytes) + "}]}";
}

inline std::string Module::program() const {
  std::string operands, operand_types, results, layouts_in, layouts_out, arguments, returned;
  auto row_major = [](const Shape& s) {
    std::vector<int> order;
    for (int i = static_cast<int>(s.size()) - 1; i >= 0; i--) order.push_back(i);
    return "dense<[" + list(order) + "]> : tensor<" + number(static_cast<long>(s.size())) + "xindex>";
  };
  auto join = [](std::string& s, const std::string& x) { s += (s.empty() ? "" : ", ") + x; };
  for (const Argument& a : parameters()) {
    join(arguments, "%" + a.name + ": " + tensor_type(a.shape, a.element));
  }
  for (std::size_t i = 0; i < inputs.size(); i++) {
    const Argument& a = inputs[i];
    join(operands, "%" + a.name);
    join(operand_types, tensor_type(a.shape, a.element));
    join(layouts_in, row_major(a.shape));
  }
  for (auto& a : outputs) {
    join(results, tensor_type(a.shape, a.element));
    join(layouts_out, row_major(a.shape));
  }
  const bool one = outputs.size() == 1;
  for (std::size_t i = 0; i < outputs.size(); i++) join(returned, one ? "%result" : "%result#" + number(static_cast<long>(i)));
  std::string aliases;
  for (auto [output, input] : updates)
    join(aliases, "#stablehlo.output_operand_alias<output_tuple_indices = [" + (one ? "" : number(static_cast<long>(output))) +
                      "], operand_index = " + number(static_cast<long>(input)) + ", operand_tuple_indices = []>");
  if (!aliases.empty()) aliases = ", output_operand_aliases = [" + aliases + "]";
  std::string config;
  for (char c : backend_config()) config += c == '"' ? "\\22" : std::string(1, c);
  return "module @" + name + " {\n  func.func public @main(" + arguments + ") -> (" + results + ") {\n    %result" +
         (one ? "" : ":" + number(static_cast<long>(outputs.size()))) + " = stablehlo.custom_call @tpu_custom_call(" + operands +
         ") {api_version = 1 : i32, kernel_name = \"" + name + "\", operand_layouts = [" + layouts_in + "], result_layouts = [" +
         layouts_out + "]" + aliases + ", backend_config = \"" + config + "\"} : (" + operand_types + ") -> " + (one ? results : "(" + results + ")") +
         " loc(\"" + name + "\")\n    return " + returned + " : " + results + "\n  }\n}\n";
}

}  // namespace gdn::mosaic

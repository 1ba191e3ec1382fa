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

inline std::string Module::program() const {
  std::string operands, operand_types, results, layouts_in, layouts_out, arguments, returned, colors;
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
    const std::string n = number(static_cast<long>(i));
    join(operands, "%" + a.name);
    join(operand_types, tensor_type(a.shape, a.element));
    join(layouts_in, row_major(a.shape));
    if (static_cast<int>(i) >= prefetched) join(colors, "{\\22operand_index\\22: " + n + ", \\22color\\22: 0}");
  }
  for (auto& a : outputs) {
    join(results, tensor_type(a.shape, a.element));
    join(layouts_out, row_major(a.shape));
  }
  const bool one = outputs.size() == 1;
  std::string out_colors;
  for (std::size_t i = 0; i < outputs.size(); i++) {
    const std::string n = number(static_cast<long>(i));
    join(returned, one ? "%result" : "%result#" + n);
    join(out_colors, one ? "{\\22color\\22: 0}" : "{\\22color\\22: 0, \\22shape_index\\22: [" + n + "]}");
  }
  std::string aliases;
  for (auto [output, input] : updates)
    join(aliases, "#stablehlo.output_operand_alias<output_tuple_indices = [" + (one ? "" : number(static_cast<long>(output))) +
                      "], operand_index = " + number(static_cast<long>(input)) + ", operand_tuple_indices = []>");
  if (!aliases.empty()) aliases = ", output_operand_aliases = [" + aliases + "]";
  const std::string config = "{\\22custom_call_config\\22: {\\22body\\22: \\22" + base64(stable()) +
                             "\\22, \\22serialization_format\\22: 1, \\22needs_layout_passes\\22: true, \\22disable_bounds_checks\\22: true, "
                             "\\22input_memory_space_colors\\22: [" + colors + "], \\22output_memory_space_colors\\22: [" + out_colors +
                             "]}, \\22scoped_memory_configs\\22: [{\\22memory_space\\22: 1, \\22offset\\22: 0, \\22size\\22: " +
                             number(vmem_limit_bytes) + "}]}";
  return "module @" + name + " {\n  func.func public @main(" + arguments + ") -> (" + results + ") {\n    %result" +
         (one ? "" : ":" + number(static_cast<long>(outputs.size()))) + " = stablehlo.custom_call @tpu_custom_call(" + operands +
         ") {api_version = 1 : i32, kernel_name = \"" + name + "\", operand_layouts = [" + layouts_in + "], result_layouts = [" +
         layouts_out + "]" + aliases + ", backend_config = \"" + config + "\"} : (" + operand_types + ") -> " + (one ? results : "(" + results + ")") +
         " loc(\"" + name + "\")\n    return " + returned + " : " + results + "\n  }\n}\n";
}

}  // namespace gdn::mosaic

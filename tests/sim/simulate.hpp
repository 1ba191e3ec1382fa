// Arrays by hand, the simulator, and the frame of small kernels.
#pragma once
#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <gdn/error.hpp>
#include <gdn/sim.hpp>

namespace gdn::test {

using sim::Array;
using sim::Element;

inline sim::Result simulate(std::string_view text, std::vector<Array> inputs, const sim::Options& options = {}) {
  return sim::run(text, std::move(inputs), options);
}

inline std::uint32_t bits(float x) { return std::bit_cast<std::uint32_t>(x); }

inline Array f32_array(std::vector<std::int64_t> shape, const std::vector<float>& values) {
  Array a{Element::f32, std::move(shape), {}, {}};
  for (float x : values) a.data.push_back(bits(x));
  return a;
}
inline Array bits_array(Element element, std::vector<std::int64_t> shape, std::vector<std::uint32_t> values) {
  return {element, std::move(shape), std::move(values), {}};
}
inline Array i32_array(std::vector<std::int64_t> shape, const std::vector<std::int32_t>& values) {
  Array a{Element::i32, std::move(shape), {}, {}};
  for (auto x : values) a.data.push_back(static_cast<std::uint32_t>(x));
  return a;
}

// first, first + step, ..
inline Array counting(std::vector<std::int64_t> shape, float first = 0, float step = 1) {
  Array a{Element::f32, std::move(shape), {}, {}};
  std::int64_t n = 1;
  for (auto d : a.shape) n *= d;
  for (std::int64_t i = 0; i < n; i++) a.data.push_back(bits(first + step * static_cast<float>(i)));
  return a;
}

inline std::vector<float> floats(const Array& a) {
  std::vector<float> out;
  for (auto w : a.data) out.push_back(std::bit_cast<float>(w));
  return out;
}
inline std::vector<std::int32_t> ints(const Array& a) { return {a.data.begin(), a.data.end()}; }

// The sentence an action ends in, or "" if it ends well.
template <class Action>
std::string error_of(Action action) {
  try {
    action();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

// "8x128xf32" -> the memref and the vector of it. Semaphores live in a space of their own.
inline std::string memref(const std::string& type, const std::string& space = "vmem") {
  return "memref<" + type + ", #tpu.memory_space<" + (type.find('!') == type.npos ? space : "semaphore_mem") + ">>";
}
inline std::string vector(const std::string& type) { return "vector<" + type + ">"; }
inline std::string tensor(const std::string& type) { return "tensor<" + type + ">"; }

inline std::int64_t rank_of(const std::string& type) {
  std::int64_t n = 0;
  for (char c : type.substr(0, type.find_first_of("fbi!"))) n += c == 'x';
  return n;
}

inline std::string repeated(const std::string& word, std::int64_t n) {
  std::string out;
  for (std::int64_t i = 0; i < n; i++) out += ", " + word;
  return out;
}

// Loads and stores of whole refs; %z is the index 0.
inline std::string load(const std::string& to, const std::string& ref, const std::string& type) {
  return to + " = \"vector.load\"(" + ref + repeated("%z", rank_of(type)) + ") : (" + memref(type) + repeated("index", rank_of(type)) +
         ") -> " + vector(type) + "\n";
}
inline std::string store(const std::string& value, const std::string& ref, const std::string& type) {
  return "\"tpu.vector_store\"(" + value + ", " + ref + repeated("%z", rank_of(type)) +
         ") {add = false, operandSegmentSizes = array<i32: 1, 1, " + std::to_string(rank_of(type)) + ", 0>, strides = array<i32>} : (" +
         vector(type) + ", " + memref(type) + repeated("index", rank_of(type)) + ") -> ()\n";
}

// An array and how it is cut; `index` are the results of its transform of grid ids %g0, %g1, .. In hbm or any it is not cut.
struct Windowed {
  std::string array, block, index, mode = "", space = "vmem";
};

inline Windowed whole(const std::string& array, const std::string& space = "any") { return {array, "", "", "", space}; }

struct Kernel {
  std::vector<std::string> bounds, semantics;  // of the grid
  std::vector<std::string> prefetch;           // types of the scalars, refs %p0, %p1, ..
  std::vector<Windowed> inputs, outputs;       // refs %a0, .. and %o0, ..; blocks are ignored without a grid
  std::vector<std::string> scratch;            // types, refs %s0, ..; "4xi32 smem" is not in vmem
  std::string body;
  std::string transform_body = "";  // in front of each transform's return
  std::string comments = "";
};

inline std::string joined(const std::vector<std::string>& parts) {
  std::string out;
  for (auto& p : parts) out += (out.empty() ? "" : ", ") + p;
  return out;
}

inline std::string text_of(const Kernel& k) {
  const bool grid = !k.bounds.empty();
  std::vector<std::string> operands, results, outer, outer_types, all, types, params;
  for (auto& b : k.bounds)
    if (b == "-9223372036854775808") operands.push_back("tensor<i32>");
  for (std::size_t i = 0; i < k.bounds.size(); i++) {
    outer.push_back("%g" + std::to_string(i) + ": i32");
    outer_types.push_back("i32");
  }
  for (std::size_t i = 0; i < k.prefetch.size(); i++) {
    operands.push_back(tensor(k.prefetch[i]));
    outer_types.push_back(memref(k.prefetch[i], "smem"));
    outer.push_back("%p" + std::to_string(i) + ": " + outer_types.back());
  }
  all = outer;
  types = outer_types;
  std::string transforms;
  const auto add = [&](const std::vector<Windowed>& windows, const std::string& letter) {
    for (std::size_t i = 0; i < windows.size(); i++) {
      const auto& w = windows[i];
      const bool cut = w.space == "vmem";
      const auto element = w.array.substr(w.array.find_first_of("fbi"));
      const auto type = grid && cut ? w.block + "x" + element : w.array;
      types.push_back(memref(type, w.space));
      all.push_back("%" + letter + std::to_string(i) + ": " + types.back());
      (letter == "a" ? operands : results).push_back(tensor(w.array));
      if (!cut) {
        params.push_back("{}");
        continue;
      }
      const auto name = "t" + letter + std::to_string(i);
      auto bounds = w.block;
      std::string list;
      for (char c : bounds) list += c == 'x' ? std::string(", ") : std::string(1, c);
      params.push_back("{transform_indices = @" + name + ", window_bounds = array<i64: " + list + ">" +
                       (w.mode.empty() ? "" : ", pipeline_mode = #tpu.pipeline_mode<" + w.mode + ">") + "}");
      const auto ids = "(i32" + repeated("i32", rank_of(w.array) - 1) + ")";
      transforms += "\"func.func\"() ({\n^bb0(" + joined(outer) + "):\n%c0 = \"arith.constant\"() {value = 0 : i32} : () -> i32\n" +
                    k.transform_body + "\"func.return\"(" + w.index + ") : " + ids + " -> ()\n}) {function_type = (" + joined(outer_types) +
                    ") -> " + ids + ", sym_name = \"" + name + "\"} : () -> ()\n";
    }
  };
  add(k.inputs, "a");
  add(k.outputs, "o");
  for (std::size_t i = 0; i < k.scratch.size(); i++) {
    const auto space = k.scratch[i].find(' ');
    types.push_back(space == std::string::npos ? memref(k.scratch[i]) : memref(k.scratch[i].substr(0, space), k.scratch[i].substr(space + 1)));
    all.push_back("%s" + std::to_string(i) + ": " + types.back());
  }
  std::vector<std::string> semantics;
  for (auto& s : k.semantics) semantics.push_back("#tpu.dimension_semantics<" + s + ">");
  std::string out = k.comments + "// call: (" + joined(operands) + ") -> (" + joined(results) + ")\nmodule {\n\"func.func\"() ({\n^bb0(" +
                    joined(all) + "):\n%z = \"arith.constant\"() {value = 0 : index} : () -> index\n" + k.body +
                    "\"func.return\"() : () -> ()\n}) {dimension_semantics = [" + joined(semantics) + "], function_type = (" +
                    joined(types) + ") -> (), ";
  if (grid) out += "iteration_bounds = array<i64: " + joined(k.bounds) + ">, window_params = [" + joined(params) + "], ";
  return out + "scalar_prefetch = " + std::to_string(k.prefetch.size()) + " : i64, scratch_operands = " + std::to_string(k.scratch.size()) +
         " : i64, sym_name = \"kernel\", tpu.core_type = #tpu.core_type<tc>} : () -> ()\n" + (grid ? transforms : "") + "}\n";
}

// A kernel without a grid: %x0, %x1, .. are the inputs, %r becomes the output.
inline std::string op_kernel(const std::vector<std::string>& inputs, const std::string& output, const std::string& body) {
  Kernel k;
  for (std::size_t i = 0; i < inputs.size(); i++) {
    k.inputs.push_back({inputs[i], "", ""});
    k.body += load("%x" + std::to_string(i), "%a" + std::to_string(i), inputs[i]);
  }
  k.outputs = {{output, "", ""}};
  k.body += body + "\n" + store("%r", "%o0", output);
  return text_of(k);
}

}  // namespace gdn::test

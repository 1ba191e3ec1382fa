// gdn_third_party DIRECTORY [controls]: runs the cases that lower.py wrote there in the simulator, in several orders of copies and grid
// steps, and compares with what Pallas' interpreter computed. One line per kernel; status 1 unless all agree, and at least ten.
// With `controls`, each kernel is changed in one place first, in several ways, and each change must be noticed.
#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gdn/error.hpp>
#include <gdn/sim.hpp>

using gdn::Error;
namespace sim = gdn::sim;
using sim::require;
using sim::text;
namespace fs = std::filesystem;

namespace {

std::string contents(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  require(in.good(), "cannot read ", path.string());
  return {std::istreambuf_iterator<char>(in), {}};
}

struct Case {
  std::string precision;
  std::vector<sim::Array> inputs, outputs;
};

sim::Array read_array(const std::string& element, const std::string& shape, const fs::path& path) {
  sim::Array a;
  const sim::ElementRow* row = nullptr;
  for (auto& r : sim::element_rows)
    if (r.name == element) row = &r;
  require(row, path.string(), ": no element ", element);
  a.element = row->element;
  std::int64_t size = 1;
  std::istringstream extents(shape == "-" ? "" : shape);
  for (std::string extent; std::getline(extents, extent, 'x');) {
    a.shape.push_back(std::stoll(extent));
    size *= a.shape.back();
  }
  const auto bytes = contents(path);
  const std::size_t width = row->scalar == sim::Scalar::i1 ? 1 : static_cast<std::size_t>(sim::bits_of(row->scalar)) / 8;
  require(bytes.size() == static_cast<std::size_t>(size) * width, path.string(), " has ", bytes.size(), " bytes");
  for (std::size_t i = 0; i < bytes.size(); i += width) {
    std::uint32_t word = 0;
    for (std::size_t b = 0; b < width; b++) word |= std::uint32_t{static_cast<unsigned char>(bytes[i + b])} << (8 * b);
    a.data.push_back(word);
  }
  return a;
}

Case read_case(const fs::path& directory) {
  Case c;
  std::istringstream lines(contents(directory / "case.txt"));
  for (std::string kind; lines >> kind;) {
    if (kind == "class") {
      lines >> c.precision;
      continue;
    }
    std::string element, shape, file;
    lines >> element >> shape >> file;
    require(kind == "input" || kind == "output", directory.string(), ": what is ", kind, "?");
    (kind == "input" ? c.inputs : c.outputs).push_back(read_array(element, shape, directory / file));
  }
  return c;
}

double value(sim::Element e, std::uint32_t bits) {
  if (e == sim::Element::i32 || e == sim::Element::i8 || e == sim::Element::i1) return static_cast<std::int32_t>(bits);
  return std::bit_cast<float>(e == sim::Element::bf16 ? bits << 16 : bits);
}

// ||ours - theirs|| / ||theirs|| over the elements we define, how many these are, and how many others the interpreter defines.
struct Difference {
  double relative = 0;
  std::size_t compared = 0, missing = 0;
};

Difference difference(const sim::Array& ours, const sim::Array& theirs) {
  require(ours.shape == theirs.shape && ours.element == theirs.element, "an output is a ", sim::text_of(ours), ", the interpreter's a ",
          sim::text_of(theirs));
  double error = 0, norm = 0;
  Difference d;
  for (std::size_t i = 0; i < ours.data.size(); i++) {
    const double y = value(theirs.element, theirs.data[i]), x = value(ours.element, ours.data[i]);
    if (!ours.defined.empty() && !ours.defined[i]) {
      d.missing += y == y;
      continue;
    }
    d.compared++;
    if (x == y || (x != x && y != y)) {  // infinities too
      norm += std::isfinite(y) ? y * y : 0;
      continue;
    }
    error += (x - y) * (x - y);
    norm += y * y;
  }
  d.relative = error == 0 ? 0 : std::sqrt(error / norm);
  return d;
}

// What the classes of lower.py allow. Sums of f32 in another order differ by a few units of 2^-24. What is rounded to bf16 afterwards
// mostly falls on the same side: a few elements in a thousand are off by 2^-8.
double bound(const std::string& precision) {
  for (auto [name, allowed] : {std::pair{"exact", 0.0}, {"f32", 1e-6}, {"bf16", 2e-4}})
    if (precision == name) return allowed;
  throw Error(text("no class ", precision));
}

std::string compared(const Case& c, const std::vector<sim::Array>& outputs, double& worst) {
  require(outputs.size() == c.outputs.size(), outputs.size(), " outputs, the interpreter has ", c.outputs.size());
  std::size_t elements = 0;
  for (std::size_t i = 0; i < outputs.size(); i++) {
    const auto d = difference(outputs[i], c.outputs[i]);
    if (d.missing) return text("output ", i, ": ", d.missing, " elements are undefined here and defined in the interpreter");
    worst = std::max(worst, d.relative);
    elements += d.compared;
    if (!(d.relative <= bound(c.precision))) return text("output ", i, " differs by ", static_cast<float>(d.relative));
  }
  return elements ? "" : "no element is defined";
}

struct Outcome {
  std::string problem;  // empty: agrees
  double worst = 0;
  long ops = 0;
};

Outcome run(const Case& c, const std::string& program) {
  Outcome out;
  std::optional<std::vector<sim::Array>> first;
  try {
    for (auto [copies, steps] : {std::pair<std::uint64_t, std::uint64_t>{0, 0}, {1, 0}, {7, 3}}) {
      sim::Options options;
      options.copy_order = copies;
      options.parallel_order = steps;
      options.carry_undefined = options.undefined_outputs = true;
      auto r = sim::run(program, c.inputs, options);
      out.ops = r.ops;
      if (!first) {
        out.problem = compared(c, r.outputs, out.worst);
        first = std::move(r.outputs);
      } else {
        for (std::size_t i = 0; i < first->size() && out.problem.empty(); i++)
          if (r.outputs[i].data != (*first)[i].data || r.outputs[i].defined != (*first)[i].defined)
            out.problem = text("output ", i, " depends on the order of copies (", copies, ") or steps (", steps, ")");
      }
      if (!out.problem.empty()) break;
    }
  } catch (const Error& e) {
    out.problem = e.what();
  }
  return out;
}

// ---- controls

std::string encode_base64(const std::string& bytes) {
  constexpr char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t group = 0;
    for (std::size_t b = 0; b < 3; b++) group = group << 8 | (i + b < bytes.size() ? static_cast<unsigned char>(bytes[i + b]) : 0u);
    for (std::size_t d = 0; d < 4; d++) out += i + d <= bytes.size() ? digits[group >> (18 - 6 * d) & 63] : '=';
  }
  return out;
}

// The kernel of a program with each `from` changed to `to`, or without the lines of `from` if `to` is empty; empty if there is none.
std::string changed(const std::string& program, const std::string& from, const std::string& to) {
  const std::string before = "\\22body\\22: \\22", after = "\\22";
  const auto begin = program.find(before) + before.size(), end = program.find(after, begin);
  require(end != program.npos && begin >= before.size(), "no body in the program");
  auto kernel = sim::decode_base64(std::string_view(program).substr(begin, end - begin));
  if (kernel.find(from) == kernel.npos) return "";
  for (std::size_t at = 0; (at = kernel.find(from, at)) != kernel.npos;) {
    if (!to.empty()) {
      kernel.replace(at, from.size(), to);
      continue;
    }
    const auto line = kernel.rfind('\n', at);
    kernel.erase(line, kernel.find('\n', at) - line);
    at = line;
  }
  return program.substr(0, begin) + encode_base64(kernel) + program.substr(end);
}

// How many changes of a kernel go unnoticed; each is named.
int unnoticed(const std::string& name, const Case& c, const std::string& program) {
  struct Change {
    std::string from, to, noticed;  // what the refusal must say
  };
  const std::string stable = "\"stable_mosaic.";
  std::vector<Change> changes{{stable + "arith.addf\"", stable + "arith.subf\"", ""},
                              {stable + "arith.mulf\"", stable + "arith.addf\"", ""},
                              {stable + "tpu.wait_dma2\"", "", "race"},
                              {stable + "scf.for\"", stable + "scf.forall\"", "scf.forall at line "}};
  // Elsewhere the two are the same: signs in divisions of what is never negative.
  if (c.precision == "exact") changes.push_back({stable + "arith.xori\"", stable + "arith.ori\"", ""});
  int tried = 0, missed = 0;
  for (const auto& change : changes) {
    const auto program_changed = changed(program, change.from, change.to);
    if (program_changed.empty()) continue;
    tried++;
    const auto problem = run(c, program_changed).problem;
    if (!problem.empty() && problem.find(change.noticed) != problem.npos) continue;
    missed++;
    std::printf("%-34s %s to %s: %s\n", name.c_str(), change.from.c_str(), change.to.c_str(), problem.c_str());
  }
  if (!tried) std::printf("%-34s no change was tried\n", name.c_str());
  else if (!missed) std::printf("%-34s %d changes noticed\n", name.c_str(), tried);
  return missed + !tried;
}

}  // namespace

int main(int argc, char** argv) {
  const bool controls = argc == 3 && std::string(argv[2]) == "controls";
  if (argc != 2 && !controls) {
    std::fprintf(stderr, "usage: gdn_third_party DIRECTORY [controls]\n");
    return 2;
  }
  const fs::path root = argv[1];
  int agreed = 0, others = 0;
  try {
    std::istringstream listing(contents(root / "cases.txt"));
    for (std::string kind, name, rest; listing >> kind >> name && std::getline(listing, rest);) {
      if (kind != "case") {
        std::printf("%-34s not lowered:%s\n", name.c_str(), rest.c_str());
        others++;
        continue;
      }
      const auto c = read_case(root / name);
      const auto program = contents(root / name / "program.mlir");
      if (controls) {
        (unnoticed(name, c, program) ? others : agreed)++;
        continue;
      }
      const auto begin = std::chrono::steady_clock::now();
      const auto out = run(c, program);
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      (out.problem.empty() ? agreed : others)++;
      if (out.problem.empty())
        std::printf("%-34s agrees, difference %.1e, %ld ops, %.1f s\n", name.c_str(), out.worst, out.ops, took.count());
      else
        std::printf("%-34s %s\n", name.c_str(), out.problem.c_str());
      std::fflush(stdout);
    }
  } catch (const Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 2;
  }
  std::printf(controls ? "changes noticed in %d kernels, not in %d\n" : "%d kernels agree, %d do not\n", agreed, others);
  return agreed >= 10 && others == 0 ? 0 : 1;
}

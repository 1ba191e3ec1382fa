// Emit: the machine that writes a call down as a TPU kernel instead of running it.
#pragma once
#include <functional>
#include <numeric>

#include "gdn/mosaic/lower.hpp"
#include "gdn/trace/machine.hpp"

namespace gdn {

// Arrays of the call need shapes only. After a call, `module` is its kernel.
class Emit {
 public:
  explicit Emit(mosaic::Schedule schedule = {}) : schedule_(std::move(schedule)) {}
  mosaic::Module module;
  std::map<std::string, std::vector<i32>> tables;  // its inputs that are made of documents, sequences and the like, by name

  template <class Call> void run(const Call& call) {
    const Trace trace = traced(call);
    module = mosaic::lower(trace.program, schedule_);
    tables.clear();
    for (const mosaic::Argument& a : module.parameters())
      for (const AnyView& v : trace.views)
        if (v.info.name == a.name && a.element == Element::i32 && v.data) tables[a.name] = table_of(v);
  }
  template <class F> void check_data(F) const {}
  // Calls that run several kernels, one after the other.
  void check_kernels(std::int64_t n, const char* of, const char* instead = "one") const {
    require(n <= 1, "emit: ", n, " ", of, " are as many kernels; expected ", instead);
  }
  // A kernel's windows are whole chunks of the array.
  static void check_turns(const char* call, const std::vector<i32>& turns, int C) {
    for (std::size_t c = 0; c * Turn::entries < turns.size(); c++) {
      const i32 row = turns[c * Turn::entries + Turn::row];
      require(row % C == 0, call, ": chunk ", c, " starts at token ", row, "; expected a multiple of ", C, " in a TPU kernel");
    }
  }

  static std::vector<i32> table_of(const AnyView& v) {
    std::vector<i32> x(static_cast<std::size_t>(std::accumulate(v.info.logical.begin(), v.info.logical.end(), 1, std::multiplies<>())));
    each_element(v, [&](std::size_t i, std::int64_t at) { x[i] = static_cast<const i32*>(v.data)[at]; });
    return x;
  }
  // f(index in row-major order, index in memory) of all elements.
  template <class F> static void each_element(const AnyView& v, F f) {
    std::int64_t n = 1;
    for (int d : v.info.logical) n *= d;
    for (std::int64_t i = 0; i < n; i++) {
      std::int64_t rest = i, at = 0;
      for (std::size_t d = v.strides.size(); d-- > 0;) {
        at += rest % v.info.logical[d] * v.strides[d];
        rest /= v.info.logical[d];
      }
      f(static_cast<std::size_t>(i), at);
    }
  }

  // The per-head program behind the kernel, and the arrays it was traced on.
  template <class Call> static Trace traced(const Call& call) {
    Trace m;
    m.program.name = call.name;
    m.program.extent = call.extent;
    const auto refs = call.bind(m);
    call.head(m, refs);
    return m;
  }

 private:
  mosaic::Schedule schedule_;
};

}  // namespace gdn

// Emit: the machine that writes a call down as a TPU kernel instead of running it.
#pragma once
#include "gdn/mosaic/lower.hpp"
#include "gdn/trace/machine.hpp"

namespace gdn {

// Arrays of the call need shapes only. After a call, `module` is its kernel.
class Emit {
 public:
  explicit Emit(mosaic::Schedule schedule = {}) : schedule_(std::move(schedule)) {}
  mosaic::Module module;

  template <class Call> void run(const Call& call) { module = mosaic::lower(traced(call).program, schedule_); }
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

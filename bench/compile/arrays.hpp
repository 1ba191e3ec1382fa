// The call that forward.cpp, emit.cpp and simulate.cpp compile, each for its machine.
#pragma once
#include <utility>
#include <vector>

#include "gdn/calls/forward.hpp"

struct Arrays {
  static constexpr int T = 128, Hk = 1, Hv = 2, D = 128;
  std::vector<gdn::bf16> q = std::vector<gdn::bf16>(T * Hk * D), k = q, v = std::vector<gdn::bf16>(T * Hv * D), out = v;
  std::vector<float> beta = std::vector<float>(T * Hv);

  template <class Machine> void run(Machine&& machine) {
    gdn::CoreArrays<gdn::bf16> x;
    x.q = gdn::view(std::as_const(q), {1, T, Hk, D});
    x.k = gdn::view(std::as_const(k), {1, T, Hk, D});
    x.v = gdn::view(std::as_const(v), {1, T, Hv, D});
    x.beta = gdn::view(std::as_const(beta), {1, T, Hv});
    x.out = gdn::view(out, {1, T, Hv, D});
    gdn::forward(machine, x);
  }
};

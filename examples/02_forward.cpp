// The gated delta rule on the caller's arrays, whatever holds them: std::vector, std::span, Eigen::Map, or a pointer with strides.
#include <Eigen/Core>
#include <cmath>
#include <cstdio>
#include <span>
#include <vector>

#include "gdn/kernels.hpp"

using namespace gdn;

int main() {
  // 1 row, 100 tokens (a whole chunk and a part of one), 2 key heads, 4 value heads, 128 channels each.
  const int T = 100, Hk = 2, Hv = 4, D = 128;

  // q and k in one buffer, as a projection leaves them: a token is [q heads | k heads]. Views read it in place.
  std::vector<f32> qk(T * 2 * Hk * D);
  for (std::size_t i = 0; i < qk.size(); i++) qk[i] = static_cast<f32>(std::sin(0.37 * i));
  Eigen::MatrixXf v(Hv * D, T);  // column-major, a column is a token
  for (Eigen::Index i = 0; i < v.size(); i++) v.data()[i] = static_cast<f32>(std::cos(0.11 * i));
  std::vector<f32> g(T * Hv, -0.05f), beta(T * Hv, 0.5f);
  std::vector<f32> out(T * Hv * D), state(Hv * D * D);

  CoreArrays<f32> x;
  x.q = view(std::as_const(qk).data(), {1, T, Hk, D}, {0, 2 * Hk * D, D, 1});
  x.k = view(std::as_const(qk).data() + Hk * D, {1, T, Hk, D}, {0, 2 * Hk * D, D, 1});
  const Eigen::Map<const Eigen::MatrixXf> values(v.data(), v.rows(), v.cols());
  x.v = view(values, {1, T, Hv, D});
  x.g = view(std::as_const(g), {1, T, Hv});
  const std::span<const f32> betas(beta);
  x.beta = view(betas, {1, T, Hv});
  x.out = view(out, {1, T, Hv, D});
  x.final = view(state, {1, Hv, D, D});

  Cpu cpu;
  forward(cpu, x, {.use_qk_norm = true});
  std::printf("out[0] %.6f, out[last] %.6f, state[0] %.6f\n", out.front(), out.back(), state.front());

  // The same row in two calls, the state handed on: the same bits, if the first part is a whole number of chunks.
  std::vector<f32> parts(out.size()), handed_on(state.size());
  for (const auto& [first, last] : {std::pair{0, 64}, {64, T}}) {
    CoreArrays<f32> part = x;
    auto cut = [&, first = first, last = last](auto view) {
      view.data += first * view.strides[1];
      view.shape[1] = last - first;
      return view;
    };
    part.q = cut(x.q), part.k = cut(x.k), part.v = cut(x.v), part.g = cut(x.g), part.beta = cut(x.beta);
    part.out = cut(view(parts, {1, T, Hv, D}));
    part.final = view(handed_on, {1, Hv, D, D});
    if (first > 0) part.initial = part.final;  // the state is updated in place
    forward(cpu, part, {.use_qk_norm = true});
  }
  const bool same = parts == out && handed_on == state;
  std::printf("in two calls: %s\n", same ? "the same bits" : "other bits");

  // What does not fit is refused, in words.
  try {
    x.beta = view(betas, {1, T / 2, Hv});
    forward(cpu, x);
  } catch (const Error& e) {
    std::printf("refused: %s\n", e.what());
    return same ? 0 : 1;
  }
  return 1;
}

// The float64 gradients are those of the float64 recurrence: central differences, element by element.
#include <catch2/catch.hpp>

#include "../support/bits.hpp"
#include "../support/oracle_backward.hpp"
#include "../support/random_inputs.hpp"

using namespace gdn;
using namespace gdn::test;

namespace {

double objective(const CoreResult& r, const Array<double>& d_out, const Array<double>& d_state) {
  double sum = 0;
  for (std::size_t i = 0; i < d_out.size(); ++i) sum += r.out[i] * d_out[i];
  for (std::size_t i = 0; i < d_state.size(); ++i) sum += r.state[i] * d_state[i];
  return sum;
}
template <class F> Array<double> differences_of(Array<double>& x, F objective) {
  Array<double> d(x.shape);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double at = x[i], h = 1e-5;
    x[i] = at + h;
    const double up = objective();
    x[i] = at - h;
    d[i] = (up - objective()) / (2 * h);
    x[i] = at;
  }
  return d;
}

}  // namespace

TEST_CASE("the gradients of the recurrence", "[oracle]") {
  const std::vector<std::vector<int>> layouts{{}, document_ids({{1, 3}, {0, 2}, {1, 1}, {2, 3}, {3, 1}, {0, 1}}), document_ids({{0, 4}})};
  for (const auto& ids : layouts)
    for (const bool norm : {false, true})
      for (const bool states : {false, true}) {
        const int T = ids.empty() ? 6 : static_cast<int>(ids.size());
        CAPTURE(T, norm, states);
        auto in = random_core<double>(3, {T, 1, 2, 3, 2}, ids, states);
        in.use_qk_norm = norm;
        Random random(4);
        const auto d_out = normal_array<double>(random, {T, 2, 2}), d_state = normal_array<double>(random, {2, 3, 2});
        const auto found = recurrence_backward(in, d_out, d_state);
        const auto value = [&] { return objective(recurrence(in), d_out, d_state); };
        CHECK(relative_l2(found.q, differences_of(in.q, value)) <= 1e-7);
        CHECK(relative_l2(found.k, differences_of(in.k, value)) <= 1e-7);
        CHECK(relative_l2(found.v, differences_of(in.v, value)) <= 1e-7);
        CHECK(relative_l2(found.g, differences_of(in.g, value)) <= 1e-7);
        CHECK(relative_l2(found.beta, differences_of(in.beta, value)) <= 1e-7);
        if (states) CHECK(relative_l2(found.h0, differences_of(in.h0, value)) <= 1e-7);
      }
}

TEST_CASE("the gradients of the layer", "[oracle]") {
  struct Case {
    int T;
    std::vector<int> ids;
  };
  std::vector<Case> cases{{6, {}}, {2, {}}};
  for (const auto& runs : std::vector<std::vector<std::pair<int, int>>>{
           {{0, 1}, {1, 3}, {0, 1}, {1, 1}, {2, 2}, {3, 1}}, {{1, 5}}, {{1, 2}}, {{1, 4}, {0, 2}}, {{1, 1}, {0, 1}, {1, 1}, {0, 3}}, {{0, 4}}})
    cases.push_back({static_cast<int>(document_ids(runs).size()), document_ids(runs)});
  for (const auto& [T, ids] : cases)
    for (const bool states : {false, true}) {
      CAPTURE(T, ids, states);
      auto in = random_layer<double>(3, {T, 1, 2, 3, 2}, ids, states);
      Random random(4);
      const auto d_out = normal_array<double>(random, {T, 2, 2}), d_state = normal_array<double>(random, {2, 3, 2});
      const auto d_conv = normal_array<double>(random, {3, in.channels()});
      const auto found = fused_layer_backward(in, d_out, d_state, d_conv);
      const auto value = [&] {
        const LayerResult r = fused_layer(in);
        double sum = objective(r.core, d_out, d_state);
        for (std::size_t i = 0; i < d_conv.size(); ++i) sum += r.conv_state[i] * d_conv[i];
        return sum;
      };
      CHECK(relative_l2(found.qkv, differences_of(in.qkv, value)) <= 1e-7);
      CHECK(relative_l2(found.b, differences_of(in.b, value)) <= 1e-7);
      CHECK(relative_l2(found.a, differences_of(in.a, value)) <= 1e-7);
      CHECK(relative_l2(found.conv_weights, differences_of(in.conv_weights, value)) <= 1e-7);
      CHECK(relative_l2(found.conv_bias, differences_of(in.conv_bias, value)) <= 1e-7);
      CHECK(relative_l2(found.A_log, differences_of(in.A_log, value)) <= 1e-6);  // small beside the value, whose rounding shows
      CHECK(relative_l2(found.dt_bias, differences_of(in.dt_bias, value)) <= 1e-6);
      if (!states) continue;
      CHECK(relative_l2(found.conv_state, differences_of(in.conv_state, value)) <= 1e-7);
      CHECK(relative_l2(found.h0, differences_of(in.h0, value)) <= 1e-7);
    }
}

// Rows cut over ranks: what all ranks make together is what one makes alone.
#include <atomic>
#include <catch2/catch.hpp>

#include "../support/cases.hpp"
#include "context.hpp"

using namespace gdn;
using namespace gdn::test;
using namespace gdn::test::context_parallel;
using context::Threads;

namespace {

// The outputs of which the relative error in the 2-norm is 1e-6 or more.
std::string farthest(const Outputs& a, const Outputs& b) {
  std::string all;
  for (std::size_t i = 0; i < a.size(); i++) {
    double d = 0, n = 0;
    for (std::size_t k = 0; k < a[i].values.size(); k++) d += std::pow(a[i].values[k] - b[i].values[k], 2), n += std::pow(b[i].values[k], 2);
    if (!(d <= 1e-12 * n)) all += text(a[i].name, ": ", std::sqrt(d / n), "\n");
  }
  return all;
}

// The CPU, on which scans take the way of the tree.
struct ByTree {
  bool transitions, gradients;
  std::atomic<bool>* passes = nullptr;  // whether some Phi is not 0
  Cpu cpu{1};
  template <class Call> void run(const Call& call) { cpu.run(call); }
  template <class G, Precision P, class Act> void run(const gdn::detail::ScanCall<G, P, TransitionArrays, Act>& call) {
    if (call.chunks || !transitions) cpu.run(call);
    else transition_by_tree<P, G>(cpu, call.x, options(call));
    if (passes && !call.chunks) *passes = *passes || std::any_of(call.x.phi.data, call.x.phi.data + count(call.x.phi.shape), [](f32 x) { return x != 0; });
  }
  template <class G, Precision P, class Act> void run(const gdn::detail::ScanCall<G, P, StateGradientArrays, Act>& call) {
    if (call.chunks || !gradients) cpu.run(call);
    else state_gradient_by_tree<P, G>(cpu, call.x, options(call));
  }
  template <class F> void check_data(F check) { cpu.check_data(check); }
  template <class... Text> void check_kernels(std::int64_t n, Text... text) { cpu.check_kernels(n, text...); }
  static ScanOptions options(const auto& call) { return {.scale = call.options.scale, .use_qk_norm = call.options.normalise}; }
};
template <class Row> Outputs with_trees(Row r, bool transitions, bool gradients, std::atomic<bool>& passes) {
  Threads::run(2, [&](Threads& c) { run_part(c, ByTree{transitions, gradients, &passes}, r, true); });
  return r.outputs();
}
// The gates of a model: nothing is left of a state after a part of the row.
void forget(Sequence& r) {
  Random random(4);
  for (f32& g : r.g) g = static_cast<f32>(-random.uniform(1, 16) * softplus(random.normal() + 1));
}
void forget(LayerSequence& r) {
  Random random(4);
  for (f32& a : r.A_log) a = static_cast<f32>(std::log(random.uniform(1, 16)));
  std::fill(r.dt_bias.begin(), r.dt_bias.end(), 1.f);
}
const std::vector<std::string> of_the_backward{"dq", "dk", "dv", "dg", "dbeta", "d_initial", "dqkv", "da", "db",
                                               "d_conv_weights", "d_conv_bias", "dA_log", "ddt_bias", "d_conv_initial"};

}  // namespace

TEMPLATE_TEST_CASE("J10: where no state passes a part, outputs are those of the tree", "", Sequence, LayerSequence) {
  TestType r(no_documents);
  std::atomic<bool> passes = false;
  // Gates that remember: the tree rounds otherwise.
  const Outputs scans = without(with_trees(r, false, false, passes), of_the_backward), trees = without(with_trees(r, true, false, passes), of_the_backward);
  CHECK(passes);
  CHECK(differences(scans, trees) != "");
  CHECK(farthest(scans, trees) == "");
  forget(r);
  passes = false;
  CHECK(differences(without(with_trees(r, false, false, passes), of_the_backward), without(with_trees(r, true, false, passes), of_the_backward)) == "");
  CHECK_FALSE(passes);
}
TEMPLATE_TEST_CASE("J12: the way of the gradients does not show in the outputs", "", Sequence, LayerSequence) {
  const TestType r(no_documents);
  std::atomic<bool> passes = false;
  const Outputs scans = with_trees(r, false, false, passes), trees = with_trees(r, false, true, passes);
  CHECK(differences(without(scans, of_the_backward), without(trees, of_the_backward)) == "");
  CHECK(differences(scans, trees) != "");
  CHECK(farthest(scans, trees) == "");
}
TEMPLATE_TEST_CASE("context parallel: all ranks together are one", "", Sequence, LayerSequence) {
  for (const auto* ids : {&no_documents, &documents})
    for (bool states : {false, true}) {
      const Outputs alone = on_ranks(1, TestType(*ids), states);
      for (int ranks : {2, 4, 8}) {
        INFO(ranks << " ranks" << (ids->empty() ? "" : ", documents") << (states ? ", states" : ""));
        const Outputs together = on_ranks(ranks, TestType(*ids), states);
        CHECK(farthest(together, alone) == "");
        CHECK(differences(together, on_ranks(ranks, TestType(*ids), states)) == "");
      }
    }
}
// B47. Of the document that begins before the cut, rank 1 holds its first token alone; then one token less than the convolution looks back.
TEMPLATE_TEST_CASE("context parallel: documents that begin just before a cut, and just behind it", "", Sequence, LayerSequence) {
  for (int behind : {-3, -1, 0, 1, 2, 3, 5}) {
    INFO(behind);
    const std::vector<i32> ids = document_ids({{1, 64 + behind}, {2, 192 - behind}, {1, 128 + behind}, {2, 128 - behind}});
    for (bool states : {false, true}) CHECK(farthest(on_ranks(4, TestType(ids), states), on_ranks(1, TestType(ids), states)) == "");
  }
}
// B67. Rooms of results hold anything before a call.
TEMPLATE_TEST_CASE("context parallel: what results held before", "", Sequence, LayerSequence) {
  for (bool states : {false, true})
    for (int ranks : {2, 4}) {
      const auto from = [&](f32 x) {
        TestType row(documents);
        for (auto* room : row.results()) std::fill(room->begin(), room->end(), x);
        return on_ranks(ranks, row, states);
      };
      const Outputs nan = from(std::numeric_limits<f32>::quiet_NaN()), zero = from(0);
      const std::vector<std::string> unasked = {"d_initial", "d_conv_initial"};
      CHECK(differences(states ? nan : without(nan, unasked), states ? zero : without(zero, unasked)) == "");
    }
}
TEST_CASE("context parallel: one rank is the plain call") {
  Sequence r(documents), plain = r;
  const Outputs one = on_ranks(1, r, true);
  CoreArrays<f32> x;
  x.q = view(std::as_const(plain.q), {B, T, Hk, K}), x.k = view(std::as_const(plain.k), {B, T, Hk, K}), x.v = view(std::as_const(plain.v), {B, T, H, V});
  x.g = view(std::as_const(plain.g), {B, T, H}), x.beta = view(std::as_const(plain.beta), {B, T, H}), x.out = view(plain.out, {B, T, H, V});
  x.ids = view(std::as_const(plain.ids), {B, T}), x.initial = view(std::as_const(plain.initial), {B, H, K, V});
  Cpu cpu(1);
  forward<G>(cpu, x, {.use_qk_norm = true});
  CHECK(difference(named(one, "out"), plain.out) == "");
}
TEST_CASE("context parallel: a rank that fails ends the others, with its reason") {
  auto message = [](auto f) {
    try {
      Threads::run(4, f);
    } catch (const std::exception& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK(message([](Threads& c) {
          f32 x = 0;
          if (c.rank() == 2) throw Error("out of memory");
          context::broadcast(c, 2, std::span(&x, 1));
        }) == "out of memory");
  CHECK(message([](Threads& c) {
          f32 x = 0;
          if (c.rank() > 0) c.exchange(-1, nullptr, 0, &x, sizeof x);
        }).ends_with("waits for rank 0, which has ended"));
  CHECK(message([](Threads& c) {
          std::vector<f32> x(2);
          if (c.rank() == 0) c.exchange(1, x.data(), -1, nullptr, 8);
          if (c.rank() == 1) c.exchange(-1, nullptr, 0, x.data(), 4);
        }) == "rank 1 expects 4 bytes from rank 0, which sent 8");
  CHECK(message([](Threads&) {}) == "");
}
TEST_CASE("context parallel: parts that do not fit are refused on every rank") {
  auto refusal = [](auto change) {
    Sequence r(no_documents);
    try {
      Threads::run(2, [&](Threads& c) {
        CoreArrays<f32> x;
        std::int64_t n = T / 2;
        change(c.rank(), n, x);
        x.q = view(std::as_const(r.q), {1, n, Hk, K}), x.k = view(std::as_const(r.k), {1, n, Hk, K}), x.v = view(std::as_const(r.v), {1, n, H, V});
        x.beta = view(std::as_const(r.beta), {1, n, H});
        std::vector<f32> out(r.out.size());
        x.out = view(out, {1, n, H, V});
        Cpu cpu(1);
        context::forward<G>(c, cpu, x);
      });
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK(refusal([](int, std::int64_t& n, auto&) { n = 100; }).ends_with("holds 100 tokens; expected a multiple of 16"));
  const std::string sizes = refusal([](int rank, std::int64_t& n, auto&) { n = rank ? 64 : 128; });
  CHECK(sizes.find("expected the same on all ranks") != std::string::npos);
  std::vector<f32> state(H * K * V);
  CHECK(refusal([&](int rank, std::int64_t&, auto& x) {
          if (rank) x.initial = view(std::as_const(state), {1, H, K, V});
        }) == "context::forward: initial is given on some ranks and missing on others; expected the same on all ranks");
  CHECK(refusal([](int, std::int64_t&, auto&) {}) == "");
}

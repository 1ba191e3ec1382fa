// Documents of a row with a state of their own: each runs as a sequence by itself, from its initial to its final state, with the
// bits of a call on it alone. cu [n + 1] are cumulative lengths: document i is tokens cu[i] .. cu[i + 1] - 1; empty ones pass states on.
// B is 1; states are [n, ..]; chunks are counted document by document, N = sum of ceil(length / C).
// Backward, every document has its own cotangents and gradients of states, [n, ..], and its own sums of the gradients of parameters, in
// place of a row of a batch; those of an empty one are 0.
// TPU kernels read whole chunks: there, documents must start at multiples of C.
#pragma once
#include "gdn/calls/backward.hpp"
#include "gdn/calls/turns.hpp"

namespace gdn {

namespace detail {

inline std::vector<Sequence> documents_of(const char* call, std::span<const i32> cu, const Sizes<2>& rows, bool initial, bool final) {
  require(rows[0] == 1, call, ": ", rows[0], " rows with cumulative lengths; expected 1");
  require(!cu.empty() && cu.front() == 0, call, ": cumulative lengths start at ", cu.empty() ? -1 : cu.front(), "; expected 0");
  for (std::size_t i = 1; i < cu.size(); i++)
    require(cu[i] >= cu[i - 1], call, ": cu[", i, "] is ", cu[i], "; expected at least cu[", i - 1, "] = ", cu[i - 1]);
  require(cu.back() == rows[1], call, ": cumulative lengths end at ", cu.back(), "; expected the ", rows[1], " tokens");
  std::vector<Sequence> all;
  for (i32 i = 0; static_cast<std::size_t>(i) + 1 < cu.size(); i++) {
    const auto at = static_cast<std::size_t>(i);
    all.push_back({cu[at], cu[at + 1] - cu[at], initial ? i : -1, final ? i : -1, {}});
  }
  return all;
}
template <class T, int Rank> void pass_on(const View<const T, Rank>& from, const View<T, Rank>& to, const std::vector<Sequence>& all) {
  auto one = [](auto v, std::int64_t i) {
    if (v && v.data) v.data += i * v.strides[0], v.shape[0] = 1;
    return v;
  };
  for (std::size_t i = 0; i < all.size(); i++)
    if (all[i].tokens == 0) pass_on(one(from, static_cast<std::int64_t>(i)), one(to, static_cast<std::int64_t>(i)));
}

template <class G, class Machine, class Act>
void run_backward(const char* call, Machine& machine, const CoreArrays<Act>& x, const CoreGradients<Act>& d, const CoreOptions& o,
                  const std::vector<Sequence>& all) {
  constexpr int C = G::chunk::size;
  const TurnPlan p = plan_descending_turns(all, C);
  if (p.turns.empty()) return;
  machine.check_turns(call, p.turns, C);
  CoreBackwardCall<G, Act> c{call, x, d, extent_of(p, x.k.shape[1], C, x.k.shape[2], d.d_out.shape[2]),
                             query_options(o.scale, o.use_qk_norm, G::key::size), plan_documents(p, C, 0)};
  c.extent.descending = true;
  machine.run(c);
}
template <class G, class Machine, class Act>
void run_backward(const char* call, Machine& machine, const LayerArrays<Act>& x, const LayerGradients<Act>& d, const LayerOptions& o,
                  const std::vector<Sequence>& all) {
  constexpr int C = G::chunk::size;
  const TurnPlan p = plan_descending_turns(all, C);
  if (p.turns.empty()) return;
  machine.check_turns(call, p.turns, C);
  LayerBackwardCall<G, Act> c{call, x, d, extent_of(p, x.qkv.shape[1], C, o.key_heads, x.a.shape[2]),
                              query_options(o.scale, o.use_qk_norm, G::key::size), plan_documents(p, C, G::taps::size, Turn::begins)};
  c.extent.descending = true;
  machine.run(c);
}

}  // namespace detail

template <class G = Head128, class Machine, class Act>
void forward_documents(Machine& machine, const CoreArrays<Act>& x, std::span<const i32> cu, const CoreOptions& options = {}) {
  const char* call = "forward_documents";
  checks::given(call, "k", static_cast<bool>(x.k));
  require(!x.ids, call, ": ids are given too; expected cumulative lengths alone");
  const auto all = detail::documents_of(call, cu, {x.k.shape[0], x.k.shape[1]}, static_cast<bool>(x.initial), static_cast<bool>(x.final));
  detail::check_core<G, true>(call, x, detail::Counts{static_cast<std::int64_t>(all.size()), detail::chunks_of(all, G::chunk::size)});
  machine.check_data([&] { checks::no_growth(call, x.g); });
  detail::pass_on(x.initial, x.final, all);
  detail::run_chunks<G>(call, machine, x, options, all);
}

template <class G = Head128, class Machine, class Act>
void layer_forward_documents(Machine& machine, const LayerArrays<Act>& x, std::span<const i32> cu, const LayerOptions& options) {
  const char* call = "layer_forward_documents";
  checks::given(call, "qkv", static_cast<bool>(x.qkv));
  require(!x.ids, call, ": ids are given too; expected cumulative lengths alone");
  const auto all = detail::documents_of(call, cu, {x.qkv.shape[0], x.qkv.shape[1]}, x.initial || x.conv_initial, x.final || x.conv_final);
  detail::check_layer<G, true>(call, x, options, detail::Counts{static_cast<std::int64_t>(all.size()), detail::chunks_of(all, G::chunk::size)});
  detail::pass_on(x.initial, x.final, all);
  detail::pass_on(x.conv_initial, x.conv_final, all);
  detail::run_chunks<G>(call, machine, x, options, all);
}

// Gradients of sum(out . d_out) + sum(final . d_final), out and final those of `forward_documents` on the same arrays and options.
template <class G = Head128, class Machine, class Act>
void backward_documents(Machine& machine, const CoreArrays<Act>& x, const CoreGradients<Act>& d, std::span<const i32> cu, const CoreOptions& options = {}) {
  const char* call = "backward_documents";
  checks::given(call, "k", static_cast<bool>(x.k));
  require(!x.ids, call, ": ids are given too; expected cumulative lengths alone");
  const auto all = detail::documents_of(call, cu, {x.k.shape[0], x.k.shape[1]}, true, true);
  detail::check_core_backward<G>(call, x, d, detail::Counts{static_cast<std::int64_t>(all.size()), detail::chunks_of(all, G::chunk::size)});
  machine.check_data([&] { checks::no_growth(call, x.g); });
  detail::pass_on(d.d_final, d.d_initial, all);
  detail::run_backward<G>(call, machine, x, d, options, all);
}

// The same of `layer_forward_documents`.
template <class G = Head128, class Machine, class Act>
void layer_backward_documents(Machine& machine, const LayerArrays<Act>& x, const LayerGradients<Act>& d, std::span<const i32> cu,
                              const LayerOptions& options) {
  const char* call = "layer_backward_documents";
  checks::given(call, "qkv", static_cast<bool>(x.qkv));
  require(!x.ids, call, ": ids are given too; expected cumulative lengths alone");
  const auto all = detail::documents_of(call, cu, {x.qkv.shape[0], x.qkv.shape[1]}, true, true);
  detail::check_layer_backward<G>(call, x, d, options, detail::Counts{static_cast<std::int64_t>(all.size()), detail::chunks_of(all, G::chunk::size)});
  for (auto zero : {d.dA_log, d.ddt_bias, d.d_conv_bias}) detail::pass_on({}, zero, all);
  detail::pass_on({}, d.d_conv_weights, all);
  detail::pass_on(d.d_conv_final, d.d_conv_initial, all);
  detail::pass_on(d.d_final, d.d_initial, all);
  detail::run_backward<G>(call, machine, x, d, options, all);
}

}  // namespace gdn

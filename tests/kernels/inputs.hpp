// Calls with their memory: random arguments, room for every result, and the results as named arrays that can be compared.
//
//   Core<bf16> call({.tokens = 200, .documents = true});
//   CHECK(differences(run(cpu, call), run(simulate, call)) == "");
#pragma once
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "../support/bits.hpp"
#include "../support/random.hpp"
#include "instances.hpp"

namespace gdn::test {

template <class Act> Act activation(double x) {
  if constexpr (std::is_same_v<Act, bf16>) return to_bf16(static_cast<f32>(x));
  else return static_cast<Act>(x);
}
template <class Act> const char* name_of() { return std::is_same_v<Act, bf16> ? "bf16" : "f32"; }

// What a test says of a call; the rest is drawn from the seed.
struct Spec {
  int batch = 1, tokens = 64, key_heads = 1, value_heads = 2;
  bool documents = false, initial = false, gates = true, outputs = true, normalise = false;
  double scale = 1;  // of q, k, v and states; small ones make part of the results vanish
  std::uint64_t seed = 1;

  std::string name() const {
    return text("B ", batch, " T ", tokens, " heads ", key_heads, "/", value_heads, documents ? ", documents" : "", initial ? ", initial state" : "",
                gates ? "" : ", no gates", outputs ? "" : ", states only", normalise ? ", norm" : "", " x ", scale);
  }
};

// What an action is refused with.
template <class Action> std::string message_of(Action action) {
  try {
    action();
  } catch (const Error& e) {
    return e.what();
  }
  return "accepted";
}

struct Output {
  std::string name;
  std::vector<f32> values;
};
using Outputs = std::vector<Output>;

// "" if all outputs have the same bits, else a line for each that has not.
inline std::string differences(const Outputs& a, const Outputs& b) {
  require(a.size() == b.size(), "compared calls have ", a.size(), " and ", b.size(), " outputs");
  std::string all;
  for (std::size_t i = 0; i < a.size(); i++) {
    const std::string one = difference(std::span<const f32>(a[i].values), std::span<const f32>(b[i].values));
    if (!one.empty()) all += a[i].name + ": " + one + "\n";
  }
  return all;
}
inline const std::vector<f32>& named(const Outputs& all, const std::string& name) {
  for (const Output& o : all)
    if (o.name == name) return o.values;
  throw Error("no output " + name);
}
// The outputs without those of these names.
inline Outputs without(Outputs all, const std::vector<std::string>& names) {
  std::erase_if(all, [&](const Output& o) { return std::find(names.begin(), names.end(), o.name) != names.end(); });
  return all;
}

// Results that were never written are this.
inline constexpr f32 unwritten = 1e30f;

template <class T> void add_output(Outputs& to, const char* name, const std::vector<T>& values, bool given) {
  if (!given) return;
  Output o{name, {}};
  for (T x : values) o.values.push_back(to_f32(x));
  to.push_back(std::move(o));
}

// Documents that change inside chunks and at their ends, fill whole chunks, are shorter than the taps; padding inside and at the end.
inline std::vector<i32> document_ids_of(int batch, int tokens, int chunk) {
  static constexpr int lengths[] = {40, -5, 55, 3, 1, 24, -2, 64, 90};
  std::vector<i32> ids;
  for (int b = 0; b < batch; b++) {
    const std::size_t end = static_cast<std::size_t>((b + 1) * tokens);
    for (std::size_t i = static_cast<std::size_t>(b) * 7; ids.size() < end; i++) {  // rows differ
      const int length = lengths[i % std::size(lengths)];
      const int here = std::max(1, std::abs(length) * chunk / 64);
      for (int t = 0; t < here && ids.size() < end; t++) ids.push_back(length < 0 ? 0 : static_cast<i32>(i) + 1);
    }
    for (std::size_t t = end - static_cast<std::size_t>(tokens / 16); t < end; t++) ids[t] = 0;
  }
  return ids;
}

template <class Act, class G = Head128> struct Core {
  static constexpr int C = G::chunk::size, K = G::key::size, V = G::value::size;
  using Geometry = G;
  Spec spec;
  CoreOptions options;
  std::vector<Act> q, k, v, out, r;
  std::vector<f32> g, beta, initial, final, t_inv, chunk_states;
  std::vector<i32> ids;

  explicit Core(const Spec& s) : spec(s) {
    Random random(s.seed);
    const auto normal = [&](auto& x, std::int64_t n, double scale) {
      for (std::int64_t i = 0; i < n; i++) x.push_back(activation<typename std::decay_t<decltype(x)>::value_type>(scale * random.normal()));
    };
    const double unit = 1 / std::sqrt(static_cast<double>(K));
    normal(q, tokens() * s.key_heads * K, s.scale * unit);
    normal(k, tokens() * s.key_heads * K, s.scale * unit);
    normal(v, tokens() * s.value_heads * V, s.scale);
    normal(initial, states(), s.scale);
    for (std::int64_t i = 0; i < gates(); i++) {
      const double kind = random.uniform(), x = random.uniform() * random.uniform();
      g.push_back(kind < 0.05 ? 0.f : kind < 0.07 ? -60.f : kind < 0.08 ? -std::numeric_limits<f32>::infinity() : static_cast<f32>(-x));
      beta.push_back(kind > 0.95 ? 0.f : kind > 0.9 ? 1.f : static_cast<f32>(random.uniform()));
    }
    ids = document_ids_of(s.batch, s.tokens, C);
    options = {.scale = s.normalise ? std::optional<f32>() : 1.f, .use_qk_norm = s.normalise};
  }
  std::int64_t tokens() const { return static_cast<std::int64_t>(spec.batch) * spec.tokens; }
  std::int64_t gates() const { return tokens() * spec.value_heads; }
  std::int64_t states() const { return static_cast<std::int64_t>(spec.batch) * spec.value_heads * K * V; }
  int chunks() const { return (spec.tokens + C - 1) / C; }

  // Views of the arguments, and of fresh results.
  CoreArrays<Act> arrays() {
    const std::int64_t B = spec.batch, T = spec.tokens, Hk = spec.key_heads, H = spec.value_heads, N = chunks();
    const auto fresh = [](auto& x, std::int64_t n) { x.assign(static_cast<std::size_t>(n), activation<typename std::decay_t<decltype(x)>::value_type>(unwritten)); };
    fresh(out, B * T * H * V), fresh(r, B * T * H * V), fresh(final, states());
    fresh(t_inv, B * N * C * H * C), fresh(chunk_states, B * N * H * K * V);
    CoreArrays<Act> a;
    if (spec.outputs) a.q = view(q, {B, T, Hk, K}), a.out = view(out, {B, T, H, V});
    a.k = view(k, {B, T, Hk, K});
    a.v = view(v, {B, T, H, V});
    a.beta = view(beta, {B, T, H});
    if (spec.gates) a.g = view(g, {B, T, H});
    if (spec.documents) a.ids = view(ids, {B, T});
    if (spec.initial) a.initial = view(initial, {B, H, K, V});
    a.final = view(final, {B, H, K, V});
    a.residual = view(r, {B, T, H, V});
    a.residuals = {view(t_inv, {B, N, C, H, C}), view(chunk_states, {B, N, H, K, V})};
    return a;
  }
  Outputs outputs() const {
    Outputs all;
    add_output(all, "out", out, spec.outputs);
    add_output(all, "final", final, true);
    add_output(all, "t_inv", t_inv, true);
    add_output(all, "chunk_states", chunk_states, true);
    add_output(all, "residual", r, true);
    return all;
  }
  template <class Machine> void call(Machine& machine) {
    if (spec.outputs) forward<G>(machine, arrays(), options);
    else forward_states<G>(machine, arrays(), options);
  }
};

template <class Act, class G = Head128> struct Layer {
  static constexpr int C = G::chunk::size, K = G::key::size, V = G::value::size, W = G::taps::size;
  using Geometry = G;
  Spec spec;
  bool bias = true;
  std::vector<Act> qkv, a, b, conv_initial, conv_final, out, r;
  std::vector<f32> weights, conv_bias, A_log, dt_bias, initial, final, t_inv, chunk_states;
  std::vector<i32> ids;

  explicit Layer(const Spec& s) : spec(s) {
    Random random(s.seed);
    const auto normal = [&](auto& x, std::int64_t n, double scale, double mean = 0) {
      for (std::int64_t i = 0; i < n; i++) x.push_back(activation<typename std::decay_t<decltype(x)>::value_type>(mean + scale * random.normal()));
    };
    normal(qkv, tokens() * channels(), s.scale);
    normal(a, tokens() * s.value_heads, 1), normal(b, tokens() * s.value_heads, 1);
    normal(conv_initial, s.batch * (W - 1) * channels(), s.scale);
    normal(weights, W * channels(), 0.5), normal(conv_bias, channels(), 0.1 * s.scale);
    normal(A_log, s.value_heads, 1, -2), normal(dt_bias, s.value_heads, 1);
    normal(initial, states(), s.scale);
    ids = document_ids_of(s.batch, s.tokens, C);
  }
  std::int64_t tokens() const { return static_cast<std::int64_t>(spec.batch) * spec.tokens; }
  std::int64_t channels() const { return 2 * spec.key_heads * K + spec.value_heads * V; }
  std::int64_t states() const { return static_cast<std::int64_t>(spec.batch) * spec.value_heads * K * V; }
  int chunks() const { return (spec.tokens + C - 1) / C; }

  LayerArrays<Act> arrays() {
    const std::int64_t B = spec.batch, T = spec.tokens, H = spec.value_heads, N = chunks(), D = channels();
    const auto fresh = [](auto& x, std::int64_t n) { x.assign(static_cast<std::size_t>(n), activation<typename std::decay_t<decltype(x)>::value_type>(unwritten)); };
    fresh(out, B * T * H * V), fresh(r, B * T * H * V), fresh(final, states()), fresh(conv_final, B * (W - 1) * D);
    fresh(t_inv, B * N * C * H * C), fresh(chunk_states, B * N * H * K * V);
    LayerArrays<Act> x;
    x.qkv = view(qkv, {B, T, D});
    x.a = view(a, {B, T, H}), x.b = view(b, {B, T, H});
    x.conv_weights = view(weights, {W, D});
    if (bias) x.conv_bias = view(conv_bias, {D});
    x.A_log = view(A_log, {H}), x.dt_bias = view(dt_bias, {H});
    if (spec.documents) x.ids = view(ids, {B, T});
    if (spec.initial) x.initial = view(initial, {B, H, K, V}), x.conv_initial = view(conv_initial, {B, W - 1, D});
    if (spec.outputs) x.out = view(out, {B, T, H, V});
    x.conv_final = view(conv_final, {B, W - 1, D});
    x.final = view(final, {B, H, K, V});
    x.residual = view(r, {B, T, H, V});
    x.residuals = {view(t_inv, {B, N, C, H, C}), view(chunk_states, {B, N, H, K, V})};
    return x;
  }
  Outputs outputs() const {
    Outputs all;
    add_output(all, "out", out, spec.outputs);
    add_output(all, "conv_final", conv_final, true);
    add_output(all, "final", final, true);
    add_output(all, "t_inv", t_inv, true);
    add_output(all, "chunk_states", chunk_states, true);
    add_output(all, "residual", r, true);
    return all;
  }
  template <class Machine> void call(Machine& machine) {
    const LayerOptions options{.key_heads = spec.key_heads};
    if (spec.outputs) layer_forward<G>(machine, arrays(), options);
    else layer_forward_states<G>(machine, arrays(), options);
  }
};

template <class Machine, class Call> Outputs run(Machine&& machine, Call& call) {
  call.call(machine);
  return call.outputs();
}

}  // namespace gdn::test

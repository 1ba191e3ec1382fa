// gdn_emit_all DIRECTORY: writes every kernel of the library as a StableHLO program (and as generic text), in each class, placement and
// form that reaches other text. One has the size the library is made for; the others are small, because they are compiled for three TPUs.
#include <cstdio>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "gdn/calls/backward.hpp"
#include "gdn/calls/documents_apart.hpp"
#include "gdn/calls/forward.hpp"
#include "gdn/calls/gated_norm.hpp"
#include "gdn/calls/inverse.hpp"
#include "gdn/calls/parts.hpp"
#include "gdn/calls/recurrent.hpp"
#include "gdn/calls/rows.hpp"
#include "gdn/calls/scans.hpp"
#include "gdn/calls/sequences.hpp"
#include "gdn/emit.hpp"

using namespace gdn;
using mosaic::Schedule;

namespace {

struct Sizes {
  int T = 192, Hk = 2, Hv = 8, B = 1;
};

// Views of the right shape with nothing behind them; ids and the like are read, so they need memory.
template <class T, std::size_t N> auto shaped(const std::int64_t (&shape)[N]) { return view(static_cast<T*>(nullptr), shape); }
View<const i32, 2> documents(const Sizes& n) {
  static std::map<std::pair<int, int>, std::vector<i32>> made;  // views point into it
  std::vector<i32>& ids = made[{n.B, n.T}];
  for (int i = static_cast<int>(ids.size()); i < n.B * n.T; i++) ids.push_back(i % n.T < 50 ? 1 : i % n.T < 60 ? 0 : 2 + i / 100);
  return view(std::as_const(ids), {n.B, n.T});
}

// What a call asks for beside its output.
struct Form {
  bool documents = false, states = false, residuals = false, gate = true, bias = true;
};
constexpr Form everything{true, true, true};
constexpr Form nothing{};

template <class G, class Act> CoreArrays<Act> core_arrays(const Sizes& n, const Form& f, bool outputs) {
  constexpr int K = G::key::size, V = G::value::size, C = G::chunk::size;
  const int N = (n.T + C - 1) / C;
  CoreArrays<Act> x;
  if (outputs) x.q = shaped<const Act>({n.B, n.T, n.Hk, K});
  x.k = shaped<const Act>({n.B, n.T, n.Hk, K});
  x.v = shaped<const Act>({n.B, n.T, n.Hv, V});
  if (f.gate) x.g = shaped<const f32>({n.B, n.T, n.Hv});
  x.beta = shaped<const f32>({n.B, n.T, n.Hv});
  if (outputs) x.out = shaped<Act>({n.B, n.T, n.Hv, V});
  if (f.states) x.initial = shaped<const f32>({n.B, n.Hv, K, V});
  if (f.states || !outputs) x.final = shaped<f32>({n.B, n.Hv, K, V});
  if (f.documents) x.ids = documents(n);
  if (f.residuals) {
    x.residual = shaped<Act>({n.B, n.T, n.Hv, V});
    x.residuals.t_inv = shaped<f32>({n.B, N, C, n.Hv, C});
    x.residuals.chunk_states = shaped<f32>({n.B, N, n.Hv, K, V});
  }
  return x;
}
template <class G, class Act> LayerArrays<Act> layer_arrays(const Sizes& n, const Form& f, bool outputs) {
  constexpr int K = G::key::size, V = G::value::size, C = G::chunk::size, W = G::taps::size;
  const int N = (n.T + C - 1) / C, D = 2 * n.Hk * K + n.Hv * V;
  LayerArrays<Act> x;
  x.qkv = shaped<const Act>({n.B, n.T, D});
  x.a = shaped<const Act>({n.B, n.T, n.Hv});
  x.b = shaped<const Act>({n.B, n.T, n.Hv});
  x.conv_weights = shaped<const f32>({W, D});
  if (f.bias) x.conv_bias = shaped<const f32>({D});
  x.A_log = shaped<const f32>({n.Hv});
  x.dt_bias = shaped<const f32>({n.Hv});
  if (outputs) x.out = shaped<Act>({n.B, n.T, n.Hv, V});
  if (f.states) {
    x.conv_initial = shaped<const Act>({n.B, W - 1, D});
    x.conv_final = shaped<Act>({n.B, W - 1, D});
    x.initial = shaped<const f32>({n.B, n.Hv, K, V});
  }
  if (f.states || !outputs) x.final = shaped<f32>({n.B, n.Hv, K, V});
  if (f.documents) x.ids = documents(n);
  if (f.residuals) {
    x.residual = shaped<Act>({n.B, n.T, n.Hv, V});
    x.residuals.t_inv = shaped<f32>({n.B, N, C, n.Hv, C});
    x.residuals.chunk_states = shaped<f32>({n.B, N, n.Hv, K, V});
  }
  return x;
}

template <class Act> constexpr const char* type_name = std::is_same_v<Act, bf16> ? "bf16" : "f32";

class Writer {
 public:
  explicit Writer(std::string directory) : directory_(std::move(directory)) {}
  int programs() const { return static_cast<int>(names_.size()); }

  // `call` is given the machine. The file is named for the kernel, the type, the placement that was taken, and `what`.
  template <class F> void write(const char* type, const std::string& what, const Schedule& schedule, F call) {
    Emit machine(schedule);
    call(machine);
    const mosaic::Module& m = machine.module;
    const std::string name = text(m.name, ".", type, ".", m.schedule.substr(0, m.schedule.find(' ')), schedule.exact_functions ? ".exact" : "",
                                  what.empty() ? "" : ".", what);
    require(names_.insert(name).second, "emit_all: two programs are named ", name);
    std::ofstream(directory_ + "/" + name + ".mlir") << m.program();
    std::ofstream(directory_ + "/" + name + ".txt") << m.generic();
  }
  template <class G, class Act> void core(const std::string& what, const Schedule& s, const Sizes& n, const Form& f) {
    write(type_name<Act>, what, s, [&](auto& m) { forward<G>(m, core_arrays<G, Act>(n, f, true), {.use_qk_norm = true}); });
  }
  template <class G, class Act> void core_states(const std::string& what, const Schedule& s, const Sizes& n, const Form& f) {
    write(type_name<Act>, what, s, [&](auto& m) { forward_states<G>(m, core_arrays<G, Act>(n, f, false), {.use_qk_norm = true}); });
  }
  template <class G, class Act> void layer(const std::string& what, const Schedule& s, const Sizes& n, const Form& f) {
    write(type_name<Act>, what, s, [&](auto& m) { layer_forward<G>(m, layer_arrays<G, Act>(n, f, true), {.key_heads = n.Hk}); });
  }
  // Documents apart, if cu has their cumulative lengths.
  template <class G, class Act>
  void backward_of_core(const std::string& what, const Schedule& s, const Sizes& n, const Form& f, const std::vector<i32>& cu = {}) {
    CoreArrays<Act> x = core_arrays<G, Act>(n, f, true);
    const std::int64_t states = cu.empty() ? n.B : static_cast<std::int64_t>(cu.size()) - 1;
    if (x.initial) x.initial.shape[0] = states;
    CoreGradients<Act> d;
    d.d_out = shaped<const Act>({n.B, n.T, n.Hv, G::value::size});
    d.dq = shaped<Act>({n.B, n.T, n.Hk, G::key::size});
    d.dk = shaped<Act>({n.B, n.T, n.Hk, G::key::size});
    d.dv = shaped<Act>({n.B, n.T, n.Hv, G::value::size});
    if (f.gate) d.dg = shaped<f32>({n.B, n.T, n.Hv});
    d.dbeta = shaped<f32>({n.B, n.T, n.Hv});
    if (f.states) {
      d.d_final = shaped<const f32>({states, n.Hv, G::key::size, G::value::size});
      d.d_initial = shaped<f32>({states, n.Hv, G::key::size, G::value::size});
    }
    const CoreOptions o{.use_qk_norm = true};
    write(type_name<Act>, what, s, [&](auto& m) { cu.empty() ? backward<G>(m, x, d, o) : backward_documents<G>(m, x, d, cu, o); });
  }
  template <class G, class Act>
  void backward_of_layer(const std::string& what, const Schedule& s, const Sizes& n, const Form& f, const std::vector<i32>& cu = {}) {
    LayerArrays<Act> x = layer_arrays<G, Act>(n, f, true);
    const std::int64_t D = x.qkv.shape[2], states = cu.empty() ? n.B : static_cast<std::int64_t>(cu.size()) - 1;
    if (x.initial) x.initial.shape[0] = x.conv_initial.shape[0] = states;
    LayerGradients<Act> d;
    d.d_out = shaped<const Act>({n.B, n.T, n.Hv, G::value::size});
    d.dqkv = shaped<Act>({n.B, n.T, D});
    d.da = shaped<Act>({n.B, n.T, n.Hv});
    d.db = shaped<Act>({n.B, n.T, n.Hv});
    d.d_conv_weights = shaped<f32>({states, G::taps::size, D});
    if (f.bias) d.d_conv_bias = shaped<f32>({states, D});
    d.dA_log = shaped<f32>({states, n.Hv});
    d.ddt_bias = shaped<f32>({states, n.Hv});
    if (f.states) {
      d.d_final = shaped<const f32>({states, n.Hv, G::key::size, G::value::size});
      d.d_initial = shaped<f32>({states, n.Hv, G::key::size, G::value::size});
      d.d_conv_initial = shaped<Act>({states, G::taps::size - 1, D});
      d.d_conv_final = shaped<const Act>({states, G::taps::size - 1, D});
    }
    const LayerOptions o{.key_heads = n.Hk};
    write(type_name<Act>, what, s, [&](auto& m) { cu.empty() ? layer_backward<G>(m, x, d, o) : layer_backward_documents<G>(m, x, d, cu, o); });
  }
  template <class G, class Act> void layer_states(const std::string& what, const Schedule& s, const Sizes& n, const Form& f) {
    write(type_name<Act>, what, s, [&](auto& m) { layer_forward_states<G>(m, layer_arrays<G, Act>(n, f, false), {.key_heads = n.Hk}); });
  }

 private:
  std::string directory_;
  std::set<std::string> names_;
};

// Every kernel in every placement, with all it can write and read, and with nothing.
template <class Act> void chunked(Writer& w) {
  const Sizes n;
  for (const Schedule& s : {Schedule::lifted(), Schedule::paired(), Schedule::skewed()}) {
    w.core<Head128, Act>("everything", s, n, everything);
    w.core_states<Head128, Act>("everything", s, n, everything);
    w.layer<Head128, Act>("everything", s, n, everything);
    w.layer_states<Head128, Act>("everything", s, n, everything);
  }
  for (const Schedule& s : {Schedule::lifted(), Schedule::skewed()}) w.layer<Head128, Act>("nothing", s, n, nothing);
  w.core<Head128, Act>("nothing", Schedule::skewed(), n, nothing);
  Schedule exact = Schedule::skewed();
  exact.exact_functions = true;
  w.layer<Head128, Act>("", exact, n, everything);
  using Small = Geometry<16, 32, 48>;  // all extents different
  w.core<Small, Act>("small", Schedule::lifted(), {.T = 40, .Hk = 1, .Hv = 2}, everything);
  w.core_states<Small, Act>("small", Schedule::lifted(), {.T = 40, .Hk = 1, .Hv = 2}, everything);
}

// Other shapes and forms.
void shapes(Writer& w) {
  const Sizes n;
  // One document, but a last chunk that reaches beyond the arrays; shorter than a chunk and than the taps.
  w.core<Head128, bf16>("ragged", Schedule::lifted(), {.T = 150}, nothing);
  w.layer<Head128, bf16>("ragged", Schedule::skewed(), {.T = 150}, {.states = true, .residuals = true});
  w.layer<Head128, bf16>("short", Schedule::skewed(), {.T = 2}, everything);
  w.core<Head128, bf16>("no_gate", Schedule::skewed(), n, {.states = true, .gate = false});
  w.layer<Head128, bf16>("no_bias", Schedule::skewed(), n, {.documents = true, .bias = false});
  // Rows of a batch, several steps for the heads of a row, other numbers of heads, values narrower than keys.
  w.core<Head128, bf16>("batch", Schedule::skewed(), {.B = 2}, everything);
  w.core<Head128, bf16>("blocks", Schedule::skewed(8), {.Hk = 4, .Hv = 16}, everything);
  w.layer<Head128, bf16>("blocks", Schedule::skewed(8), {.Hk = 4, .Hv = 16}, everything);
  w.core<Head128, f32>("blocks", Schedule::lifted(8), {.Hk = 4, .Hv = 16}, everything);
  w.core<Head128, bf16>("own_keys", Schedule::skewed(), {.Hk = 4, .Hv = 4}, everything);
  w.core<Head128, f32>("one_head", Schedule::skewed(), {.Hk = 1, .Hv = 1}, everything);
  w.layer<Head128, bf16>("three_heads", Schedule::skewed(), {.Hk = 1, .Hv = 3}, everything);
  w.core<Geometry<64, 128, 64>, bf16>("narrow_values", Schedule::skewed(), n, everything);
}

template <class Act> void backwards(Writer& w) {
  const Sizes n;
  const Form plain{.residuals = true, .bias = false};
  for (const Schedule& s : {Schedule::lifted(), Schedule::paired(), Schedule::skewed()}) w.backward_of_core<Head128, Act>("everything", s, n, everything);
  for (mosaic::Target target : mosaic::targets)
    w.backward_of_core<Head128, Act>(text("fastest_", name_of(target)), Schedule::fastest("backward", target), n, everything);
  w.backward_of_core<Head128, Act>("own_keys", Schedule::skewed(), {.Hk = 4, .Hv = 4}, everything);
  w.backward_of_core<Head128, Act>("plain", Schedule::lifted(), n, plain);
  w.backward_of_core<Head128, Act>("blocks", Schedule::lifted(4), {.T = 150, .Hk = 4, .Hv = 8, .B = 2}, everything);
  w.backward_of_core<Head128, Act>("three_heads", Schedule::lifted(), {.Hk = 1, .Hv = 3}, {.residuals = true, .gate = false});
  w.backward_of_layer<Head128, Act>("everything", Schedule::lifted(), n, everything);
  w.backward_of_layer<Head128, Act>("plain", Schedule::lifted(), n, plain);
  w.backward_of_layer<Head128, Act>("blocks", Schedule::lifted(4), {.T = 150, .Hk = 4, .Hv = 8, .B = 2}, everything);
  w.backward_of_layer<Head128, Act>("short", Schedule::lifted(), {.T = 2}, everything);
  const Sizes row{.T = 300, .Hk = 4, .Hv = 8};
  const Form apart{.states = true, .residuals = true};
  for (int heads : {0, 4}) {
    w.backward_of_core<Head128, Act>(heads ? "blocks" : "", Schedule::lifted(heads), row, apart, {0, 64, 64, 192, 300});
    w.backward_of_layer<Head128, Act>(heads ? "blocks" : "", Schedule::lifted(heads), row, apart, {0, 64, 64, 192, 300});
  }
}

template <class Act> void by_tokens(Writer& w) {
  const Sizes n{.T = 5};
  for (const Form& f : {everything, nothing}) {
    CoreArrays<Act> x = core_arrays<Head128, Act>(n, f, true);
    x.residual = {}, x.residuals = {};
    w.write(type_name<Act>, f.states ? "everything" : "nothing", Schedule::lifted(), [&](auto& m) { recurrent(m, x, {.use_qk_norm = true}); });
  }
  const Sizes one{.T = 1, .B = 3};
  w.write(type_name<Act>, "", Schedule::lifted(), [&](auto& m) { decode(m, core_arrays<Head128, Act>(one, {.states = true}, true)); });
  w.write(type_name<Act>, "", Schedule::lifted(), [&](auto& m) { layer_decode(m, layer_arrays<Head128, Act>(one, {.states = true}, true), {.key_heads = one.Hk}); });
}

// Chunks and tokens of sequences over pools of states.
template <class Act> void sequences(Writer& w) {
  constexpr int slots = 9;
  const Sizes n{.T = 320};
  auto pools = [&](auto x) {
    x.initial = shaped<const f32>({slots, n.Hv, 128, 128}), x.final = shaped<f32>({slots, n.Hv, 128, 128});
    if constexpr (requires { x.conv_initial; }) {
      const std::int64_t D = x.qkv.shape[2];
      x.conv_initial = shaped<const Act>({slots, 3, D}), x.conv_final = shaped<Act>({slots, 3, D});
    }
    return x;
  };
  const CoreArrays<Act> core = pools(core_arrays<Head128, Act>(n, nothing, true));
  const LayerArrays<Act> layer = pools(layer_arrays<Head128, Act>(n, nothing, true));
  const std::vector<i32> starts{0, 128, 192, 320}, lengths{70, 64, 100}, slots_of{4, 0, 7}, context{9, 0, 0}, snapshots{5, 0, 0, 6, 0};
  const Sequences chunks{.starts = starts, .lengths = lengths, .slots = slots_of, .context = context, .snapshots = snapshots};
  for (const Schedule& s : {Schedule::lifted(), Schedule::paired(), Schedule::skewed()}) {
    w.write(type_name<Act>, "", s, [&](auto& m) { forward_sequences(m, core, chunks); });
    w.write(type_name<Act>, "", s, [&](auto& m) { layer_forward_sequences(m, layer, chunks, {.key_heads = n.Hk}); });
  }
  Schedule single = Schedule::skewed();
  single.single_buffered_states = true;
  Sequences roomy = chunks;  // one kernel for any batch of up to 16 chunks
  roomy.room = 16;
  for (const Schedule& s : {Schedule::lifted(), Schedule::skewed()})
    w.write(type_name<Act>, "room", s, [&](auto& m) { layer_forward_sequences(m, layer, roomy, {.key_heads = n.Hk}); });
  w.write(type_name<Act>, "single_buffered", single, [&](auto& m) { layer_forward_sequences(m, layer, chunks, {.key_heads = n.Hk}); });
  const std::vector<i32> tokens{0, 1, 2, 3}, one_each{4, 2, 7}, windows{0, 3, 5, 6};
  const Sequences singles{.starts = tokens, .slots = one_each, .context = context}, speculative{.starts = windows, .slots = slots_of, .context = context};
  w.write(type_name<Act>, "", Schedule::lifted(), [&](auto& m) { decode_sequences(m, core, singles); });
  w.write(type_name<Act>, "", Schedule::lifted(), [&](auto& m) { layer_decode_sequences(m, layer, singles, {.key_heads = n.Hk}); });
  Sequences any = speculative;
  any.room = 16;
  w.write(type_name<Act>, "room", Schedule::lifted(), [&](auto& m) { layer_decode_sequences(m, layer, any, {.key_heads = n.Hk}); });
  w.write(type_name<Act>, "windows", Schedule::lifted(), [&](auto& m) { decode_sequences(m, core, speculative); });
  w.write(type_name<Act>, "windows", Schedule::lifted(), [&](auto& m) { layer_decode_sequences(m, layer, speculative, {.key_heads = n.Hk}); });
}

template <class Act> void parts(Writer& w) {
  for (bool whole : {true, false}) {
    const Sizes n{.T = whole ? 192 : 150};
    const int D = 512;
    ConvArrays<Act> c;
    c.x = shaped<const Act>({n.B, n.T, D});
    c.weights = shaped<const f32>({4, D});
    c.y = shaped<Act>({n.B, n.T, D});
    if (whole) {
      c.bias = shaped<const f32>({D});
      c.initial = shaped<const Act>({n.B, 3, D});
      c.final = shaped<Act>({n.B, 3, D});
      c.ids = documents(n);
    }
    w.write(type_name<Act>, whole ? "everything" : "ragged", Schedule::lifted(), [&](auto& m) { causal_conv(m, c); });

    NormArrays<Act> l;
    l.x = shaped<const Act>({n.B, n.T, n.Hv, 128});
    l.y = shaped<Act>({n.B, n.T, n.Hv, 128});
    w.write(type_name<Act>, whole ? "" : "ragged", Schedule::lifted(), [&](auto& m) { l2norm(m, l); });

    GateArrays<Act> g;
    g.a = shaped<const Act>({n.B, n.T, n.Hv});
    g.b = shaped<const Act>({n.B, n.T, n.Hv});
    g.A_log = shaped<const f32>({n.Hv});
    g.dt_bias = shaped<const f32>({n.Hv});
    g.g = shaped<f32>({n.B, n.T, n.Hv});
    g.beta = shaped<f32>({n.B, n.T, n.Hv});
    if (whole) g.ids = documents(n);
    w.write(type_name<Act>, whole ? "everything" : "ragged", Schedule::lifted(), [&](auto& m) { gates(m, g); });
  }
}

// Norms; the backward with the norms that the forward kept, and without.
template <class Act> void norms(Writer& w, const std::string& what, const Sizes& n, const std::string& without) {
  const auto rows = [&] { return shaped<const Act>({n.B, n.T, n.Hv, 128}); };
  const auto results = [&] { return shaped<Act>({n.B, n.T, n.Hv, 128}); };
  const auto weights = shaped<const f32>({128});
  for (bool kept : {true, false}) {
    const std::string name = kept ? what : without;
    GatedNormArrays<Act> a{rows(), rows(), weights, results()};
    GatedNormBackwardArrays<Act> b{rows(), rows(), rows(), weights, results(), results(), shaped<f32>({n.B, n.Hv, 128})};
    if (kept) a.inverse = shaped<f32>({n.B, n.T, n.Hv}), b.inverse = shaped<const f32>({n.B, n.T, n.Hv});
    w.write(type_name<Act>, name, Schedule::lifted(), [&](auto& m) { gated_norm<128, 256>(m, a); });
    w.write(type_name<Act>, name, Schedule::lifted(), [&](auto& m) { gated_norm_backward(m, b); });
  }
}

// The scans of context parallelism, and the parts of their trees.
template <Precision P, class Act, class F> void scans(Writer& w, const std::string& what, const Sizes& n, bool with_documents, bool normalise, F schedule) {
  constexpr int K = 128, C = 64;
  const int N = (n.T + C - 1) / C;
  TransitionArrays<Act> t;
  t.k = shaped<const Act>({n.B, n.T, n.Hk, K});
  t.g = shaped<const f32>({n.B, n.T, n.Hv}), t.beta = shaped<const f32>({n.B, n.T, n.Hv});
  t.t_inv = shaped<const f32>({n.B, N, C, n.Hv, C});
  if (with_documents) t.ids = documents(n);
  t.phi = shaped<f32>({n.B, n.Hv, K, K});
  StateGradientArrays<Act> d{t.k, t.k, shaped<const Act>({n.B, n.T, n.Hv, K}), t.g, t.beta, t.t_inv, t.ids, {}, t.phi};
  if (with_documents) d.d_final = shaped<const f32>({n.B, n.Hv, K, K});
  const std::string type = text(type_name<Act>, P == Precision::bf16x3 ? ".p3" : ".pf");
  w.write(type.c_str(), what, schedule("transition"), [&](auto& m) { transition<P>(m, t, {.use_qk_norm = normalise}); });
  w.write(type.c_str(), what, schedule("state_gradient"), [&](auto& m) { state_gradient<P>(m, d, {.use_qk_norm = normalise}); });
  if (n.T > 1024) return;
  const auto matrices = [&](int chunks) { return shaped<f32>({n.B, chunks, n.Hv, K, K}); };
  w.write(type.c_str(), what, Schedule::lifted(), [&](auto& m) { chunk_transitions<P>(m, t, matrices(N)); });
  w.write(type.c_str(), what, Schedule::lifted(), [&](auto& m) { chunk_gradients<P>(m, d, matrices(N)); });
  const int pairs = N / 2;
  w.write(type.c_str(), what, Schedule::lifted(), [&](auto& m) {
    join_chunks<P>(m, JoinArrays{.earlier = matrices(pairs), .later = matrices(pairs), .d_earlier = matrices(pairs), .d_later = matrices(pairs), .joined = matrices(pairs), .d_joined = matrices(pairs)});
  });
}

// Rows up to a limit, at the widths of a large model; without one where all blocks are whole; with the limit that a partial block brings.
template <class Act, int W, int Wide> void rows(Writer& w, const std::string& what, std::int64_t n, bool limited, bool exact = false) {
  const auto limit = limited ? shaped<const i32>({1}) : View<const i32, 1>();
  Schedule s = Schedule::lifted();
  s.exact_functions = exact;
  w.write(type_name<Act>, what, s, [&](auto& m) { glu_rows<W>(m, GluArrays<Act>{shaped<const Act>({n, 2 * W}), limit, shaped<Act>({n, W})}); });
  w.write(type_name<Act>, what, s, [&](auto& m) {
    glu_rows_backward<W>(m, GluBackwardArrays<Act>{shaped<const Act>({n, 2 * W}), shaped<const Act>({n, W}), limit, shaped<Act>({n, 2 * W})});
  });
  w.write(type_name<Act>, what, s, [&](auto& m) {
    unsort_rows_backward<Wide>(m, UnsortBackwardArrays<Act>{shaped<const Act>({n, Wide}), shaped<const Act>({n, Wide}), shaped<const f32>({n}), limit,
                                                            shaped<Act>({n, Wide}), shaped<f32>({n})});
  });
}

template <int C, InverseOrder O, Precision P> void inverse(Writer& w, const std::string& order) {
  const InverseArrays x{shaped<const f32>({1, 3, C, 4, C}), shaped<f32>({1, 3, C, 4, C})};
  w.write(P == Precision::bf16 ? "p1" : P == Precision::bf16x3 ? "p3" : "pf", text(C, ".", order), Schedule::lifted(),
          [&](auto& m) { invert_unit_lower<C, O, P>(m, x); });
}

// Control flow, which no kernel of the library needs: a loop, a condition in it, and memory that both change.
struct ControlCall {
  using R = Chunk<64>;
  using W = Lane<128>;
  const char* name = "control_flow";
  Extent extent{1, 192, R::size, 2, 2};
  View<const f32, 4> x = shaped<const f32>({1, 192, 2, W::size});
  View<f32, 4> out = shaped<f32>({1, 192, 2, W::size});

  template <class M> struct Refs {
    Ref<M, f32, R, W> x, out, memory;
  };
  template <class M> Refs<M> bind(M& m) const {
    detail::Binding<M> b{m};
    return {b.template ref<f32, R, W>(b.array("x", Use::in, x), Place::tokens, Use::in, Domain::value_head),
            b.template ref<f32, R, W>(b.array("out", Use::out, out), Place::tokens, Use::out, Domain::value_head),
            b.template carried<R, W>("memory", Domain::value_head)};
  }
  template <class M> void head(M& m, const Refs<M>& r) const {
    loop(m, 3, [&](const auto& i) {
      when(m, i, [](auto i) { return i == 1; }, [&] { store(r.memory, load(r.memory) + load(r.x)); });
    });
    store(r.out, load(r.memory));
  }
};

Schedule fastest(const char* kernel) { return Schedule::fastest(kernel, mosaic::Target::tpu7x); }

// At the size the library is made for; bounds.py holds what they may cost.
void full_size(Writer& w) {
  constexpr Sizes large{.T = 16384, .Hk = 16, .Hv = 64};
  w.layer<Head128, bf16>("full_size", fastest("layer_forward"), large, everything);
  w.write("bf16", "full_size", fastest("layer_forward_states"), [&](auto& m) {
    auto x = layer_arrays<Head128, bf16>(large, everything, false);
    x.residual = {}, x.residuals.chunk_states = {};  // what the first of two passes writes
    layer_forward_states(m, x, {.key_heads = large.Hk});
  });
  w.backward_of_core<Head128, bf16>("full_size", fastest("backward"), large, everything);
  scans<Precision::bf16x3, bf16>(w, "full_size", large, false, false, fastest);
  scans<Precision::bf16x3, bf16>(w, "full_size_norm", large, false, true, fastest);
  norms<bf16>(w, "full_size", {.T = 16384, .Hv = 64}, "full_size_without");
}

}  // namespace

int main(int argc, char** argv) try {
  require(argc == 2, "usage: gdn_emit_all DIRECTORY");
  Writer w(argv[1]);
  chunked<bf16>(w);
  chunked<f32>(w);
  shapes(w);
  backwards<bf16>(w);
  backwards<f32>(w);
  by_tokens<bf16>(w);
  by_tokens<f32>(w);
  sequences<bf16>(w);
  sequences<f32>(w);
  parts<bf16>(w);
  parts<f32>(w);
  scans<Precision::bf16x3, bf16>(w, "documents", {.T = 300, .B = 2}, true, true, fastest);
  scans<Precision::f32, f32>(w, "documents", {.T = 300}, true, true, [](const char*) { return Schedule::lifted(); });
  norms<f32>(w, "ragged", {.T = 150, .B = 2}, "ragged_without");
  norms<bf16>(w, "", {.T = 512}, "without");
  rows<bf16, 1024, 4096>(w, "limit", 225280, true);
  rows<bf16, 1024, 4096>(w, "", 225280, false);
  rows<bf16, 256, 256>(w, "ragged", 700, false, true);
  rows<f32, 256, 256>(w, "limit", 512, true);
  w.write("f32", "", Schedule::lifted(), [](auto& m) { m.run(ControlCall()); });
  inverse<64, InverseOrder::merged_blocks, Precision::bf16>(w, "merged");
  inverse<64, InverseOrder::merged_blocks, Precision::bf16x3>(w, "merged");
  inverse<64, InverseOrder::merged_blocks, Precision::f32>(w, "merged");
  inverse<64, InverseOrder::right_looking, Precision::f32>(w, "right");
  inverse<64, InverseOrder::left_looking, Precision::f32>(w, "left");
  inverse<32, InverseOrder::merged_blocks, Precision::f32>(w, "merged");
  full_size(w);
  std::printf("%d programs\n", w.programs());
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}

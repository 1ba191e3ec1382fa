// What a row does to the state before it, and to the gradient of the state behind it: for rows that are cut over devices (context
// parallelism), where each device has a part of the row and has not yet heard of the others.
//
//   transition      Phi [K, K] of all tokens:  state behind = Phi (state before) + the state behind, if it were 0 before
//   state_gradient  gradient of the state before the row, from those of its outputs and of the state behind it
//
// Both read M of each chunk (t_inv), as a forward call has written it for the same arguments, and are scans over the chunks: class P3 is
// as exact as PF (1e-6) at half the price, because nothing near the identity is multiplied out. The tree is the same by multiplying the
// chunks' matrices pair by pair: a second opinion, and the only form that is parallel along the row.
#pragma once
#include "gdn/calls/forward.hpp"
#include "gdn/kernels/scans.hpp"

namespace gdn {

template <class Act> struct TransitionArrays {
  View<const Act, 4> k;       // [B, T, Hk, K]
  View<const f32, 3> g;       // [B, T, Hv]; absent: no decay
  View<const f32, 3> beta;    // [B, T, Hv]
  View<const f32, 5> t_inv;   // [B, N, C, Hv, C]
  View<const i32, 2> ids;     // [B, T], documents; absent: one document
  View<f32, 4> phi;           // [B, Hv, K, K]; exactly 0 if a document ends in the row
};
template <class Act> struct StateGradientArrays {
  View<const Act, 4> q, k;    // [B, T, Hk, K]
  View<const Act, 4> d_out;   // [B, T, Hv, V]
  View<const f32, 3> g;       // [B, T, Hv]; absent: no decay
  View<const f32, 3> beta;    // [B, T, Hv]
  View<const f32, 5> t_inv;   // [B, N, C, Hv, C]
  View<const i32, 2> ids;     // [B, T]
  View<const f32, 4> d_final;   // [B, Hv, K, V], gradient of the state behind the row; absent: zeros
  View<f32, 4> d_initial;       // [B, Hv, K, V], of the state before it; may be d_final itself
};
struct ScanOptions {
  std::optional<f32> scale = {};  // of q; default K^-0.5
  bool use_qk_norm = false;       // as in the forward whose M is read
  bool continues = true;          // the row's first document continues one before the row, and so reads the state
};

namespace detail {

template <class M, class C, class K, class V, class Arrays> ScanRefs<M, C, K, V> bind_scan(Binding<M>& b, const Arrays& x) {
  ScanRefs<M, C, K, V> r;
  r.k = b.template ref<f32, C, K>(b.array("k", Use::in, x.k), Place::tokens, Use::in, Domain::key_head);
  r.g = b.template ref<f32, C, One>(b.array("g", Use::in, x.g), Place::tokens, Use::in, Domain::value_head);
  r.beta = b.template ref<f32, C, One>(b.array("beta", Use::in, x.beta), Place::tokens, Use::in, Domain::value_head);
  r.t_inv = b.template ref<f32, C, C>(b.array("t_inv", Use::in, x.t_inv), Place::tokens, Use::in, Domain::value_head);
  if constexpr (requires { x.q; }) {
    r.q = b.template ref<f32, C, K>(b.array("q", Use::in, x.q), Place::tokens, Use::in, Domain::key_head);
    r.d_out = b.template ref<f32, C, V>(b.array("d_out", Use::in, x.d_out), Place::tokens, Use::in, Domain::value_head);
  }
  return r;
}
template <class M, class K, class V> Ref<M, f32, K, V> bind_states(Binding<M>& b, const char* name, Use use, const auto& v, Place place) {
  return b.template ref<f32, K, V>(b.array(name, use, v), place, use, Domain::value_head);
}

// A scan, or what its tree starts from: `chunks` [B, N, Hv, K, ..] is then what is written.
template <class G, Precision P, template <class> class Arrays, class Act> struct ScanCall {
  static constexpr bool gradients = std::is_same_v<Arrays<Act>, StateGradientArrays<Act>>;
  using C = typename G::chunk;
  using K = typename G::key;
  using V = std::conditional_t<gradients, typename G::value, Val<K::size>>;
  const char* name;
  const Arrays<Act>& x;
  View<f32, 5> chunks;
  Extent extent;
  QueryOptions options;
  DocumentPlan plan;

  template <class M> struct Refs {
    ScanRefs<M, C, K, V> scan;
    DocumentRefs<M, C> documents;
  };
  template <class M> Refs<M> bind(M& m) const {
    Binding<M> b{m};
    Refs<M> r{bind_scan<M, C, K, V>(b, x), {}};
    const auto states = [&](const char* array, Use use, const auto& v, Place place) { return bind_states<M, K, V>(b, array, use, v, place); };
    if constexpr (gradients) {
      if (chunks) {
        r.scan.sum = states("d_initial", Use::out, chunks, Place::chunk_state);
      } else {
        const auto from = states("d_final", Use::in, x.d_final, Place::sequence), to = states("d_initial", Use::out, x.d_initial, Place::sequence);
        r.scan.sum = b.template carried<K, V>("so_far", Domain::value_head, from.id, to.id);
      }
    } else if (chunks) {
      r.scan.sum = states("phi", Use::out, chunks, Place::chunk_state);
    } else {
      r.scan.sum = b.template carried<K, V>("so_far", Domain::value_head, -1, states("phi", Use::out, x.phi, Place::sequence).id, true);
    }
    r.documents = bind_documents<M, C>(b, plan);
    return r;
  }
  template <class M> void head(M& m, const Refs<M>& r) const {
    constexpr Precision forward = precision_of<Act>;
    with_documents(r.documents, extent.tokens % extent.chunk != 0, [&](const auto& documents) {
      if constexpr (gradients) {
        if (chunks) chunk_gradient_head<P, forward>(m, documents, r.scan, options);
        else state_gradient_head<P, forward>(m, documents, r.scan, options);
      } else {
        if (chunks) chunk_transition_head<P, forward>(m, documents, r.scan, options.normalise);
        else transition_head<P, forward>(m, documents, r.scan, options.normalise);
      }
    });
  }
};

}  // namespace detail

// Neighbours of a level of the tree: what is wanted of them.
struct JoinArrays {
  View<const f32, 5> earlier = {}, later = {};      // [B, n, Hv, K, K], Phi
  View<const f32, 5> s_earlier = {}, s_later = {};  // [B, n, Hv, K, V], states from zeros
  View<const f32, 5> d_earlier = {}, d_later = {};  // [B, n, Hv, K, V], gradients
  View<f32, 5> joined = {};                    // [B, n, Hv, K, K] = later earlier
  View<f32, 5> s_joined = {};                  // [B, n, Hv, K, V] = later s_earlier + s_later
  View<f32, 5> d_joined = {};                  // [B, n, Hv, K, V] = earlier^T d_later + d_earlier
};

namespace detail {

template <Precision P, class K, class V> struct JoinCall {
  const char* name;
  const JoinArrays& x;
  Extent extent;

  template <class M> PairRefs<M, K, V> bind(M& m) const {
    Binding<M> b{m};
    auto square = [&](const char* array, Use use, const auto& v) { return bind_states<M, K, K>(b, array, use, v, Place::chunk_state); };
    auto state = [&](const char* array, Use use, const auto& v) { return bind_states<M, K, V>(b, array, use, v, Place::chunk_state); };
    PairRefs<M, K, V> r;
    if (x.joined || x.d_joined) r.earlier = square("earlier", Use::in, x.earlier);
    if (x.joined || x.s_joined) r.later = square("later", Use::in, x.later);
    r.joined = square("joined", Use::out, x.joined);
    if (x.s_joined) r.s_earlier = state("s_earlier", Use::in, x.s_earlier), r.s_later = state("s_later", Use::in, x.s_later);
    r.s_joined = state("s_joined", Use::out, x.s_joined);
    if (x.d_joined) r.d_earlier = state("d_earlier", Use::in, x.d_earlier), r.d_later = state("d_later", Use::in, x.d_later);
    r.d_joined = state("d_joined", Use::out, x.d_joined);
    return r;
  }
  template <class M> void head(M&, const PairRefs<M, K, V>& r) const { join_head<P>(r); }
};

template <class G, class Arrays> Extent check_scan(const char* call, const Arrays& x) {
  constexpr int C = G::chunk::size, K = G::key::size;
  checks::given(call, "k", static_cast<bool>(x.k));
  checks::given(call, "beta", static_cast<bool>(x.beta));
  checks::given(call, "t_inv", static_cast<bool>(x.t_inv));
  const std::int64_t B = x.k.shape[0], T = x.k.shape[1], Hk = x.k.shape[2], H = x.beta.shape[2], N = (T + C - 1) / C;
  check_heads(call, Hk, H);
  checks::shape(call, "k", x.k, {B, T, Hk, K});
  checks::shape(call, "beta", x.beta, {B, T, H});
  checks::optional_shape(call, "g", x.g, {B, T, H});
  checks::shape(call, "t_inv", x.t_inv, {B, N, C, H, C});
  checks::optional_shape(call, "ids", x.ids, {B, T});
  if constexpr (requires { x.q; }) {
    constexpr int V = G::value::size;
    checks::given(call, "q", static_cast<bool>(x.q));
    checks::given(call, "d_out", static_cast<bool>(x.d_out));
    checks::given(call, "d_initial", static_cast<bool>(x.d_initial));
    checks::shape(call, "q", x.q, {B, T, Hk, K});
    checks::shape(call, "d_out", x.d_out, {B, T, H, V});
    checks::optional_shape(call, "d_final", x.d_final, {B, H, K, V});
    checks::shape(call, "d_initial", x.d_initial, {B, H, K, V});
    checks::no_overlap(call, std::array{checks::span_of("q", x.q, false), checks::span_of("k", x.k, false), checks::span_of("d_out", x.d_out, false),
                                        checks::span_of("g", x.g, false), checks::span_of("beta", x.beta, false), checks::span_of("t_inv", x.t_inv, false),
                                        checks::span_of("ids", x.ids, false), checks::span_of("d_final", x.d_final, false),
                                        checks::span_of("d_initial", x.d_initial, true)}, [](auto, std::string_view i) { return i == "d_final"; });
  } else {
    checks::given(call, "phi", static_cast<bool>(x.phi));
    checks::shape(call, "phi", x.phi, {B, H, K, K});
    checks::no_overlap(call, std::array{checks::span_of("k", x.k, false), checks::span_of("g", x.g, false), checks::span_of("beta", x.beta, false),
                                        checks::span_of("t_inv", x.t_inv, false), checks::span_of("ids", x.ids, false), checks::span_of("phi", x.phi, true)},
                       [](auto, auto) { return false; });
  }
  return {static_cast<int>(B), static_cast<int>(T), C, static_cast<int>(Hk), static_cast<int>(H)};
}
inline DocumentPlan scan_plan(const View<const i32, 2>& ids, const Extent& x, bool continues) {
  DocumentPlan p = plan_documents(ids, x.batch, x.tokens, x.chunk, 0, continues, tail_rows);
  if (!ids && continues && x.tokens % x.chunk == 0) p.word.clear();
  return p;
}
template <int K> QueryOptions scan_options(const ScanOptions& o) {
  return {o.scale ? *o.scale : static_cast<f32>(1 / std::sqrt(static_cast<double>(K))), o.use_qk_norm};
}
inline void fill_identity(const View<f32, 4>& phi) {
  for (std::int64_t b = 0; b < phi.shape[0]; b++)
    for (std::int64_t h = 0; h < phi.shape[1]; h++)
      for (std::int64_t i = 0; i < phi.shape[2]; i++)
        for (std::int64_t j = 0; j < phi.shape[3]; j++)
          phi.data[b * phi.strides[0] + h * phi.strides[1] + i * phi.strides[2] + j * phi.strides[3]] = i == j ? 1.f : 0.f;
}

// Chunks [B, n, H, K, W] of a tree's level, in memory of its own.
struct Level {
  std::int64_t B, n, H, K, W;
  std::vector<f32> data;
  Level(std::int64_t B, std::int64_t n, std::int64_t H, std::int64_t K, std::int64_t W)
      : B(B), n(n), H(H), K(K), W(W), data(static_cast<std::size_t>(B * n * H * K * W)) {}
  View<f32, 5> all() { return view(data, {B, n, H, K, W}); }
  // Every second chunk: `m` of them, from `first` on.
  View<const f32, 5> every_second(std::int64_t first, std::int64_t m) const {
    const std::int64_t size = H * K * W;
    return {data.data() + first * size, {B, m, H, K, W}, {n * size, 2 * size, K * W, W, 1}};
  }
  View<f32, 5> front(std::int64_t m) {
    View<f32, 5> v = all();
    v.shape[1] = m;
    return v;
  }
  void copy(std::int64_t to, const Level& from, std::int64_t chunk) {
    const std::int64_t size = H * K * W;
    for (std::int64_t b = 0; b < B; b++)
      std::copy_n(from.data.begin() + (b * from.n + chunk) * size, size, data.begin() + (b * n + to) * size);
  }
};

}  // namespace detail

// Phi of a row, from the identity, chunks ascending.
template <Precision P = Precision::bf16x3, class G = Head128, class Machine, class Act>
void transition(Machine& machine, const TransitionArrays<Act>& x, const ScanOptions& o = {}) {
  constexpr const char* call = "transition";
  const Extent extent = detail::check_scan<G>(call, x);
  machine.check_data([&] { checks::no_growth(call, x.g); });
  if (extent.tokens == 0 || extent.batch == 0) return detail::fill_identity(x.phi);
  machine.run(detail::ScanCall<G, P, TransitionArrays, Act>{call, x, {}, extent, detail::scan_options<G::key::size>(o), detail::scan_plan(x.ids, extent, o.continues)});
}
// The gradient of the state before a row, chunks descending.
template <Precision P = Precision::bf16x3, class G = Head128, class Machine, class Act>
void state_gradient(Machine& machine, const StateGradientArrays<Act>& x, const ScanOptions& o = {}) {
  constexpr const char* call = "state_gradient";
  Extent extent = detail::check_scan<G>(call, x);
  machine.check_data([&] { checks::no_growth(call, x.g); });
  if (extent.tokens == 0 || extent.batch == 0) return detail::pass_on(x.d_final, x.d_initial);
  extent.descending = true;
  machine.run(detail::ScanCall<G, P, StateGradientArrays, Act>{call, x, {}, extent, detail::scan_options<G::key::size>(o), detail::scan_plan(x.ids, extent, o.continues)});
}

// The parts of the tree: Phi of every chunk [B, N, Hv, K, K]; what the outputs of a chunk give the gradient of the state before it
// [B, N, Hv, K, V]; and neighbours joined.
template <Precision P = Precision::bf16x3, class G = Head128, class Machine, class Act>
void chunk_transitions(Machine& machine, const TransitionArrays<Act>& x, const View<f32, 5>& phi, const ScanOptions& o = {}) {
  constexpr const char* call = "chunk_transitions";
  TransitionArrays<Act> a = x;
  checks::given(call, "phi", static_cast<bool>(phi));
  const std::int64_t B = x.k.shape[0], H = x.beta.shape[2];
  constexpr int K = G::key::size;
  a.phi = {phi.data, {B, H, K, K}, {phi.strides[0], phi.strides[2], phi.strides[3], phi.strides[4]}};
  const Extent extent = detail::check_scan<G>(call, a);
  machine.check_data([&] { checks::no_growth(call, x.g); });
  checks::shape(call, "phi", phi, {B, extent.chunks(), H, K, K});
  if (count(phi.shape) == 0) return;
  machine.run(detail::ScanCall<G, P, TransitionArrays, Act>{call, a, phi, extent, detail::scan_options<K>(o), detail::scan_plan(x.ids, extent, o.continues)});
}
template <Precision P = Precision::bf16x3, class G = Head128, class Machine, class Act>
void chunk_gradients(Machine& machine, const StateGradientArrays<Act>& x, const View<f32, 5>& d_initial, const ScanOptions& o = {}) {
  constexpr const char* call = "chunk_gradients";
  StateGradientArrays<Act> a = x;
  checks::given(call, "d_initial", static_cast<bool>(d_initial));
  const std::int64_t B = x.k.shape[0], H = x.beta.shape[2];
  constexpr int K = G::key::size, V = G::value::size;
  a.d_final = {};
  a.d_initial = {d_initial.data, {B, H, K, V}, {d_initial.strides[0], d_initial.strides[2], d_initial.strides[3], d_initial.strides[4]}};
  const Extent extent = detail::check_scan<G>(call, a);
  machine.check_data([&] { checks::no_growth(call, x.g); });
  checks::shape(call, "d_initial", d_initial, {B, extent.chunks(), H, K, V});
  if (count(d_initial.shape) == 0) return;
  machine.run(detail::ScanCall<G, P, StateGradientArrays, Act>{call, a, d_initial, extent, detail::scan_options<K>(o), detail::scan_plan(x.ids, extent, o.continues)});
}
template <Precision P = Precision::bf16x3, class G = Head128, class Machine> void join_chunks(Machine& machine, const JoinArrays& x) {
  constexpr const char* call = "join_chunks";
  constexpr int K = G::key::size, V = G::value::size;
  require(x.joined || x.s_joined || x.d_joined, call, ": nothing is wanted; expected one of joined, s_joined and d_joined");
  const Sizes<5> wanted = x.joined ? x.joined.shape : x.s_joined ? x.s_joined.shape : x.d_joined.shape;
  const std::int64_t B = wanted[0], n = wanted[1], H = wanted[2];
  auto needs = [&](bool needed, const char* name, const auto& v, int columns) {
    if (!needed) return;
    checks::given(call, name, static_cast<bool>(v));
    checks::shape(call, name, v, {B, n, H, K, columns});
  };
  needs(x.joined || x.d_joined, "earlier", x.earlier, K), needs(x.joined || x.s_joined, "later", x.later, K);
  needs(static_cast<bool>(x.joined), "joined", x.joined, K);
  for (const auto& [name, v, of] : {std::tuple{"s_earlier", x.s_earlier, x.s_joined}, {"s_later", x.s_later, x.s_joined}, {"d_earlier", x.d_earlier, x.d_joined},
                                    {"d_later", x.d_later, x.d_joined}, {"s_joined", View<const f32, 5>(x.s_joined), x.s_joined},
                                    {"d_joined", View<const f32, 5>(x.d_joined), x.d_joined}})
    needs(static_cast<bool>(of), name, v, V);
  checks::no_overlap(call, std::array{checks::span_of("earlier", x.earlier, false), checks::span_of("later", x.later, false),
                                      checks::span_of("s_earlier", x.s_earlier, false), checks::span_of("s_later", x.s_later, false),
                                      checks::span_of("d_earlier", x.d_earlier, false), checks::span_of("d_later", x.d_later, false),
                                      checks::span_of("joined", x.joined, true), checks::span_of("s_joined", x.s_joined, true),
                                      checks::span_of("d_joined", x.d_joined, true)},
                     [](auto, auto) { return false; });
  if (count(wanted) == 0) return;
  const int heads = static_cast<int>(H);
  machine.run(detail::JoinCall<P, typename G::key, typename G::value>{call, x, {static_cast<int>(B), static_cast<int>(n), 1, heads, heads}});
}

// The scans by way of the tree: all chunks' matrices at once, then neighbours joined, again and again. Without a partner the last chunk
// (of state_gradient_by_tree the first) waits for the next level. As many kernels as levels, and memory for N matrices.
template <Precision P = Precision::bf16x3, class G = Head128, class Machine, class Act>
void transition_by_tree(Machine& machine, const TransitionArrays<Act>& x, const ScanOptions& o = {}) {
  constexpr const char* call = "transition_by_tree";
  const Extent extent = detail::check_scan<G>(call, x);
  if (extent.tokens == 0 || extent.batch == 0) return detail::fill_identity(x.phi);
  constexpr int K = G::key::size;
  const std::int64_t B = extent.batch, H = extent.value_heads;
  machine.check_kernels(1 + std::bit_width(static_cast<unsigned>(extent.chunks() - 1)), "levels of a tree", "chunk_transitions and join_chunks for each");
  detail::Level phi(B, extent.chunks(), H, K, K);
  chunk_transitions<P, G>(machine, x, phi.all(), o);
  while (phi.n > 1) {
    const std::int64_t pairs = phi.n / 2;
    detail::Level next(B, (phi.n + 1) / 2, H, K, K);
    join_chunks<P, G>(machine, JoinArrays{.earlier = phi.every_second(0, pairs), .later = phi.every_second(1, pairs), .joined = next.front(pairs)});
    if (phi.n % 2) next.copy(pairs, phi, phi.n - 1);
    phi = std::move(next);
  }
  detail::pass_on(View<const f32, 4>(phi.data.data(), {B, H, K, K}, {H * K * K, K * K, K, 1}), x.phi);
}
template <Precision P = Precision::bf16x3, class G = Head128, class Machine, class Act>
void state_gradient_by_tree(Machine& machine, const StateGradientArrays<Act>& x, const ScanOptions& o = {}) {
  constexpr const char* call = "state_gradient_by_tree";
  const Extent extent = detail::check_scan<G>(call, x);
  if (extent.tokens == 0 || extent.batch == 0) return detail::pass_on(x.d_final, x.d_initial);
  constexpr int K = G::key::size, V = G::value::size;
  const std::int64_t B = extent.batch, H = extent.value_heads;
  machine.check_kernels(2 + std::bit_width(static_cast<unsigned>(extent.chunks() - 1)), "levels of a tree",
                        "chunk_transitions, chunk_gradients and join_chunks for each");
  detail::Level phi(B, extent.chunks(), H, K, K), d(B, extent.chunks(), H, K, V);
  chunk_transitions<P, G>(machine, TransitionArrays<Act>{x.k, x.g, x.beta, x.t_inv, x.ids, {}}, phi.all(), o);
  chunk_gradients<P, G>(machine, x, d.all(), o);
  while (phi.n > 1) {
    const std::int64_t pairs = phi.n / 2, odd = phi.n % 2;
    detail::Level next(B, (phi.n + 1) / 2, H, K, K), d_next(B, (phi.n + 1) / 2, H, K, V);
    // Joined chunks stand behind the first one, if that waits.
    View<f32, 5> joined = next.front(pairs), d_joined = d_next.front(pairs);
    joined.data += odd * joined.strides[1], d_joined.data += odd * d_joined.strides[1];
    join_chunks<P, G>(machine, JoinArrays{.earlier = phi.every_second(odd, pairs), .later = phi.every_second(odd + 1, pairs), .d_earlier = d.every_second(odd, pairs),
                                          .d_later = d.every_second(odd + 1, pairs), .joined = joined, .d_joined = d_joined});
    if (odd) next.copy(0, phi, 0), d_next.copy(0, d, 0);
    phi = std::move(next), d = std::move(d_next);
  }
  // The gradient of the state behind the row comes in last: the whole row is one more pair.
  if (x.d_final) {
    detail::Level end(B, 1, H, K, V), whole(B, 1, H, K, V);
    detail::pass_on(x.d_final, View<f32, 4>(end.data.data(), {B, H, K, V}, {H * K * V, K * V, V, 1}));
    join_chunks<P, G>(machine, JoinArrays{.earlier = phi.every_second(0, 1), .d_earlier = d.every_second(0, 1), .d_later = end.every_second(0, 1), .d_joined = whole.all()});
    d = std::move(whole);
  }
  detail::pass_on(View<const f32, 4>(d.data.data(), {B, H, K, V}, {H * K * V, K * V, V, 1}), x.d_initial);
}

}  // namespace gdn

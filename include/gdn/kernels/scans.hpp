// Scans over the chunks of a row, for rows that are cut over devices: a row maps the state before it to  Phi S + ..,  and the gradient of
// the state behind it to  Phi^T dS + ..  (Yang et al.; the association is that of chunk_forward.hpp, whose gf, gb, gl, E and M these are).
//   a chunk's Phi = gl I - (k w)^T (M (gf k)),  w = gb beta
//   m scan, chunks ascending from I:    A <- gl A - (k w)^T (M (gf (k A)))
//   dh scan, chunks descending from dS: A <- (gl A + (q gf)^T do) - (k gf)^T (M^T (E^T do + w (k A)))
// The products stay factored. Multiplied out, the rounding of Phi's near-identity part would be paid at every chunk; the tree does that:
//   Phi of neighbours is Phi_later Phi_earlier,  their state from zeros s = Phi_later s_earlier + s_later,
//   and their ends' gradient D = Phi_earlier^T D_later + D_earlier,
//   D of a chunk = (q gf)^T do - (k gf)^T (M^T (E^T do))
// Dots are of class P; Act is the class of the forward whose M it is, which tells how keys are rounded and decays summed.
#pragma once
#include "gdn/kernels/core_forward.hpp"

namespace gdn {

template <class M, class C, class K, class V> struct ScanRefs {
  Ref<M, f32, C, K> q, k;       // q, d_out: of the dh scan
  Ref<M, f32, C, V> d_out;
  Ref<M, f32, C, One> g, beta;  // g absent: no decay
  Ref<M, f32, C, C> t_inv;
  Ref<M, f32, K, V> sum;        // carried; or what is stored of each chunk
};

namespace detail {

template <class M, class C, class K> struct ScanKeys {
  Tile<M, f32, C, K> k;
  Tile<M, f32, K, C> kT;
};
template <class M, class C, class K> struct ScanQueries {
  Tile<M, f32, C, K> k;
  Tile<M, f32, K, C> kT, qT;
  Tile<M, f32, C, C> qk;
};
template <class M, class C> struct ScanDecays {
  Column<M, f32, C> w, gf;
  Scalar<M, f32> gl;
};

template <Precision Act, class D, class Refs> auto scan_gates(const D& documents, const Refs& x) {
  auto beta = valid_rows(documents, load(x.beta));
  auto g = x.g ? valid_rows(documents, load(x.g)) : map([](auto b) { return max(min(b, 0.f), 0.f); }, beta);
  return std::pair{log_decay<Act>(documents, g), beta};
}
template <class D, class Decay, class M, class C> ScanDecays<M, C> scan_decays(const D& documents, const Decay& c, const Column<M, f32, C>& beta) {
  return {writes_state(documents, decay_to_end(c)) * beta, reads_state(documents, decay(c)), passes_through(documents, decay(last_row(c)))};
}
template <class D, class M, class X> auto kept_of(const D& documents, const Scalar<M, f32>& gl, const X& A) {
  return passes_through(documents, unfinished([](auto gl, auto a) { return gl * a; }, gl, A));
}

// What the dh scan takes from the part of a chunk that knows no state.
template <class M, class C, class K, class V> struct GradientParts {
  Tile<M, f32, C, K> k;
  Tile<M, f32, K, C> kg;    // (k gf)^T
  Tile<M, f32, K, V> read;  // (q gf)^T do
  Tile<M, f32, C, V> seen;  // E^T do
  Column<M, f32, C> w;
  Scalar<M, f32> gl;
};
template <Precision P, Precision Act, class D, class M, class C, class K, class V>
GradientParts<M, C, K, V> gradient_parts(M& m, const D& documents, const ScanRefs<M, C, K, V>& x, const QueryOptions& options) {
  // As in the forward: a q that is not normalised is used as it is, and its scale goes where it costs nothing.
  const f32 query_scale = options.normalise ? options.scale : 1.f, scale = options.normalise ? 1.f : options.scale;
  auto keys = m.per_key_head([&] {
    auto q = prepared_key<Act>(documents, x.q, query_scale, options.normalise);
    auto k = prepared_key<Act>(documents, x.k, 1.f, options.normalise);
    auto kT = transpose(k);
    return ScanQueries<M, C, K>{k, kT, transpose(q), same_document(documents, tril(lower_product<P>(q, kT)))};
  });
  auto [c, beta] = scan_gates<Act>(documents, x);
  auto s = scan_decays(documents, c, beta);
  auto [E] = decayed_lower(c, scale == 1.f ? beta : beta * scale, keys.qk);
  auto d_out = valid_rows(documents, load(x.d_out));
  auto read = dot<P>(keys.qT * as_row(scale == 1.f ? s.gf : s.gf * scale), d_out);
  return {keys.k, keys.kT * as_row(s.gf), read, dot<P>(transpose(E), d_out), s.w, s.gl};
}

}  // namespace detail

template <Precision P, Precision Act, class D, class M, class C, class K, class V>
void transition_head(M& m, const D& documents, const ScanRefs<M, C, K, V>& x, bool normalise) {
  struct Prepared {
    Tile<M, f32, C, K> k;
    Tile<M, f32, K, C> kw;
    Column<M, f32, C> gf;
    Scalar<M, f32> gl;
  };
  auto p = m.stage(0, [&] {
    auto keys = m.per_key_head([&] {
      auto k = prepared_key<Act>(documents, x.k, 1.f, normalise);
      return detail::ScanKeys<M, C, K>{k, transpose(k)};
    });
    auto [c, beta] = detail::scan_gates<Act>(documents, x);
    auto s = detail::scan_decays(documents, c, beta);
    return Prepared{keys.k, keys.kT * as_row(s.w), s.gf, s.gl};
  });
  auto inverse = m.stage(1, [&] { return load(x.t_inv); });
  m.stage(2, [&] {
    auto A = load(x.sum);
    Tile<M, f32, C, V> read = reads_state(documents, unfinished([](auto gf, auto kA) { return gf * kA; }, p.gf, product<P>(p.k, A)));
    auto removed = dot<P>(lower(inverse), read);
    store(x.sum, map([](auto kept, auto removed) { return kept - removed; }, detail::kept_of(documents, p.gl, A), product<P>(p.kw, removed)));
    return 0;
  });
}

template <Precision P, Precision Act, class D, class M, class C, class K, class V>
void state_gradient_head(M& m, const D& documents, const ScanRefs<M, C, K, V>& x, const QueryOptions& options) {
  auto p = m.stage(0, [&] { return detail::gradient_parts<P, Act>(m, documents, x, options); });
  auto inverse = m.stage(1, [&] { return transpose(load(x.t_inv)); });
  m.stage(2, [&] {
    auto A = load(x.sum);
    auto dr = map([](auto seen, auto w, auto kA) { return seen + w * kA; }, p.seen, p.w, product<P>(p.k, A));
    auto dx = dot<P>(inverse, dr);
    store(x.sum, map([](auto kept, auto read, auto removed) { return kept + read - removed; }, detail::kept_of(documents, p.gl, A), p.read,
                     product<P>(p.kg, dx)));
    return 0;
  });
}

// ---- the tree: what a chunk is, and how neighbours join

// Phi, [K, V] with V as long as K.
template <Precision P, Precision Act, class D, class M, class C, class K, class V>
void chunk_transition_head(M& m, const D& documents, const ScanRefs<M, C, K, V>& x, bool normalise) {
  auto keys = m.per_key_head([&] {
    auto k = prepared_key<Act>(documents, x.k, 1.f, normalise);
    return detail::ScanKeys<M, C, K>{k, transpose(k)};
  });
  auto [c, beta] = detail::scan_gates<Act>(documents, x);
  auto s = detail::scan_decays(documents, c, beta);
  auto removed = retyped<Tile<M, f32, C, V>>(dot<P>(lower(load(x.t_inv)), s.gf * keys.k));
  auto written = dot<P>(keys.kT * as_row(s.w), removed);
  store(x.sum, map_ij([](auto i, auto j, auto gl, auto written) { return where(i == j, gl, 0.f) - written; }, s.gl, written));
}
template <Precision P, Precision Act, class D, class M, class C, class K, class V>
void chunk_gradient_head(M& m, const D& documents, const ScanRefs<M, C, K, V>& x, const QueryOptions& options) {
  auto p = detail::gradient_parts<P, Act>(m, documents, x, options);
  auto dx = dot<P>(transpose(load(x.t_inv)), p.seen);
  store(x.sum, p.read - dot<P>(p.kg, dx));
}

template <class M, class K, class V> struct PairRefs {
  Ref<M, f32, K, K> earlier, later, joined;        // Phi
  Ref<M, f32, K, V> s_earlier, s_later, s_joined;  // s
  Ref<M, f32, K, V> d_earlier, d_later, d_joined;  // D
};
template <Precision P, class M, class K, class V> void join_head(const PairRefs<M, K, V>& x) {
  const auto plus = [](auto through, auto y) { return through + y; };
  if (x.joined) store(x.joined, dot<P>(load(x.later), load(x.earlier)));
  if (x.s_joined) store(x.s_joined, map(plus, product<P>(load(x.later), load(x.s_earlier)), load(x.s_later)));
  if (x.d_joined) store(x.d_joined, map(plus, product<P>(transpose(load(x.earlier)), load(x.d_later)), load(x.d_earlier)));
}

}  // namespace gdn

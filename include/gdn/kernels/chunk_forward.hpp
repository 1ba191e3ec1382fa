// One chunk of the gated delta rule for one value head (Yang et al., "Gated Delta Networks", in the association below).
//   N_ij = G_ij b_j (k k^T)_ij, i > j      M = (I + N)^-1        E_ij = G_ij b_j (q k^T)_ij, i >= j
//   r = M (v - gf k S)                     o = gf q S + E r      S' = gl S + (k gb b)^T r
//   gf_i = 2^c_i, gb_i = 2^(c_last - c_i), gl = 2^c_last; see gates.hpp for c and G
//   q, k [C, K] and everything made of them alone is shared by the value heads of a key head; v, r, o [C, V]; S [K, V]
#pragma once
#include "gdn/kernels/documents.hpp"
#include "gdn/kernels/gates.hpp"
#include "gdn/kernels/inverse_orders.hpp"

namespace gdn {

template <Precision P, TileLike X> X as_operand(const X& x) {
  if constexpr (P == Precision::bf16) return rounded(x);
  else return x;
}

template <class M, class C, class K> struct Keys {
  Tile<M, f32, C, K> q, k;
};
template <class M, class C, class K> struct KeyScores {
  Tile<M, f32, K, C> kT;
  Tile<M, f32, C, C> kk, qk;  // strictly lower, lower
};
// What the state-free part of a chunk hands on.
template <class M, class C, class K> struct Scores {
  Tile<M, f32, C, C> N, E;
  Tile<M, f32, K, C> kb;  // (k gb b)^T
  Column<M, f32, C> gf;
  Scalar<M, f32> gl;
};

// states_only: q, o and E do not exist (q is then k, unused).
template <Precision P, bool Outputs, class D, class M, class C, class K>
KeyScores<M, C, K> key_scores(const D& documents, const Keys<M, C, K>& x) {
  auto kT = transpose(x.k);  // the one transpose: every other factor is placed so that no dot needs one
  auto kk = same_document(documents, tril<-1>(lower_product<P>(x.k, kT)));
  if constexpr (Outputs) return {kT, kk, same_document(documents, tril(lower_product<P>(x.q, kT)))};
  else return {kT, kk, kk};
}

template <bool Outputs, class G, class M, class C, class K> auto decayed_scores(const G& c, const Column<M, f32, C>& beta, const KeyScores<M, C, K>& x) {
  if constexpr (Outputs) {
    return decayed_lower(c, beta, x.kk, x.qk);
  } else {
    auto [N] = decayed_lower(c, beta, x.kk);
    return std::tuple{N, N};
  }
}

// Per-token factors stand on columns (rows of kT), where they are free on the TPU; only gf is a column.
template <Precision P, bool Outputs, class D, class M, class C, class K>
Scores<M, C, K> scores(const D& documents, const KeyScores<M, C, K>& x, const Column<M, f32, C>& g, const Column<M, f32, C>& beta) {
  auto c = log_decay<P>(documents, g);
  auto [N, E] = decayed_scores<Outputs>(c, beta, x);
  auto kb = x.kT * as_row(writes_state(documents, decay_to_end(c)) * beta);
  auto gf = reads_state(documents, decay(c));
  auto gl = passes_through(documents, decay(last_row(c)));
  return {N, E, kb, gf, gl};
}

template <Precision P, class D, class M, class C, class K, class V>
Tile<M, f32, C, V> residual(const D& documents, const Tile<M, f32, C, K>& k, const Tile<M, f32, C, V>& v, const Column<M, f32, C>& gf,
                            const Tile<M, f32, C, C>& inverse, const Tile<M, f32, K, V>& S) {
  auto read = reads_state(documents, unfinished([](auto gf, auto kS) { return gf * kS; }, gf, product<P>(k, S)));
  Tile<M, f32, C, V> left = v - read;
  return dot<P>(lower(inverse), left);
}
template <Precision P, class D, class M, class C, class K, class V>
auto output(const D& documents, const Tile<M, f32, C, K>& q, const Scores<M, C, K>& s, const Tile<M, f32, C, V>& r, const Tile<M, f32, K, V>& S,
            f32 scale) {
  auto read = reads_state(documents, unfinished([](auto gf, auto qS) { return gf * qS; }, s.gf, product<P>(q, S)));
  return valid_rows(documents, map([scale](auto read, auto Er) { return scale == 1.f ? read + Er : (read + Er) * scale; }, read, product<P>(lower(s.E), r)));
}
template <Precision P, class D, class M, class C, class K, class V>
Tile<M, f32, K, V> next_state(const D& documents, const Scores<M, C, K>& s, const Tile<M, f32, C, V>& r, const Tile<M, f32, K, V>& S) {
  auto kept = passes_through(documents, unfinished([](auto gl, auto S) { return gl * S; }, s.gl, S));
  return map([](auto kept, auto written) { return kept + written; }, kept, product<P>(s.kb, r));
}

// What one value head reads and writes beside its inputs. `out` is absent in the states-only form, the others when not asked for.
template <class M, class C, class K, class V> struct ForwardRefs {
  Ref<M, f32, C, V> out;
  Ref<M, f32, K, V> state;         // carried over the chunks
  Ref<M, f32, C, C> t_inv;         // M
  Ref<M, f32, K, V> chunk_states;  // the state before the chunk
  Ref<M, f32, C, V> residual;      // r
};

template <class M, class C, class K, class V> struct ForwardInputs {
  Keys<M, C, K> keys;
  Tile<M, f32, C, V> v;
  Column<M, f32, C> g, beta;
};

// The inverse in two parts: what is made of the diagonal blocks of I + N alone, and the rest, which waits for dots.
template <InverseOrder O, TileLike A> auto begun_inverse(const A& N) {
  if constexpr (O == InverseOrder::merged_blocks) return invert_diagonal_blocks(N);
  else return N;
}
template <InverseOrder O, Precision P, TileLike A, TileLike X> A finished_inverse(const A& N, const X& begun) {
  if constexpr (O == InverseOrder::merged_blocks) return inverse_from_blocks<P>(N, begun);
  else return unit_lower_inverse<O, P>(N);
}

// The chunk of one head in three stages, which a schedule may run on different chunks at a time. prepare() gives ForwardInputs;
// what it makes of keys it makes inside m.per_key_head.
template <Precision P, bool Outputs, InverseOrder O, class D, class M, class C, class K, class V, class Prepare>
void forward_head(M& m, const D& documents, const ForwardRefs<M, C, K, V>& x, Prepare prepare, f32 output_scale = 1.f) {
  auto p = m.stage(0, [&] {
    auto in = prepare();
    auto keys = m.per_key_head([&] { return key_scores<P, Outputs>(documents, in.keys); });
    auto s = scores<P, Outputs>(documents, keys, in.g, in.beta);
    return std::tuple{in, s, begun_inverse<O>(s.N)};
  });
  const auto& [in, s, begun] = p;
  auto inverse = m.stage(1, [&, &s = s, &begun = begun] {
    auto i = finished_inverse<O, P>(s.N, begun);
    if (x.t_inv) store(x.t_inv, i);
    return i;
  });
  m.stage(2, [&, &in = in, &s = s] {
    auto S = load(x.state);
    if (x.chunk_states) store(x.chunk_states, S);
    auto r = residual<P>(documents, in.keys.k, in.v, s.gf, inverse, S);
    if (x.residual) store(x.residual, r);
    if constexpr (Outputs) store(x.out, output<P>(documents, in.keys.q, s, r, S, output_scale));
    store(x.state, next_state<P>(documents, s, r, S));
    return 0;
  });
}

}  // namespace gdn

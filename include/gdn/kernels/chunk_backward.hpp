// The backward of one chunk of the gated delta rule (chunk_forward.hpp) for one value head, from what the forward left behind: M, r and
// the state S before the chunk. do is the cotangent of o, dS that of the state after the chunk; s the factor of o.
//   dx = (E M)^T do + (diag(w) M)^T (k dS)      dv = dx      w = gb b      E_ij = s G_ij b_j (q k^T)_ij, i >= j
//   X_ij = -(dx r^T)_ij G_ij, i > j             U_ij = s (do r^T)_ij G_ij, i >= j             X' = X diag(b)      U' = U diag(b)
//   hq = s gf do S^T      hk = -gf dx S^T       I = gb r dS^T
//   dq = sum over heads of U' k + hq            dk = sum over heads of (X' + X'^T) k + U'^T q + hk + b I
//   D = X . k k^T + U . q k^T                   db_j = sum_i D_ij + k_j I_j
//   dg_t = sum of b_j D_ij over i >= t > j + sum over i >= t of (q_i hq_i + k_i hk_i) + sum over j < t of b_j k_j I_j + gl sum(dS . S)
//   dS' = gl dS + (q s gf)^T do - (k gf)^T dx, the cotangent of the state before the chunk
// Nothing cancels in dg: it is a sum of what crosses the gate at t. So every dot is of the class of the activations. Matrices of a key head
// are summed over its value heads in f32 before they meet q and k. hq, hk and I are kept transposed, channels on rows: per-token factors then
// stand on columns, and sums over channels are sums of rows.
#pragma once
#include "gdn/kernels/chunk_forward.hpp"

namespace gdn {

// What one value head reads and writes beside its inputs; gradients that are not asked for are absent.
template <class M, class C, class K, class V> struct BackwardRefs {
  Ref<M, f32, C, V> d_out, residual;
  Ref<M, f32, C, C> t_inv;
  Ref<M, f32, K, V> chunk_states;
  Ref<M, f32, K, V> d_state;  // carried from the last chunk to the first
};
// What is made of keys alone, once per key head.
template <class M, class C, class K> struct BackwardKeys {
  Keys<M, C, K> rows;
  Tile<M, f32, K, C> qT, kT;
  Tile<M, f32, C, C> kk, qk;  // strictly lower, lower
};
// The cotangent of a value head's v, what its key head adds up, and sums of rows that dg and dbeta are made of.
template <class M, class C, class K, class V> struct HeadCotangents {
  Tile<M, f32, C, V> dv;
  Tile<M, f32, C, C> U, X;    // U', X'
  Tile<M, f32, K, C> hq, hk;  // hk with b I
  struct Sums {
    RowVector<M, f32, C> D, kI, reads, crossing;
    RowVector<M, f32, V> dS_S;
  } sums;
};
template <class M, class C> struct GateCotangents {
  Column<M, f32, C> dg, dbeta;
};
template <class M, class C, class K> struct KeyCotangents {
  Tile<M, f32, C, K> dq, dk;
};

template <Precision P, class D, class M, class C, class K> BackwardKeys<M, C, K> backward_keys(const D& documents, const Keys<M, C, K>& x) {
  auto s = key_scores<P, true>(documents, x);
  return {x, transpose(x.q), s.kT, s.kk, s.qk};
}

template <TileLike X> X scaled(const X& x, f32 by) { return by == 1.f ? x : X(x * by); }

// The state-free part of a chunk.
template <class M, class C, class K> struct BackwardScores {
  Tile<M, f32, C, C> G;              // 2^(c_i - c_j); anything above the diagonal and across documents
  Tile<M, f32, C, cat_t<C, C>> to_dx;  // [(E M)^T, (diag(w) M)^T]
  Tile<M, f32, K, cat_t<C, C>> to_dS;  // [(q s gf)^T, -(k gf)^T]
  RowVector<M, f32, C> gf, gb;
  Scalar<M, f32> gl;
};
template <Precision P, class D, class M, class C, class K>
BackwardScores<M, C, K> backward_scores(const D& documents, const BackwardKeys<M, C, K>& x, const Column<M, f32, C>& g, const Column<M, f32, C>& beta,
                                        const Tile<M, f32, C, C>& inverse, f32 scale) {
  auto c = log_decay<P>(documents, g);
  auto [E] = decayed_lower(c, beta, x.qk);
  auto gf = as_row(reads_state(documents, decay(c)));
  auto gb = as_row(writes_state(documents, decay_to_end(c)));
  auto gl = passes_through(documents, decay(last_row(c)));
  auto EM = dot<P>(lower(scaled(E, scale)), inverse);
  auto to_dx = concat_cols(transpose(EM), transpose(inverse) * (gb * as_row(beta)));
  auto to_dS = concat_cols(x.qT * scaled(gf, scale), map([](auto k, auto gf) { return 0.f - k * gf; }, x.kT, gf));
  return {pairwise_decay(c), to_dx, to_dS, gf, gb, gl};
}

template <Precision P, class D, class M, class C, class K, class V>
HeadCotangents<M, C, K, V> head_cotangents(const D& documents, const BackwardRefs<M, C, K, V>& refs, const BackwardKeys<M, C, K>& x,
                                           const BackwardScores<M, C, K>& s, const Column<M, f32, C>& beta, f32 scale) {
  auto d_out = valid_rows(documents, load(refs.d_out));
  auto r = valid_rows(documents, load(refs.residual));
  auto S = load(refs.chunk_states);
  auto dS = load(refs.d_state);
  auto b = as_row(beta);

  auto dx = dot<P>(s.to_dx, concat_rows(d_out, dot<P>(x.rows.k, dS)));
  auto kept = passes_through(documents, s.gl * dS);
  store(refs.d_state, map([](auto kept, auto added) { return kept + added; }, kept, product<P>(s.to_dS, concat_rows(d_out, dx))));

  auto rT = transpose(r);
  auto hq = map([](auto gf, auto Sd_out) { return gf * Sd_out; }, scaled(s.gf, scale), product<P>(S, transpose(d_out)));
  auto hk = map([](auto gf, auto Sdx) { return 0.f - gf * Sdx; }, s.gf, product<P>(S, transpose(dx)));
  auto I = map([](auto gb, auto dSr) { return gb * dSr; }, s.gb, product<P>(dS, rT));
  auto through_out = unfinished([scale](auto d, auto G) { return scale == 1.f ? d * G : (d * G) * scale; }, lower_product<P>(d_out, rT), s.G);
  auto through_x = unfinished([](auto d, auto G) { return 0.f - d * G; }, lower_product<P>(dx, rT), s.G);
  Tile<M, f32, C, C> U = same_document(documents, tril(through_out)), X = same_document(documents, tril<-1>(through_x));

  auto D0 = map([](auto X, auto kk, auto U, auto qk) { return X * kk + U * qk; }, X, x.kk, U, x.qk);
  auto kI = sum_rows(x.kT * I);
  auto reads = sum_rows(map([](auto q, auto hq, auto k, auto hk) { return q * hq + k * hk; }, x.qT, hq, x.kT, hk));
  auto before = map_ij([](auto j, auto t, auto zero) { return where(j < t, 1.f, zero); }, zeros_like(D0));
  auto crossing = sum_rows(tril(dot<P>(D0 * b, before)));  // pairs i >= t > j
  return {dx, U * b, X * b, hq, hk + b * I, {sum_rows(D0), kI, reads, crossing, sum_rows(dS * S)}};
}
// What crosses the gate before t: those pairs, rows from t on that read the state, rows before t that wrote it, and the state itself.
template <class D, class M, class C, class Sums>
GateCotangents<M, C> gate_cotangents(const D& documents, const Sums& sums, const Column<M, f32, C>& beta, const Scalar<M, f32>& gl) {
  auto through = passes_through(documents, gl * sum_cols(sums.dS_S));
  auto crossing = as_column(sums.crossing) + sums_from(as_column(sums.reads)) + sums_before(as_column(as_row(beta) * sums.kI));
  return {crossing + through, as_column(sums.D + sums.kI)};
}

// Of sums over the value heads.
template <Precision P, class M, class C, class K>
KeyCotangents<M, C, K> key_cotangents(const Keys<M, C, K>& x, const Tile<M, f32, C, C>& U, const Tile<M, f32, C, C>& X, const Tile<M, f32, K, C>& hq,
                                      const Tile<M, f32, K, C>& hk) {
  auto dq = map([](auto h, auto Uk) { return Uk + h; }, transpose(hq), product<P>(lower(U), x.k));
  auto both = concat_cols(X + transpose(X), transpose(U));
  auto dk = map([](auto h, auto d) { return d + h; }, transpose(hk), product<P>(both, concat_rows(x.k, x.q)));
  return {dq, dk};
}

}  // namespace gdn

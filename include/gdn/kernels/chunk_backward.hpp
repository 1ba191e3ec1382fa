// The backward of one chunk of the gated delta rule (chunk_forward.hpp) for one value head, from what the forward left behind: M, r and
// the state S before the chunk. do is the cotangent of o, dS that of the state after the chunk; s the factor of o.
//   dx = (E M)^T do + (diag(w) M)^T (k dS)      dv = dx      w = gb b      E_ij = s G_ij b_j (q k^T)_ij, i >= j
//   U = (do r^T) . G      X = (dx r^T) . G      D = U . s q k^T - X . k k^T, i >= j, k k^T strictly lower
//   hq = S do^T           hk = S dx^T           I = dS r^T
//   dq = sum over heads of (s U diag(b)) k + s gf hq
//   dk = sum over heads of (s U diag(b))^T q - (X' + X'^T) k - gf hk + w I,  X' = X diag(b);  U above and X from the diagonal on count as 0
//   db_j = sum_i D_ij + gb_j k_j I_j
//   dg_t = sum of b_j D_ij over i >= t > j + sum over i >= t of gf_i (s q_i hq_i - k_i hk_i) + sum over j < t of w_j k_j I_j + gl sum(dS . S)
//   dS' = gl dS + (q s gf)^T do - (k gf)^T dx, the cotangent of the state before the chunk
// Nothing cancels in dg: it is a sum of what crosses the gate at t. So every dot is of the class of the activations. Matrices of a key head
// are summed over its value heads in f32 before they meet q and k; masks, signs and s wait for that sum where they can. hq, hk and I are kept
// transposed, channels on rows: per-token factors then stand on columns, and sums over channels are sums of rows.
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
  Tile<M, f32, K, cat_t<C, C>> qkT;  // [q^T, k^T]
  Tile<M, f32, C, C> kk, qk;         // k k^T, strictly lower; s q k^T, lower and within documents
};
// What a key head adds up over its value heads.
template <class M, class C, class K> struct KeySums {
  Tile<M, f32, C, C> U, X;         // U diag(b), X diag(b), nothing masked
  Tile<M, f32, K, cat_t<C, C>> h;  // gf [hq, hk]
  Tile<M, f32, K, C> I;            // w I
};
// Sums of rows that dg and dbeta are made of.
template <class M, class C, class V> struct GateSums {
  RowVector<M, f32, C> D, kI, crossing;
  RowVector<M, f32, cat_t<C, C>> reads;  // [q hq, k hk]
  RowVector<M, f32, V> dS_S;
};
template <class M, class C, class K, class V> struct HeadCotangents {
  Tile<M, f32, C, V> dv;
  KeySums<M, C, K> key;
  GateSums<M, C, V> gates;
};
template <class M, class C> struct GateCotangents {
  Column<M, f32, C> dg, dbeta;
};
template <class M, class C, class K> struct KeyCotangents {
  Tile<M, f32, C, K> dq, dk;
};

template <TileLike X> X scaled(const X& x, f32 by) { return by == 1.f ? x : X(x * by); }

template <Precision P, class D, class M, class C, class K>
BackwardKeys<M, C, K> backward_keys(const D& documents, const Keys<M, C, K>& x, f32 scale) {
  auto qT = transpose(x.q), kT = transpose(x.k);
  auto kk = tril<-1>(product<P>(x.k, kT));
  auto qk = same_document(documents, tril(product<P>(x.q, kT)));
  return {x, qT, kT, concat_cols(qT, kT), kk, scaled(qk, scale)};
}

// The state-free part of a chunk.
template <class M, class C, class K> struct BackwardScores {
  Tile<M, f32, C, C> G;                // 2^(c_i - c_j); anything above the diagonal and across documents
  Tile<M, f32, C, cat_t<C, C>> to_dx;  // [(E M)^T, (diag(w) M)^T]
  Column<M, f32, C> gf, gb;
  Scalar<M, f32> gl;
};
template <Precision P, class D, class M, class C, class K>
BackwardScores<M, C, K> backward_scores(const D& documents, const BackwardKeys<M, C, K>& x, const Column<M, f32, C>& g, const Column<M, f32, C>& beta,
                                        const Tile<M, f32, C, C>& inverse) {
  auto c = log_decay<P>(documents, g);
  auto gf = reads_state(documents, decay(c));
  auto gb = writes_state(documents, decay_to_end(c));
  auto gl = passes_through(documents, decay(last_row(c)));
  auto G = pairwise_decay(c);
  auto i = as_operand<P>(inverse);  // as the forward's dots read it
  auto to_dx = concat_cols(transpose(dot<P>(lower(G * as_row(beta) * x.qk), i)), transpose(i) * as_row(gb * beta));
  return {G, to_dx, gf, gb, gl};
}

template <Precision P, class D, class M, class C, class K, class V>
HeadCotangents<M, C, K, V> head_cotangents(const D& documents, const BackwardRefs<M, C, K, V>& refs, const BackwardKeys<M, C, K>& x,
                                           const BackwardScores<M, C, K>& s, const Column<M, f32, C>& beta, f32 scale) {
  auto d_out = valid_rows(documents, load(refs.d_out));
  auto r = rows_of_array(documents, load(refs.residual));
  auto S = load(refs.chunk_states);
  auto dS = load(refs.d_state);
  auto b = as_row(beta), gf = as_row(s.gf);

  auto dx = dot<P>(s.to_dx, concat_rows(d_out, dot<P>(x.rows.k, dS)));
  auto to_dS = concat_cols(x.qT * scaled(gf, scale), x.kT * map([](auto gf) { return 0.f - gf; }, gf));
  auto kept = passes_through(documents, unfinished([](auto gl, auto dS) { return gl * dS; }, s.gl, dS));
  store(refs.d_state, map([](auto kept, auto added) { return kept + added; }, kept, product<P>(to_dS, concat_rows(d_out, dx))));

  auto rT = transpose(r);
  auto h = dot<P>(S, transpose(concat_rows(d_out, dx)));
  auto I = dot<P>(dS, rT);
  auto U = product<P>(d_out, rT) * s.G;
  auto X = product<P>(dx, rT) * s.G;
  auto crossed = map([](auto U, auto qk, auto X, auto kk) { return U * qk - X * kk; }, U, x.qk, X, x.kk);
  Tile<M, f32, C, C> D0 = same_document(documents, tril(crossed));
  auto before = map_ij([](auto j, auto t, auto zero) { return where(j < t, 1.f, zero); }, zeros_like(D0));
  auto crossing = sum_rows(tril(dot<P>(D0 * b, before)));  // pairs i >= t > j
  return {dx,
          {U * b, X * b, h * concat_cols(gf, gf), I * as_row(s.gb * beta)},
          {sum_rows(D0), sum_rows(x.kT * I), crossing, sum_rows(x.qkT * h), sum_rows(dS * S)}};
}
// What crosses the gate before t: those pairs, rows from t on that read the state, rows before t that wrote it, and the state itself.
template <class D, class M, class C, class K, class V>
GateCotangents<M, C> gate_cotangents(const D& documents, const GateSums<M, C, V>& sums, const BackwardScores<M, C, K>& s, const Column<M, f32, C>& beta,
                                     f32 scale) {
  auto qk = as_column(sums.reads);
  auto half = [&](auto part) { return retyped<Column<M, f32, C>>(rows<part * C::size, C::size>(qk)); };
  auto of_q = half(std::integral_constant<int, 0>{}), of_k = half(std::integral_constant<int, 1>{});
  auto reads = s.gf * (scaled(of_q, scale) - of_k);
  auto writes = s.gb * as_column(sums.kI);
  auto through = passes_through(documents, s.gl * sum_cols(sums.dS_S));
  auto crossing = as_column(sums.crossing) + sums_from(reads) + sums_before(beta * writes);
  return {crossing + through, as_column(sums.D) + writes};
}

// Of sums over the value heads.
template <Precision P, class D, class M, class C, class K>
KeyCotangents<M, C, K> key_cotangents(const D& documents, const Keys<M, C, K>& x, const KeySums<M, C, K>& sums, f32 scale) {
  Tile<M, f32, C, C> U = same_document(documents, tril(scaled(sums.U, scale)));
  Tile<M, f32, C, C> X = same_document(documents, tril<-1>(map([](auto x) { return 0.f - x; }, sums.X)));  // -X'
  auto h = transpose(as_operand<P>(sums.h));
  auto dots = dot<P>(concat_rows(U, X), x.k);
  auto half = [](const auto& t, auto part) { return retyped<Tile<M, f32, C, K>>(rows<part * C::size, C::size>(t)); };
  constexpr std::integral_constant<int, 0> upper;
  constexpr std::integral_constant<int, 1> lower;
  auto dq = half(dots, upper) + scaled(half(h, upper), scale);
  auto dk = map([](auto Xk, auto UTq, auto I, auto hk) { return (Xk + UTq) + (I - hk); }, half(dots, lower),
                product<P>(transpose(concat_rows(X, U)), concat_rows(x.k, x.q)), transpose(sums.I), half(h, lower));
  return {dq, dk};
}

}  // namespace gdn

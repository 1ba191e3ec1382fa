// Documents in a row, as a kernel sees them. Everything is a select: what it discards may be anything.
//   word_t = 256 document_t + sum over d of 2^d [token t - d is valid and of document_t]       bit 0: token t is valid
// Padding carries the document of the last valid token before it.
#pragma once
#include "gdn/ops.hpp"

namespace gdn {

inline constexpr int document_shift = 8;

// The tokens of a chunk, and the documents that its neighbours end and it ends with.
template <class M, class C> struct Documents {
  Column<M, i32, C> word;
  Column<M, i32, C> id;
  Scalar<M, i32> before, last;
  bool ragged;  // the last chunk reaches beyond the arrays
};
template <class M, class C>
Documents<M, C> documents_of(const Column<M, i32, C>& word, const Scalar<M, i32>& before, const Scalar<M, i32>& last, bool ragged) {
  return {word, map([](auto w) { return w >> document_shift; }, word), before, last, ragged};
}
// One document without padding: every mask is true.
struct OneDocument {};

namespace detail {
inline constexpr auto if_valid = [](auto w, auto x) { return where((w & 1) == 1, x, 0.f); };
inline constexpr auto if_same = [](auto a, auto b, auto x) { return where(a == b, x, 0.f); };
}  // namespace detail

template <Operand X> X valid_rows(OneDocument, const X& x) { return x; }
template <class D, Operand X> auto valid_rows(const D& d, const X& x) { return map(detail::if_valid, d.word, x); }
// Rows beyond the array hold anything: nothing may be computed from them.
template <TileLike X> X rows_of_array(OneDocument, const X& x) { return x; }
template <class D, TileLike X> X rows_of_array(const D& d, const X& x) { return d.ragged ? X(valid_rows(d, x)) : x; }
// The same for those of the chunk's rows that begin with row First.
template <int First, TileLike X> X rows_of_array(OneDocument, const X& x) { return x; }
template <int First, class D, TileLike X> X rows_of_array(const D& d, const X& x) {
  using Words = Column<typename X::machine, i32, typename X::rows>;
  return d.ragged ? X(map(detail::if_valid, retyped<Words>(rows<First, X::rows::size>(d.word)), x)) : x;
}
// Rows whose token `distance` places earlier is valid and of their document.
template <int Distance, TileLike X> X rows_that_see(OneDocument, const X& x) { return x; }
template <int Distance, class D, TileLike X> X rows_that_see(const D& d, const X& x) {
  static_assert(Distance < document_shift, "rows_that_see<distance>: a word knows the 7 tokens before its own");
  return map([](auto w, auto x) { return where((w & (1 << Distance)) == (1 << Distance), x, 0.f); }, d.word, x);
}
template <Operand X> X same_document(OneDocument, const X& x) { return x; }
template <class D, Operand X> auto same_document(const D& d, const X& x) { return map(detail::if_same, d.id, as_row(d.id), x); }
// Rows that read the state which comes in, rows that write the state which goes out, and the state that passes through.
template <Operand X> X reads_state(OneDocument, const X& x) { return x; }
template <class D, Operand X> auto reads_state(const D& d, const X& x) { return map(detail::if_same, d.id, d.before, x); }
template <TileLike X> X writes_state(OneDocument, const X& x) { return x; }
template <class D, TileLike X> X writes_state(const D& d, const X& x) { return map(detail::if_same, d.id, d.last, x); }
template <Operand X> X passes_through(OneDocument, const X& x) { return x; }
template <class D, Operand X> auto passes_through(const D& d, const X& x) { return map(detail::if_same, d.before, d.last, x); }
template <class M, class C> Column<M, f32, C> sum_within(OneDocument, const Column<M, f32, C>& x) { return cumsum(x); }
template <class D, class M, class C> Column<M, f32, C> sum_within(const D& d, const Column<M, f32, C>& x) { return cumsum_within(d.id, x); }

}  // namespace gdn

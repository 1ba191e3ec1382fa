// (I + N)^-1 of many strictly lower triangular matrices at once: the inverse inside the chunked forward as a call of its own.
#pragma once
#include "gdn/calls/forward.hpp"
#include "gdn/kernels/inverse_orders.hpp"

namespace gdn {

// Laid out as `t_inv` is: row i, column j of the matrix of chunk n and head h at [b, n, i, h, j].
struct InverseArrays {
  View<const f32, 5> N;    // [B, N, C, H, C]; read strictly below the diagonal, the rest may be anything
  View<f32, 5> inverse;    // [B, N, C, H, C]; may be N itself
};
// `count` matrices one after the other, [count, C, C].
inline InverseArrays inverse_arrays(const View<const f32, 3>& N, const View<f32, 3>& inverse) {
  auto spread = [](const auto& v) {
    View<std::remove_pointer_t<decltype(v.data)>, 5> w;
    w.data = v.data, w.given = v.given;
    w.shape = {v.shape[0], 1, v.shape[1], 1, v.shape[2]};
    w.strides = {v.strides[0], 0, v.strides[1], 0, v.strides[2]};
    return w;
  };
  return {spread(N), spread(inverse)};
}

namespace detail {
template <int Size, InverseOrder O, Precision P> struct InverseCall {
  using C = Chunk<Size>;
  const char* name;
  const InverseArrays& x;
  Extent extent;

  template <class M> InverseRefs<M, C> bind(M& m) const {
    Binding<M> b{m};
    return {b.template ref<f32, C, C>(b.array("N", Use::in, x.N), Place::tokens, Use::in, Domain::value_head),
            b.template ref<f32, C, C>(b.array("inverse", Use::out, x.inverse), Place::tokens, Use::out, Domain::value_head)};
  }
  template <class M> void head(M& m, const InverseRefs<M, C>& r) const { inverse_head<O, P>(m, r); }
};
}  // namespace detail

// C is 16, 32, 64 or another power of two from 16 on. The dots between blocks are of class P.
template <int C = 64, InverseOrder O = InverseOrder::merged_blocks, Precision P = Precision::f32, class Machine>
void invert_unit_lower(Machine& machine, const InverseArrays& x) {
  static_assert(C >= solve_block && (C & (C - 1)) == 0, "invert_unit_lower<C>: C must be a power of two, 16 or more");
  constexpr const char* call = "invert_unit_lower";
  checks::given(call, "N", static_cast<bool>(x.N));
  checks::given(call, "inverse", static_cast<bool>(x.inverse));
  const std::int64_t B = x.N.shape[0], chunks = x.N.shape[1], H = x.N.shape[3];
  checks::shape(call, "N", x.N, {B, chunks, C, H, C});
  checks::shape(call, "inverse", x.inverse, {B, chunks, C, H, C});
  checks::no_overlap(call, std::array{checks::span_of("N", x.N, false), checks::span_of("inverse", x.inverse, true)},
                     [](std::string_view, std::string_view) { return true; });
  if (count(x.N.shape) == 0) return;
  const int heads = static_cast<int>(H);
  machine.run(detail::InverseCall<C, O, P>{call, x, {static_cast<int>(B), static_cast<int>(chunks) * C, C, heads, heads}});
}

}  // namespace gdn

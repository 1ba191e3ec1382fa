// Lines of the layer as kernels of their own, with the layer's bits.
//   y = silu(conv(x))      y = l2norm(x) scale      g = -exp(A_log) softplus(a + dt_bias), beta = sigmoid(b)
#pragma once
#include "gdn/kernels/layer_forward.hpp"

namespace gdn {

template <class D, class M, class C, class W, class T>
void conv_head(const D& documents, const ConvRefs<M, C, W, T>& x, const Ref<M, i32, One, One>& edge_plan, const Ref<M, f32, C, W>& y) {
  store(y, conv_silu(documents, x, edge_plan));
}

template <class D, class M, class C, class W>
void l2norm_head(const D& documents, const Ref<M, f32, C, W>& x, const Ref<M, f32, C, W>& y, f32 scale) {
  store(y, l2_normalised(rows_of_array(documents, load(x)), scale));
}

template <class M, class C> struct GateRefs {
  Ref<M, f32, C, One> a, b;
  Ref<M, f32, One, One> A_log, dt_bias;
  Ref<M, f32, C, One> g, beta;
};
template <class D, class M, class C> void gates_head(const D& documents, const GateRefs<M, C>& x) {
  store(x.g, decay_of(documents, x));
  store(x.beta, beta_of(documents, x));
}

}  // namespace gdn

// Claims that both backward calls make; `Call` is CoreBackward or LayerBackward.
#pragma once
#include <catch2/catch.hpp>

#include "../kernels/backward_inputs.hpp"
#include "../kernels/elsewhere.hpp"

namespace gdn::test {

template <class Act, class G> void backward_of(Cpu& cpu, const CoreBackward<Act, G>& call, const CoreArrays<Act>& x, const CoreGradients<Act>& d) {
  backward<G>(cpu, x, d, call.forward.options);
}
template <class Act, class G> void backward_of(Cpu& cpu, const LayerBackward<Act, G>& call, const LayerArrays<Act>& x, const LayerGradients<Act>& d) {
  layer_backward<G>(cpu, x, d, call.options());
}
template <class Act> void move_all(Elsewhere<int>& e, CoreArrays<Act>& x, CoreGradients<Act>& d) {
  e.move(x.q), e.move(x.k), e.move(x.g), e.move(x.beta);
  e.move_result(d.dq), e.move_result(d.dk), e.move_result(d.dv), e.move_result(d.dg), e.move_result(d.dbeta);
}
template <class Act> void move_all(Elsewhere<int>& e, LayerArrays<Act>& x, LayerGradients<Act>& d) {
  e.move(x.qkv), e.move(x.a), e.move(x.b), e.move(x.conv_weights), e.move(x.conv_bias), e.move(x.A_log), e.move(x.dt_bias), e.move(x.conv_initial);
  e.move_result(d.dqkv), e.move_result(d.da), e.move_result(d.db), e.move_result(d.d_conv_weights), e.move_result(d.d_conv_bias);
  e.move(d.d_conv_final);
  e.move_result(d.dA_log), e.move_result(d.ddt_bias), e.move_result(d.d_conv_initial);
}

// J5, B42
template <class Call> void check_elsewhere(const Spec& spec) {
  Call call(spec);
  const Outputs right = run(Cpu(2), call);
  for (Placement p : {Placement::padded, Placement::reversed, Placement::permuted}) {
    auto x = call.x;
    auto d = call.gradients();
    Elsewhere<int> e{p, {}, {}};
    move_all(e, x, d);
    const auto move_written = [&]<class T, int Rank>(View<T, Rank>& v) {  // by the forward: read here
      View<const T, Rank> read = v;
      e.move(read);
      v = {const_cast<T*>(read.data), read.shape, read.strides};
    };
    move_written(x.residual), move_written(x.residuals.t_inv), move_written(x.residuals.chunk_states);
    e.move(x.initial), e.move(x.ids), e.move(d.d_out), e.move(d.d_final), e.move_result(d.d_initial);
    Cpu cpu(2);
    backward_of(cpu, call, x, d);
    CHECK(differences(right, call.outputs()) != "");  // still elsewhere
    for (auto& f : e.back) f();
    CHECK(differences(right, call.outputs()) == "");
  }
}

// J13
template <class Call> void check_one_document(Spec spec) {
  spec.documents = false;
  Call none(spec);
  spec.documents = true;
  Call one(spec);
  std::fill(one.forward.ids.begin(), one.forward.ids.end(), 7);
  one.run_forward();
  const Outputs right = run(Cpu(2), none);
  CHECK(differences(right, run(Cpu(2), one)) == "");
  one.forward.ids.back() = 8;
  one.run_forward();
  CHECK(differences(right, run(Cpu(2), one)) != "");
}

}  // namespace gdn::test

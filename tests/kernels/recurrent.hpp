// The token calls with their memory, as inputs.hpp has it for the chunked ones.
#pragma once
#include <gdn/calls/recurrent.hpp>

#include "traced.hpp"

namespace gdn::test {

template <class Act, class G = Small> struct Tokens : Core<Act, G> {
  using Core<Act, G>::Core;
  CoreArrays<Act> arrays() {
    auto a = Core<Act, G>::arrays();
    a.residual = {}, a.residuals = {};
    return a;
  }
  Outputs outputs() const { return without(Core<Act, G>::outputs(), {"t_inv", "chunk_states", "residual"}); }
  template <class Machine> void call(Machine& machine) { recurrent<G>(machine, arrays(), this->options); }
};

// Token t of all rows, by the views of a whole call; its states from and to.
template <class Act> CoreArrays<Act> token_of(CoreArrays<Act> a, std::int64_t t, const View<const f32, 4>& from, const View<f32, 4>& to) {
  const auto at = [&](auto& x) {
    if (!x) return;
    x.data += t * x.strides[1];
    x.shape[1] = 1;
  };
  at(a.q), at(a.k), at(a.v), at(a.g), at(a.beta), at(a.out);
  a.initial = from, a.final = to;
  return a;
}

// A call of T tokens as T single ones, the state in place.
template <class Act, class G = Small> struct SingleTokens : Tokens<Act, G> {
  using Tokens<Act, G>::Tokens;
  template <class Machine> void call(Machine& machine) {
    const auto a = this->arrays();
    if (this->spec.initial) this->final = this->initial;
    else this->final.assign(this->final.size(), 0.f);
    for (int t = 0; t < this->spec.tokens; t++) decode<G>(machine, token_of(a, t, a.final, a.final), this->options);
  }
};

// A layer of T tokens as T single ones; all states in place.
template <class Act, class G = Small> struct SingleLayerTokens : Layer<Act, G> {
  using Layer<Act, G>::Layer;
  bool in_place = true;
  Outputs outputs() const { return without(Layer<Act, G>::outputs(), {"t_inv", "chunk_states", "residual"}); }
  template <class Machine> void call(Machine& machine) {
    auto a = this->arrays();
    a.residual = {}, a.residuals = {}, a.ids = {};
    if (this->spec.initial) this->final = this->initial, this->conv_final = this->conv_initial;
    else this->final.assign(this->final.size(), 0.f), this->conv_final.assign(this->conv_final.size(), Act{});
    for (int t = 0; t < this->spec.tokens; t++) {
      auto x = a;
      const auto at = [&](auto& y) {
        y.data += t * y.strides[1];
        y.shape[1] = 1;
      };
      at(x.qkv), at(x.a), at(x.b), at(x.out);
      auto state = this->final;
      auto edge = this->conv_final;
      x.initial = a.final, x.conv_initial = a.conv_final;
      if (!in_place) x.initial.data = state.data(), x.conv_initial.data = edge.data();
      layer_decode<G>(machine, x, LayerOptions{.key_heads = this->spec.key_heads});
    }
  }
};

}  // namespace gdn::test

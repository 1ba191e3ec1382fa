// The library's forward calls on the inputs of the oracle (one row of a batch), in f32 or with bf16 activations.
#pragma once
#include <vector>

#include "../support/cases.hpp"
#include "inputs.hpp"

namespace gdn::test {

// An array in the element of a call.
template <class Act> std::vector<Act> as(const Array<f32>& x) {
  std::vector<Act> y;
  for (f32 e : x) y.push_back(activation<Act>(e));
  return y;
}

template <class Act> struct Found {
  std::vector<Act> out, conv_state;
  std::vector<f32> state, t_inv, chunk_states;
};

template <class Act = f32, class Machine> Found<Act> core_call(Machine&& machine, const CoreInput<f32>& in, const std::vector<int>& cu = {}, const Array<f32>& document_h0 = {}) {
  const std::int64_t T = in.tokens(), Hk = in.key_heads(), H = in.value_heads(), D = 128, documents = cu.empty() ? 1 : static_cast<std::int64_t>(cu.size()) - 1;
  require(in.key_dim() == D && in.value_dim() == D, "core_call: heads of ", in.key_dim(), " and ", in.value_dim(), " channels; expected 128");
  std::int64_t N = 0;
  for (std::int64_t d = 0; d < documents; d++) N += ((cu.empty() ? T : cu[static_cast<std::size_t>(d) + 1] - cu[static_cast<std::size_t>(d)]) + 63) / 64;
  const auto q = as<Act>(in.q), k = as<Act>(in.k), v = as<Act>(in.v);
  const Array<f32>& h0 = cu.empty() ? in.h0 : document_h0;
  Found<Act> to{std::vector<Act>(v.size()), {}, std::vector<f32>(static_cast<std::size_t>(documents * H * D * D), unwritten),
                std::vector<f32>(static_cast<std::size_t>(N * 64 * H * 64)), std::vector<f32>(static_cast<std::size_t>(N * H * D * D))};
  CoreArrays<Act> x;
  x.q = view(q, {1, T, Hk, D}), x.k = view(k, {1, T, Hk, D}), x.v = view(v, {1, T, H, D});
  if (in.g.given()) x.g = view(in.g.data, {1, T, H});
  x.beta = view(in.beta.data, {1, T, H});
  if (h0.given()) x.initial = view(h0.data, {documents, H, D, D});
  if (!in.ids.empty()) x.ids = view(in.ids, {1, T});
  x.out = view(to.out, {1, T, H, D}), x.final = view(to.state, {documents, H, D, D});
  x.residuals = {view(to.t_inv, {1, N, 64, H, 64}), view(to.chunk_states, {1, N, H, D, D})};
  const CoreOptions options{.scale = static_cast<f32>(in.scale), .use_qk_norm = in.use_qk_norm};
  if (cu.empty()) {
    forward(machine, x, options);
  } else {
    if constexpr (std::is_same_v<std::remove_cvref_t<Machine>, Cpu> && std::is_same_v<Act, f32>) forward_documents(machine, x, cu, options);
    else throw Error("core_call: documents apart are run on the CPU in f32");
  }
  return to;
}

template <class Act = f32, class Machine> Found<Act> layer_call(Machine&& machine, const LayerInput<f32>& in) {
  const std::int64_t T = in.tokens(), H = in.value_heads, D = in.channels(), N = (T + 63) / 64;
  const auto qkv = as<Act>(in.qkv), a = as<Act>(in.a), b = as<Act>(in.b), conv = as<Act>(in.conv_state);
  Found<Act> to{std::vector<Act>(static_cast<std::size_t>(T * H * 128)), std::vector<Act>(static_cast<std::size_t>(3 * D)),
                std::vector<f32>(static_cast<std::size_t>(H * 128 * 128), unwritten), {}, std::vector<f32>(static_cast<std::size_t>(N * H * 128 * 128))};
  LayerArrays<Act> x;
  x.qkv = view(qkv, {1, T, D}), x.a = view(a, {1, T, H}), x.b = view(b, {1, T, H});
  x.conv_weights = view(in.conv_weights.data, {4, D});
  if (in.conv_bias.given()) x.conv_bias = view(in.conv_bias.data, {D});
  x.A_log = view(in.A_log.data, {H}), x.dt_bias = view(in.dt_bias.data, {H});
  if (in.conv_state.given()) x.conv_initial = view(conv, {1, 3, D});
  if (in.h0.given()) x.initial = view(in.h0.data, {1, H, 128, 128});
  if (!in.ids.empty()) x.ids = view(in.ids, {1, T});
  x.out = view(to.out, {1, T, H, 128}), x.final = view(to.state, {1, H, 128, 128}), x.conv_final = view(to.conv_state, {1, 3, D});
  x.residuals.chunk_states = view(to.chunk_states, {1, N, H, 128, 128});
  layer_forward(machine, x, {.key_heads = in.key_heads, .use_qk_norm = in.use_qk_norm});
  return to;
}

}  // namespace gdn::test

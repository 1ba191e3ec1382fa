// The whole layer of rows that are cut over ranks (context.hpp): beside the states, the convolution's last inputs go to the next rank, the
// halo, and their gradient comes back; gradients of parameters are summed over the ranks in their order.
//
// A row's halo is zero where the taps of the next rank do not look: at padding and at other documents. `conv_initial` is read and
// `d_conv_initial` written on rank 0, `d_conv_final` is read on the last one; `conv_final` is the same on every rank, and so are the
// gradients of parameters.
#pragma once
#include "gdn/calls/parts.hpp"
#include "gdn/context/context.hpp"

namespace gdn::context {

// What a rank keeps of a layer's forward for its backward.
template <class Act> struct LayerRank : Rank {
  std::vector<Act> conv_state;   // [B, taps - 1, D]: the inputs before the part
  std::vector<char> in_halo;     // [B, taps - 1]: which of the part's last inputs the next rank looks at
  std::vector<char> ends;        // [B]: whether the row's last valid token is here, and with it the end of `conv_final`
};

namespace detail {

// f(batch, row of the halo, its token)
template <class F> void for_halo(const Sizes<3>& shape, std::int64_t T, F f) {
  for (std::int64_t b = 0; b < shape[0]; b++)
    for (std::int64_t i = 0; i < shape[1]; i++) f(b, i, T - shape[1] + i);
}
// Those of the part's last document. An id may have been another document's before.
template <class Act> std::vector<char> halo_rows(const LayerArrays<Act>& x, const Sizes<3>& shape, std::int64_t T) {
  std::vector<char> rows(static_cast<std::size_t>(shape[0] * shape[1]), !x.ids);
  for (std::int64_t b = 0; x.ids && b < shape[0]; b++) {
    i32 last = 0;
    for (std::int64_t i = shape[1]; i-- > 0;) {
      const i32 id = x.ids.data[b * x.ids.strides[0] + (T - shape[1] + i) * x.ids.strides[1]];
      if (id <= 0) continue;
      if (last == 0) last = id;
      if (id != last) break;
      rows[static_cast<std::size_t>(b * shape[1] + i)] = 1;
    }
  }
  return rows;
}
// The last inputs of the rank before, or the caller's.
template <Communicator Comm, class Act> void exchange_halo(Comm& c, const LayerArrays<Act>& x, LayerRank<Act>& r, const Sizes<3>& shape) {
  const std::int64_t T = x.qkv.shape[1], D = shape[2];
  std::vector<Act> mine(static_cast<std::size_t>(count(shape)));
  r.in_halo = halo_rows(x, shape, T);
  for_halo(shape, T, [&](std::int64_t b, std::int64_t i, std::int64_t t) {
    const auto row = static_cast<std::size_t>(b * shape[1] + i);
    for (std::int64_t j = 0; r.in_halo[row] && j < D; j++)
      mine[row * static_cast<std::size_t>(D) + static_cast<std::size_t>(j)] = x.qkv.data[b * x.qkv.strides[0] + t * x.qkv.strides[1] + j * x.qkv.strides[2]];
  });
  const auto before = states(r.conv_state, shape);
  c.exchange(neighbour(c, 1), mine.data(), neighbour(c, -1), r.conv_state.data(), mine.size() * sizeof(Act));
  if (c.rank() == 0) {
    if (x.conv_initial) gdn::detail::pass_on(x.conv_initial, before);
    return;
  }
  keep_rows(r.conv_state, r.continues);
}
// The part as a call of its own, and what the core's scans read of it.
template <class Act> LayerArrays<Act> part_of(const LayerArrays<Act>& x, LayerRank<Act>& r, bool first, const Sizes<3>& conv, const Sizes<4>& state) {
  LayerArrays<Act> part = x;
  part.conv_initial = first && !x.conv_initial ? View<const Act, 3>() : View<const Act, 3>(states(r.conv_state, conv));
  part.initial = r.reads_state && !r.state.empty() ? View<const f32, 4>(states(r.state, state)) : View<const f32, 4>();
  return part;
}
template <class G, class Act> struct Prepared {
  std::vector<Act> y;
  std::vector<f32> g_data, beta_data;
  View<const Act, 4> q, k;
  View<const f32, 3> g, beta;

  template <class Machine> Prepared(Machine& machine, const LayerArrays<Act>& part, std::int64_t key_heads) {
    constexpr int K = G::key::size, C = G::chunk::size;
    const std::int64_t B = part.qkv.shape[0], T = part.qkv.shape[1], H = part.a.shape[2], D = 2 * key_heads * K;
    auto columns = [&](auto v, std::size_t dim) {
      if (v) v.shape[dim] = D;
      return v;
    };
    causal_conv<C, K, G::taps::size>(machine, ConvArrays<Act>{columns(part.qkv, 2), columns(part.conv_weights, 1), columns(part.conv_bias, 0),
                                                              columns(part.conv_initial, 2), part.ids, states(y, Sizes<3>{B, T, D}), {}});
    q = view(std::as_const(y), {B, T, key_heads, K});
    q.strides = {T * D, D, K, 1};
    k = q;
    k.data += key_heads * K;
    g_data.resize(static_cast<std::size_t>(B * T * H)), beta_data = g_data;
    gates<C>(machine, GateArrays<Act>{part.a, part.b, part.A_log, part.dt_bias, part.ids, view(g_data, {B, T, H}), view(beta_data, {B, T, H})});
    g = view(std::as_const(g_data), {B, T, H}), beta = view(std::as_const(beta_data), {B, T, H});
  }
};
// Sums a parameter's gradients over the ranks.
template <Communicator Comm, int Rank> void sum_over_ranks(Comm& c, const View<f32, Rank>& v) {
  if (!v) return;
  std::vector<f32> x(static_cast<std::size_t>(count(v.shape)));
  const View<f32, Rank> dense(x.data(), v.shape, row_major(v.shape));
  gdn::detail::pass_on(View<const f32, Rank>(v), dense);
  sum(c, std::span<f32>(x));
  gdn::detail::pass_on(View<const f32, Rank>(dense), v);
}

}  // namespace detail

// `layer_forward` of a row that is cut over the ranks of `c`.
template <class G = Head128, Precision P = Precision::bf16x3, Communicator Comm, class Machine, class Act>
LayerRank<Act> layer_forward(Comm& c, Machine& machine, const LayerArrays<Act>& x, const LayerOptions& o) {
  constexpr const char* call = "context::layer_forward";
  constexpr int K = G::key::size, V = G::value::size, C = G::chunk::size, W = G::taps::size;
  gdn::detail::check_layer<G, true>(call, x, o);
  const std::int64_t B = x.qkv.shape[0], T = x.qkv.shape[1], H = x.a.shape[2], N = T / C, D = x.qkv.shape[2];
  detail::check_part(call, c, {B, T}, C, {{"initial", x.initial.given}, {"conv_initial", x.conv_initial.given}, {"final", x.final.given},
                                          {"conv_final", x.conv_final.given}, {"ids", x.ids.given}});
  LayerRank<Act> r;
  const std::vector<int> owners = detail::find_documents(c, x.ids, B, T, x.initial || x.conv_initial, r);
  const Sizes<4> square{B, H, K, K}, shape{B, H, K, V};
  const Sizes<3> conv{B, W - 1, D};
  for (int owner : owners) r.ends.push_back(owner == c.rank());
  detail::exchange_halo(c, x, r, conv);

  std::vector<f32> s, t_inv(static_cast<std::size_t>(B * N * C * H * C));
  std::vector<Act> conv_final;
  LayerArrays<Act> part = detail::part_of(x, r, c.rank() == 0, conv, shape), first = part;
  first.out = {}, first.residual = {};
  first.residuals = {x.residuals.t_inv ? x.residuals.t_inv : view(t_inv, {B, N, C, H, C}), {}};
  first.final = detail::states(s, shape);
  first.conv_final = x.conv_final ? detail::states(conv_final, conv) : View<Act, 3>();
  layer_forward_states<G>(machine, first, o);
  {
    const detail::Prepared<G, Act> p(machine, part, o.key_heads);
    transition<P, G>(machine, TransitionArrays<Act>{p.k, p.g, p.beta, View<const f32, 5>(first.residuals.t_inv), x.ids, detail::states(r.phi, square)},
                     {.scale = o.scale, .use_qk_norm = o.use_qk_norm});
  }
  detail::keep_rows(r.phi, r.continues);
  detail::compose_forward<P, G>(c, machine, r, s, square, shape, x.initial, x.final);
  if (x.conv_final) {
    const auto n = static_cast<std::size_t>((W - 1) * D);
    for (std::size_t b = 0; b < owners.size(); b++) broadcast(c, owners[b], std::span<Act>(conv_final).subspan(b * n, n));
    gdn::detail::pass_on(View<const Act, 3>(detail::states(conv_final, conv)), x.conv_final);
  }

  part = detail::part_of(x, r, c.rank() == 0, conv, shape);
  part.final = {}, part.conv_final = {};
  gdn::layer_forward<G>(machine, part, o);
  return r;
}

// `layer_backward` of it: x as in the forward, with residual, t_inv and chunk_states as it wrote them, and what it returned.
template <class G = Head128, Precision P = Precision::bf16x3, Communicator Comm, class Machine, class Act>
void layer_backward(Comm& c, Machine& machine, const LayerArrays<Act>& x, const LayerGradients<Act>& d, LayerRank<Act>& r, const LayerOptions& o) {
  constexpr const char* call = "context::layer_backward";
  constexpr int K = G::key::size, V = G::value::size, C = G::chunk::size, W = G::taps::size;
  gdn::detail::check_layer_backward<G>(call, x, d, o);
  const std::int64_t B = x.qkv.shape[0], T = x.qkv.shape[1], H = x.a.shape[2], D = x.qkv.shape[2];
  detail::check_part(call, c, {B, T}, C, {{"d_final", d.d_final.given}, {"d_conv_final", d.d_conv_final.given},
                                          {"d_initial", d.d_initial.given}, {"d_conv_initial", d.d_conv_initial.given},
                                          {"dqkv", d.dqkv.given}, {"dA_log", d.dA_log.given}, {"ddt_bias", d.ddt_bias.given},
                                          {"d_conv_weights", d.d_conv_weights.given}, {"d_conv_bias", d.d_conv_bias.given}, {"ids", x.ids.given}});
  const Sizes<4> square{B, H, K, K}, shape{B, H, K, V};
  const Sizes<3> conv{B, W - 1, D};
  const LayerArrays<Act> part = detail::part_of(x, r, c.rank() == 0, conv, shape);

  std::vector<f32> D_own, behind;
  {
    const detail::Prepared<G, Act> p(machine, part, o.key_heads);
    state_gradient<P, G>(machine, StateGradientArrays<Act>{p.q, p.k, d.d_out, p.g, p.beta, View<const f32, 5>(x.residuals.t_inv), x.ids, {}, detail::states(D_own, shape)},
                         {.scale = o.scale, .use_qk_norm = o.use_qk_norm});
  }
  detail::compose_backward<P, G>(c, machine, call, r, std::move(D_own), square, shape, d.d_final, behind);

  LayerGradients<Act> gradients = d;
  std::vector<Act> d_last;
  if (d.d_conv_final) {
    gradients.d_conv_final = detail::states(d_last, conv);
    if (c.rank() + 1 == c.size()) gdn::detail::pass_on(d.d_conv_final, detail::states(d_last, conv));
    broadcast(c, c.size() - 1, std::span<Act>(d_last));
    detail::keep_rows(d_last, r.ends);
  }
  std::vector<Act> d_halo, from_next(static_cast<std::size_t>(count(conv)));
  gradients.d_final = c.size() == 1 ? d.d_final : View<const f32, 4>(detail::states(behind, shape));
  if (c.rank() > 0) gradients.d_initial = {}, gradients.d_conv_initial = detail::states(d_halo, conv);
  gdn::layer_backward<G>(machine, part, gradients, o);

  const int next = detail::neighbour(c, 1);
  detail::keep_rows(d_halo, r.continues);
  c.exchange(detail::neighbour(c, -1), d_halo.data(), next, from_next.data(), from_next.size() * sizeof(Act));
  if (next >= 0 && d.dqkv)
    detail::for_halo(conv, T, [&](std::int64_t b, std::int64_t i, std::int64_t t) {
      const auto row = static_cast<std::size_t>(b * conv[1] + i);
      for (std::int64_t j = 0; r.in_halo[row] && j < D; j++) {
        Act& to = d.dqkv.data[b * d.dqkv.strides[0] + t * d.dqkv.strides[1] + j * d.dqkv.strides[2]];
        const f32 sum = to_f32(to) + to_f32(from_next[row * static_cast<std::size_t>(D) + static_cast<std::size_t>(j)]);
        if constexpr (std::is_same_v<Act, bf16>) to = to_bf16(sum);
        else to = sum;
      }
    });
  detail::sum_over_ranks(c, d.dA_log), detail::sum_over_ranks(c, d.ddt_bias);
  detail::sum_over_ranks(c, d.d_conv_weights), detail::sum_over_ranks(c, d.d_conv_bias);
}

}  // namespace gdn::context

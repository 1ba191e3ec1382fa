// Sequence context parallelism: rows that are cut over ranks, rank r of P holding tokens [r L, (r + 1) L) (MaxText PR #5762).
//
// What a rank's part does to the state before it is affine, S -> Phi S + s, so nobody waits for the ranks before:
//   1. s and M from zeros (forward_states), then Phi (transition)
//   2. (Phi, s) of all ranks up to this one, in ceil(log2 P) exchanges: (Phi_l, s_l) o (Phi_e, s_e) = (Phi_l Phi_e, Phi_l s_e + s_l)
//   3. the forward from the state before, which that gives. The final state is composed too, and the same on every rank.
// Backward: D, the gradient of the state before the part if that of the state behind it were 0 (state_gradient), composed from the last rank
// down, then the backward of the part. `Rank` below is what every rank keeps from the forward for it.
//
// All ranks call with arrays of the same shapes: their parts of the row, L a multiple of C. ids are compared across the cuts. `initial` is
// read on rank 0, `d_final` on the last one; which of the views are given is the same on all ranks.
#pragma once
#include "gdn/calls/backward.hpp"
#include "gdn/calls/scans.hpp"
#include "gdn/context/communicator.hpp"

namespace gdn::context {

namespace detail {

template <class T, std::size_t Rank> View<T, static_cast<int>(Rank)> states(std::vector<T>& x, const std::array<std::int64_t, Rank>& shape) {
  x.resize(static_cast<std::size_t>(count(shape)));
  return {x.data(), shape, row_major(shape)};
}
inline View<f32, 5> one_chunk(std::vector<f32>& x, const Sizes<4>& s) { return states(x, Sizes<5>{s[0], 1, s[1], s[2], s[3]}); }
template <Communicator C> void exchange(C& c, int to, const std::vector<f32>& out, int from, std::vector<f32>& in) {
  if (from >= 0) in.resize(out.size());
  c.exchange(to, out.data(), from, in.data(), out.size() * sizeof(f32));
}
// 0 for the rows of the batch that `keep` does not name.
template <class T> void keep_rows(std::vector<T>& x, const std::vector<char>& keep) {
  const std::size_t n = x.size() / keep.size();
  for (std::size_t b = 0; b < keep.size(); b++)
    if (!keep[b]) std::fill_n(x.begin() + static_cast<std::ptrdiff_t>(b * n), n, T{});
}

// The ids at a part's ends, of one row.
struct Ends {
  i32 any = 0, first = 0, last = 0;
};
inline std::vector<Ends> ends_of(const View<const i32, 2>& ids, std::int64_t B, std::int64_t T) {
  std::vector<Ends> all(static_cast<std::size_t>(B), Ends{1, 1, 1});
  if (!ids) return all;
  for (std::int64_t b = 0; b < B; b++) {
    Ends e;
    for (std::int64_t t = 0; t < T; t++) {
      const i32 id = ids.data[b * ids.strides[0] + t * ids.strides[1]];
      if (id <= 0) continue;
      if (!e.any) e = {1, id, id};
      e.last = id;
    }
    all[static_cast<std::size_t>(b)] = e;
  }
  return all;
}

template <Communicator Comm> void check_part(const char* call, Comm& c, const Sizes<2>& rows, int chunk, std::initializer_list<std::pair<const char*, bool>> given) {
  require(rows[1] % chunk == 0, call, ": rank ", c.rank(), " holds ", rows[1], " tokens; expected a multiple of ", chunk);
  std::vector<std::int64_t> mine{rows[0], rows[1]};
  for (const auto& g : given) mine.push_back(g.second);
  const auto all = gathered(c, std::span<const std::int64_t>(mine));
  for (int r = 0; r < c.size(); r++) {
    const std::int64_t* other = all.data() + static_cast<std::size_t>(r) * mine.size();
    require(other[0] == rows[0] && other[1] == rows[1], call, ": rank ", c.rank(), " holds ", rows[0], " rows of ", rows[1], " tokens, rank ", r, " ",
            other[0], " of ", other[1], "; expected the same on all ranks");
    std::size_t i = 2;
    for (const auto& g : given)
      require(other[i++] == g.second, call, ": ", g.first, " is given on some ranks and missing on others; expected the same on all ranks");
  }
}

}  // namespace detail

// What a rank keeps of a forward for its backward.
struct Rank {
  std::vector<f32> phi, state;    // Phi of the part [B, Hv, K, K], and the state before it [B, Hv, K, V]
  std::vector<char> continues;    // [B]: the row's first document here began on a rank before, or in `initial`
  bool reads_state = false;       // some state comes in
};

namespace detail {

// Fills r. Returns the last rank with a valid token of each row, 0 if there is none.
template <Communicator Comm> std::vector<int> find_documents(Comm& c, const View<const i32, 2>& ids, std::int64_t B, std::int64_t T, bool initial, Rank& r) {
  const auto mine = ends_of(ids, B, T);
  const auto all = gathered(c, std::span<const Ends>(mine));
  r.continues.assign(static_cast<std::size_t>(B), 0);
  std::vector<int> owners(r.continues.size());
  for (std::size_t b = 0; b < static_cast<std::size_t>(B); b++) {
    Ends before;
    for (int k = 0; k < c.size(); k++)
      if (const Ends& e = all[static_cast<std::size_t>(k * B) + b]; e.any) {
        owners[b] = k;
        if (k < c.rank()) before = e;
      }
    const Ends& e = mine[b];
    r.continues[b] = before.any ? !e.any || e.first == before.last : initial;
  }
  r.reads_state = c.rank() > 0 || initial;
  return owners;
}

// (Phi, x) of all parts, composed in ceil(log2 P) exchanges. Forward, x is the state behind a part from zeros, and `given` the state before
// the row; backward, x is D, and `given` the gradient of the state behind the row. Returns what comes to this rank's part: `given` through
// all parts before it, backward behind it. `past` is `given` through all parts, the same on every rank.
template <Precision P, class G, bool Backward, Communicator Comm, class Machine>
std::vector<f32> composed(Comm& c, Machine& machine, std::vector<f32> phi, std::vector<f32> x, const Sizes<4>& square, const Sizes<4>& shape,
                          const View<const f32, 4>& given, const View<f32, 4>& past = {}) {
  const int first = Backward ? c.size() - 1 : 0, last = c.size() - 1 - first, ahead = Backward ? 1 : -1;
  std::vector<f32> other_phi, other_x, joined, x_joined, start(static_cast<std::size_t>(count(shape)));
  const auto receive = [&](int distance) {
    const int from = neighbour(c, ahead * distance), to = neighbour(c, -ahead * distance);
    exchange(c, to, phi, from, other_phi);
    exchange(c, to, x, from, other_x);
    return from >= 0;
  };
  for (int d = 1; d < c.size(); d *= 2) {
    if (!receive(d)) continue;
    JoinArrays pair{.earlier = one_chunk(other_phi, square), .later = one_chunk(phi, square), .joined = one_chunk(joined, square)};
    if constexpr (Backward) {
      std::swap(pair.earlier, pair.later);
      pair.d_earlier = one_chunk(x, shape), pair.d_later = one_chunk(other_x, shape), pair.d_joined = one_chunk(x_joined, shape);
    } else {
      pair.s_earlier = one_chunk(other_x, shape), pair.s_later = one_chunk(x, shape), pair.s_joined = one_chunk(x_joined, shape);
    }
    join_chunks<P, G>(machine, pair);
    std::swap(phi, joined), std::swap(x, x_joined);
  }
  if (c.rank() == first && given) gdn::detail::pass_on(given, states(start, shape));
  broadcast(c, first, std::span<f32>(start));
  const auto through = [&](std::vector<f32>& by, std::vector<f32>& plus) {
    std::vector<f32> y;
    if constexpr (Backward)
      join_chunks<P, G>(machine, JoinArrays{.earlier = one_chunk(by, square), .d_earlier = one_chunk(plus, shape), .d_later = one_chunk(start, shape),
                                            .d_joined = one_chunk(y, shape)});
    else
      join_chunks<P, G>(machine, JoinArrays{.later = one_chunk(by, square), .s_earlier = one_chunk(start, shape), .s_later = one_chunk(plus, shape),
                                            .s_joined = one_chunk(y, shape)});
    return y;
  };
  std::vector<f32> comes = receive(1) ? through(other_phi, other_x) : start;
  if (past) {
    std::vector<f32> whole(start.size());
    if (c.rank() == last) whole = through(phi, x);
    broadcast(c, last, std::span<f32>(whole));
    gdn::detail::pass_on(View<const f32, 4>(states(whole, shape)), past);
  }
  return comes;
}
// The state before this rank's part, and the row's last one.
template <Precision P, class G, Communicator Comm, class Machine>
void compose_forward(Comm& c, Machine& machine, Rank& r, std::vector<f32> s, const Sizes<4>& square, const Sizes<4>& shape, const View<const f32, 4>& initial,
                     const View<f32, 4>& final) {
  r.state = composed<P, G, false>(c, machine, r.phi, std::move(s), square, shape, initial, final);
  keep_rows(r.state, r.continues);
}
// The gradient of the state behind this rank's part, from D of all parts behind it and the gradient of the row's last state.
template <Precision P, class G, Communicator Comm, class Machine>
void compose_backward(Comm& c, Machine& machine, const char* call, const Rank& r, std::vector<f32> D, const Sizes<4>& square, const Sizes<4>& shape,
                      const View<const f32, 4>& d_final, std::vector<f32>& behind) {
  require(r.phi.size() == static_cast<std::size_t>(count(square)), call, ": the rank's Phi has ", r.phi.size(), " elements; expected ", count(square),
          ", of the forward of the same row");
  keep_rows(D, r.continues);
  behind = composed<P, G, true>(c, machine, r.phi, std::move(D), square, shape, d_final);
}

}  // namespace detail

// `forward` of a row that is cut over the ranks of `c`; every rank's arrays are its part. Dots of the composition and of Phi are of class P.
template <class G = Head128, Precision P = Precision::bf16x3, Communicator Comm, class Machine, class Act>
Rank forward(Comm& c, Machine& machine, const CoreArrays<Act>& x, const CoreOptions& o = {}) {
  constexpr const char* call = "context::forward";
  constexpr int K = G::key::size, V = G::value::size, C = G::chunk::size;
  gdn::detail::check_core<G, true>(call, x);
  const std::int64_t B = x.k.shape[0], T = x.k.shape[1], H = x.v.shape[2], N = T / C;
  detail::check_part(call, c, {B, T}, C, {{"initial", x.initial.given}, {"final", x.final.given}, {"ids", x.ids.given}});
  Rank r;
  detail::find_documents(c, x.ids, B, T, static_cast<bool>(x.initial), r);
  const Sizes<4> square{B, H, K, K}, shape{B, H, K, V};

  std::vector<f32> s, t_inv(static_cast<std::size_t>(B * N * C * H * C));
  CoreArrays<Act> states = x;
  states.q = {}, states.out = {}, states.initial = {}, states.residual = {}, states.residuals = {};
  states.residuals.t_inv = x.residuals.t_inv ? x.residuals.t_inv : view(t_inv, {B, N, C, H, C});
  states.final = detail::states(s, shape);
  forward_states<G>(machine, states, o);
  transition<P, G>(machine, TransitionArrays<Act>{x.k, x.g, x.beta, View<const f32, 5>(states.residuals.t_inv), x.ids, detail::states(r.phi, square)},
                   {.scale = o.scale, .use_qk_norm = o.use_qk_norm});
  detail::keep_rows(r.phi, r.continues);
  detail::compose_forward<P, G>(c, machine, r, s, square, shape, x.initial, x.final);

  CoreArrays<Act> part = x;
  part.final = {};
  part.initial = r.reads_state ? View<const f32, 4>(detail::states(r.state, shape)) : View<const f32, 4>();
  gdn::forward<G>(machine, part, o);
  return r;
}

// `backward` of it: x as in the forward, with residual, t_inv and chunk_states as it wrote them, and what it returned.
template <class G = Head128, Precision P = Precision::bf16x3, Communicator Comm, class Machine, class Act>
void backward(Comm& c, Machine& machine, const CoreArrays<Act>& x, const CoreGradients<Act>& d, Rank& r, const CoreOptions& o = {}) {
  constexpr const char* call = "context::backward";
  constexpr int K = G::key::size, V = G::value::size, C = G::chunk::size;
  gdn::detail::check_core_backward<G>(call, x, d);
  const std::int64_t B = x.k.shape[0], T = x.k.shape[1], H = d.d_out.shape[2];
  detail::check_part(call, c, {B, T}, C, {{"d_final", d.d_final.given}, {"d_initial", d.d_initial.given}, {"ids", x.ids.given}});
  const Sizes<4> square{B, H, K, K}, shape{B, H, K, V};
  std::vector<f32> D, behind;
  StateGradientArrays<Act> own{x.q, x.k, d.d_out, x.g, x.beta, View<const f32, 5>(x.residuals.t_inv), x.ids, {}, detail::states(D, shape)};
  state_gradient<P, G>(machine, own, {.scale = o.scale, .use_qk_norm = o.use_qk_norm});
  detail::compose_backward<P, G>(c, machine, call, r, std::move(D), square, shape, d.d_final, behind);

  CoreArrays<Act> part = x;
  part.initial = r.reads_state ? View<const f32, 4>(detail::states(r.state, shape)) : View<const f32, 4>();
  CoreGradients<Act> gradients = d;
  gradients.d_final = c.size() == 1 ? d.d_final : View<const f32, 4>(detail::states(behind, shape));
  if (c.rank() > 0) gradients.d_initial = {};
  if (d.dq || d.dk || d.dv || d.dg || d.dbeta || gradients.d_initial) gdn::backward<G>(machine, part, gradients, o);
}

}  // namespace gdn::context

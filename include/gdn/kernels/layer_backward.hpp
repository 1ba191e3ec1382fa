// The backward of the whole layer: cotangents of the rows before the convolution, of a and b, of the parameters and of both initial states.
// Convolution, SiLU, norms and gates are computed again; chunks run from the last to the first.
//   y = silu(z): dz = dy s (1 + z (1 - s)), s = sigmoid(z)          z_t = sum over taps j of w_j x_(t-d) + bias, d = taps - 1 - j
//   dx_t = sum over taps j ascending of w_j dz_(t+d), where t + d sees t; then the cotangent of x_t among the row's last inputs, if they
//          are handed on; then what the later chunk gives to the rows before it
//   dw_j = sum over t of dz_t x_(t-d)      dbias = sum of dz        da = dg (-exp(A_log) sigmoid(a + dt_bias))      db = dbeta beta (1 - beta)
//   dA_log = sum of dg g                   ddt_bias = sum of da
// Sums over tokens: those of a chunk in the order of a sum over rows, then chunk by chunk from the last to the first.
#pragma once
#include <array>

#include "gdn/kernels/core_backward.hpp"
#include "gdn/kernels/layer_forward.hpp"

namespace gdn {

// One of q, k, v before the convolution. What is summed over the chunks is carried; absent: not asked for.
template <class M, class C, class W, class T> struct ConvBackwardRefs {
  Ref<M, f32, C, W> x;
  Ref<M, f32, Row<tail_rows>, W> before;  // the rows before the chunk
  Ref<M, f32, T, W> weights;
  Ref<M, f32, One, W> bias;               // absent: no bias
  Ref<M, f32, Row<T::size - 1>, W> d_final; // cotangent of the row's last inputs; absent: zeros
  Ref<M, f32, Row<tail_rows>, W> d_before;  // carried: what the chunk gives to the rows before it
  Ref<M, f32, C, W> dx;
  Ref<M, f32, T, W> d_weights;
  Ref<M, f32, One, W> d_bias;
};
// Where the last inputs of the row stand in [rows before the chunk; chunk]: a row, or -1 where they are not in them.
template <class M, class T> using LastInputs = std::array<Ref<M, i32, One, One>, static_cast<std::size_t>(T::size - 1)>;
template <class M, class C, class K, class V, class T> struct LayerBackwardRefs {
  ConvBackwardRefs<M, C, K, T> q, k;
  ConvBackwardRefs<M, C, V, T> v;
  Ref<M, f32, C, One> a, b;
  Ref<M, f32, One, One> A_log, dt_bias;
  LastInputs<M, T> last;
  BackwardRefs<M, C, K, V> chunk;
  Ref<M, f32, C, One> da, db;
  Ref<M, f32, One, One> dA_log, ddt_bias;  // carried
};

// What a convolution reads and gives, before SiLU.
template <class M, class C, class W> struct Convolved {
  Tile<M, f32, C, W> x;
  Tile<M, f32, Row<tail_rows>, W> before;
  Tile<M, f32, C, W> z;
};
template <class D, class M, class C, class W, class T> Convolved<M, C, W> convolved(const D& documents, const ConvBackwardRefs<M, C, W, T>& r) {
  auto x = rows_of_array(documents, load(r.x));
  auto before = load(r.before);
  if (!r.bias) return {x, before, short_conv(documents, x, before, load(r.weights))};
  return {x, before, short_conv(documents, x, before, load(r.weights), load(r.bias))};
}

template <TileLike A> A silu_backward(const A& z, const A& d) {
  return map([](auto d, auto z, auto s) { return d * (s * (1.f + z * (1.f - s))); }, d, z, sigmoid(z));
}
template <class M, class R, class C> void add_to(const Ref<M, f32, R, C>& sum, const Tile<M, f32, R, C>& x) {
  if (sum) store(sum, load(sum) + x);
}

// Taps 0 .. J: sums of what they give, and the rows of their weights one below the other.
template <int J, class Tap> auto taps_summed(Tap tap) {
  if constexpr (J == 0) {
    return tap(std::integral_constant<int, 0>{});
  } else {
    auto [dx, d_before, d_weights] = taps_summed<J - 1>(tap);
    auto [x, before, weight] = tap(std::integral_constant<int, J>{});
    return std::tuple{dx + x, d_before + before, concat_rows(d_weights, weight)};
  }
}

// The cotangents of the last inputs where those stand, zeros elsewhere.
template <TileLike H, class M, class W, class T>
H placed(const Ref<M, f32, Row<T::size - 1>, W>& d_final, const LastInputs<M, T>& last, const H& zeros) {
  auto d = load(d_final);
  H x = zeros;
  unroll<T::size - 1>([&](auto j) {
    x = map_ij([](auto i, auto, auto at, auto d, auto x) { return where(i == at, d, x); }, load(last[j]), row<j>(d), x);
  });
  return x;
}
// d: the cotangent of silu(z).
template <class D, class M, class C, class W, class T>
void conv_silu_backward(const D& documents, const ConvBackwardRefs<M, C, W, T>& r, const LastInputs<M, T>& last, const Convolved<M, C, W>& y,
                        const Tile<M, f32, C, W>& d) {
  using Tail = Tile<M, f32, Row<tail_rows>, W>;
  auto dz = valid_rows(documents, silu_backward(y.z, d));
  auto weights = load(r.weights);
  auto history = concat_rows(y.before, y.x);
  auto later = load(r.d_before);
  auto none = zeros_like(later);
  // Tap j: what it gives to the chunk and to the rows before it, and its weight's row.
  auto tap = [&](auto j) {
    constexpr int distance = T::size - 1 - j;
    auto given = rows_that_see<distance>(documents, dz * row<j>(weights));
    auto first = retyped<Tail>(rows<0, tail_rows>(given));
    auto read = retyped<Tile<M, f32, C, W>>(rows<tail_rows - distance, C::size>(history));
    return std::tuple{retyped<Tile<M, f32, C, W>>(rows<distance, C::size>(concat_rows(given, none))),
                      retyped<Tail>(rows<distance, tail_rows>(concat_rows(none, first))), sum_rows(rows_that_see<distance>(documents, dz * read))};
  };
  auto [dx, d_before, d_weights] = taps_summed<T::size - 1>(tap);
  if (r.d_final) {
    auto handed_on = placed<decltype(history), M, W, T>(r.d_final, last, zeros_like(history));
    dx = dx + retyped<Tile<M, f32, C, W>>(rows<tail_rows, C::size>(handed_on));
    d_before = d_before + retyped<Tail>(rows<0, tail_rows>(handed_on));
  }
  if (r.dx) {
    auto end = retyped<Tail>(rows<C::size - tail_rows, tail_rows>(dx)) + later;
    store(r.dx, retyped<Tile<M, f32, C, W>>(concat_rows(rows<0, C::size - tail_rows>(dx), end)));
  }
  store(r.d_before, d_before);
  add_to(r.d_weights, retyped<Tile<M, f32, T, W>>(d_weights));
  add_to(r.d_bias, sum_rows(dz));
}
// Cotangents of a, b, A_log and dt_bias from those of g and beta.
template <class D, class M, class C, class Refs>
void gates_backward(const D& documents, const Refs& x, const Column<M, f32, C>& g, const Column<M, f32, C>& beta, const Column<M, f32, C>& dg,
                    const Column<M, f32, C>& dbeta) {
  auto sum = [](const auto& column) { return sum_cols(as_row(column)); };
  // The floor keeps exp(A_log) sigmoid finite; where sigmoid is 0, the slope is.
  auto slope = [](auto a, auto rate, auto bias) {
    auto s = sigmoid(a + bias);
    return max(where(s <= 0.f, s, 0.f - rate * s), -1e30f);
  };
  auto da = valid_rows(documents, dg * map(slope, valid_rows(documents, load(x.a)), exp(load(x.A_log)), load(x.dt_bias)));
  if (x.da) store(x.da, da);
  if (x.db) store(x.db, valid_rows(documents, map([](auto d, auto b) { return d * (b * (1.f - b)); }, dbeta, beta)));
  add_to(x.dA_log, sum(dg * g));
  add_to(x.ddt_bias, sum(da));
}

template <Precision P, class D, class M, class C, class K, class V, class T>
void layer_backward_head(M& m, const D& documents, const LayerBackwardRefs<M, C, K, V, T>& x, const QueryOptions& options) {
  struct KeyInputs {
    Convolved<M, C, K> q, k;
    BackwardKeys<M, C, K> keys;
  };
  struct Prepared {
    KeyInputs in;
    Column<M, f32, C> g, beta;
    BackwardScores<M, C, K> scores;
  };
  auto prepared = [&](const auto& z, f32 scale) { return as_operand<P>(options.normalise ? l2_normalised(silu(z), scale) : silu(z) * scale); };
  auto prepared_backward = [&](const auto& z, const auto& d, f32 scale) {
    if (!options.normalise) return d * scale;
    auto y = silu(z);
    auto factor = l2_factor(y, scale);
    return l2_normalised_backward(y * factor, factor, d, scale);
  };
  auto p = m.stage(0, [&] {
    auto in = m.per_key_head([&] {
      auto q = convolved(documents, x.q), k = convolved(documents, x.k);
      auto query = prepared(q.z, options.scale), key = prepared(k.z, 1.f);
      return KeyInputs{q, k, backward_keys<P>(documents, Keys<M, C, K>{query, key}, 1.f)};
    });
    auto g = decay_of(documents, x);
    auto beta = beta_of(documents, x);
    return Prepared{in, g, beta, backward_scores<P>(documents, in.keys, g, beta, load(x.chunk.t_inv))};
  });
  auto sums = m.stage(1, [&] {
    auto d = head_cotangents<P>(documents, x.chunk, p.in.keys, p.scores, p.beta, 1.f);
    conv_silu_backward(documents, x.v, x.last, convolved(documents, x.v), d.dv);
    with_head_sums(
        m,
        [&](const auto&... sums) {
          auto key = key_cotangents<P>(documents, p.in.keys.rows, KeySums<M, C, K>{sums...}, 1.f);
          conv_silu_backward(documents, x.q, x.last, p.in.q, prepared_backward(p.in.q.z, key.dq, options.scale));
          conv_silu_backward(documents, x.k, x.last, p.in.k, prepared_backward(p.in.k.z, key.dk, 1.f));
        },
        d.key.U, d.key.X, d.key.h, d.key.I);
    return d.gates;
  });
  m.stage(2, [&] {
    auto d = gate_cotangents(documents, sums, p.scores, p.beta, 1.f);
    gates_backward(documents, x, p.g, p.beta, valid_rows(documents, d.dg), valid_rows(documents, d.dbeta));
    return 0;
  });
}

}  // namespace gdn

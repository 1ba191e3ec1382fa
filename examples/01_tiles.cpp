// A kernel of one's own: linear attention, written for one head and one chunk of tokens.
//
//   o = tril(q k^T) v + q S      S' = S + k^T v      q, k [C, K]   v, o [C, V]   S [K, V], carried from chunk to chunk
//
// The same source runs on the CPU (here), becomes a TPU kernel (03_emit.cpp), and runs in the simulator (04_simulate.cpp).
#include <cmath>
#include <cstdio>
#include <vector>

#include "gdn/kernels.hpp"

using namespace gdn;
using C = Chunk<16>;
using K = Key<32>;
using V = Val<48>;

// Windows of the arrays. They move with the head and the chunk; the kernel sees only its own.
template <class M> struct Refs {
  Ref<M, f32, C, K> q, k;
  Ref<M, f32, C, V> v, o;
  Ref<M, f32, K, V> state;
};

// Axes are types: dot(q, k) without the transpose does not compile, whatever the sizes.
template <class M> void linear_attention(const Refs<M>& x) {
  auto q = load(x.q), k = load(x.k);
  auto v = load(x.v);
  auto S = load(x.state);
  auto kT = transpose(k);
  auto scores = tril(dot<Precision::f32>(q, kT));  // a select: what it drops may be anything
  store(x.o, dot<Precision::f32>(scores, v) + dot<Precision::f32>(q, S));
  store(x.state, S + dot<Precision::f32>(kT, v));
}

// A call: which arrays there are, where the windows lie in them, and what is done for each head and chunk.
struct LinearAttention {
  const char* name = "linear_attention";
  Extent extent;
  View<const f32, 4> q, k, v;  // [B, T, H, K or V]
  View<f32, 4> o;

  template <class M> Refs<M> bind(M& m) const {
    auto tokens = [&]<class W>(const char* name, Use use, auto view, W) {
      const int array = m.array(any_view(name, use, view));
      return m.template declare<f32, C, W>({.name = name, .place = Place::tokens, .use = use, .element = Element::f32,
                                            .domain = Domain::value_head, .array = array});
    };
    return {tokens("q", Use::in, q, K{}), tokens("k", Use::in, k, K{}), tokens("v", Use::in, v, V{}), tokens("o", Use::out, o, V{}),
            m.template declare<f32, K, V>({.name = "state", .place = Place::carried, .use = Use::in, .element = Element::f32,
                                           .domain = Domain::value_head})};
  }
  template <class M> void head(M&, const Refs<M>& r) const { linear_attention(r); }
};

int main() {
  const int B = 2, T = 64, H = 3;
  std::vector<f32> q(B * T * H * K::size), k(q.size()), v(B * T * H * V::size), o(v.size());
  for (std::size_t i = 0; i < q.size(); i++) q[i] = static_cast<f32>(std::sin(0.1 * i)), k[i] = static_cast<f32>(std::cos(0.3 * i));
  for (std::size_t i = 0; i < v.size(); i++) v[i] = static_cast<f32>(std::sin(0.7 * i));

  LinearAttention call{.extent = {.batch = B, .tokens = T, .chunk = C::size, .key_heads = H, .value_heads = H},
                       .q = view(q, {B, T, H, K::size}), .k = view(k, {B, T, H, K::size}), .v = view(v, {B, T, H, V::size}),
                       .o = view(o, {B, T, H, V::size})};
  Cpu cpu;
  cpu.run(call);

  // The last token of the last head by the definition: o = sum over s <= t of (q_t k_s) v_s.
  double worst = 0;
  for (int j = 0; j < V::size; j++) {
    double expected = 0;
    for (int s = 0; s < T; s++) {
      double score = 0;
      for (int i = 0; i < K::size; i++)
        score += static_cast<double>(q[((B * T - 1) * H + H - 1) * K::size + i]) * k[(((B - 1) * T + s) * H + H - 1) * K::size + i];
      expected += score * v[(((B - 1) * T + s) * H + H - 1) * V::size + j];
    }
    worst = std::max(worst, std::abs(o[((B * T - 1) * H + H - 1) * V::size + j] - expected));
  }
  std::printf("%d rows, %d tokens, %d heads: largest error of the last token %.1e\n", B, T, H, worst);
  return worst < 1e-3 ? 0 : 1;
}

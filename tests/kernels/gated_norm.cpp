// The gated RMSNorm behind the rule: right answers, derivatives, sums in their order, and bits on the CPU and in the simulator.
#include <gdn/calls/gated_norm.hpp>
#include <gdn/portable/math.hpp>

#include "../support/cases.hpp"
#include "traced.hpp"

using namespace gdn;
using namespace gdn::test;

namespace {

template <class Act> std::vector<Act> activations(Random& random, std::int64_t n, double scale = 1) {
  std::vector<Act> x;
  for (std::int64_t i = 0; i < n; i++) x.push_back(activation<Act>(scale * random.normal()));
  return x;
}
template <class Act> std::vector<Act> fresh(std::size_t n) { return std::vector<Act>(n, activation<Act>(unwritten)); }

template <class Act, int W = 128, int C = 64> struct Norm {
  std::int64_t B, T, H;
  std::vector<Act> x, z, y{};
  std::vector<f32> w, inverse{};
  bool in_place = false, keeps = true;
  Norm(std::int64_t B, std::int64_t T, std::int64_t H, std::uint64_t seed = 1, double scale = 1) : B(B), T(T), H(H) {
    Random random(seed);
    x = activations<Act>(random, B * T * H * W, scale), z = activations<Act>(random, B * T * H * W, 2), w = activations<f32>(random, W);
  }
  template <class Machine> void call(Machine& machine) {
    y = in_place ? x : fresh<Act>(x.size()), inverse = fresh<f32>(static_cast<std::size_t>(B * T * H));
    GatedNormArrays<Act> a{view(std::as_const(x), {B, T, H, W}), view(std::as_const(z), {B, T, H, W}), view(std::as_const(w), {W}), view(y, {B, T, H, W})};
    if (in_place) a.x = a.y;
    if (keeps) a.inverse = view(inverse, {B, T, H});
    gated_norm<W, C>(machine, a);
  }
  Outputs outputs() const {
    Outputs all;
    add_output(all, "y", y, true);
    if (keeps) add_output(all, "inverse", inverse, true);
    return all;
  }
};
template <class Act, int W = 128, int C = 64> struct Backward : Norm<Act, W, C> {
  std::vector<Act> dy, dx{}, dz{};
  std::vector<f32> dw{};
  bool given = false;  // the norms, as the forward keeps them
  Backward(std::int64_t B, std::int64_t T, std::int64_t H, std::uint64_t seed = 1) : Norm<Act, W, C>(B, T, H, seed) {
    Random random(seed + 100);
    dy = activations<Act>(random, B * T * H * W);
  }
  template <class Machine> void call(Machine& machine) {
    const std::int64_t B = this->B, T = this->T, H = this->H;
    if (given) run(Cpu(1), static_cast<Norm<Act, W, C>&>(*this));
    dx = fresh<Act>(dy.size()), dz = fresh<Act>(dy.size()), dw = fresh<f32>(static_cast<std::size_t>(B * H * W));
    GatedNormBackwardArrays<Act> a{view(std::as_const(this->x), {B, T, H, W}), view(std::as_const(this->z), {B, T, H, W}), view(std::as_const(dy), {B, T, H, W}),
                                   view(std::as_const(this->w), {W}), view(dx, {B, T, H, W}), view(dz, {B, T, H, W}), view(dw, {B, H, W})};
    if (given) a.inverse = view(std::as_const(this->inverse), {B, T, H});
    gated_norm_backward<W, C>(machine, a);
  }
  Outputs outputs() const {
    Outputs all;
    add_output(all, "dx", dx, true);
    add_output(all, "dz", dz, true);
    add_output(all, "dw", dw, true);
    return all;
  }
};

double wide(f32 x) { return x; }
double wide(bf16 x) { return to_f32(x); }

// y of one row in float64.
std::vector<double> row_of(const std::vector<double>& x, const std::vector<double>& z, const std::vector<double>& w) {
  double square = 0;
  for (double v : x) square += v * v;
  const double inverse = 1 / std::sqrt(square / static_cast<double>(x.size()) + 1e-6);
  std::vector<double> y;
  for (std::size_t i = 0; i < x.size(); i++) y.push_back(x[i] * inverse * w[i] * silu(z[i]));
  return y;
}
template <class X> std::vector<double> part(const X& x, std::size_t row, std::size_t width) {
  std::vector<double> y;
  for (std::size_t i = row * width; i < (row + 1) * width; i++) y.push_back(wide(x[i]));
  return y;
}

template <class Call> void check_machines(Call& call, const std::string& what, const std::vector<Schedule>& schedules = {Schedule::lifted()}) {
  INFO(what);
  const Outputs one = run(Cpu(1), call);
  CHECK(differences(one, run(Cpu(3), call)) == "");
  for (const Schedule& s : schedules) {
    INFO(described(s));
    CHECK(differences(one, run(Traced(s), call)) == "");
  }
}

}  // namespace

TEST_CASE("gated norm: rows with a right answer") {
  // All entries alike: the norm leaves x / sqrt(x^2 + 1e-6); with z = 0 the gate shuts, with a large z it is z itself.
  for (const auto& [x, z, right] : {std::tuple{3.0, 40.0, 40 / std::sqrt(1 + 1e-6 / 9)}, {1e-3, 40.0, 40 / std::sqrt(2.0)}, {3.0, 0.0, 0.0}, {0.0, 1.0, 0.0}, {-2.0, -200.0, 0.0}}) {
    Norm<f32> call(1, 1, 1);
    std::fill(call.x.begin(), call.x.end(), static_cast<f32>(x)), std::fill(call.z.begin(), call.z.end(), static_cast<f32>(z)), std::fill(call.w.begin(), call.w.end(), 0.5f);
    INFO(x << ", " << z);
    const Outputs found = run(Cpu(1), call);
    for (f32 y : found[0].values) CHECK(std::abs(y - 0.5 * right) <= 1e-6 * std::abs(right));
  }
}
TEMPLATE_TEST_CASE("gated norm: against float64", "", bf16, f32) {
  const double within = std::is_same_v<TestType, bf16> ? 0x1p-8 : 1e-6;
  Norm<TestType> call(2, 70, 3);
  const Outputs found = run(Cpu(2), call);
  double error = 0, shared = 0;
  for (std::size_t r = 0; r < 2 * 70 * 3; r++) {
    const auto right = row_of(part(call.x, r, 128), part(call.z, r, 128), part(call.w, 0, 128));
    for (std::size_t i = 0; i < 128; i++) {
      error = std::max(error, std::abs(found[0].values[r * 128 + i] - right[i]) / (1e-3 + std::abs(right[i])));
      shared = std::max(shared, std::abs(right[i] * (1 + 1e-2) - right[i]) / (1e-3 + std::abs(right[i])));
    }
  }
  INFO("error " << error);
  CHECK(error <= within);
  CHECK(shared > within);  // an error of one percent would be seen
}
TEST_CASE("gated norm: gradients are derivatives") {
  Backward<f32> call(1, 3, 2);
  const Outputs found = run(Cpu(1), call);
  const auto w = part(call.w, 0, 128);
  std::vector<double> dw(2 * 128);
  double error = 0, size = 0;
  for (std::size_t r = 0; r < 3 * 2; r++) {
    const auto x = part(call.x, r, 128), z = part(call.z, r, 128), dy = part(call.dy, r, 128);
    const auto slope = [&](auto change, std::size_t i) {  // of sum dy y, by central differences
      const double step = 1e-5;
      auto x1 = x, z1 = z, w1 = w;
      double sum = 0;
      for (double sign : {1., -1.}) {
        x1 = x, z1 = z, w1 = w;
        change(x1, z1, w1)[i] += sign * step;
        const auto y = row_of(x1, z1, w1);
        for (std::size_t j = 0; j < 128; j++) sum += sign * dy[j] * y[j];
      }
      return sum / (2 * step);
    };
    for (std::size_t i = 0; i < 128; i += 5) {
      const double dx = slope([](auto& x, auto&, auto&) -> auto& { return x; }, i), dz = slope([](auto&, auto& z, auto&) -> auto& { return z; }, i);
      dw[r % 2 * 128 + i] += slope([](auto&, auto&, auto& w) -> auto& { return w; }, i);
      error = std::max({error, std::abs(found[0].values[r * 128 + i] - dx), std::abs(found[1].values[r * 128 + i] - dz)});
      size = std::max({size, std::abs(dx), std::abs(dz)});
    }
  }
  for (std::size_t i = 0; i < 256; i++)
    if (i % 128 % 5 == 0) error = std::max(error, std::abs(found[2].values[i] - dw[i]));
  INFO("error " << error << " of " << size);
  CHECK(error < 3e-6 * size);
  CHECK(size > 0.1);
}

// Against float64, where the gate is far open, closed, or at zero: the bound of the kernel's comment.
TEST_CASE("gated norm: the gradient of the gate") {
  Backward<f32> call(1, 64, 1);
  for (std::size_t i = 0; i < call.z.size(); i++) call.z[i] = static_cast<f32>(static_cast<double>(i) / static_cast<double>(call.z.size()) * 160 - 80);
  const Outputs found = run(Cpu(1), call);
  const auto w = part(call.w, 0, 128);
  std::size_t over = 0, near = 0;
  for (std::size_t r = 0; r < 64; r++) {
    const auto x = part(call.x, r, 128), z = part(call.z, r, 128), dy = part(call.dy, r, 128);
    double square = 0;
    for (double v : x) square += v * v;
    const double inverse = 1 / std::sqrt(square / 128 + 1e-6);
    for (std::size_t i = 0; i < 128; i++) {
      const double e = dy[i] * x[i] * inverse * w[i], s = 1 / (1 + std::exp(-z[i])), right = e * (s + z[i] * s * (1 - s));
      const double error = std::abs(found[1].values[r * 128 + i] - right), bound = (2 * std::max(z[i], 0.) + 12) * std::abs(e) * 0x1p-24;
      over += error > bound;
      near += error > bound / 4;
    }
  }
  CHECK(over == 0);
  CHECK(near > 0);  // a bound not much larger than needed
}

// dw: tiles of 8 rows added up within a chunk, then sum_rows and sqrt(W); chunks ascending; then rows of the batch and heads ascending.
TEST_CASE("gated norm: the order of the weight's gradient") {
  Backward<f32, 128, 64> call(2, 150, 2);
  const Outputs found = run(Cpu(3), call);
  const cpu::FlushGuard guard;
  const auto fold = [](std::vector<f32> x) {
    for (std::size_t half = x.size() / 2; half > 0; half /= 2) {
      for (std::size_t i = 0; i < half; i++) x[i] = x[i] + x[i + half];
    }
    return 0.f + x[0];
  };
  const f32 root = static_cast<f32>(std::sqrt(128.));
  std::size_t wrong = 0, other = 0;
  for (std::size_t b = 0; b < 2; b++)
    for (std::size_t h = 0; h < 2; h++) {
      std::vector<std::vector<f32>> terms(128);  // [column][token]
      for (std::size_t t = 0; t < 150; t++) {
        const std::size_t at = ((b * 150 + t) * 2 + h) * 128;
        std::vector<f32> squares(call.x.begin() + static_cast<std::ptrdiff_t>(at), call.x.begin() + static_cast<std::ptrdiff_t>(at + 128));
        for (f32& v : squares) v = v * v;
        const f32 inverse = portable::rsqrt(fold(squares) + 128 * 1e-6f);
        for (std::size_t i = 0; i < 128; i++) {
          const f32 z = call.z[at + i], n = call.x[at + i] * inverse, a = z * portable::sigmoid(z), s = call.dy[at + i] * a;
          terms[i].push_back(s * n);
        }
      }
      for (std::size_t i = 0; i < 128; i++) {
        f32 sum = 0, straight = 0;
        for (std::size_t c = 0; c < 3; c++) {
          std::vector<f32> chunk(8, 0.f);
          for (std::size_t t = 64 * c; t < 64 * (c + 1); t++) {
            const f32 term = t < 150 ? terms[i][t] : 0.f;
            chunk[t % 8] = t % 64 < 8 ? term : chunk[t % 8] + term;
            straight = straight + term;
          }
          sum = sum + fold(chunk) * root;
        }
        straight = straight * root;
        wrong += !same_bits(sum, found[2].values[(b * 2 + h) * 128 + i]);
        other += !same_bits(straight, found[2].values[(b * 2 + h) * 128 + i]);
      }
    }
  CHECK(wrong == 0);
  CHECK(other > 100);  // another order has other bits
  std::vector<f32> gradient(128);
  sum_heads(view(std::as_const(call.dw), {2, 2, 128}), view(gradient, {128}));
  for (std::size_t i = 0; i < 128; i++) CHECK(gradient[i] == ((call.dw[i] + call.dw[128 + i]) + call.dw[256 + i]) + call.dw[384 + i]);
}

TEMPLATE_TEST_CASE("gated norm: CPU and simulator", "", bf16, f32) {
  for (int T : {1, 64, 130}) {
    Norm<TestType> forward(2, T, 3);
    check_machines(forward, text("T ", T), {Schedule::lifted(), Schedule::lifted(1)});
    forward.in_place = true;
    check_machines(forward, text("in place, T ", T));
    forward.keeps = false;
    check_machines(forward, text("norms not kept, T ", T));
    Backward<TestType> backward(2, T, 3);
    check_machines(backward, text("backward, T ", T), {Schedule::lifted(), Schedule::lifted(1)});
    const Outputs made_again = run(Cpu(1), backward);
    backward.given = true;
    CHECK(differences(made_again, run(Cpu(1), backward)) == "");
    check_machines(backward, text("backward from kept norms, T ", T), {Schedule::lifted(), Schedule::lifted(1)});
  }
  Norm<TestType, 48, 16> small(1, 40, 2);
  check_machines(small, "16 tokens, 48 channels");
  Backward<TestType, 48, 16> small_backward(1, 40, 2);
  check_machines(small_backward, "backward, 16 tokens, 48 channels");
}

TEST_CASE("gated norm: what is refused, and nothing to do") {
  Cpu cpu(1);
  std::vector<f32> x(4 * 128), y(4 * 128), w(128), dw(128, 1.f);
  GatedNormArrays<f32> a;
  CHECK_THROWS_WITH(gated_norm(cpu, a), "gated_norm: x is missing");
  a.x = view(std::as_const(x), {1, 4, 1, 128}), a.z = view(std::as_const(x), {1, 2, 2, 128}), a.y = view(y, {1, 4, 1, 128});
  CHECK_THROWS_WITH(gated_norm(cpu, a), "gated_norm: w is missing");
  a.w = view(std::as_const(w), {128});
  CHECK_THROWS_WITH(gated_norm(cpu, a), "gated_norm: z has shape [1, 2, 2, 128]; expected [1, 4, 1, 128]");
  a.z = a.x, a.inverse = view(dw, {1, 4, 2});
  CHECK_THROWS_WITH(gated_norm(cpu, a), "gated_norm: inverse has shape [1, 4, 2]; expected [1, 4, 1]");
  a.inverse = view(w, {1, 4, 1});
  CHECK_THROWS_WITH(gated_norm(cpu, a), "gated_norm: output inverse overlaps w; expected separate memory");
  a.inverse = {}, a.y.data = x.data() + 1, a.y.shape[1] = 3, a.x.shape[1] = 3, a.z.shape[1] = 3;
  CHECK_THROWS_WITH(gated_norm(cpu, a), "gated_norm: output y overlaps x; expected separate memory");
  GatedNormBackwardArrays<f32> b{a.x, a.z, a.x, a.w, view(y, {1, 3, 1, 128}), view(y, {1, 3, 1, 128}), view(dw, {1, 1, 128})};
  CHECK_THROWS_WITH(gated_norm_backward(cpu, b), "gated_norm_backward: output dx overlaps dz; expected separate memory");
  b.dw = view(dw, {1, 2, 64});
  CHECK_THROWS_WITH(gated_norm_backward(cpu, b), "gated_norm_backward: dw has shape [1, 2, 64]; expected [1, 1, 128]");
  b.x.shape[1] = b.z.shape[1] = b.dy.shape[1] = b.dx.shape[1] = b.dz.shape[1] = 0, b.dw = view(dw, {1, 1, 128});
  CHECK_NOTHROW(gated_norm_backward(cpu, b));
  CHECK(std::all_of(dw.begin(), dw.end(), [](f32 v) { return v == 0; }));  // sums of nothing
}

// Small inputs on which implementations have been wrong in public, with the right answers. B.. are the names of the cases.
//
//   for (const auto& c : core_cases()) {
//     const auto result = call_under_test(c.in);
//     INFO(c.name);
//     CHECK(miss_out(c, result.out) == "");
//     CHECK(miss_state(c, result.state) == "");
//   }
//
// Tolerances are those of f32 dots (PF); a case with p1 = true holds with bf16 operands too. Inputs are f32.
#pragma once
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "bits.hpp"
#include "oracle.hpp"
#include "random_inputs.hpp"

namespace gdn::test {

// ---------------------------------------------------------------------------------------------------- judging

struct Tolerance {
  enum class Kind { exact, relative_l2, absolute } kind = Kind::exact;
  double value = 0;
};

inline Tolerance exact() { return {}; }
inline Tolerance relative(double value) { return {Tolerance::Kind::relative_l2, value}; }
inline Tolerance absolute(double value) { return {Tolerance::Kind::absolute, value}; }

// "" if a is right, else what is wrong.
template <class A, class B>
std::string miss(const Tolerance& within, const A& a, const B& right) {
  if (std::size(a) != std::size(right)) return text(std::size(a), " elements instead of ", std::size(right));
  if (within.kind == Tolerance::Kind::exact) {
    std::size_t wrong = 0, first = 0;
    for (std::size_t i = std::size(a); i-- > 0;) {
      if (detail::absolute_error(detail::wide(a[i]), detail::wide(right[i])) != 0) ++wrong, first = i;
    }
    if (wrong == 0) return "";
    return text(wrong, " of ", std::size(a), " elements are not exact, first ", first, ": ", detail::wide(a[first]), " instead of ",
                detail::wide(right[first]));
  }
  const bool l2 = within.kind == Tolerance::Kind::relative_l2;
  const double error = l2 ? relative_l2(a, right) : max_absolute_error(a, right);
  return error <= within.value ? "" : text(l2 ? "relative L2 error " : "absolute error ", error, " above ", within.value);
}

// ---------------------------------------------------------------------------------------------------- core calls

struct CoreCase {
  std::string name;
  CoreInput<f32> in;
  Tolerance out_within = relative(1e-6), state_within = relative(1e-6);
  Array<double> out{}, state{};  // the right answers; not given: those of the recurrence
  bool p1 = false;               // holds with bf16 operands as well
  bool update_only = false;      // the state is judged by what the call adds to h0
  double token_recurrence = 0;   // a wider state tolerance for the token recurrence, 0: the same
  std::vector<int> cu{};         // documents by offsets instead of ids; then
  Array<f32> document_h0{};      // [documents,Hv,K,V] their initial states, and the state is [documents,Hv,K,V] too
};

inline CoreResult right_answer(const CoreCase& c) {
  CoreResult right;
  if (!c.out.given() || !c.state.given()) {
    right = c.cu.empty() ? recurrence(widen(c.in)) : recurrence_by_document(widen(c.in), c.cu, cast<double>(c.document_h0));
  }
  if (c.out.given()) right.out = c.out;
  if (c.state.given()) right.state = c.state;
  return right;
}

// out [T,Hv,V]: f32, bf16 or double, any container. Rows of padding must be 0 whatever the tolerance.
template <class A>
std::string miss_out(const CoreCase& c, const A& out) {
  const auto right = right_answer(c).out;
  const auto wrong = miss(c.out_within, out, right);
  if (!wrong.empty()) return "out: " + wrong;
  const std::size_t width = c.in.ids.empty() ? 0 : out.size() / c.in.ids.size();
  for (std::size_t i = 0; i < width * c.in.ids.size(); ++i) {
    if (c.in.ids[i / width] <= 0 && detail::wide(out[i]) != 0) return text("out: not 0 on padding row ", i / width);
  }
  return "";
}

template <class A>
std::string miss_state(const CoreCase& c, const A& state, bool by_token_recurrence = false) {
  auto right = right_answer(c).state;
  std::vector<double> found;
  for (std::size_t i = 0; i < state.size(); ++i) found.push_back(detail::wide(state[i]));
  if (c.update_only) {
    for (std::size_t i = 0; i < c.in.h0.size(); ++i) found.at(i) -= c.in.h0[i], right[i] -= c.in.h0[i];
  }
  auto within = c.state_within;
  if (by_token_recurrence && c.token_recurrence > 0) within.value = c.token_recurrence;
  const auto wrong = miss(within, found, right);
  if (!wrong.empty()) return "state: " + wrong;
  for (std::size_t d = 0; d + 1 < c.cu.size(); ++d) {  // an empty document hands its state on as it is
    const std::size_t size = found.size() / (c.cu.size() - 1);
    for (std::size_t i = d * size; c.cu[d] == c.cu[d + 1] && i < (d + 1) * size; ++i) {
      if (found[i] != right[i]) return text("state: changed by the empty document ", d);
    }
  }
  return "";
}

// Two calls, and rows of theirs that must agree: (row of a, row of b).
template <class Input>
struct SameCase {
  std::string name;
  Input a, b;
  std::vector<std::pair<int, int>> rows;
  Tolerance within = exact();
  bool states = true;
};

// One call, against calls on the parts between the cuts with the states handed on.
template <class Input>
struct SplitCase {
  std::string name;
  Input in;
  std::vector<int> cuts;
  Tolerance within;
};

// The state before chunk n against the final state of a call on the first n chunks: equal bits.
struct PrefixCase {
  std::string name;
  CoreInput<f32> in;
  std::vector<int> chunks;
};

// Equal bits from every run and every number of threads, and right ones.
struct RepeatCase {
  CoreCase call;
  int runs;
  std::vector<int> threads;
};

// An input to be refused, with the place of the first bad element in the text of the error.
struct RefusedCase {
  std::string name;
  CoreInput<f32> in;
  int token, head;
};

// Rows of a view that lie `token_stride` elements apart in a sparse buffer of `elements`: the last ones past 2^31.
struct StrideCase {
  std::string name;
  CoreInput<f32> in;
  std::int64_t token_stride, elements;
};

// The middle of a buffer with canaries on both sides: what a call that writes past its end changes (B21).
template <class T>
class Guarded {
 public:
  explicit Guarded(std::size_t size, T fill = {}) : size_(size), data_(size + 2 * guard_, canary()) {
    std::fill_n(data_.begin() + guard_, size, fill);
  }
  T* data() { return data_.data() + guard_; }
  std::size_t size() const { return size_; }
  std::size_t size_bytes() const { return size_ * sizeof(T); }
  T& operator[](std::size_t i) { return data()[i]; }
  bool intact() const {
    for (std::size_t i = 0; i < guard_; ++i) {
      if (!same_bits(data_[i], canary()) || !same_bits(data_[guard_ + size_ + i], canary())) return false;
    }
    return true;
  }

 private:
  static constexpr T canary() {
    if constexpr (std::is_same_v<T, bf16>) {
      return {0x3ade};
    } else {
      return static_cast<T>(12345);
    }
  }
  static constexpr std::size_t guard_ = 64;
  std::size_t size_;
  std::vector<T> data_;
};

// Head dims of the cases, for kernels that know only some: `dim` where nothing is said, `small` for long rows, and `one` for the cases
// of a single number, which is put into element 0.
struct CaseDims {
  int dim = 128, small = 16, one = 1;
};

namespace detail {

inline CoreInput<f32> zero_core(const Sizes& n) {
  CoreInput<f32> in;
  in.q = in.k = Array<f32>({n.T, n.Hk, n.K});
  in.v = Array<f32>({n.T, n.Hv, n.V});
  in.g = in.beta = Array<f32>({n.T, n.Hv});
  return in;
}

// Random q, v, beta, unit k; no state, scale 1.
inline CoreInput<f32> unit_key_core(std::uint64_t seed, const Sizes& n) {
  auto in = random_core<f32>(seed, n, {}, false);
  for (int t = 0; t < n.T; ++t) {
    for (int h = 0; h < n.Hk; ++h) {
      double sum = 0;
      for (int i = 0; i < n.K; ++i) sum += static_cast<double>(in.k(t, h, i)) * in.k(t, h, i);
      for (int i = 0; i < n.K; ++i) in.k(t, h, i) = static_cast<f32>(in.k(t, h, i) / std::sqrt(sum));
    }
  }
  in.scale = 1, in.use_qk_norm = false;
  return in;
}

// The answer when nothing of the past is left: o_t = s beta (q.k) v, S = k^T beta v of the last token.
inline void only_the_last_token(CoreCase& c) {
  const auto in = widen(c.in);
  const int T = in.tokens(), Hv = in.value_heads(), K = in.key_dim(), V = in.value_dim(), per_key = Hv / in.key_heads();
  c.out = Array<double>({T, Hv, V}), c.state = Array<double>({Hv, K, V});
  for (int t = 0; t < T; ++t) {
    for (int h = 0; h < Hv; ++h) {
      double qk = 0;
      for (int i = 0; i < K; ++i) qk += in.q(t, h / per_key, i) * in.k(t, h / per_key, i);
      for (int j = 0; j < V; ++j) {
        c.out(t, h, j) = in.scale * in.beta(t, h) * qk * in.v(t, h, j);
        for (int i = 0; t == T - 1 && i < K; ++i) c.state(h, i, j) = in.k(t, h / per_key, i) * in.beta(t, h) * in.v(t, h, j);
      }
    }
  }
}

// T tokens of one number each, in element 0: k, q, v, g, beta.
inline CoreInput<f32> scalar_core(int T, int dim, f32 k, f32 q, f32 v, f32 g, f32 beta) {
  auto in = zero_core({T, 1, 1, dim, dim});
  for (int t = 0; t < T; ++t) in.k(t, 0, 0) = k, in.q(t, 0, 0) = q, in.v(t, 0, 0) = v, in.g(t, 0) = g, in.beta(t, 0) = beta;
  return in;
}

// The right output and state of a scalar case: o(t) in element 0.
inline void scalar_answer(CoreCase& c, const std::function<double(int)>& out, double state) {
  c.out = Array<double>(c.in.v.shape), c.state = Array<double>({1, c.in.key_dim(), c.in.value_dim()});
  for (int t = 0; t < c.in.tokens(); ++t) c.out(t, 0, 0) = out(t);
  c.state[0] = state;
}

inline std::vector<std::pair<int, int>> row_pairs(int a, int b, int count) {
  std::vector<std::pair<int, int>> rows;
  for (int i = 0; i < count; ++i) rows.emplace_back(a + i, b + i);
  return rows;
}

inline void fill_rows(Array<f32>& x, int first, int last, f32 value) {
  for (int t = first; t < last; ++t) std::fill_n(x.row(t), x.size() / static_cast<std::size_t>(x.shape[0]), value);
}

inline void scale_rows(Array<f32>& x, int first, int last, f32 factor) {
  const auto width = x.size() / static_cast<std::size_t>(x.shape[0]);
  for (int t = first; t < last; ++t) {
    for (std::size_t i = 0; i < width; ++i) x.row(t)[i] *= factor;
  }
}

}  // namespace detail

// Calls with a right answer.
inline std::vector<CoreCase> core_cases(const CaseDims& dims = {}) {
  using namespace detail;
  const int D = dims.dim;
  std::vector<CoreCase> cases;

  // Exponents of positive differences and inf * 0 give NaN under strong decay.
  for (const f32 g : {-200.0f, -700.0f, -1e4f}) {
    CoreCase c{text("B01 g = ", g), unit_key_core(1, {64, 1, 1, D, D})};
    std::fill(c.in.g.data.begin(), c.in.g.data.end(), g);
    c.in.scale = static_cast<f32>(1 / std::sqrt(static_cast<double>(D)));
    only_the_last_token(c);
    cases.push_back(c);
  }
  {  // A "safe" exp that drops differences slightly above 0 loses tokens when nothing decays.
    const int T = std::min(64, D);
    CoreCase c{"B02 no decay, a key of its own for every token", zero_core({T, 1, 1, D, D}), exact(), exact()};
    c.out = Array<double>(c.in.v.shape), c.state = Array<double>({1, D, D});
    fill_rows(c.in.q, 0, T, 1), fill_rows(c.in.v, 0, T, 1), fill_rows(c.in.beta, 0, T, 1);
    for (int t = 0; t < T; ++t) {
      c.in.k(t, 0, t) = 1;
      for (int j = 0; j < D; ++j) c.out(t, 0, j) = t + 1, c.state(0, t, j) = 1;
    }
    c.p1 = true;
    cases.push_back(c);
  }
  {  // Prefix sums of mixed zero and nonzero decays are not monotone in f32.
    CoreCase c{"B02 every other token without decay", unit_key_core(2, {64, 1, 1, D, D})};
    for (int t = 0; t < 64; ++t) c.in.g(t, 0) = t % 2 ? -0.3f : 0.0f;
    cases.push_back(c);
  }
  {  // e^-c of a product form overflows after four tokens.
    CoreCase c{"B03 decay 1e-12", unit_key_core(3, {64, 1, 1, D, D})};
    std::fill(c.in.g.data.begin(), c.in.g.data.end(), -27.631021f);
    only_the_last_token(c);
    cases.push_back(c);
  }
  {  // The state decays before the error is taken; the other order gives 0.5.
    CoreCase c{"B06 decay before error", scalar_core(1, dims.one, 1, 1, 1, std::log(0.5f), 0.5f)};
    c.in.h0 = Array<f32>({1, dims.one, dims.one}), c.in.h0[0] = 1;
    scalar_answer(c, [](int) { return 0.75; }, 0.75);
    cases.push_back(c);
  }
  {  // g is the natural logarithm of the decay.
    CoreCase c{"B07 four halvings of I", unit_key_core(7, {4, 1, 1, D, D})};
    std::fill(c.in.k.data.begin(), c.in.k.data.end(), 0.0f);
    std::fill(c.in.g.data.begin(), c.in.g.data.end(), std::log(0.5f));
    c.in.h0 = Array<f32>({1, D, D}), c.state = Array<double>({1, D, D});
    for (int i = 0; i < D; ++i) c.in.h0(0, i, i) = 1, c.state(0, i, i) = 0.0625;
    cases.push_back(c);
  }
  {  // A decay kept in bf16 is off by 6 % after 16384 tokens.
    const f32 g = -(0x1p-10f + 0x1p-18f);
    CoreCase c{"B10 slow decay over a long row", scalar_core(16384, dims.one, 0, 1, 1, g, 0.5f), relative(1e-5), relative(1e-5)};
    c.in.h0 = Array<f32>({1, dims.one, dims.one}), c.in.h0[0] = 1;
    scalar_answer(c, [g](int t) { return std::exp(g * (t + 1.0)); }, std::exp(-16.0625));
    c.out_within = relative(1e-4), c.token_recurrence = 1e-4;
    cases.push_back(c);
  }
  {  // beta up to 2 is allowed: reflections.
    CoreCase c{"B12 beta = 2", scalar_core(4, dims.one, 1, 1, 1, 0, 2), exact(), exact()};
    scalar_answer(c, [](int t) { return t % 2 ? 0.0 : 2.0; }, 0);
    c.p1 = true;
    cases.push_back(c);
  }
  {  // Keys that are not normalised grow: the growth is right.
    CoreCase c{"B13 beta k.k = 4", scalar_core(64, dims.one, 2, 1, 1, 0, 1), relative(1e-4), relative(1e-4)};
    const auto out = [](int t) { return (1 - std::pow(-3.0, t + 1)) / 2; };
    scalar_answer(c, out, out(63));
    cases.push_back(c);
  }
  {  // A state kept in bf16 sticks at 0.25.
    CoreCase c{"B20 4096 small writes", scalar_core(4096, dims.one, 1, 1, 1, 0, 0x1p-10f), relative(1e-5), relative(1e-5)};
    const auto out = [](int t) { return 1 - std::pow(1 - 0x1p-10, t + 1); };
    scalar_answer(c, out, out(4095));
    cases.push_back(c);
  }
  {  // A state of 16 bits written as 32 overwrites its neighbour; put it between canaries (Guarded).
    CoreCase c{"B21 a large state", scalar_core(1, dims.one, 1, 1, 1e5f, 0, 1), exact(), exact()};
    scalar_answer(c, [](int) { return 1e5; }, 1e5);
    cases.push_back(c);
  }
  {  // v - kS is a small difference of large numbers in real states: TF32 and bf16 operands lose the update.
    CoreCase c{"B65 a small correction of a wide state", unit_key_core(65, {1, 1, 1, D, D}), relative(1e-4), relative(1e-3)};
    Random random(650);
    c.in.g(0, 0) = 0, c.in.beta(0, 0) = 1, c.in.h0 = Array<f32>({1, D, D}), c.update_only = true;
    for (auto& s : c.in.h0.data) s = static_cast<f32>((random.uniform() < 0.5 ? -1 : 1) * std::pow(10, random.uniform(-3, 2)));
    for (int j = 0; j < D; ++j) {
      double kS = 0;
      for (int i = 0; i < D; ++i) kS += static_cast<double>(c.in.k(0, 0, i)) * c.in.h0(0, i, j);
      c.in.v(0, 0, j) = static_cast<f32>(1.01 * kS);
    }
    cases.push_back(c);
  }
  {  // 76800 is no fp16 number.
    CoreCase c{"B66 a readout above 65504", zero_core({D, 1, 1, D, D}), exact(), exact()};
    c.out = Array<double>(c.in.v.shape), c.state = Array<double>({1, D, D}, 600);
    fill_rows(c.in.q, 0, D, 1), fill_rows(c.in.v, 0, D, 600), fill_rows(c.in.beta, 0, D, 1);
    for (int t = 0; t < D; ++t) {
      c.in.k(t, 0, t) = 1;
      for (int j = 0; j < D; ++j) c.out(t, 0, j) = 600.0 * (t + 1);
    }
    c.p1 = true;
    cases.push_back(c);
  }
  {  // Value heads read key head h / (Hv / Hk), not h mod Hk; and all of them are computed.
    CoreCase c{"B25 B26 two value heads per key head", zero_core({1, 2, 4, D, D}), exact(), exact()};
    c.out = Array<double>(c.in.v.shape), c.state = Array<double>({4, D, D});
    for (int j = 0; j < 2; ++j) c.in.k(0, j, j) = c.in.q(0, j, j) = 1;
    for (int h = 0; h < 4; ++h) {
      c.in.beta(0, h) = 1;
      for (int j = 0; j < D; ++j) c.in.v(0, h, j) = static_cast<f32>(1 + h), c.out(0, h, j) = c.state(h, h / 2, j) = 1 + h;
    }
    c.p1 = true;
    cases.push_back(c);
  }
  for (const bool norm : {true, false}) {  // The flag must reach the kernel.
    CoreCase c{text("B29 norm ", norm ? "on" : "off"), scalar_core(1, std::max(2, dims.one), 2, 2, 1, 0, 1)};
    c.in.use_qk_norm = norm, c.p1 = !norm;
    if (!norm) c.out_within = c.state_within = exact();
    const double length = norm ? 2 / std::sqrt(4 + 1e-6) : 2;
    scalar_answer(c, [length](int) { return length * length; }, length);
    cases.push_back(c);
  }
  for (const int row : {0, 1}) {  // Rows past the end of the last chunk must not enter exp.
    CoreCase c{text("B30 75 tokens of strong decay, row ", row), unit_key_core(30 + row, {75, 1, 1, D, D})};
    Random random(300 + row);
    for (auto& g : c.in.g.data) g = static_cast<f32>(-softplus(random.normal()) / 0.01);
    cases.push_back(c);
  }
  for (const int T : {5, 69}) {  // The last decay is that of the last valid row.
    CoreCase c{text("B31 ", T, " decays of ones"), unit_key_core(31, {T, 1, 1, D, D})};
    std::fill(c.in.k.data.begin(), c.in.k.data.end(), 0.0f);
    std::fill(c.in.g.data.begin(), c.in.g.data.end(), -1.0f);
    c.in.h0 = Array<f32>({1, D, D}, 1), c.state = Array<double>({1, D, D}, std::exp(-T));
    if (T == 69) c.out_within = c.state_within = relative(1e-5);  // the exponent, 99.5, is an f32
    cases.push_back(c);
  }
  {  // Every document is a call of its own, whatever its length.
    CoreCase c{"B32 twelve lengths, one after the other", {}};
    c.cu = {0};
    for (const int length : {2049, 1011, 513, 256, 128, 65, 32, 16, 8, 4, 5, 1}) c.cu.push_back(c.cu.back() + length);
    c.in = unit_key_core(32, {c.cu.back(), 1, 2, dims.small, dims.small});
    cases.push_back(c);
  }
  {
    CoreCase c{"B33 empty documents hand their states on", unit_key_core(33, {64, 1, 2, dims.small, dims.small})};
    Random random(330);
    c.cu = {0, 0, 7, 7, 64, 64};
    c.document_h0 = normal_array<f32>(random, {5, 2, dims.small, dims.small});
    cases.push_back(c);
  }
  {  // Ids and padding at once; what padding holds is never read.
    CoreCase c{"B35 two documents and padding of NaN", unit_key_core(35, {64, 1, 2, D, D})};
    c.in.ids = document_ids({{1, 20}, {2, 20}, {0, 24}});
    for (auto* x : {&c.in.q, &c.in.k, &c.in.v, &c.in.g, &c.in.beta}) fill_rows(*x, 40, 64, std::numeric_limits<f32>::quiet_NaN());
    cases.push_back(c);
  }
  {  // Many documents are no grid of 65535 at most.
    CoreCase c{"B45 2048 documents of one token", unit_key_core(45, {2048, 8, 32, dims.small, dims.small})};
    for (int t = 0; t < 2048; ++t) c.in.ids.push_back(t + 1);
    only_the_last_token(c);
    cases.push_back(c);
  }
  {  // Ranges reported for real models.
    CoreCase c{"g in [-316, 0), v in [-0.28, 24.8]", unit_key_core(46, {130, 1, 2, D, D})};
    Random random(460);
    for (auto& g : c.in.g.data) g = static_cast<f32>(-316 * std::pow(random.uniform(), 4));
    for (auto& v : c.in.v.data) v = static_cast<f32>(random.uniform(-0.28, 24.8));
    cases.push_back(c);
  }
  {  // An infinite decay forgets.
    CoreCase c{"g = -inf forgets", unit_key_core(47, {70, 1, 1, D, D})};
    c.in.g(20, 0) = c.in.g(64, 0) = c.in.g(69, 0) = -std::numeric_limits<f32>::infinity();
    cases.push_back(c);
  }
  return cases;
}

inline std::vector<SameCase<CoreInput<f32>>> same_core_cases(const CaseDims& dims = {}) {
  using namespace detail;
  const int D = dims.dim;
  std::vector<SameCase<CoreInput<f32>>> cases;
  {  // A slot's old content is not an initial state.
    auto a = random_core<f32>(23, {70, 1, 2, D, D}, {}, false), b = a;
    b.h0 = Array<f32>({2, D, D});
    cases.push_back({"B23 no initial state is a state of zeros", a, b, row_pairs(0, 0, 70)});
  }
  {
    auto a = random_core<f32>(24, {130, 1, 2, D, D}), b = a;
    a.g = {}, b.g = Array<f32>({130, 2});
    cases.push_back({"B24 no decay given is a decay of 1", a, b, row_pairs(0, 0, 130)});
  }
  {
    auto a = random_core<f32>(34, {64, 1, 2, D, D}, document_ids({{1, 33}, {2, 31}})), b = a;
    for (auto* x : {&b.q, &b.k, &b.v, &b.h0}) scale_rows(*x, 0, x->shape[0] == 64 ? 33 : 2, 1000);
    cases.push_back({"B34 a document does not see the one before", a, b, row_pairs(33, 33, 31)});
    b = tokens_of(a, 33, 64), b.ids.clear(), b.h0 = {};
    cases.push_back({"B34 a document behind another is as if alone", a, b, row_pairs(33, 0, 31), relative(1e-6)});
  }
  {
    const auto a = random_core<f32>(36, {16, 1, 2, D, D}, document_ids({{0, 6}, {1, 10}}));
    auto b = tokens_of(a, 6, 16);
    b.ids.clear();
    cases.push_back({"B36 padding in front", a, b, row_pairs(6, 0, 10), relative(1e-6)});
  }
  {
    const auto a = random_core<f32>(37, {8, 1, 2, D, D}, document_ids({{1, 3}, {0, 3}, {1, 2}}));
    auto b = tokens_of(a, 0, 5);
    const auto tail = tokens_of(a, 6, 8);
    b.ids.clear();
    const std::pair<Array<f32>*, const Array<f32>*> parts[] = {{&b.q, &tail.q}, {&b.k, &tail.k}, {&b.v, &tail.v}, {&b.g, &tail.g},
                                                               {&b.beta, &tail.beta}};
    for (auto [to, from] : parts) std::copy(from->begin(), from->end(), to->row(3));
    cases.push_back({"B37 masked rows are as if removed", a, b, {{0, 0}, {1, 1}, {2, 2}, {6, 3}, {7, 4}}, relative(1e-6)});
  }
  return cases;
}

inline std::vector<SplitCase<CoreInput<f32>>> split_core_cases(const CaseDims& dims = {}) {
  const auto row = random_core<f32>(22, {128, 1, 2, dims.dim, dims.dim});
  std::vector<int> every(64);
  for (int i = 0; i < 64; ++i) every[i] = i + 1;
  return {
      {"B22 continued at a chunk end", row, {64}, exact()},
      {"B22 continued inside a chunk", row, {50}, relative(1e-6)},
      {"B51 one call or one token at a time", random_core<f32>(51, {65, 1, 2, dims.dim, dims.dim}), every, relative(1e-6)},
  };
}

inline std::vector<PrefixCase> prefix_cases(const CaseDims& dims = {}) {
  return {{"B50 states at chunk ends", random_core<f32>(50, {256, 1, 2, dims.dim, dims.dim}), {1, 2, 3, 4}}};
}

inline RepeatCase repeat_case(const CaseDims& dims = {}) {
  return {{"B46 ten runs on one, two and four threads", detail::unit_key_core(146, {256, 2, 4, dims.dim, dims.dim})}, 10, {1, 2, 4}};
}

// An alpha of 0.5 given where its logarithm is wanted.
inline std::vector<RefusedCase> refused_cases(const CaseDims& dims = {}) {
  RefusedCase c{"B07 a positive g", random_core<f32>(107, {70, 1, 2, dims.dim, dims.dim}), 66, 1};
  c.in.g(66, 1) = c.in.g(69, 0) = 0.5f;
  return {c};
}

// B43: offsets of 32 bits. 64 tokens of one document; the buffer is to be mapped without being touched.
inline StrideCase stride_case(const CaseDims& dims = {}) {
  const std::int64_t stride = (std::int64_t{1} << 25) + (std::int64_t{1} << 20);
  return {"B43 rows past 2^31 elements", detail::unit_key_core(43, {64, 1, 1, dims.dim, dims.dim}), stride, 64 * stride};
}

// ---------------------------------------------------------------------------------------------------- layers

inline LayerInput<f32> tokens_of(const LayerInput<f32>& in, int first, int last) {
  auto part = in;
  part.qkv = rows(in.qkv, first, last), part.a = rows(in.a, first, last), part.b = rows(in.b, first, last);
  if (!in.ids.empty()) part.ids.assign(in.ids.begin() + first, in.ids.begin() + last);
  return part;
}

inline std::vector<SameCase<LayerInput<f32>>> same_layer_cases(const CaseDims& dims = {}) {
  using namespace detail;
  const int D = dims.dim;
  std::vector<SameCase<LayerInput<f32>>> cases;
  {
    const auto a = random_layer<f32>(134, {64, 1, 2, D, D}, document_ids({{1, 33}, {2, 31}}));
    auto b = a;
    scale_rows(b.qkv, 0, 33, 1000), scale_rows(b.conv_state, 0, 3, 1000);
    cases.push_back({"B34 neither convolution nor rule see the document before", a, b, row_pairs(33, 33, 31)});
    b = tokens_of(a, 33, 64), b.ids.clear(), b.h0 = {}, b.conv_state = {};
    cases.push_back({"B34 a document behind another is as if alone", a, b, row_pairs(33, 0, 31), relative(1e-6)});
  }
  {
    const auto a = random_layer<f32>(136, {16, 1, 2, D, D}, document_ids({{0, 6}, {1, 10}}), false);
    auto b = tokens_of(a, 6, 16);
    b.ids.clear();
    cases.push_back({"B36 padding in front does not bleed into the convolution", a, b, row_pairs(6, 0, 10), relative(1e-6)});
  }
  return cases;
}

inline std::vector<SplitCase<LayerInput<f32>>> split_layer_cases(const CaseDims& dims = {}) {
  const auto row = random_layer<f32>(122, {128, 1, 2, dims.dim, dims.dim});
  return {
      {"B22 continued at a chunk end, both states carried", row, {64}, exact()},
      {"B22 continued inside a chunk", row, {50}, relative(1e-6)},
      {"B22 continued by less than the taps", row, {1, 3, 127}, relative(1e-6)},
  };
}

// ---------------------------------------------------------------------------------------------------- parts of a layer

struct ConvCase {
  std::string name;
  Array<f32> x, weights, bias, state;  // [T,D] [taps,D] [D] [taps-1,D], the last two maybe not given
  std::vector<int> ids;
  Array<double> y, new_state;
  Tolerance within = relative(1e-6);  // of y; the state is exact
};

inline std::vector<ConvCase> conv_cases(int channels = 128) {
  const auto columns = [&](const std::vector<double>& values) {
    Array<double> x({static_cast<int>(values.size()), channels});
    for (int t = 0; t < x.shape[0]; ++t) std::fill_n(x.row(t), channels, values[static_cast<std::size_t>(t)]);
    return x;
  };
  const auto narrow = [&](const std::vector<double>& values) { return cast<f32>(columns(values)); };
  const auto w = narrow({0.5, -1, 2, 3});
  const double nan = std::numeric_limits<double>::quiet_NaN();
  return {
      {"B40 a call shorter than the taps shifts the state", narrow({10}), w, {}, narrow({1, 2, 3}), {}, columns({silu(34.5)}),
       columns({2, 3, 10})},
      {"B40 no state is zeros", narrow({10}), w, {}, {}, {}, columns({silu(30)}), columns({0, 0, 10})},
      {"a padded tap is a hole, not a shift", narrow({1, 2, nan, 4, 5, nan}), w, {}, narrow({1, 2, 3}), {8, 8, 0, 8, 3, 0},
       columns({silu(7.5), silu(6), 0, silu(10.5), silu(15), 0}), columns({0, 0, 5})},
      {"padding alone hands the state on", narrow({nan, nan}), w, {}, narrow({1, 2, 3}), {0, 0}, columns({0, 0}), columns({1, 2, 3})},
  };
}

struct GateCase {
  std::string name;
  f32 A_log, dt_bias, a, b;
  double g, beta;
  Tolerance g_within, beta_within = relative(1e-6);
};

inline std::vector<GateCase> gate_cases() {
  return {
      {"B08 inf * 0", 100, 0, -200, 0, 0, 0.5, absolute(1e-37)},
      {"softplus of 0", 0, 0, 0, -3, -std::log(2), sigmoid(-3), relative(1e-6)},
      {"softplus is its argument", 1, 20, 180, 3, -200 * std::exp(1), sigmoid(3), relative(1e-6)},
      {"B11 beta is not rounded", 0, 1, 0, 0.5, -softplus(1), 0.62245933, relative(1e-6), relative(1e-7)},
      {"beta at its ends", -3, 0, 1, -90, -std::exp(-3) * softplus(1), 0, relative(1e-6), absolute(1e-37)},
  };
}

// x in all 128 entries of a row; dx is the derivative along dy in all entries.
struct NormCase {
  std::string name;
  f32 x;
  double y;
  f32 dy;
  double dx;
  Tolerance within;
};

inline std::vector<NormCase> norm_cases() {
  const auto row = [](const char* name, double x, double y) {
    const double r = 1 / std::sqrt(128 * x * x + 1e-6);
    return NormCase{name, static_cast<f32>(x), y, 1, r - 128 * x * x * r * r * r, relative(3e-6)};
  };
  return {
      row("B27 epsilon inside the root, c = 1e-4", 1e-4, 0.0662266),
      row("B27 c = 1e-3", 1e-3, 0.0880451),
      row("B27 c = 1e-2", 1e-2, 0.0883849),
      {"B28 a row of zeros", 0, 0, 1, 1000, relative(1e-6)},
      {"B28 a row of zeros, no cotangent", 0, 0, 0, 0, exact()},
  };
}

// ---------------------------------------------------------------------------------------------------- the triangular inverse

struct InverseCase {
  std::string name;
  Array<f32> L;      // [64,64], strictly lower
  Array<double> X;   // (I + L)^-1; not given: judged by its residual
  Tolerance within;  // of the strictly lower part: the diagonal would hide it
  bool p1 = false;   // holds with bf16 operands as well
};

// Largest |(I + L) X - I| over (|I + L| |X|), element by element.
template <class A>
double inverse_residual(const Array<f32>& L, const A& X) {
  const int n = L.shape[0];
  double worst = 0;
  for (int i = 0; i < n; ++i) {
    for (int c = 0; c < n; ++c) {
      double sum = X[i * n + c] - (i == c), size = std::abs(X[i * n + c]);
      for (int j = 0; j < i; ++j) {
        sum += static_cast<double>(L(i, j)) * X[j * n + c];
        size += std::abs(static_cast<double>(L(i, j)) * X[j * n + c]);
      }
      worst = std::max(worst, detail::ratio(detail::absolute_error(sum, 0), size));
    }
  }
  return worst;
}

template <class A>
std::string miss(const InverseCase& c, const A& X) {
  const int n = c.L.shape[0];
  std::vector<double> found, right;
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < n; ++j) {
      const double x = X[i * n + j];
      if (i <= j && x != (i == j)) return text("element ", i, ",", j, " is ", x);
      if (i > j) found.push_back(x);
      if (i > j && c.X.given()) right.push_back(c.X(i, j));
    }
  }
  if (c.X.given()) return miss(c.within, found, right);
  const double residual = inverse_residual(c.L, X);
  return residual <= 64 * 0x1p-23 ? "" : text("residual ", residual, " above 64 eps");
}

inline std::vector<InverseCase> inverse_cases() {
  const int n = 64;
  const auto lower = [&](auto value) {  // value(i - j) below the diagonal
    Array<double> x({n, n});
    for (int i = 0; i < n; ++i) {
      for (int j = 0; j < i; ++j) x(i, j) = value(i - j);
    }
    return x;
  };
  const auto constant = [&](f32 c) { return cast<f32>(lower([c](int) { return c; })); };
  const auto solution = [&](double c) { return lower([c](int d) { return -c * std::pow(1 - c, d - 1); }); };
  const f32 near_one = static_cast<f32>(sigmoid(8));

  Array<f32> random_lower({n, n});
  Random random(57);
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < i; ++j) random_lower(i, j) = static_cast<f32>(random.normal());
  }
  return {
      {"B14 all ones: powers of L reach 1e18", constant(1), lower([](int d) { return d == 1 ? -1.0 : 0.0; }), exact(), true},
      {"B14 all twos", constant(2), lower([](int d) { return d % 2 ? -2.0 : 2.0; }), exact(), true},
      {"B15 all -1: powers of two", constant(-1), lower([](int d) { return std::ldexp(1.0, d - 1); }), exact(), true},
      {"B16 all nearly 1", constant(near_one), solution(near_one), relative(1e-6)},
      {"B17 all 0.6", constant(0.6f), solution(0.6f), relative(1e-6)},
      {"B18 a chain of 1 + 2^-11", cast<f32>(lower([](int d) { return d == 1 ? -(1 + 0x1p-11) : 0.0; })),
       lower([](int d) { return std::pow(1 + 0x1p-11, d); }), relative(2e-6)},
      {"B57 normal couplings, up to 4e6 in X", random_lower, {}, {}},
  };
}

}  // namespace gdn::test

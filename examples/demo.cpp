// A Gated DeltaNet layer on a real text: on the CPU, in the simulator, and as kernels for the TPU. `sh cmake/demo.sh` builds and runs it.
//
//   demo TEXT DIRECTORY [--tokens N] [--simulated N] [--heads KEY VALUE]
//
// Every byte of the text is a token. Its embedding is row `byte` of a fixed random table [256, 64]; qkv, a and b are fixed random
// projections of that row (Model, below), rounded to bf16. The f32 and the bf16 run get the same numbers, so one float64 reference
// serves both. A blank line of the text ends a document.
//
// DIRECTORY receives measured.json and the emitted kernels; cmake/demo_report.py compiles these and prints the table.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "gdn/kernels.hpp"
#include "gdn/simulate.hpp"

using namespace gdn;

namespace {

constexpr int D = 128, C = 64, taps = 4;

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

struct Options {
  std::string text, directory;
  int tokens = 4096, simulated = 256, key_heads = 16, value_heads = 64;
  int tpu_tokens = 16384;
  int channels() const { return (2 * key_heads + value_heads) * D; }
};

// ---- from text to inputs

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  double uniform() {  // splitmix64
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
  }
  // Mean 0, variance 1. A sum of uniforms, because the bits of log and cos differ between C libraries.
  double normal() {
    double sum = -6;
    for (int i = 0; i < 12; i++) sum += uniform();
    return sum;
  }
  std::vector<f32> normals(std::size_t n, double scale) {
    std::vector<f32> x(n);
    for (f32& v : x) v = static_cast<f32>(scale * normal());
    return x;
  }
  std::vector<f32> uniforms(std::size_t n, double low, double high) {
    std::vector<f32> x(n);
    for (f32& v : x) v = static_cast<f32>(low + (high - low) * uniform());
    return x;
  }

 private:
  std::uint64_t state_;
};

// The layer's weights, and what it gets for each byte.
struct Model {
  std::vector<bf16> qkv, a, b;  // [256, channels], [256, Hv]
  std::vector<f32> conv_weights, conv_bias, A_log, dt_bias;

  explicit Model(const Options& o) {
    constexpr int width = 64;
    Random random(1);
    const std::vector<f32> embedding = random.normals(256 * width, 1);
    auto projected = [&](int columns) {
      const std::vector<f32> weights = random.normals(static_cast<std::size_t>(width) * columns, 1 / std::sqrt(width));
      std::vector<bf16> y(static_cast<std::size_t>(256) * columns);
      std::vector<f32> row(columns);
      for (int byte = 0; byte < 256; byte++) {
        std::fill(row.begin(), row.end(), 0.f);
        for (int i = 0; i < width; i++)
          for (int j = 0; j < columns; j++) row[j] += embedding[byte * width + i] * weights[i * columns + j];
        for (int j = 0; j < columns; j++) y[static_cast<std::size_t>(byte) * columns + j] = to_bf16(row[j]);
      }
      return y;
    };
    qkv = projected(o.channels());
    a = projected(o.value_heads);
    b = projected(o.value_heads);
    conv_weights = random.normals(static_cast<std::size_t>(taps) * o.channels(), 0.5);
    conv_bias = random.normals(o.channels(), 0.1);
    A_log = random.uniforms(o.value_heads, 0, 2.77);        // rates of 1 to 16, as such layers are initialised
    dt_bias = random.uniforms(o.value_heads, -6.9, -2.25);  // steps of 0.001 to 0.1
  }
};

struct Text {
  std::string bytes;
  std::vector<i32> documents;  // 1, 2, ..; 0 on the newline that makes a line blank
};

Text read_text(const Options& o, int tokens) {
  std::ifstream file(o.text, std::ios::binary);
  std::string all((std::istreambuf_iterator<char>(file)), {});
  require(!all.empty(), "demo: ", o.text, " cannot be read, or is empty");
  if (static_cast<int>(all.size()) < tokens) std::printf("The text has %zu bytes; it is repeated to make %d tokens.\n", all.size(), tokens);
  Text t;
  i32 document = 1;
  bool begun = false;
  for (int i = 0; i < tokens; i++) {
    const char c = all[i % all.size()];
    const bool blank = c == '\n' && i > 0 && t.bytes.back() == '\n';
    if (blank && begun) {
      document++;
      begun = false;
    }
    begun = begun || !blank;
    t.bytes += c;
    t.documents.push_back(blank ? 0 : document);
  }
  return t;
}

// ---- one call: its arrays, for n tokens from `first` on

template <class Act> Act converted(bf16 x) {
  if constexpr (std::is_same_v<Act, bf16>) return x;
  else return to_f32(x);
}

template <class Act> struct Inputs {
  std::vector<Act> qkv, a, b;
  std::vector<Act> conv_initial;  // empty: none
  std::vector<f32> initial;
  std::vector<i32> documents;

  Inputs(const Options& o, const Model& m, const Text& text, int tokens) {
    auto look_up = [&](const std::vector<bf16>& table, int columns) {
      std::vector<Act> x;
      x.reserve(static_cast<std::size_t>(tokens) * columns);
      for (int t = 0; t < tokens; t++) {
        const bf16* row = table.data() + static_cast<std::size_t>(static_cast<unsigned char>(text.bytes[t])) * columns;
        for (int j = 0; j < columns; j++) x.push_back(converted<Act>(row[j]));
      }
      return x;
    };
    qkv = look_up(m.qkv, o.channels());
    a = look_up(m.a, o.value_heads);
    b = look_up(m.b, o.value_heads);
  }
};

// Filled with ones, so that an element that a call forgets shows.
template <class Act> struct Outputs {
  std::vector<Act> out, conv_final, residual;
  std::vector<f32> final, t_inv, chunk_states;

  Outputs(const Options& o, int tokens, bool residuals) {
    const std::size_t T = tokens, H = o.value_heads, N = (T + C - 1) / C;
    const auto one = converted<Act>(to_bf16(1.f));
    out.assign(T * H * D, one);
    conv_final.assign(std::size_t{taps - 1} * o.channels(), one);
    final.assign(H * D * D, 1.f);
    if (!residuals) return;
    residual.assign(T * H * D, one);
    t_inv.assign(N * C * H * C, 1.f);
    chunk_states.assign(N * H * D * D, 1.f);
  }
};

template <class Act> LayerArrays<Act> arrays_of(const Options& o, const Model& m, const Inputs<Act>& x, Outputs<Act>& y) {
  const std::int64_t Hv = o.value_heads, W = o.channels(), T = static_cast<std::int64_t>(x.a.size()) / Hv, N = (T + C - 1) / C;
  LayerArrays<Act> s;
  s.qkv = view(x.qkv, {1, T, W});
  s.a = view(x.a, {1, T, Hv});
  s.b = view(x.b, {1, T, Hv});
  s.conv_weights = view(m.conv_weights, {taps, W});
  s.conv_bias = view(m.conv_bias, {W});
  s.A_log = view(m.A_log, {Hv});
  s.dt_bias = view(m.dt_bias, {Hv});
  if (!x.initial.empty()) s.initial = view(x.initial, {1, Hv, D, D});
  if (!x.conv_initial.empty()) s.conv_initial = view(x.conv_initial, {1, taps - 1, W});
  if (!x.documents.empty()) s.ids = view(x.documents, {1, T});
  s.out = view(y.out, {1, T, Hv, D});
  s.final = view(y.final, {1, Hv, D, D});
  s.conv_final = view(y.conv_final, {1, taps - 1, W});
  if (y.residual.empty()) return s;
  s.residual = view(y.residual, {1, T, Hv, D});
  s.residuals.t_inv = view(y.t_inv, {1, N, C, Hv, C});
  s.residuals.chunk_states = view(y.chunk_states, {1, N, Hv, D, D});
  return s;
}

enum class Kernel { forward, states_only };
const char* name_of(Kernel k) { return k == Kernel::forward ? "forward" : "states_only"; }

template <class Machine, class Act> void run(Machine& machine, const Options& o, Kernel kernel, LayerArrays<Act> x) {
  const LayerOptions options{.key_heads = o.key_heads};
  if (kernel == Kernel::forward) return layer_forward(machine, x, options);
  x.out = {};
  layer_forward_states(machine, x, options);
}

// ---- progress: one line whenever two seconds have passed

class Progress {
 public:
  Progress(std::string what, int of) : what_(std::move(what)), of_(of), begin_(seconds()), last_(begin_) {
    std::printf("%s\n", what_.c_str());
    std::fflush(stdout);
  }
  void done_one() {
    const std::lock_guard lock(mutex_);
    done_++;
    if (seconds() < last_ + 2) return;
    last_ = seconds();
    std::printf("  %d of %d, %.0f s\n", done_, of_, last_ - begin_);
    std::fflush(stdout);
  }

 private:
  std::mutex mutex_;
  std::string what_;
  int of_, done_ = 0;
  double begin_, last_;
};

template <class F> void over_threads(int items, F f) {
  std::atomic<int> next = 0;
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); i++)
    threads.emplace_back([&] {
      for (int item; (item = next++) < items;) f(item);
    });
  for (auto& t : threads) t.join();
}

// ---- the definition in float64, token by token: S <- e^g S, then S <- S + k^T beta (v - k S), then o = q S / sqrt(K)

struct Errors {  // largest |x - reference|, and largest |reference|
  double out[2] = {}, state[2] = {}, out_size = 0, state_size = 0;
};
enum { at_f32, at_bf16 };

class Reference {
 public:
  Reference(const Options& o, const Model& m, const Text& text) : o(o), m(m), text(text) {}

  Errors errors(const Outputs<f32>& f, const Outputs<bf16>& b) const {
    Progress progress(gdn::text("Reference in float64: ", o.tokens, " tokens, ", o.value_heads, " heads"), o.key_heads);
    std::vector<Errors> of_head(o.key_heads);
    over_threads(o.key_heads, [&](int head) {
      of_head[head] = key_head(head, f, b);
      progress.done_one();
    });
    Errors all;
    for (const Errors& e : of_head) {
      for (int i : {at_f32, at_bf16}) {
        all.out[i] = std::max(all.out[i], e.out[i]);
        all.state[i] = std::max(all.state[i], e.state[i]);
      }
      all.out_size = std::max(all.out_size, e.out_size);
      all.state_size = std::max(all.state_size, e.state_size);
    }
    return all;
  }

 private:
  using Rows = std::vector<std::array<double, D>>;

  int byte(int t) const { return static_cast<unsigned char>(text.bytes[t]); }

  // silu(conv) of the D channels from `column` on; l2-normalised and times `scale` if that is given.
  Rows channels(int column, double scale = 0) const {
    Rows y(o.tokens);
    for (int t = 0; t < o.tokens; t++) {
      double sum = 1e-6;
      for (int c = 0; c < D; c++) {
        double z = m.conv_bias[column + c];
        for (int j = 0; j < taps; j++) {
          const int from = t + j - (taps - 1);
          if (from < 0) continue;
          z += static_cast<double>(m.conv_weights[j * o.channels() + column + c]) *
               to_f32(m.qkv[static_cast<std::size_t>(byte(from)) * o.channels() + column + c]);
        }
        y[t][c] = z / (1 + std::exp(-z));
        sum += y[t][c] * y[t][c];
      }
      if (scale == 0) continue;
      for (double& x : y[t]) x *= scale / std::sqrt(sum);
    }
    return y;
  }

  Errors key_head(int head, const Outputs<f32>& f, const Outputs<bf16>& b) const {
    Errors e;
    const Rows q = channels(head * D, 1 / std::sqrt(double{D})), k = channels((o.key_heads + head) * D, 1);
    const int ratio = o.value_heads / o.key_heads;
    for (int h = head * ratio; h < (head + 1) * ratio; h++) {
      const Rows v = channels((2 * o.key_heads + h) * D);
      Rows S(D);
      for (int t = 0; t < o.tokens; t++) {
        const std::size_t gate = static_cast<std::size_t>(byte(t)) * o.value_heads + h;
        const double step = to_f32(m.a[gate]) + static_cast<double>(m.dt_bias[h]);
        const double decay = std::exp(-std::exp(static_cast<double>(m.A_log[h])) * (std::max(step, 0.) + std::log1p(std::exp(-std::abs(step)))));
        const double beta = 1 / (1 + std::exp(-static_cast<double>(to_f32(m.b[gate]))));
        std::array<double, D> u{}, out{};
        for (int i = 0; i < D; i++)
          for (int j = 0; j < D; j++) {
            S[i][j] *= decay;
            u[j] += k[t][i] * S[i][j];
          }
        for (int j = 0; j < D; j++) u[j] = beta * (v[t][j] - u[j]);
        for (int i = 0; i < D; i++)
          for (int j = 0; j < D; j++) {
            S[i][j] += k[t][i] * u[j];
            out[j] += q[t][i] * S[i][j];
          }
        const std::size_t row = (static_cast<std::size_t>(t) * o.value_heads + h) * D;
        for (int j = 0; j < D; j++) compare(out[j], f.out[row + j], to_f32(b.out[row + j]), e.out, e.out_size);
      }
      for (int i = 0; i < D; i++)
        for (int j = 0; j < D; j++) {
          const std::size_t at = (static_cast<std::size_t>(h) * D + i) * D + j;
          compare(S[i][j], f.final[at], b.final[at], e.state, e.state_size);
        }
    }
    return e;
  }
  static void compare(double reference, double f, double b, double (&error)[2], double& size) {
    auto worse = [](double so_far, double x) { return std::isnan(x) ? HUGE_VAL : std::max(so_far, std::abs(x)); };
    error[at_f32] = worse(error[at_f32], f - reference);
    error[at_bf16] = worse(error[at_bf16], b - reference);
    size = worse(size, reference);
  }

  const Options& o;
  const Model& m;
  const Text& text;
};

// ---- what is measured

struct Difference {
  std::string kernel, schedule, output;
  std::size_t elements = 0, differing = 0;
};
struct Results {
  int threads = 0, documents = 0;
  double us[2] = {};  // per token and head
  Errors errors;
  std::vector<Difference> bits;
};

template <class Act> Outputs<Act> on_the_cpu(const Options& o, const Model& m, const Text& text, Cpu& cpu, double& us) {
  const Inputs<Act> x(o, m, text, o.tokens);
  Outputs<Act> y(o, o.tokens, false);
  constexpr int runs = 5;
  Progress progress(gdn::text("CPU, ", std::is_same_v<Act, bf16> ? "bf16" : "f32", ": ", o.tokens, " tokens, best of ", runs, " runs"), runs);
  for (int i = 0; i < runs; i++) {
    const double begin = seconds();
    run(cpu, o, Kernel::forward, arrays_of(o, m, x, y));
    const double now = (seconds() - begin) * 1e6 / o.tokens / o.value_heads;
    us = i == 0 ? now : std::min(us, now);
    progress.done_one();
  }
  return y;
}

template <class T> Difference compared(const char* output, const std::vector<T>& a, const std::vector<T>& b) {
  Difference d{"", "", output, a.size(), 0};
  for (std::size_t i = 0; i < a.size(); i++) d.differing += std::memcmp(&a[i], &b[i], sizeof(T)) != 0;
  return d;
}

const mosaic::Schedule schedules[] = {mosaic::Schedule::lifted(), mosaic::Schedule::paired(), mosaic::Schedule::skewed()};

// The first tokens of the text once more, as documents that continue the states the whole text has left: CPU and simulator on the
// same arrays, for both kernels and all schedules.
template <class Act> struct Simulation {
  const Options& o;
  const Model& m;
  Inputs<Act> x;
  std::vector<Outputs<Act>> expected;  // by kernel

  Simulation(const Options& o, const Model& m, const Text& text, const Outputs<Act>& before, Cpu& cpu) : o(o), m(m), x(o, m, text, o.simulated) {
    x.documents.assign(text.documents.begin(), text.documents.begin() + o.simulated);
    x.initial = before.final;
    x.conv_initial = before.conv_final;
    for (Kernel k : {Kernel::forward, Kernel::states_only}) {
      expected.emplace_back(o, o.simulated, true);
      run(cpu, o, k, arrays_of(o, m, x, expected.back()));
    }
  }
  std::vector<Difference> differences(Kernel kernel, const mosaic::Schedule& schedule) const {
    Simulate simulator(schedule);
    Outputs<Act> y(o, o.simulated, true);
    run(simulator, o, kernel, arrays_of(o, m, x, y));
    const Outputs<Act>& e = expected[static_cast<int>(kernel)];
    std::vector<Difference> all;
    if (kernel == Kernel::forward) all.push_back(compared("out", e.out, y.out));
    all.push_back(compared("state", e.final, y.final));
    all.push_back(compared("conv_state", e.conv_final, y.conv_final));
    all.push_back(compared("t_inv", e.t_inv, y.t_inv));
    all.push_back(compared("chunk_states", e.chunk_states, y.chunk_states));
    all.push_back(compared("residual", e.residual, y.residual));
    for (Difference& d : all) {
      d.kernel = name_of(kernel);
      d.schedule = schedule.name();
    }
    return all;
  }
};

std::vector<Difference> simulate(const Options& o, const Model& m, const Text& text, const Outputs<f32>& f, const Outputs<bf16>& b, Cpu& cpu) {
  constexpr int placements = static_cast<int>(std::size(schedules));
  Progress progress(gdn::text("Simulator: ", o.simulated, " tokens, f32 and bf16, 2 kernels, ", placements, " schedules"), 4 * placements);
  const Simulation<f32> in_f32(o, m, text, f, cpu);
  const Simulation<bf16> in_bf16(o, m, text, b, cpu);
  std::vector<std::vector<Difference>> results(4 * placements);
  std::mutex mutex;
  std::string failure;
  over_threads(4 * placements, [&](int i) {
    const auto kernel = static_cast<Kernel>(i / 2 / placements);
    const mosaic::Schedule& schedule = schedules[i / 2 % placements];
    try {
      results[i] = i % 2 ? in_bf16.differences(kernel, schedule) : in_f32.differences(kernel, schedule);
    } catch (const std::exception& e) {
      const std::lock_guard lock(mutex);
      failure = gdn::text(name_of(kernel), ", ", schedule.name(), ": ", e.what());
    }
    progress.done_one();
  });
  require(failure.empty(), failure);
  std::vector<Difference> sums;  // f32 and bf16 together
  for (std::size_t i = 0; i < results.size(); i += 2)
    for (std::size_t j = 0; j < results[i].size(); j++) {
      Difference d = results[i][j];
      d.elements += results[i + 1][j].elements;
      d.differing += results[i + 1][j].differing;
      sums.push_back(d);
    }
  return sums;
}

// The kernels of a long call, one file for each generation. Only shapes matter, so there are no arrays behind the pointers.
void emit(const Options& o, const Model& m) {
  Progress progress(gdn::text("TPU kernels: ", o.tpu_tokens, " tokens, bf16"), 2 * static_cast<int>(std::size(mosaic::targets)));
  const std::int64_t T = o.tpu_tokens, Hv = o.value_heads, W = o.channels(), N = (T + C - 1) / C;
  std::vector<i32> ids;
  for (int t = 0; t < T; t++) ids.push_back(1 + t / 1000);
  LayerArrays<bf16> x;
  bf16* no_bf16 = nullptr;
  f32* no_f32 = nullptr;
  x.qkv = view(no_bf16, {1, T, W});
  x.a = view(no_bf16, {1, T, Hv});
  x.b = view(no_bf16, {1, T, Hv});
  x.conv_weights = view(m.conv_weights, {taps, W});
  x.conv_bias = view(m.conv_bias, {W});
  x.A_log = view(m.A_log, {Hv});
  x.dt_bias = view(m.dt_bias, {Hv});
  x.initial = view(no_f32, {1, Hv, D, D});
  x.conv_initial = view(no_bf16, {1, taps - 1, W});
  x.ids = view(ids, {1, T});
  x.out = view(no_bf16, {1, T, Hv, D});
  x.final = view(no_f32, {1, Hv, D, D});
  x.conv_final = view(no_bf16, {1, taps - 1, W});
  x.residuals.t_inv = view(no_f32, {1, N, C, Hv, C});
  const auto chunk_states = view(no_f32, {1, N, Hv, D, D});
  for (Kernel kernel : {Kernel::forward, Kernel::states_only})
    for (mosaic::Target target : mosaic::targets) {
      // The states-only pass is the first of two over a sequence: the states of its chunks come with the second.
      x.residuals.chunk_states = kernel == Kernel::forward ? chunk_states : View<f32, 5>();
      Emit machine(mosaic::Schedule::fastest(kernel == Kernel::forward ? "layer_forward" : "layer_forward_states", target));
      run(machine, o, kernel, x);
      const std::string path = gdn::text(o.directory, "/", name_of(kernel), ".", mosaic::name_of(target));
      std::ofstream(path + ".mlir") << machine.module.program();
      std::ofstream(path + ".txt") << machine.module.generic();
      progress.done_one();
    }
}

// ---- results as JSON, for the report

std::string number(double x) {
  char s[32];
  std::snprintf(s, sizeof s, "%.6g", x);
  return std::isfinite(x) ? s : "1e999";
}
std::string json_of(const Options& o, const Results& r) {
  const Errors& e = r.errors;
  auto error = [&](int i) { return gdn::text("{\"out\": ", number(e.out[i] / e.out_size), ", \"state\": ", number(e.state[i] / e.state_size), "}"); };
  auto us = [&](int i) { return gdn::text("{\"us_per_token_head\": ", number(r.us[i]), "}"); };
  std::string bits;
  for (const Difference& d : r.bits)
    bits += gdn::text(bits.empty() ? "" : ",\n", "  {\"kernel\": \"", d.kernel, "\", \"schedule\": \"", d.schedule, "\", \"output\": \"", d.output,
                 "\", \"elements\": ", d.elements, ", \"differing\": ", d.differing, "}");
  return gdn::text("{\"tokens\": ", o.tokens, ", \"heads\": ", o.value_heads, ", \"key_heads\": ", o.key_heads, ", \"isa\": \"", cpu::isa_name,
              "\", \"threads\": ", r.threads, ", \"simulated\": ", o.simulated, ", \"documents\": ", r.documents, ", \"tpu_tokens\": ", o.tpu_tokens,
              ",\n\"cpu\": {\"f32\": ", us(at_f32), ", \"bf16\": ", us(at_bf16), "},\n\"error\": {\"f32\": ", error(at_f32), ", \"bf16\": ",
              error(at_bf16), "},\n\"bits\": [\n", bits, "]}\n");
}

Options options_of(int argc, char** argv) {
  Options o;
  int positional = 0;
  for (int i = 1; i < argc; i++) {
    const std::string a = argv[i];
    auto next = [&] {
      require(i + 1 < argc, "demo: ", a, " needs a value");
      const int n = std::atoi(argv[++i]);
      require(n > 0, "demo: ", a, " ", argv[i], "; expected a positive number");
      return n;
    };
    if (a == "--tokens") o.tokens = next();
    else if (a == "--simulated") o.simulated = next();
    else if (a == "--heads") o.key_heads = next(), o.value_heads = next();
    else if (a[0] != '-' && positional < 2) (positional++ ? o.directory : o.text) = a;
    else throw Error(text("demo: unexpected argument ", a));
  }
  require(positional == 2, "usage: demo TEXT DIRECTORY [--tokens N] [--simulated N] [--heads KEY VALUE]");
  return o;
}

}  // namespace

int main(int argc, char** argv) try {
  const Options o = options_of(argc, argv);
  std::filesystem::create_directories(o.directory);
  const Text text = read_text(o, std::max(o.tokens, o.simulated));
  const Model model(o);
  Cpu cpu;
  Results r;
  r.threads = cpu.threads();
  const Outputs<f32> f = on_the_cpu<f32>(o, model, text, cpu, r.us[at_f32]);
  const Outputs<bf16> b = on_the_cpu<bf16>(o, model, text, cpu, r.us[at_bf16]);
  r.errors = Reference(o, model, text).errors(f, b);
  r.documents = *std::max_element(text.documents.begin(), text.documents.begin() + o.simulated);
  r.bits = simulate(o, model, text, f, b, cpu);
  emit(o, model);
  std::ofstream(o.directory + "/measured.json") << json_of(o, r);
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}

// What a mask discards may be anything, because masks are selects.
#include "../kernels/same_bits.hpp"
#include "tiles.hpp"

using namespace gdn;
using namespace gdn::test;

namespace {

const f32 nan = std::numeric_limits<f32>::quiet_NaN();

// NaN in the rows of padding, or in the first row that is none, of [tokens, width].
template <class T> void poison(std::vector<T>& x, const std::vector<i32>& ids, bool padding) {
  const std::size_t width = x.size() / ids.size();
  for (std::size_t t = 0; t < ids.size(); t++) {
    if ((ids[t] <= 0) != padding) continue;
    std::fill_n(x.begin() + static_cast<std::ptrdiff_t>(t * width), width, activation<T>(nan));
    if (!padding) return;
  }
}
template <class Act> void poison(Core<Act>& call, bool padding) {
  for (auto* x : {&call.q, &call.k, &call.v}) poison(*x, call.ids, padding);
  for (auto* x : {&call.g, &call.beta}) poison(*x, call.ids, padding);
}
template <class Act> void poison(Layer<Act>& call, bool padding) {
  for (auto* x : {&call.qkv, &call.a, &call.b}) poison(*x, call.ids, padding);
}

template <class Call> void check_padding() {
  for (int T : {100, 192}) {
    const Spec spec{.tokens = T, .documents = true, .initial = true};
    Call clean(spec), poisoned(spec), wrong(spec);
    poison(poisoned, true);
    poison(wrong, false);
    const Outputs right = run(Cpu(1), clean);
    INFO(spec.name());
    CHECK(differences(right, run(Cpu(1), poisoned)) == "");
    CHECK(differences(right, run(Cpu(1), wrong)) != "");
    for (const Schedule& s : {Schedule::lifted(), Schedule::skewed()}) CHECK(differences(right, run(Simulate(s), poisoned)) == "");
    const auto& out = named(right, "out");
    for (std::size_t i = 0; i < out.size(); i++)
      if (clean.ids[i / (out.size() / clean.ids.size())] <= 0 && bits_of(out[i]) != 0) FAIL("out is not 0 on a row of padding");
  }
}

// 13 of 16 rows are inside the array; f masks the others.
template <class F> std::vector<f32> masked(F f, bool on_cpu) {
  std::vector<f32> x = noise(1, 13 * 32), y(13 * 32, 1e30f);
  const auto in = view(x, {1, 13, 1, 32});
  const auto out = view(y, {1, 13, 1, 32});
  const LambdaCall call("masked", {1, 13, 16, 1, 1},
                        [=]<class M>(gdn::detail::Binding<M>& b) {
                          using R = Ref<M, f32, Chunk<16>, Val<32>>;
                          return std::array<R, 2>{b.template ref<f32, Chunk<16>, Val<32>>(b.array("x", Use::in, in), Place::tokens, Use::in, Domain::value_head),
                                                  b.template ref<f32, Chunk<16>, Val<32>>(b.array("y", Use::out, out), Place::tokens, Use::out, Domain::value_head)};
                        },
                        [f](auto&, const auto& r) { store(r[1], f(load(r[0]))); });
  if (on_cpu) {
    Cpu(1).run(call);
  } else {
    Simulate machine;
    simulate(machine, Emit::traced(call));
  }
  return y;
}

}  // namespace

TEMPLATE_TEST_CASE("padding may hold NaN: core", "", bf16, f32) { check_padding<Core<TestType>>(); }

TEMPLATE_TEST_CASE("padding may hold NaN: layer", "", bf16, f32) { check_padding<Layer<TestType>>(); }

TEST_CASE("rows beyond an array are discarded by select; to multiply them by 0 is an error") {
  const auto by_select = [](auto x) { return map_ij([](auto i, auto, auto x) { return where(i < 13, x + x, 0.f); }, map_ij([](auto i, auto, auto x) { return where(i < 13, x, 0.f); }, x)); };
  const auto by_product = [](auto x) { return x * map_ij([](auto i, auto, auto z) { return where(i < 13, z + 1.f, z); }, zeros_like(x)); };
  const auto x = noise(1, 13 * 32);
  CHECK(difference(masked(by_select, true), each(x, [](f32 x) { return x + x; })) == "");
  CHECK(difference(masked(by_select, false), masked(by_select, true)) == "");
  CHECK(difference(masked(by_product, true), x) == "");
  CHECK_THROWS_WITH(masked(by_product, false), Catch::Contains("arith.mulf") && Catch::Contains("undefined"));
}

TEST_CASE("above the diagonal there may be infinities") {
  using Square = Of<Row<32>, Lane<32>>;
  std::vector<f32> x(Square::size);
  for (int i = 0; i < 32; i++)
    for (int j = 0; j < 32; j++) x[i * 32 + j] = j > i ? 1000.f : -1.f;
  const auto selected = on_every_machine<Square>([](auto x) { return tril(exp2(x)); }, x);
  const auto multiplied = on_every_machine<Square>([](auto x) { return exp2(x) * tril(map([](auto x) { return max(min(x, 1.f), 1.f); }, x)); }, x);
  for (int i = 0; i < 32; i++)
    for (int j = 0; j < 32; j++) CHECK(selected[i * 32 + j] == (j > i ? 0.f : 0.5f));
  CHECK(std::isnan(multiplied[1]));
}

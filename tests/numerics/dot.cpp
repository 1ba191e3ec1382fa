// Dots of every shape, form, finish and class against the contract's loop, bit by bit.
#include <catch2/catch.hpp>
#include <gdn/cpu/dot.hpp>
#include <gdn/cpu/environment.hpp>

#include "data.hpp"

using namespace gdn;
using namespace gdn::cpu;
using gdn::test::difference;
using gdn::test::Random;

namespace {

std::size_t z(long i) { return static_cast<std::size_t>(i); }

struct Shape {
  int m, n, k;
};
constexpr Shape shapes[] = {{1, 1, 1},      {16, 48, 32},  {13, 5, 7},   {8, 32, 16},    {33, 65, 17}, {6, 31, 16},  {5, 100, 1},
                            {1, 128, 128},  {2, 200, 3},   {64, 64, 64}, {7, 16, 2},     {12, 33, 9},  {17, 1, 40},  {64, 128, 128},
                            {128, 128, 64}, {63, 127, 65}, {3, 130, 11}, {11, 255, 128}, {16, 16, 16}, {24, 24, 24}, {100, 20, 51}};

// A matrix as a test holds it: exactly as long as its last row is, so that a read behind it is one behind the array.
struct Matrix {
  int rows, columns;
  long pitch;
  std::vector<float> x;

  Matrix(int r, int c, long extra = 0) : rows(r), columns(c), pitch(c + extra), x(z((r - 1) * pitch + c)) {}
  float& at(int r, int c) { return x[z(r * pitch + c)]; }
  float at(int r, int c) const { return x[z(r * pitch + c)]; }
  const float* data() const { return x.data(); }
};

Matrix random_matrix(Random& random, int rows, int columns, float scale, long extra = 0) {
  Matrix m(rows, columns, extra);
  for (float& v : m.x) v = test::signed_unit(random) * scale;
  return m;
}

Matrix transposed(const Matrix& a) {
  Matrix t(a.columns, a.rows);
  for (int r = 0; r < a.rows; ++r)
    for (int c = 0; c < a.columns; ++c) t.at(c, r) = a.at(r, c);
  return t;
}

template <class Map>
Matrix mapped(Matrix a, Map map) {
  for (float& v : a.x) v = map(v);
  return a;
}
float high(float x) { return to_f32(to_bf16(x)); }
float low(float x) { return to_f32(to_bf16(x - high(x))); }

enum class Order { contract, reversed, bare };  // bare: the chain without +0

Matrix product(const Matrix& a, const Matrix& b, Order order = Order::contract) {
  Matrix c(a.rows, b.columns);
  for (int i = 0; i < a.rows; ++i)
    for (int j = 0; j < b.columns; ++j) {
      float chain = 0.0f;
      for (int k = 0; k < a.columns; ++k) {
        const int at = order == Order::reversed ? a.columns - 1 - k : k;
        chain = std::fma(a.at(i, at), b.at(at, j), chain);
      }
      c.at(i, j) = order == Order::bare ? chain : 0.0f + chain;
    }
  return c;
}

Matrix sum(Matrix a, const Matrix& b) {
  for (std::size_t i = 0; i < a.x.size(); ++i) a.x[i] = a.x[i] + b.x[i];
  return a;
}

float finished(Finish f, float d, float x, float s) {
  switch (f) {
    case Finish::none: return d;
    case Finish::plus: return x + d;
    case Finish::minus: return x - d;
    case Finish::times: return x * d;
    case Finish::scaled_plus: {
      const float p = s * x;
      return p + d;
    }
    case Finish::minus_scaled: {
      const float p = s * d;
      return x - p;
    }
  }
  return 0;
}
constexpr Finish finishes[] = {Finish::none, Finish::plus, Finish::minus, Finish::times, Finish::scaled_plus, Finish::minus_scaled};

// Runs `call(g)` for every finish and form of x and compares with the finishes of `d`. g has everything but c and the finish.
template <class G, class Call>
void check_finishes(G g, const Matrix& d, Random& random, float scale, test::Hash& hash, Call call) {
  const Matrix x = random_matrix(random, g.m, g.n, scale, 2), column = random_matrix(random, g.m, 1, scale),
               s = random_matrix(random, g.m, 1, 2.0f);
  for (const Finish f : finishes)
    for (const bool is_column : {false, true})
      for (const bool s_is_column : {false, true})
        for (const bool in_place : {false, true}) {
          if (f == Finish::none && (is_column || s_is_column || in_place)) continue;
          if (s_is_column && f != Finish::scaled_plus && f != Finish::minus_scaled) continue;
          if (in_place && is_column) continue;
          Matrix got(g.m, g.n, 3), want(g.m, g.n, 3);
          for (float& v : got.x) v = 7.0f;
          for (float& v : want.x) v = 7.0f;  // the canary between the rows
          for (int i = 0; i < g.m; ++i)
            for (int j = 0; j < g.n; ++j) {
              if (in_place) got.at(i, j) = x.at(i, j);
              want.at(i, j) = finished(f, d.at(i, j), is_column ? column.at(i, 0) : x.at(i, j), s.at(s_is_column ? i : 0, 0));
            }
          g.c = got.x.data();
          g.c_row = got.pitch;
          g.finish = f;
          g.x = in_place ? got.data() : is_column ? column.data() : x.data();
          g.x_row = in_place ? got.pitch : is_column ? 1 : x.pitch;
          g.x_is_column = is_column;
          g.s = s.data();
          g.s_row = s_is_column ? 1 : 0;
          call(g);
          INFO("finish " << static_cast<int>(f) << (is_column ? " column" : "") << (s_is_column ? " scales" : "")
                         << (in_place ? " in place" : ""));
          CHECK(difference(got.x, want.x) == "");
          hash.add(got.x);
        }
}

// The products of the first stay in range; of the others, ever more are flushed at every step of the chain.
constexpr float scales[] = {1.0f, 5e-19f, 2e-19f, 1.3e-19f};

}  // namespace

TEST_CASE("gemm f32: every shape, operand form and finish") {
  const FlushGuard guard;
  Random random(7);
  test::Hash hash;
  std::size_t zeros = 0, outputs = 0;
  for (const Shape& s : shapes)
    for (const float scale : scales) {
      INFO(s.m << ", " << s.k << ", " << s.n << " scale " << scale);
      const Matrix a = random_matrix(random, s.m, s.k, scale, 1), at = transposed(a), b = random_matrix(random, s.k, s.n, scale, 4);
      const Matrix d = product(a, b);
      for (float v : d.x) zeros += v == 0, ++outputs;
      Gemm g{.m = s.m,
             .n = s.n,
             .k = s.k,
             .a = a.data(),
             .a_row = a.pitch,
             .a_col = 1,
             .b = b.data(),
             .b_row = b.pitch,
             .c = nullptr,
             .c_row = 0};
      check_finishes(g, d, random, scale * scale, hash, [](const Gemm& x) { gemm(x); });
      g.a = at.data();
      g.a_row = 1;
      g.a_col = at.pitch;
      check_finishes(g, d, random, scale * scale, hash, [](const Gemm& x) { gemm(x); });
    }
  CHECK(zeros > outputs / 10);  // the scales do flush
  CHECK(zeros < outputs / 2);
  CHECK(hash.value() == 0x887622c6c1cb2811u);  // the same on every instruction set
}

TEST_CASE("gemm bf16: packed in every way, from f32 and from bf16") {
  const FlushGuard guard;
  Random random(8);
  test::Hash hash;
  for (const Shape& s : shapes)
    for (const float scale : scales) {
      INFO(s.m << ", " << s.k << ", " << s.n << " scale " << scale);
      const Matrix a = random_matrix(random, s.m, s.k, scale, 1), at = transposed(a), b = random_matrix(random, s.k, s.n, scale, 4),
                   bt = transposed(b);
      const Matrix d = product(mapped(a, high), mapped(b, high));
      const auto narrowed = [](const Matrix& m) {
        std::vector<bf16> x;
        for (float v : m.x) x.push_back(to_bf16(v));
        return x;
      };
      const auto a16 = narrowed(a), at16 = narrowed(at), b16 = narrowed(b), bt16 = narrowed(bt);
      const Packed lefts[] = {Packed::columns(s.m, s.k, a.data(), a.pitch),
                              Packed::columns_transposed(s.m, s.k, a.data(), a.pitch),
                              Packed::rows(s.k, s.m, at.data(), at.pitch),
                              Packed::columns(s.m, s.k, a16.data(), a.pitch),
                              Packed::columns_transposed(s.m, s.k, a16.data(), a.pitch),
                              Packed::rows(s.k, s.m, at16.data(), at.pitch)};
      const Packed rights[] = {Packed::rows(s.k, s.n, b.data(), b.pitch), Packed::columns_transposed(s.n, s.k, bt.data(), bt.pitch),
                               Packed::rows(s.k, s.n, b16.data(), b.pitch), Packed::columns_transposed(s.n, s.k, bt16.data(), bt.pitch)};
      for (const Packed& right : rights) REQUIRE(right.lines_adjacent());
      check_finishes(packed_gemm(s.m, s.n, s.k, lefts[0], rights[0], nullptr, 0), d, random, scale * scale, hash,
                     [](const PackedGemm& x) { gemm(x); });
      for (const Packed& left : lefts)
        for (const Packed& right : rights) {
          Matrix got(s.m, s.n);
          gemm(packed_gemm(s.m, s.n, s.k, left, right, got.x.data(), got.pitch));
          CHECK(difference(got.x, d.x) == "");
        }
    }
  CHECK(hash.value() == 0xb729cc645e247966u);
}

TEST_CASE("gemm P3: high high + high low, then + low high") {
  const FlushGuard guard;
  Random random(9);
  test::Hash hash;
  std::size_t other_order = 0;
  for (const Shape& s : shapes)
    for (const float scale : scales) {
      INFO(s.m << ", " << s.k << ", " << s.n << " scale " << scale);
      const Matrix a = random_matrix(random, s.m, s.k, scale, 1), b = random_matrix(random, s.k, s.n, scale);
      const Matrix ah = mapped(a, high), al = mapped(a, low), bh = mapped(b, high), bl = mapped(b, low);
      const Matrix d = sum(sum(product(ah, bh), product(ah, bl)), product(al, bh));
      other_order += difference(d.x, sum(sum(product(al, bh), product(ah, bl)), product(ah, bh)).x) != "";
      const Packed pa = Packed::columns(s.m, s.k, a.data(), a.pitch), pal = Packed::columns(s.m, s.k, a.data(), a.pitch, Piece::low);
      const Packed pb = Packed::rows(s.k, s.n, b.data(), b.pitch), pbl = Packed::rows(s.k, s.n, b.data(), b.pitch, Piece::low);
      check_finishes(packed_gemm(s.m, s.n, s.k, pa, pb, nullptr, 0), d, random, scale * scale, hash,
                     [&](const PackedGemm& x) { gemm_p3(x, pal.words(), pbl.words()); });
    }
  CHECK(other_order > 10);
  CHECK(hash.value() == 0xd891e0f81b5bd005u);
}

TEST_CASE("gemm: promised triangles skip zeros and change no bit") {
  const FlushGuard guard;
  Random random(10);
  constexpr Part parts[] = {Part::full, Part::lower, Part::upper};
  const auto cut = [](Matrix m, Part part) {
    for (int r = 0; r < m.rows; ++r)
      for (int c = 0; c < m.columns; ++c)
        if ((part == Part::lower && c > r) || (part == Part::upper && c < r)) m.at(r, c) = 0.0f;
    return m;
  };
  for (const Shape& s : shapes)
    for (const float scale : {1.0f, 2e-19f})
      for (const Part a_part : parts)
        for (const Part b_part : parts) {
          INFO(s.m << ", " << s.k << ", " << s.n << " scale " << scale << " parts " << static_cast<int>(a_part)
                   << static_cast<int>(b_part));
          const Matrix a = cut(random_matrix(random, s.m, s.k, scale), a_part), b = cut(random_matrix(random, s.k, s.n, scale), b_part);
          const Matrix d = product(a, b), d16 = product(mapped(a, high), mapped(b, high));
          Matrix got(s.m, s.n);
          Gemm g{.m = s.m,
                 .n = s.n,
                 .k = s.k,
                 .a = a.data(),
                 .a_row = a.pitch,
                 .a_col = 1,
                 .b = b.data(),
                 .b_row = b.pitch,
                 .c = got.x.data(),
                 .c_row = got.pitch};
          g.a_part = a_part;
          g.b_part = b_part;
          gemm(g);
          CHECK(difference(got.x, d.x) == "");
          auto p = packed_gemm(s.m, s.n, s.k, Packed::columns(s.m, s.k, a.data(), a.pitch), Packed::rows(s.k, s.n, b.data(), b.pitch),
                               got.x.data(), got.pitch);
          const Packed pa = Packed::columns(s.m, s.k, a.data(), a.pitch), pb = Packed::rows(s.k, s.n, b.data(), b.pitch);
          p.a = pa.words();
          p.b = pb.words();
          p.a_part = a_part;
          p.b_part = b_part;
          gemm(p);
          CHECK(difference(got.x, d16.x) == "");

          const auto lower_of = [](Matrix m) {
            for (int r = 0; r < m.rows; ++r)
              for (int c = r + 1; c < m.columns; ++c) m.at(r, c) = 0.0f;
            return m.x;
          };
          g.c_lower = p.c_lower = true;
          for (float& v : got.x) v = NAN;
          gemm(g);
          CHECK(difference(lower_of(got), lower_of(d)) == "");
          for (float& v : got.x) v = NAN;
          gemm(p);
          CHECK(difference(lower_of(got), lower_of(d16)) == "");
        }
}

TEST_CASE("gemm_each: the sums of gemm, each once, and every block when it is done") {
  const FlushGuard guard;
  Random random(14);
  for (const Shape& s : {Shape{1, 128, 64}, Shape{8, 32, 16}, Shape{17, 16, 9}, Shape{64, 64, 128}, Shape{64, 128, 64}, Shape{30, 80, 33}, Shape{128, 128, 5}})
    for (const bool lower : {false, true})
      for (const bool promised : {false, true}) {
        INFO(s.m << ", " << s.k << ", " << s.n << (lower ? " c_lower" : "") << (promised ? " a lower" : ""));
        Matrix a = random_matrix(random, s.m, s.k, 1.0f), b = random_matrix(random, s.k, s.n, 1.0f);
        if (promised)
          for (int r = 0; r < s.m; ++r)
            for (int c = r + 1; c < s.k; ++c) a.at(r, c) = 0.0f;
        const Packed pa = Packed::columns(s.m, s.k, a.data(), a.pitch), pb = Packed::rows(s.k, s.n, b.data(), b.pitch);
        const auto check = [&](auto g, const Matrix& d) {
          g.a_part = promised ? Part::lower : Part::full;
          g.c_lower = lower;
          Matrix got(s.m, s.n);
          std::vector<int> seen(got.x.size()), done(got.x.size());
          bool even = true;
          gemm_each(
              g,
              [&](int i, int j, F x) {
                store(&got.at(i, j), x);
                for (int c = 0; c < W; ++c) seen[z(i * s.n + j + c)]++;
              },
              [&](int i, int j, int rows, int columns) {
                even &= i % 2 == 0 && (rows % 2 == 0 || i + rows == s.m);
                for (int r = i; r < i + rows; ++r)
                  for (int c = j; c < j + columns; ++c) done[z(r * s.n + c)] += seen[z(r * s.n + c)];
              });
          CHECK(even);
          CHECK(std::count(seen.begin(), seen.end(), 1) == s.m * s.n);
          CHECK(std::count(done.begin(), done.end(), 1) == s.m * s.n);
          Matrix want = d;
          for (int r = 0; lower && r < s.m; ++r)
            for (int c = r + 1; c < s.n; ++c) got.at(r, c) = want.at(r, c) = 0.0f;
          CHECK(difference(got.x, want.x) == "");
        };
        check(Gemm{.m = s.m, .n = s.n, .k = s.k, .a = a.data(), .a_row = a.pitch, .a_col = 1, .b = b.data(), .b_row = b.pitch, .c = nullptr, .c_row = 0},
              product(a, b));
        check(packed_gemm(s.m, s.n, s.k, pa, pb, nullptr, 0), product(mapped(a, high), mapped(b, high)));
      }
}

TEST_CASE("gemm: +0 before the chain, and a chain in this order") {
  const FlushGuard guard;
  Random random(11);
  // Chains that end in a flushed negative sum.
  const Matrix a = random_matrix(random, 32, 3, 2e-19f), b = random_matrix(random, 3, 64, 2e-19f);
  const Matrix d = product(a, b), bare = product(a, b, Order::bare);
  Matrix got(32, 64);
  gemm(Gemm{.m = 32,
            .n = 64,
            .k = 3,
            .a = a.data(),
            .a_row = a.pitch,
            .a_col = 1,
            .b = b.data(),
            .b_row = b.pitch,
            .c = got.x.data(),
            .c_row = got.pitch});
  for (float v : got.x) CHECK_FALSE((v == 0 && std::signbit(v)));
  CHECK(difference(d.x, bare.x) != "");

  const Matrix c = random_matrix(random, 16, 100, 1.0f), e = random_matrix(random, 100, 16, 1.0f);
  CHECK(difference(product(c, e).x, product(c, e, Order::reversed).x) != "");
}

TEST_CASE("gemm: rows and columns do not see each other") {
  // A NaN spoils its row or column alone, whichever block it falls into.
  const FlushGuard guard;
  Random random(12);
  for (const int bad : {0, 5, 17, 36}) {
    Matrix a = random_matrix(random, 37, 20, 1.0f), b = random_matrix(random, 20, 53, 1.0f), want = product(a, b), got(37, 53);
    a.at(bad, 3) = NAN;
    b.at(4, bad) = INFINITY;
    b.at(5, bad) = -INFINITY;
    gemm(Gemm{.m = 37,
              .n = 53,
              .k = 20,
              .a = a.data(),
              .a_row = a.pitch,
              .a_col = 1,
              .b = b.data(),
              .b_row = b.pitch,
              .c = got.x.data(),
              .c_row = got.pitch});
    const Matrix spoilt = product(a, b);
    CHECK(difference(got.x, spoilt.x) == "");
    for (int i = 0; i < 37; ++i)
      for (int j = 0; j < 53; ++j)
        if (i != bad && j != bad) CHECK(test::same_bits(got.at(i, j), want.at(i, j)));
  }
}

TEST_CASE("packing: words, odd ends and special values") {
  Random random(13);
  const auto special = test::special_values();
  for (const int k : {1, 2, 7, 32, 33, 64, 95})
    for (const int n : {1, 5, 16, 31, 64}) {
      Matrix x(k, n, 1);
      for (float& v : x.x) v = random.below(4) ? test::any_pattern(random) : special[z(random.below(static_cast<int>(special.size())))];
      const Matrix t = transposed(x);
      const int pairs = (k + 1) / 2;
      std::vector<std::uint32_t> want(z(pairs * n)), want_columns(want), got(want.size() + 1, 9u), got_columns(got), got_transposed(got);
      const auto word = [](float v) {
        const std::uint32_t b = to_bf16(v).bits;
        return (b & 0x7fffu) > 0x7f80u ? 0x7fc0u : b;  // packing may keep a NaN's payload
      };
      const auto canonical = [](std::vector<std::uint32_t> w) {
        for (auto& v : w) {
          if ((v & 0x7fffu) > 0x7f80u) v = (v & 0xffff0000u) | 0x7fc0u;
          if ((v >> 16 & 0x7fffu) > 0x7f80u) v = (v & 0xffffu) | 0x7fc00000u;
        }
        return w;
      };
      for (const Piece piece : {Piece::high, Piece::low}) {
        const FlushGuard guard;
        for (int p = 0; p < pairs; ++p)
          for (int j = 0; j < n; ++j) {
            const auto part = [&](int r) { return r < k ? word(piece == Piece::high ? x.at(r, j) : x.at(r, j) - high(x.at(r, j))) : 0u; };
            want[z(p * n + j)] = want_columns[z(j * pairs + p)] = part(2 * p) << 16 | part(2 * p + 1);
          }
        pack_rows(k, n, x.data(), x.pitch, got.data(), n, piece);
        pack_columns(n, k, t.data(), t.pitch, got_columns.data(), pairs, piece);
        pack_columns_transposed(n, k, t.data(), t.pitch, got_transposed.data(), n, piece);
        INFO(k << " x " << n << " piece " << static_cast<int>(piece));
        for (auto* w : {&got, &got_columns, &got_transposed}) {
          CHECK(w->back() == 9u);
          w->pop_back();
          *w = canonical(*w);
        }
        CHECK(got == want);
        CHECK(got_columns == want_columns);
        CHECK(got_transposed == want);
        for (auto* w : {&got, &got_columns, &got_transposed}) w->push_back(9u);
        std::swap(want.front(), want.back());
      }
    }
}

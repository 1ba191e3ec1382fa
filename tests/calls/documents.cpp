// From ids to what the kernels read of documents.
#include <catch2/catch.hpp>
#include <gdn/calls/documents.hpp>
#include <gdn/kernels/short_conv.hpp>

#include "../support/random_inputs.hpp"

using namespace gdn;
using namespace gdn::test;

namespace {

constexpr int C = 64, taps = 4;

DocumentPlan plan(const std::vector<int>& ids, int tokens, bool continues, int with_taps = taps) {
  View<const i32, 2> v;
  if (!ids.empty()) v = view(ids, {1, tokens});
  return plan_documents(v, 1, tokens, C, with_taps, continues, tail_rows);
}
// Document of token t; a row that continues a state continues document 1.
int document_before_row(bool continues) { return continues ? 1 : 0; }

}  // namespace

TEST_CASE("a word holds the token's document and which tokens before it are of that document") {
  for (const Layout& l : document_layouts())
    for (bool continues : {false, true}) {
      INFO(l.name << (continues ? ", continued" : ""));
      const auto p = plan(l.ids, l.tokens, continues);
      const auto document = canonical_documents(l.ids, l.tokens);
      const int padded = (l.tokens + C - 1) / C * C;
      REQUIRE(static_cast<int>(p.word.size()) == padded);
      REQUIRE(p.chunks == padded / C);
      int running = document_before_row(continues), wrong = 0;
      for (int t = 0; t < padded; t++) {
        const int here = t < l.tokens ? document[static_cast<std::size_t>(t)] : 0;
        if (here > 0) running = here;
        wrong += p.word[static_cast<std::size_t>(t)] >> document_shift != running;
        for (int d = 0; d < taps; d++) {
          const int from = t - d;
          const int there = from >= 0 ? document[static_cast<std::size_t>(std::min(from, l.tokens - 1))] : document_before_row(continues);
          const bool seen = here > 0 && there == here;
          wrong += ((p.word[static_cast<std::size_t>(t)] >> d) & 1) != seen;
        }
        if (t % C == 0) wrong += p.boundary[static_cast<std::size_t>(t / C)] != (t == 0 ? document_before_row(continues) : p.word[static_cast<std::size_t>(t) - 1] >> document_shift);
      }
      CHECK(wrong == 0);
      if (padded > 0) CHECK(p.boundary[static_cast<std::size_t>(p.chunks)] == running);
    }
}

TEST_CASE("the plan of the convolution's last inputs names rows of the chunk and of its tail") {
  for (const Layout& l : document_layouts())
    for (bool continues : {false, true}) {
      if (l.tokens == 0) continue;
      INFO(l.name << (continues ? ", continued" : ""));
      const auto p = plan(l.ids, l.tokens, continues);
      REQUIRE(p.edge.size() == taps);
      // Inputs numbered 1000 + t; those before the row 1 .. 3.
      Array<double> x({l.tokens, 1}), weights({taps, 1}, 1.0), state({taps - 1, 1});
      for (int t = 0; t < l.tokens; t++) x(t, 0) = 1000 + t;
      for (int j = 0; j < taps - 1; j++) state(j, 0) = 1 + j;
      const auto right = conv_silu(x, weights, {}, continues ? state : Array<double>(), l.ids).state;
      for (int j = 0; j < taps - 1; j++) {
        const int row = p.edge[static_cast<std::size_t>(j) + 1], t = p.edge[0] * C + row - tail_rows;
        const double found = row < 0 ? 0 : t >= 0 ? x(t, 0) : continues ? state(taps - 1 + t, 0) : 0;
        CHECK(found == right(j, 0));
      }
    }
}

TEST_CASE("without a convolution the words say which tokens are valid") {
  const auto p = plan(document_ids({{1, 3}, {0, 2}, {2, 5}}), 10, false, 0);
  for (int t = 0; t < C; t++) CHECK(p.word[static_cast<std::size_t>(t)] == (t < 3 ? 257 : t < 5 ? 256 : t < 10 ? 513 : 512));
  CHECK(p.edge.empty());
}

TEST_CASE("documents are numbered up to 2^23 - 1") {
  std::vector<int> ids(1 << 23);
  for (std::size_t t = 0; t < ids.size(); t++) ids[t] = static_cast<int>(t % 2) + 1;
  CHECK_THROWS_WITH(plan(ids, 1 << 23, false), "documents: row 0 has 8388608 documents; expected fewer than 8388608");
  CHECK(plan({ids.begin() + 1, ids.end()}, (1 << 23) - 1, false).boundary.back() == (1 << 23) - 1);
}

// Calls whose row holds several sequences with states of their own: what they share. The bits of each are those of a call on it alone.
#pragma once
#include <span>

#include "gdn/calls/recurrent.hpp"

namespace gdn::detail {

// A sequence: its tokens in the row, and the states [slots, ..] that it reads and writes, as indices or -1.
struct Sequence {
  std::int64_t first, tokens;
  i32 from, to;
  std::span<const i32> snapshots;  // by chunk, or empty: a state that takes the value after the chunk, or -1
};
inline std::int64_t chunks_of(std::int64_t tokens, int C) { return (tokens + C - 1) / C; }
inline std::int64_t chunks_of(const std::vector<Sequence>& all, int C) {
  std::int64_t n = 0;
  for (const Sequence& s : all) n += chunks_of(s.tokens, C);
  return n;
}

struct TurnPlan {
  std::vector<i32> turns;                // [N, Turn::entries]
  std::vector<i32> limit;                // as in DocumentPlan
  bool single = true, whole = true;      // every sequence is one chunk; every chunk has C tokens
  bool reads_all = true, keeps = false;  // every sequence reads a state; some state is kept
  bool keeps_all = true;                 // after every chunk
  const i32* of(std::int64_t chunk) const { return turns.data() + chunk * Turn::entries; }
  i32* of(std::int64_t chunk) { return turns.data() + chunk * Turn::entries; }
};
// f(sequence, its first token of the chunk, tokens)
template <class F> void for_chunks(const std::vector<Sequence>& all, int C, F f) {
  for (const Sequence& s : all)
    for (std::int64_t first = 0; first < s.tokens; first += C) f(s, first, std::min<std::int64_t>(C, s.tokens - first));
}
// With `room` for so many chunks, nothing but the tables tells one batch from another.
inline TurnPlan plan_turns(const std::vector<Sequence>& all, int C, std::int64_t room = 0) {
  TurnPlan p;
  for_chunks(all, C, [&](const Sequence& s, std::int64_t first, std::int64_t rows) {
    const bool begins = first == 0, last = first + rows == s.tokens, reads = begins && s.from >= 0;
    const i32 to = last ? s.to : s.snapshots.empty() ? -1 : s.snapshots[static_cast<std::size_t>(first / C)];
    const i32 flags = (begins ? Turn::begins | Turn::first : 0) | (reads ? Turn::reads : 0) | (to >= 0 ? Turn::keeps : 0);
    p.turns.insert(p.turns.end(), {static_cast<i32>(s.first + first), static_cast<i32>(rows), reads ? s.from : 0, std::max(to, 0), flags});
    p.single &= begins && last, p.whole &= rows == C;
    p.reads_all &= !begins || reads, p.keeps |= to >= 0, p.keeps_all &= to >= 0;
  });
  // A chunk that uses no slot names the one that is used next, whose block is then on its way, or else the last one.
  auto fill = [&](Turn::Entry entry, i32 flag) {
    const std::int64_t n = static_cast<std::int64_t>(p.turns.size()) / Turn::entries;
    i32 slot = 0;
    for (std::int64_t c = 0; c < n; c++)
      if (p.of(c)[Turn::flags] & flag) slot = p.of(c)[entry];
    for (std::int64_t c = n; c-- > 0;) slot = p.of(c)[entry] = p.of(c)[Turn::flags] & flag ? p.of(c)[entry] : slot;
  };
  fill(Turn::from, Turn::reads);
  fill(Turn::to, Turn::keeps);
  if (room > 0 && !p.turns.empty()) {
    p.limit = {static_cast<i32>(p.turns.size()) / Turn::entries * C};
    p.turns.resize(static_cast<std::size_t>(room * Turn::entries));
    p.single = p.whole = p.reads_all = p.keeps_all = false, p.keeps = true;
  }
  return p;
}
// From the last chunk of a sequence to its first, which also reads what lies before the sequence: its slots are named in all of them.
inline TurnPlan plan_descending_turns(const std::vector<Sequence>& all, int C) {
  TurnPlan p;
  for_chunks(all, C, [&](const Sequence& s, std::int64_t first, std::int64_t rows) {
    const i32 flags = (first + rows == s.tokens ? Turn::begins | Turn::reads : 0) | (first == 0 ? Turn::first | Turn::keeps : 0);
    p.turns.insert(p.turns.end(), {static_cast<i32>(s.first + first), static_cast<i32>(rows), s.from, s.to, flags});
    p.whole &= rows == C;
  });
  return p;
}
// The same for the kernels of chunks: every sequence is one document, of which the last chunk may be a part. `last`: the flag of chunks
// whose last inputs are handed on.
inline DocumentPlan plan_documents(const TurnPlan& p, int C, int taps, i32 last = Turn::keeps) {
  DocumentPlan d{1, 0, C, static_cast<int>(p.turns.size()) / Turn::entries, {}, {}, {}, p.turns, p.limit};
  for (int c = 0; c < d.chunks; c++) {
    const i32* turn = p.of(c);
    if (!p.whole)
      for (int i = 0; i < C; i++) d.word.push_back(1 << document_shift | (i < turn[Turn::rows] ? (1 << std::max(taps, 1)) - 1 : 0));
    d.edge.push_back(turn[Turn::flags] & last ? c : -1);
    for (int j = 1; j < taps; j++) d.edge.push_back(tail_rows + turn[Turn::rows] - taps + j);
  }
  if (!p.whole) d.boundary.assign(static_cast<std::size_t>(d.chunks) + 1, 1);
  return d;
}

inline Extent extent_of(const TurnPlan& p, std::int64_t tokens, int C, std::int64_t key_heads, std::int64_t value_heads) {
  return {.batch = 1, .tokens = static_cast<int>(tokens), .chunk = C, .key_heads = static_cast<int>(key_heads),
          .value_heads = static_cast<int>(value_heads), .turns = static_cast<int>(p.turns.size()) / Turn::entries};
}
template <class Arrays> Arrays without_last_states(Arrays x) {
  x.final = {};
  if constexpr (requires { x.conv_final; }) x.conv_final = {};
  return x;
}

// Chunk by chunk. The arguments are checked.
template <class G, class Machine, class Act>
void run_chunks(const char* call, Machine& machine, const CoreArrays<Act>& x, const CoreOptions& o, const std::vector<Sequence>& all, std::int64_t room = 0) {
  constexpr int C = G::chunk::size;
  const TurnPlan p = plan_turns(all, C, room);
  if (p.turns.empty()) return;
  machine.check_turns(call, p.turns, C);
  const CoreArrays<Act> y = p.keeps ? x : without_last_states(x);
  machine.run(CoreCall<G, true, Act>{call, y, extent_of(p, x.k.shape[1], C, x.k.shape[2], x.v.shape[2]),
                                     query_options(o.scale, o.use_qk_norm, G::key::size), plan_documents(p, C, 0)});
}
template <class G, class Machine, class Act>
void run_chunks(const char* call, Machine& machine, const LayerArrays<Act>& x, const LayerOptions& o, const std::vector<Sequence>& all, std::int64_t room = 0) {
  constexpr int C = G::chunk::size;
  const TurnPlan p = plan_turns(all, C, room);
  if (p.turns.empty()) return;
  machine.check_turns(call, p.turns, C);
  const LayerArrays<Act> y = p.keeps ? x : without_last_states(x);
  machine.run(LayerCall<G, true, Act>{call, y, extent_of(p, x.qkv.shape[1], C, o.key_heads, x.a.shape[2]),
                                      query_options(o.scale, o.use_qk_norm, G::key::size), plan_documents(p, C, G::taps::size)});
}

// Token by token: each moves a state from one slot to the other where all sequences are single tokens that keep theirs; else it is carried.
inline TokenPlan token_plan(const TurnPlan& p) {
  TokenPlan t{.words = {}, .turns = p.turns, .limit = p.limit, .single = p.single && p.keeps_all};
  if (t.single && !p.reads_all)
    for (std::size_t c = 0; c < p.turns.size(); c += Turn::entries)
      t.words.push_back(TokenWord::is_valid | (p.turns[c + Turn::flags] & Turn::reads ? 0 : TokenWord::begins));
  return t;
}
template <class G, class Machine, class Act>
void run_tokens(const char* call, Machine& machine, const CoreArrays<Act>& x, const CoreOptions& o, const std::vector<Sequence>& all, std::int64_t room = 0) {
  const TurnPlan p = plan_turns(all, 1, room);
  if (p.turns.empty()) return;
  const CoreArrays<Act> y = p.keeps ? x : without_last_states(x);
  machine.run(RecurrentCall<G, Act>{call, y, extent_of(p, x.k.shape[1], 1, x.k.shape[2], x.v.shape[2]),
                                    query_options(o.scale, o.use_qk_norm, G::key::size), token_plan(p)});
}
template <class G, class Machine, class Act>
void run_tokens(const char* call, Machine& machine, const LayerArrays<Act>& x, const LayerOptions& o, const std::vector<Sequence>& all, std::int64_t room = 0) {
  const TurnPlan p = plan_turns(all, 1, room);
  if (p.turns.empty()) return;
  const LayerArrays<Act> y = p.keeps ? x : without_last_states(x);
  machine.run(LayerTokensCall<G, Act>{call, y, extent_of(p, x.qkv.shape[1], 1, o.key_heads, x.a.shape[2]),
                                      query_options(o.scale, o.use_qk_norm, G::key::size), token_plan(p)});
}

}  // namespace gdn::detail

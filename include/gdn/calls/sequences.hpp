// Serving: a ragged batch of sequences over pools of state slots (the calls of vLLM's mixed batches and of MaxText PR #5762).
//
// The tokens of all sequences lie in one row, B = 1. `initial` and `final` are one pool [slots, ..], updated in place, and so are
// `conv_initial` and `conv_final`. Slot 0 is the null slot, of sequences whose state nobody wants: it is neither read nor written.
//   forward_sequences, layer_forward_sequences    prompts or pieces of prompts, chunk by chunk
//   decode_sequences, layer_decode_sequences      token by token: one of each sequence, or a window of speculative ones
//   serve, layer_serve                            a mixed batch: the first `decodes` sequences by tokens, the others by chunks
// Chunks are counted sequence by sequence: N = sum of ceil(length / C), or of the lengths where it goes by tokens. `residuals` are of the
// sequences that go by chunks; chunk_states are the states before them. Tokens that belong to no sequence get no output.
//
// A batch is refused before anything is written. TPU kernels read whole chunks: there, sequences must start at multiples of C.
#pragma once
#include "gdn/calls/turns.hpp"

namespace gdn {

struct Sequences {
  std::span<const i32> starts = {};      // [n + 1]: first tokens (query_start_loc). A sequence ends where the next one starts,
  std::span<const i32> lengths = {};     // [n]: or after so many tokens, if given
  std::span<const i32> slots = {};       // [n]: where the state is read and written
  std::span<const i32> context = {};     // [n]: tokens before these (seq_lens - lengths). 0: the state is zeros, whatever the slot holds; absent: none is 0
  std::span<const i32> read_slots = {};  // [n]: where the state is read instead, if given: that of the last accepted speculative token
  std::span<const i32> snapshots = {};   // [N]: slots that take the state after each chunk but the last of a sequence, or 0; absent: none
  std::int64_t decodes = 0;         // for serve
  std::int64_t room = 0;            // N of the kernels, if not as many as there are: an emitted kernel then serves any batch of up to so many
};

namespace detail {

// What a batch is, checked.
class Batch {
 public:
  Batch(const char* call, const Sequences& s, std::int64_t decodes, int C, std::int64_t tokens) : call_(call) {
    const auto n = static_cast<std::int64_t>(s.slots.size());
    require(static_cast<std::int64_t>(s.starts.size()) == n + 1, call, ": starts has ", s.starts.size(), " entries; expected ", n + 1);
    require(decodes >= 0 && decodes <= n, call, ": decodes is ", decodes, "; expected at most the ", n, " sequences");
    size("lengths", s.lengths, n), size("context", s.context, n), size("read_slots", s.read_slots, n);
    require(s.starts[0] >= 0, call, ": starts[0] is ", s.starts[0], "; expected 0 or more");
    require(s.starts.back() <= tokens, call, ": the sequences end at token ", s.starts.back(), "; expected at most the ", tokens, " tokens");
    auto at = [](std::span<const i32> x, std::int64_t i) { return x[static_cast<std::size_t>(i)]; };
    for (std::int64_t i = 0; i < n; i++) {
      const i32 start = at(s.starts, i), next = at(s.starts, i + 1), length = s.lengths.empty() ? next - start : at(s.lengths, i);
      require(next >= start, call, ": starts[", i + 1, "] is ", next, "; expected at least starts[", i, "] = ", start);
      require(length >= 0 && length <= next - start, call, ": sequence ", i, " has ", length, " tokens; expected 0 to the ", next - start,
              " before the next one");
      require(s.context.empty() || at(s.context, i) >= 0, call, ": context[", i, "] is ", s.context.empty() ? 0 : at(s.context, i), "; expected 0 or more");
      const i32 from = at(s.read_slots.empty() ? s.slots : s.read_slots, i), to = at(s.slots, i);
      const bool reads = from != 0 && (s.context.empty() || at(s.context, i) > 0);
      (i < decodes ? by_tokens : by_chunks).push_back({start, length, reads ? from : -1, to == 0 ? -1 : to, {}});
    }
    chunks = chunks_of(by_chunks, C);
    const std::int64_t parts = chunks_of(by_tokens, 1) + chunks;
    size("snapshots", s.snapshots, parts);
    const std::int64_t most = std::max(chunks, chunks_of(by_tokens, 1));
    require(s.room == 0 || s.room >= most, call, ": room is ", s.room, "; expected at least the ", most, " chunks there are");
    if (s.room) chunks = s.room;
    snapshots_.assign(s.snapshots.begin(), s.snapshots.end());
    std::replace(snapshots_.begin(), snapshots_.end(), 0, -1);
    std::size_t part = 0;
    for (auto* all : {&by_tokens, &by_chunks})
      for (Sequence& q : *all) {
        const auto count = static_cast<std::size_t>(chunks_of(q.tokens, all == &by_tokens ? 1 : C));
        if (!snapshots_.empty()) q.snapshots = std::span<const i32>(snapshots_).subspan(part, count);
        part += count;
      }
  }
  Batch(const Batch&) = delete;

  std::vector<Sequence> by_tokens, by_chunks;
  std::int64_t chunks;

  // Every slot is one of the pool's, belongs to one sequence, and is written once.
  void check_slots(std::int64_t slots) const {
    struct Owner {
      std::int64_t sequence = -1;
      bool written = false;
    };
    std::vector<Owner> owners(static_cast<std::size_t>(slots));
    std::int64_t i = 0;
    auto use = [&](i32 slot, bool writes) {
      if (slot == -1) return;
      require(slot >= 0 && slot < slots, call_, ": sequence ", i, " uses slot ", slot, "; expected 0 to ", slots - 1);
      Owner& o = owners[static_cast<std::size_t>(slot)];
      require(o.sequence < 0 || o.sequence == i, call_, ": slot ", slot, " is used by sequences ", o.sequence, " and ", i, "; expected one");
      require(!writes || !o.written, call_, ": slot ", slot, " is written twice by sequence ", i, "; expected once");
      o = {i, o.written || writes};
    };
    for (auto* all : {&by_tokens, &by_chunks})
      for (const Sequence& q : *all) {
        use(q.from, false);
        use(q.to, true);
        for (std::size_t c = 0; c < q.snapshots.size(); c++) {
          require(c + 1 < q.snapshots.size() || q.snapshots[c] == -1, call_, ": the last snapshot of sequence ", i, " is slot ", q.snapshots[c],
                  "; expected 0, its state goes to its own slot");
          use(q.snapshots[c], true);
        }
        i++;
      }
  }

 private:
  void size(const char* name, std::span<const i32> x, std::int64_t expected) const {
    require(x.empty() || static_cast<std::int64_t>(x.size()) == expected, call_, ": ", name, " has ", x.size(), " entries; expected ", expected);
  }
  const char* call_;
  std::vector<i32> snapshots_;
};

template <class T, int Rank> void check_pool(const char* call, const char* in, const View<const T, Rank>& initial, const char* out, const View<T, Rank>& final) {
  checks::given(call, in, static_cast<bool>(initial));
  checks::given(call, out, static_cast<bool>(final));
  require(initial.data == final.data && initial.shape == final.shape && initial.strides == final.strides, call, ": ", in, " and ", out,
          " differ; expected one pool, which is updated in place");
}
template <class G, class Machine, class Act>
void check_sequences(const char* call, Machine& machine, const CoreArrays<Act>& x, const CoreOptions&, const Batch& batch) {
  check_pool(call, "initial", x.initial, "final", x.final);
  check_core<G, true>(call, x, Counts{x.initial.shape[0], batch.chunks});
  machine.check_data([&] { checks::no_growth(call, x.g); });
}
template <class G, class Machine, class Act>
void check_sequences(const char* call, Machine&, const LayerArrays<Act>& x, const LayerOptions& o, const Batch& batch) {
  check_pool(call, "initial", x.initial, "final", x.final);
  check_pool(call, "conv_initial", x.conv_initial, "conv_final", x.conv_final);
  check_layer<G, true>(call, x, o, Counts{x.initial.shape[0], batch.chunks});
}
template <class Act> Sizes<2> rows_of(const CoreArrays<Act>& x) { return {x.k.shape[0], x.k.shape[1]}; }
template <class Act> Sizes<2> rows_of(const LayerArrays<Act>& x) { return {x.qkv.shape[0], x.qkv.shape[1]}; }

template <class G, class Machine, class Arrays, class Options>
void sequences(const char* call, Machine& machine, const Arrays& x, const Sequences& s, const Options& o, std::int64_t decodes) {
  const auto [B, T] = rows_of(x);
  require(B == 1, call, ": ", B, " rows; expected 1, with all sequences in it");
  require(!x.ids, call, ": ids are given; expected none");
  const Batch batch(call, s, decodes, G::chunk::size, T);
  check_sequences<G>(call, machine, x, o, batch);
  batch.check_slots(x.initial.shape[0]);
  if (batch.by_chunks.empty()) no_residuals(call, x.residual, x.residuals);
  machine.check_kernels(!batch.by_tokens.empty() + !batch.by_chunks.empty(), "kinds of sequences");
  run_chunks<G>(call, machine, x, o, batch.by_chunks, s.room);
  Arrays tokens = x;
  tokens.residual = {}, tokens.residuals = {};
  run_tokens<G>(call, machine, tokens, o, batch.by_tokens, s.room);
}

}  // namespace detail

template <class G = Head128, class Machine, class Act>
void forward_sequences(Machine& machine, const CoreArrays<Act>& x, const Sequences& s, const CoreOptions& options = {}) {
  detail::sequences<G>("forward_sequences", machine, x, s, options, 0);
}
template <class G = Head128, class Machine, class Act>
void layer_forward_sequences(Machine& machine, const LayerArrays<Act>& x, const Sequences& s, const LayerOptions& options) {
  detail::sequences<G>("layer_forward_sequences", machine, x, s, options, 0);
}
template <class G = Head128, class Machine, class Act>
void decode_sequences(Machine& machine, const CoreArrays<Act>& x, const Sequences& s, const CoreOptions& options = {}) {
  detail::sequences<G>("decode_sequences", machine, x, s, options, static_cast<std::int64_t>(s.slots.size()));
}
template <class G = Head128, class Machine, class Act>
void layer_decode_sequences(Machine& machine, const LayerArrays<Act>& x, const Sequences& s, const LayerOptions& options) {
  detail::sequences<G>("layer_decode_sequences", machine, x, s, options, static_cast<std::int64_t>(s.slots.size()));
}
template <class G = Head128, class Machine, class Act>
void serve(Machine& machine, const CoreArrays<Act>& x, const Sequences& s, const CoreOptions& options = {}) {
  detail::sequences<G>("serve", machine, x, s, options, s.decodes);
}
template <class G = Head128, class Machine, class Act>
void layer_serve(Machine& machine, const LayerArrays<Act>& x, const Sequences& s, const LayerOptions& options) {
  detail::sequences<G>("layer_serve", machine, x, s, options, s.decodes);
}

}  // namespace gdn

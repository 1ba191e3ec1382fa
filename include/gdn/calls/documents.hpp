// Documents of a batch, from ids or cumulative lengths to what the kernels read (kernels/documents.hpp).
//   ids [B, T]: <= 0 is padding. A valid token whose id differs from that of the last valid token before it starts a new document;
//   padding does not split one. With an initial state the first document continues it, and so do the taps before the row.
#pragma once
#include <optional>
#include <span>

#include "gdn/calls/view.hpp"
#include "gdn/kernels/documents.hpp"

namespace gdn {

struct DocumentPlan {
  int batch = 0, tokens = 0, chunk = 0, chunks = 0;
  std::vector<i32> word;      // [B, N, C]
  std::vector<i32> boundary;  // [B, N + 1]: document before each chunk, and after the last one
  std::vector<i32> edge;      // [B, taps]: chunk that holds the row's last input for the convolution, and rows of [tail; chunk]
  std::vector<i32> turns;     // [N, Turn::entries]: chunks of sequences (calls/sequences.hpp); `edge` is then [N, taps]
  std::vector<i32> limit;     // [1]: so many tokens, C of each of the first turns, are worked on; empty: all
};

// For every one of a row's last inputs: its row in [tail; chunk] of each chunk, or -1; [B, taps - 1, N].
inline std::vector<i32> rows_of_last_inputs(const DocumentPlan& p, int taps) {
  std::vector<i32> rows;
  for (int b = 0; b < p.batch; b++)
    for (int j = 1; j < taps; j++)
      for (int c = 0; c < p.chunks; c++) {
        const i32* const edge = p.edge.data() + (p.turns.empty() ? b : c) * taps;
        rows.push_back(edge[0] == c ? edge[j] : -1);
      }
  return rows;
}

// ids of one row of T tokens, or empty: one document.
inline DocumentPlan plan_documents(const View<const i32, 2>& ids, int batch, int tokens, int chunk, int taps, bool continues, int tail_rows) {
  DocumentPlan p{batch, tokens, chunk, (tokens + chunk - 1) / chunk, {}, {}, {}, {}, {}};
  const int padded = p.chunks * chunk;
  for (int b = 0; b < batch; b++) {
    std::vector<i32> document(static_cast<std::size_t>(padded));
    std::vector<char> valid(static_cast<std::size_t>(padded));
    i32 current = continues ? 1 : 0;
    i32 last_raw = 0;
    bool any = false;
    for (int t = 0; t < padded; t++) {
      const i32 raw = t >= tokens ? 0 : ids ? ids.data[b * ids.strides[0] + t * ids.strides[1]] : 1;
      if (raw > 0) {
        if (!any) current = 1;
        else if (raw != last_raw) current++;
        any = true;
        last_raw = raw;
        valid[t] = 1;
      }
      document[t] = current;
    }
    require(current < (1 << (31 - document_shift)), "documents: row ", b, " has ", current, " documents; expected fewer than ", 1 << (31 - document_shift));
    // A row of padding alone passes a state through: nothing may seem to end in it.
    const i32 before = continues ? 1 : 0;
    auto seen = [&](int t, int distance) {
      const int u = t - distance;
      return u >= 0 ? valid[u] && document[u] == document[t] : continues && document[t] == 1;
    };
    for (int t = 0; t < padded; t++) {
      i32 w = document[t] << document_shift;
      for (int d = 0; d < std::max(taps, 1); d++)
        if (valid[t] && seen(t, d)) w |= 1 << d;
      p.word.push_back(w);
    }
    p.boundary.push_back(before);
    for (int c = 0; c < p.chunks; c++) p.boundary.push_back(document[static_cast<std::size_t>((c + 1) * chunk - 1)]);
    // The taps - 1 inputs that end at the last valid token, of its document; earlier ones come from before the row.
    int last = padded - 1;
    while (last >= 0 && !valid[last]) last--;
    const int c = std::max(last, 0) / chunk;
    if (taps > 0) p.edge.push_back(c);
    for (int j = 0; j + 1 < taps; j++) {
      const int t = last - (taps - 2 - j);
      const bool named = t >= 0 ? valid[t] && document[t] == document[std::max(last, 0)] : continues && (last < 0 || document[last] == 1);
      p.edge.push_back(named ? t - c * chunk + tail_rows : -1);
    }
  }
  return p;
}

}  // namespace gdn

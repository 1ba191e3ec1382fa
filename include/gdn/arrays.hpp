// How a kernel's arrays are described to a machine: what they hold, and where the window of a head and chunk lies in them.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace gdn {

enum class Element { f32, bf16, i32, i1 };  // i1: masks, never in memory

// How far a value is shared. It follows from what it is made of, so work on keys is never repeated for their value heads.
enum class Domain { constant, token, key_head, value_head };

// Where a window lies in its array. H: heads of the ref's domain, W: columns of the window, C: tokens of a chunk, N: chunks.
enum class Place {
  tokens,       // [B, T, H, W], rows are the tokens of the chunk; W = 1: [B, T, H]
  before,       // [B, T, H, W], rows are the tokens before the chunk; those before the first are the rows of `initial`
  words,        // [B, N, C] or [B, T], one value per token, the same for all heads
  weights,      // [rows, H, W]
  per_head,     // [H]
  chunk_state,  // [B, N, H, rows, W]
  sequence,     // [B, H, rows, W], one for all chunks
  edge_rows,    // [B, rows, H, W], one for all chunks
  scalars,      // [B, entries], scalar memory; entry c + offset
  limit,        // [B], scalar memory: the tokens of a row that are worked on; read as those from the chunk's first one on. Chunks behind the
                // one that holds the last of them (chunk 0, if there are none) are not visited: outputs stay what they are there
  turns,        // [N, Turn::entries], scalar memory: the chunks belong to sequences. `tokens` begin at the row that the chunk's entry names,
                // and `sequence` and `edge_rows` are pools of slots, of which it names one to read and one to write
  carried,      // lives from one chunk to the next in scratch, [rows, W] per head
};
enum class Use { in, out };

// What a chunk is to its sequence, in an array of `turns`.
struct Turn {
  enum Entry { row, rows, from, to, flags, entries };  // first token and tokens of the chunk, slot to read and slot to write
  static constexpr std::int32_t begins = 1, reads = 2, keeps = 4, first = 8;
  // A carried ref starts anew with a chunk that begins, from slot `from` if it reads and from zeros if not. Where a chunk keeps, its value
  // goes to slot `to`. Chunks that do neither name a slot that stays what it is. `first`: no tokens of its sequence lie before it.
};

struct RefInfo {
  std::string name;
  Place place;
  Use use;
  int rows = 0, cols = 0;
  Element element;
  Domain domain;
  int array = -1;         // arrays of a call may be shared by several refs (q, k, v in one)
  int first_column = 0;   // of head 0 in a row of the array
  int first_row = 0;      // tokens, words: rows of the window before those of the ref
  int offset = 0;         // scalars: entry of chunk 0
  int per_chunk = 0;      // plans of store_rows: entries from one chunk's plan to the next; 0: one plan for all
  int initial = -1;       // carried, before: the ref it starts from, or -1 for zeros. Fewer rows are the last ones
  bool identity = false;  // carried: it starts from the identity instead of zeros
  int final = -1;         // carried: the ref that takes its last value, or its last rows; or -1
};

// An array of the call. `logical` is its shape for the caller.
struct ArrayInfo {
  std::string name;
  Use use;
  Element element;
  std::vector<int> logical;
  int updates = -1;  // an output: the input whose memory it is, changed in place
};
// How often a body runs: rows of a batch, tokens and chunks of a row, heads.
struct Extent {
  int batch = 1, tokens = 0, chunk = 64, key_heads = 1, value_heads = 1;
  int turns = 0;            // chunks, where they belong to sequences
  bool descending = false;  // chunks from the last to the first
  int chunks() const { return turns ? turns : (tokens + chunk - 1) / chunk; }
  int ratio() const { return value_heads / key_heads; }
};

}  // namespace gdn

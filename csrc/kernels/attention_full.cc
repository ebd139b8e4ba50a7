// Bidirectional attention inside one sequence (encoders), over float keys and values; the arithmetic is attention_tile.h's, with
// tiles of 32 keys from the start of the sequence.
#include "kernels/attention_tile.h"
#include "kernels/rows.h"

namespace taut::TAUT_ISA_NS {
namespace {

// Keys of tokens [begin, begin + n) to [head_dim][32], values to [32][padded].
TAUT_FN void load_tile(const AttentionFull& p, int64_t kv_head, int64_t begin, int64_t n, const AttentionState& s) {
  const int64_t d = p.head_dim;
  for (int64_t t = 0; t < n; ++t) {
    const float* k = at(p.k, begin + t) + kv_head * d;
    const float* v = at(p.v, begin + t) + kv_head * d;
    for (int64_t i = 0; i < d; ++i) {
      s.keys[i * kTileKeys + t] = k[i];
    }
    for (int64_t i = 0; i < d; i += 16) {
      store(s.values + t * s.padded + i, load_n(v + i, d - i));
    }
  }
}

}  // namespace

void attention_full(const AttentionFull& p, int64_t seq_begin, int64_t seq_end, int64_t kv_head, int64_t token_begin,
                    int64_t token_end, float* scratch) {
  const int64_t group = p.heads / p.kv_heads, rows = (token_end - token_begin) * group, d = p.head_dim;
  const AttentionState s = make_state(scratch, d, rows, kQueryRows > group ? kQueryRows : group);
  for (int64_t row = 0; row < rows; ++row) {
    put_query(s, row, at(p.q, token_begin + row / group) + (kv_head * group + row % group) * d, p.scale);
  }
  for (int64_t begin = seq_begin; begin < seq_end; begin += kTileKeys) {
    const int64_t n = seq_end - begin < kTileKeys ? seq_end - begin : kTileKeys;
    load_tile(p, kv_head, begin, n, s);
    for_row_tiles(0, rows, ScoreTile{s});
    const auto visible = [n](int64_t) { return n; };
    if (n == kTileKeys) {
      soften<true>(s, 0, rows, visible, nullptr, nullptr);
    } else {
      soften<false>(s, 0, rows, visible, nullptr, nullptr);
    }
    for_row_tiles(0, rows, OutputTile{s, n});
  }
  for (int64_t row = 0; row < rows; ++row) {
    put_output(s, row, at(p.o, token_begin + row / group) + (kv_head * group + row % group) * d);
  }
}

}  // namespace taut::TAUT_ISA_NS

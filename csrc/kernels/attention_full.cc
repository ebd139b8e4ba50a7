// Bidirectional attention inside one sequence (encoders), over float keys and values; the arithmetic is attention_tile.h's, with
// tiles of 32 keys from the start of the sequence.
#include "kernels/attention_tile.h"
#include "kernels/rows.h"

namespace taut::TAUT_ISA_NS {
namespace {

// Keys of n tokens, `stride` floats apart, to [head_dim][32].
TAUT_FN void load_keys(const float* k, int64_t stride, int64_t n, const AttentionState& s) {
  for (int64_t t = 0; t < n; ++t) {
    for (int64_t i = 0; i < s.head_dim; ++i) {
      s.keys[i * kTileKeys + t] = k[t * stride + i];
    }
  }
}

// Values of n tokens to [n][padded].
TAUT_FN void load_values(const float* v, int64_t stride, int64_t n, const AttentionState& s) {
  for (int64_t t = 0; t < n; ++t) {
    for (int64_t i = 0; i < s.head_dim; i += 16) {
      store(s.values + t * s.padded + i, load_n(v + t * stride + i, s.head_dim - i));
    }
  }
}

TAUT_FN void output(const float* v, int64_t stride, int64_t tiles, int64_t last_keys, const AttentionState& s) {
  for (int64_t tile = 0; tile < tiles; tile += kValueTiles) {
    const int64_t end = least(tile + kValueTiles, tiles), n = end < tiles ? kTileKeys : last_keys;
    for (int64_t t = tile; t < end; ++t) {
      weigh(s, t, 0, nullptr);
    }
    load_values(v + tile * kTileKeys * stride, stride, (end - tile - 1) * kTileKeys + n, s);
    const auto values = [&](int64_t t) { return s.values + (t - tile) * kTileKeys * s.padded; };
    for_row_tiles(0, s.rows, OutputTiles<decltype(values)>{s, tile, end, n, values, s.padded});
  }
}

// Sums over `keys` keys.
TAUT_FN void attend(const float* k, int64_t k_stride, const float* v, int64_t v_stride, int64_t keys, const AttentionState& s) {
  const int64_t tiles = (keys + kTileKeys - 1) / kTileKeys, last_keys = keys - (tiles - 1) * kTileKeys;
  begin_chunk(s, 0);
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t n = tile + 1 < tiles ? kTileKeys : last_keys;
    load_keys(k + tile * kTileKeys * k_stride, k_stride, n, s);
    for_row_tiles(0, s.rows, ScoreTile{s, s.tile_scores(tile)});
    const auto visible = [n](int64_t) { return n; };
    if (n == kTileKeys) {
      settle<true>(s, s.tile_scores(tile), 0, s.rows, visible, nullptr);
    } else {
      settle<false>(s, s.tile_scores(tile), 0, s.rows, visible, nullptr);
    }
  }
  end_scores(s, 0);
  output(v, v_stride, tiles, last_keys, s);
  end_weights(s, 0);
}

}  // namespace

void attention_full(const AttentionFull& p, int64_t seq_begin, int64_t seq_end, int64_t kv_head, int64_t token_begin,
                    int64_t token_end, float* scratch) {
  const int64_t group = p.heads / p.kv_heads, rows = (token_end - token_begin) * group, d = p.head_dim;
  const int64_t length = seq_end - seq_begin, chunk_keys = p.chunk_tiles * kTileKeys;
  Sums joined;
  AttentionState s = make_state(scratch, d, rows, joined);
  for (int64_t row = 0; row < rows; ++row) {
    put_query(s, row, at(p.q, token_begin + row / group) + (kv_head * group + row % group) * d, p.scale);
  }
  const Sums own = s.sums;
  for (int64_t key = 0; key < length; key += chunk_keys) {
    s.sums = key == 0 ? joined : own;
    attend(at(p.k, seq_begin + key) + kv_head * d, p.k.row_bytes / 4, at(p.v, seq_begin + key) + kv_head * d, p.v.row_bytes / 4,
           least(length - key, chunk_keys), s);
    if (key > 0) {
      join(joined, own, s.padded, 0, rows);
    }
  }
  for (int64_t row = 0; row < rows; ++row) {
    put_output(joined, row, d, at(p.o, token_begin + row / group) + (kv_head * group + row % group) * d);
  }
}

}  // namespace taut::TAUT_ISA_NS

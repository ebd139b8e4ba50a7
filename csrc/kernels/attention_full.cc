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

// The same to pairs, [head_dim / 2][32].
TAUT_FN void round_keys(const float* k, int64_t stride, int64_t n, const AttentionState& s) {
  uint16_t* keys = reinterpret_cast<uint16_t*>(s.keys);
  for (int64_t t = 0; t < n; ++t) {
    for (int64_t i = 0; i < s.head_dim; i += 16) {
      uint16_t narrow[16];
      store_bf16(narrow, load_n(k + t * stride + i, s.head_dim - i));
      for (int64_t j = 0; j < least(round_up(s.head_dim - i, 2), 16); ++j) {
        keys[((i + j) / 2 * kTileKeys + t) * 2 + j % 2] = narrow[j];
      }
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

// Values of n tokens to pairs, [n / 2][padded]; an odd n ends with a pair whose odd half nobody looks at.
TAUT_FN void round_values(const float* v, int64_t stride, int64_t n, const AttentionState& s) {
  for (int64_t t = 0; t < n; t += 2) {
    const float* next = v + (t + 1 < n ? t + 1 : t) * stride;
    for (int64_t i = 0; i < s.head_dim; i += 16) {
      const f32x16 even = load_n(v + t * stride + i, s.head_dim - i), odd = load_n(next + i, s.head_dim - i);
      store_i32(pairs_at(s.values) + t / 2 * s.padded + i, round_pairs(even, odd));
    }
  }
}

template <bool kBf16>
TAUT_FN void output(const float* v, int64_t stride, int64_t tiles, int64_t last_keys, const AttentionState& s) {
  for (int64_t tile = 0; tile < tiles; tile += kValueTiles) {
    const int64_t end = least(tile + kValueTiles, tiles), n = end < tiles ? kTileKeys : last_keys;
    for (int64_t t = tile; t < end; ++t) {
      weigh<kBf16>(s, t, 0, nullptr);
    }
    const float* first = v + tile * kTileKeys * stride;
    const int64_t keys = (end - tile - 1) * kTileKeys + n, tile_rows = kBf16 ? kTileKeys / 2 : kTileKeys;
    kBf16 ? round_values(first, stride, keys, s) : load_values(first, stride, keys, s);
    const auto values = [&](int64_t t) { return s.values + (t - tile) * tile_rows * s.padded; };
    for_row_tiles(0, s.rows, OutputTiles<kBf16, decltype(values)>{s, tile, end, n, values, s.padded});
  }
}

// Sums over `keys` keys.
template <bool kBf16>
TAUT_FN void attend(const float* k, int64_t k_stride, const float* v, int64_t v_stride, int64_t keys, const AttentionState& s) {
  const int64_t tiles = (keys + kTileKeys - 1) / kTileKeys, last_keys = keys - (tiles - 1) * kTileKeys;
  begin_chunk(s, 0);
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t n = tile + 1 < tiles ? kTileKeys : last_keys;
    const float* first = k + tile * kTileKeys * k_stride;
    kBf16 ? round_keys(first, k_stride, n, s) : load_keys(first, k_stride, n, s);
    for_row_tiles(0, s.rows, ScoreTile<kBf16>{s, s.tile_scores(tile)});
    const auto visible = [n](int64_t) { return n; };
    if (n == kTileKeys) {
      settle_tile<true>(s, s.tile_scores(tile), 0, s.rows, visible, nullptr);
    } else {
      settle_tile<false>(s, s.tile_scores(tile), 0, s.rows, visible, nullptr);
    }
  }
  end_scores(s, 0);
  output<kBf16>(v, v_stride, tiles, last_keys, s);
  end_weights(s, 0);
}

template <bool kBf16>
TAUT_FN void attend_sequence(const AttentionFull& p, int64_t seq_begin, int64_t seq_end, int64_t kv_head, int64_t token_begin,
                             int64_t token_end, float* scratch) {
  const int64_t group = p.heads / p.kv_heads, rows = (token_end - token_begin) * group, d = p.head_dim;
  const int64_t length = seq_end - seq_begin, chunk_keys = p.chunk_tiles * kTileKeys;
  Sums joined;
  AttentionState s = make_state(scratch, d, rows, joined);
  s.limit = p.limit;
  s.beyond = p.beyond;
  for (int64_t row = 0; row < rows; ++row) {
    put_query<kBf16>(s, row, at(p.q, token_begin + row / group) + (kv_head * group + row % group) * d, p.scale);
  }
  const Sums own = s.sums;
  for (int64_t key = 0; key < length; key += chunk_keys) {
    s.sums = key == 0 ? joined : own;
    attend<kBf16>(at(p.k, seq_begin + key) + kv_head * d, p.k.row_bytes / 4, at(p.v, seq_begin + key) + kv_head * d,
                  p.v.row_bytes / 4, least(length - key, chunk_keys), s);
    if (key > 0) {
      join(joined, own, s.padded, 0, rows);
    }
  }
  for (int64_t row = 0; row < rows; ++row) {
    put_output(joined, row, d, at(p.o, token_begin + row / group) + (kv_head * group + row % group) * d);
  }
}

}  // namespace

void attention_full(const AttentionFull& p, int64_t seq_begin, int64_t seq_end, int64_t kv_head, int64_t token_begin,
                    int64_t token_end, float* scratch) {
  const auto run = p.bf16 ? attend_sequence<true> : attend_sequence<false>;
  run(p, seq_begin, seq_end, kv_head, token_begin, token_end, scratch);
}

}  // namespace taut::TAUT_ISA_NS

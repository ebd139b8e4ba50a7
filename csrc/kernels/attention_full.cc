// Bidirectional attention inside one sequence (encoders), over float keys and values; the arithmetic is attention_tile.h's, with
// tiles of 32 keys from the start of the sequence.
#include "kernels/attention_blocks.h"
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

template <Products kProducts>
TAUT_FN void output(const float* v, int64_t stride, int64_t tiles, int64_t last_keys, const AttentionState& s) {
  constexpr bool kBf16 = kProducts != Products::kF32;
  for (int64_t tile = 0; tile < tiles; tile += kValueTiles) {
    const int64_t end = least(tile + kValueTiles, tiles), n = end < tiles ? kTileKeys : last_keys;
    for (int64_t t = tile; t < end; ++t) {
      weigh<kBf16>(s, t, 0, nullptr);
    }
    const float* first = v + tile * kTileKeys * stride;
    const int64_t keys = (end - tile - 1) * kTileKeys + n, tile_rows = kBf16 ? kTileKeys / 2 : kTileKeys;
    kProducts == Products::kBlocks ? round_value_blocks(first, stride, keys, s)
    : kBf16                        ? round_values(first, stride, keys, s)
                                   : load_values(first, stride, keys, s);
    const auto values = [&](int64_t t) { return s.values + (t - tile) * tile_rows * s.padded; };
    if constexpr (kProducts == Products::kBlocks) {
      output_blocks(s, tile, end, values);
    } else {
      for_row_tiles(0, s.rows, OutputTiles<kBf16, decltype(values)>{s, tile, end, n, values, s.padded});
    }
  }
}

// Sums over `keys` keys.
template <Products kProducts>
TAUT_FN void attend(const float* k, int64_t k_stride, const float* v, int64_t v_stride, int64_t keys, const AttentionState& s) {
  [[maybe_unused]] constexpr bool kBf16 = kProducts != Products::kF32;
  const int64_t tiles = (keys + kTileKeys - 1) / kTileKeys, last_keys = keys - (tiles - 1) * kTileKeys;
  begin_chunk(s, 0);
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t n = tile + 1 < tiles ? kTileKeys : last_keys;
    const float* first = k + tile * kTileKeys * k_stride;
    if constexpr (kProducts == Products::kBlocks) {
      round_key_blocks(first, k_stride, n, s);
      score_blocks(s, s.tile_scores(tile));
    } else {
      kBf16 ? round_keys(first, k_stride, n, s) : load_keys(first, k_stride, n, s);
      for_row_tiles(0, s.rows, ScoreTile<kBf16>{s, s.tile_scores(tile)});
    }
    const auto visible = [n](int64_t) { return n; };
    if (n == kTileKeys) {
      settle_tile<true>(s, s.tile_scores(tile), 0, s.rows, visible, nullptr);
    } else {
      settle_tile<false>(s, s.tile_scores(tile), 0, s.rows, visible, nullptr);
    }
  }
  end_scores(s, 0);
  output<kProducts>(v, v_stride, tiles, last_keys, s);
  end_weights(s, 0);
}

template <Products kProducts>
TAUT_FN void attend_sequence(const AttentionFull& p, int64_t seq_begin, int64_t seq_end, int64_t kv_head, int64_t token_begin,
                             int64_t token_end, float* scratch) {
  const int64_t group = p.heads / p.kv_heads, rows = (token_end - token_begin) * group, d = p.head_dim;
  const int64_t length = seq_end - seq_begin, chunk_keys = p.chunk_tiles * kTileKeys;
  Sums joined;
  AttentionState s = make_state(scratch, d, rows, joined);
  s.limit = p.limit;
  s.beyond = p.beyond;
  for (int64_t row = 0; row < rows; ++row) {
    const float* q = at(p.q, token_begin + row / group) + (kv_head * group + row % group) * d;
    if (kProducts == Products::kBlocks) {
      put_query_block(s, row, q, p.scale);
    } else {
      put_query<kProducts == Products::kPairs>(s, row, q, p.scale);
    }
  }
  const Sums own = s.sums;
  for (int64_t key = 0; key < length; key += chunk_keys) {
    s.sums = key == 0 ? joined : own;
    attend<kProducts>(at(p.k, seq_begin + key) + kv_head * d, p.k.row_bytes / 4, at(p.v, seq_begin + key) + kv_head * d,
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
  switch (p.products) {
    case Products::kF32:
      return attend_sequence<Products::kF32>(p, seq_begin, seq_end, kv_head, token_begin, token_end, scratch);
    case Products::kPairs:
      return attend_sequence<Products::kPairs>(p, seq_begin, seq_end, kv_head, token_begin, token_end, scratch);
    case Products::kBlocks:
      [[maybe_unused]] const Blocks blocks;
      return attend_sequence<Products::kBlocks>(p, seq_begin, seq_end, kv_head, token_begin, token_end, scratch);
  }
}

}  // namespace taut::TAUT_ISA_NS

// Causal attention over the paged cache; the arithmetic is attention_tile.h's.
//
// Rows are tokens x the head group, token by token, so the rows that see a tile are a suffix. A tile of keys and values is
// dequantized once into L1 and serves all of them.
#include "kernels/attention_tile.h"
#include "kernels/rows.h"

namespace taut::TAUT_ISA_NS {
namespace {

// [a / 4][b][4] int8 -> [a][stride] float, `a` a multiple of 4.
TAUT_FN void unpack_quads(const int8_t* x, int64_t a, int64_t b, int64_t stride, float* y) {
  for (int64_t quad = 0; quad < a / 4; ++quad) {
    const int8_t* source = x + quad * b * 4;
    float* row = y + quad * 4 * stride;
    int64_t i = 0;
    for (; i + 16 <= b; i += 16) {
      const i32x16 v = load_i32(source + i * 4);
      store(row + i, to_f32(shift_right_signed<24>(shift_left<24>(v))));
      store(row + stride + i, to_f32(shift_right_signed<24>(shift_left<16>(v))));
      store(row + 2 * stride + i, to_f32(shift_right_signed<24>(shift_left<8>(v))));
      store(row + 3 * stride + i, to_f32(shift_right_signed<24>(v)));
    }
    for (; i < b; ++i) {
      for (int64_t j = 0; j < 4; ++j) {
        row[j * stride + i] = static_cast<float>(source[i * 4 + j]);
      }
    }
  }
}

// Decoding: the few rows of one token take int8 keys and values straight from the block, in registers; the arithmetic is the same.
constexpr int64_t kDirectRows = 3;

// Byte j of every lane's four, as floats.
template <int J>
TAUT_FN f32x16 quad_value(i32x16 quads) {
  if constexpr (J == 3) {
    return to_f32(shift_right_signed<24>(quads));
  } else {
    return to_f32(shift_right_signed<24>(shift_left<24 - 8 * J>(quads)));
  }
}

template <int J, int R, int C, int kLdx>
TAUT_FN void direct_step(f32x16 (&acc)[R][C], const float* x, const i32x16 (&quads)[C]) {
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) {
    const f32x16 value = quad_value<J>(quads[c]);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      acc[r][c] = fma(set1(x[r * kLdx + J]), value, acc[r][c]);
    }
  }
}

// tile_fma over quads: w [k / 4][columns][4] int8, `row_bytes` from one four of k to the next.
template <int R, int C, int kLdx>
TAUT_FN void direct_fma(f32x16 (&acc)[R][C], const float* x, const int8_t* w, int64_t row_bytes, int64_t k) {
  int64_t i = 0;
  i32x16 quads[C];
  for (; i + 4 <= k; i += 4, w += row_bytes) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      quads[c] = load_i32(w + 64 * c);
    }
    direct_step<0, R, C, kLdx>(acc, x + i, quads);
    direct_step<1, R, C, kLdx>(acc, x + i, quads);
    direct_step<2, R, C, kLdx>(acc, x + i, quads);
    direct_step<3, R, C, kLdx>(acc, x + i, quads);
  }
  if (i < k) {
    for (int c = 0; c < C; ++c) {
      quads[c] = load_i32(w + 64 * c);
    }
    direct_step<0, R, C, kLdx>(acc, x + i, quads);
    if (i + 1 < k) {
      direct_step<1, R, C, kLdx>(acc, x + i, quads);
    }
    if (i + 2 < k) {
      direct_step<2, R, C, kLdx>(acc, x + i, quads);
    }
  }
}

// What stays in AVX2's 16 registers.
constexpr int direct_vectors(int rows) { return rows <= 2 ? 2 : 1; }

// Scores of R rows against 32 keys [d / 4][32][4].
struct DirectScores {
  const AttentionState& s;
  const int8_t* keys;

  template <int R>
  TAUT_OWN void operator()(int64_t row) const {
    if constexpr (R <= kDirectRows) {
      constexpr int C = direct_vectors(R);
      for (int column = 0; column < kTileKeys; column += 16 * C) {
        f32x16 acc[R][C];
        tile_zero(acc);
        for (int64_t d = 0; d < s.head_dim; d += kChunk) {
          const float* q = s.q + (d / kChunk) * s.capacity * kChunk + row * kChunk;
          const int64_t n = s.head_dim - d < kChunk ? s.head_dim - d : kChunk;
          direct_fma<R, C, kChunk>(acc, q, keys + d * kTileKeys + column * 4, kTileKeys * 4, n);
        }
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
          for (int c = 0; c < C; ++c) {
            store(s.scores + (row + r) * kTileKeys + column + 16 * c, acc[r][c]);
          }
        }
      }
    }
  }
};

// out = out * correction + weights * values [32 / 4][d][4] over the first `visible` keys.
struct DirectOutput {
  const AttentionState& s;
  const int8_t* values;
  int64_t visible;

  template <int R>
  TAUT_OWN void operator()(int64_t row) const {
    if constexpr (R <= kDirectRows) {
      constexpr int C = direct_vectors(R);
      int64_t d = 0;
      for (; d + 16 * C <= s.padded; d += 16 * C) {
        run<R, C>(row, d);
      }
      if (d < s.padded) {
        run<R, 1>(row, d);
      }
    }
  }

  template <int R, int C>
  TAUT_MEMBER void run(int64_t row, int64_t d) const {
    float* out = s.out + row * s.padded + d;
    f32x16 acc[R][C];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) {
        acc[r][c] = mul(load(out + r * s.padded + 16 * c), set1(s.correction[row + r]));
      }
    }
    direct_fma<R, C, kTileKeys>(acc, s.scores + row * kTileKeys, values + d * 4, s.head_dim * 4, visible);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) {
        store(out + r * s.padded + 16 * c, acc[r][c]);
      }
    }
  }
};

// One tile of a KV head as it lies in its block.
struct Tile {
  const uint8_t* keys;
  const uint8_t* values;
  const float* key_scale = nullptr;  // int8 only
  const float* value_scale = nullptr;
};

TAUT_FN Tile tile_of(const KvLayer& kv, const uint8_t* block, int64_t kv_head) {
  Tile t{block + kv_head * kv.slot_bytes, block + (kv.kv_heads + kv_head) * kv.slot_bytes};
  if (kv.int8) {
    t.key_scale = reinterpret_cast<const float*>(t.keys + kv.data_bytes);
    t.value_scale = reinterpret_cast<const float*>(t.values + kv.data_bytes);
  }
  return t;
}

// The tile as floats: unpacked into the scratch, or float slots used where they lie.
TAUT_FN void load_tile(const KvLayer& kv, const Tile& tile, AttentionState& s) {
  const int64_t d = kv.head_dim;
  if (kv.int8) {
    unpack_quads(reinterpret_cast<const int8_t*>(tile.keys), d, kTileKeys, kTileKeys, s.keys);
    unpack_quads(reinterpret_cast<const int8_t*>(tile.values), kTileKeys, d, s.padded, s.values);
    return;
  }
  s.keys = reinterpret_cast<float*>(const_cast<uint8_t*>(tile.keys));
  const float* v = reinterpret_cast<const float*>(tile.values);
  if (s.padded == d) {
    s.values = const_cast<float*>(v);
    return;
  }
  for (int64_t t = 0; t < kTileKeys; ++t) {
    for (int64_t i = 0; i < d; i += 16) {
      store(s.values + t * s.padded + i, load_n(v + t * d + i, d - i));
    }
  }
}

}  // namespace

int64_t attention_scratch(int64_t head_dim, int64_t group) {
  return scratch_floats(head_dim, kQueryRows > group ? kQueryRows : group);
}

void attention(const Attention& p, const int32_t* table, int64_t kv_head, int64_t token_begin, int64_t token_end,
               float* scratch) {
  const KvLayer& kv = p.kv;
  const int64_t group = p.heads / kv.kv_heads, rows = (token_end - token_begin) * group, d = kv.head_dim;
  AttentionState s = make_state(scratch, d, rows, kQueryRows > group ? kQueryRows : group);
  for (int64_t token = token_begin; token < token_end; ++token) {
    for (int64_t g = 0; g < group; ++g) {
      put_query(s, (token - token_begin) * group + g, at(p.q, token) + (kv_head * group + g) * d, p.scale);
    }
  }
  const int64_t first_position = p.positions[token_begin], last_position = p.positions[token_end - 1];
  for (int64_t tile = 0; tile <= last_position / kTileKeys; ++tile) {
    const int64_t tile_begin = tile * kTileKeys;
    const Tile t = tile_of(kv, kv.base + table[tile] * p.block_bytes, kv_head);
    // Rows before row_begin see nothing of this tile, rows from row_whole on all of it.
    const int64_t unseen = tile_begin - first_position, partial = unseen + kTileKeys - 1;
    const int64_t row_begin = (unseen > 0 ? unseen : 0) * group;
    const int64_t row_whole = partial <= 0 ? 0 : partial * group < rows ? partial * group : rows;
    const auto visible = [=](int64_t row) {
      const int64_t seen = first_position + row / group - tile_begin + 1;
      return seen < kTileKeys ? seen : kTileKeys;
    };
    const bool direct = kv.int8 && rows == group && group <= kDirectRows && s.padded == d;
    if (direct) {
      for_row_tiles(0, rows, DirectScores{s, reinterpret_cast<const int8_t*>(t.keys)});
    } else {
      load_tile(kv, t, s);
      for_row_tiles(row_begin, rows, ScoreTile{s});
    }
    soften<false>(s, row_begin, row_whole, visible, t.key_scale, t.value_scale);
    soften<true>(s, row_begin > row_whole ? row_begin : row_whole, rows, visible, t.key_scale, t.value_scale);
    if (direct) {
      for_row_tiles(0, rows, DirectOutput{s, reinterpret_cast<const int8_t*>(t.values), visible(rows - 1)});
      continue;
    }
    for (int64_t row = row_begin; row < row_whole; row += group) {  // the rows of one token see equally far
      for_row_tiles(row, row + group, OutputTile{s, visible(row)});
    }
    for_row_tiles(row_whole > row_begin ? row_whole : row_begin, rows, OutputTile{s, kTileKeys});
  }
  for (int64_t token = token_begin; token < token_end; ++token) {
    for (int64_t g = 0; g < group; ++g) {
      put_output(s, (token - token_begin) * group + g, at(p.o, token) + (kv_head * group + g) * d);
    }
  }
}

}  // namespace taut::TAUT_ISA_NS

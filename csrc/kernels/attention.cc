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

TAUT_FN void load_tile(const KvLayer& kv, const uint8_t* keys, const uint8_t* values, const AttentionState& s) {
  const int64_t d = kv.head_dim;
  if (kv.int8) {
    unpack_quads(reinterpret_cast<const int8_t*>(keys), d, kTileKeys, kTileKeys, s.keys);
    unpack_quads(reinterpret_cast<const int8_t*>(values), kTileKeys, d, s.padded, s.values);
    return;
  }
  const float* k = reinterpret_cast<const float*>(keys);
  for (int64_t i = 0; i < d * kTileKeys; i += 16) {
    store(s.keys + i, load(k + i));
  }
  const float* v = reinterpret_cast<const float*>(values);
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

void attention(const Attention& p, const int32_t* table, int64_t kv_head, int64_t token_begin, int64_t token_end, float* scratch) {
  const KvLayer& kv = p.kv;
  const int64_t group = p.heads / kv.kv_heads, rows = (token_end - token_begin) * group, d = kv.head_dim;
  const AttentionState s = make_state(scratch, d, rows, kQueryRows > group ? kQueryRows : group);
  for (int64_t token = token_begin; token < token_end; ++token) {
    for (int64_t g = 0; g < group; ++g) {
      put_query(s, (token - token_begin) * group + g, at(p.q, token) + (kv_head * group + g) * d, p.scale);
    }
  }
  const int64_t first_position = p.positions[token_begin], last_position = p.positions[token_end - 1];
  for (int64_t tile = 0; tile <= last_position / kTileKeys; ++tile) {
    const int64_t tile_begin = tile * kTileKeys;
    const uint8_t* block = kv.base + table[tile] * p.block_bytes;
    const uint8_t* keys = block + kv_head * kv.slot_bytes;
    const uint8_t* values = block + (kv.kv_heads + kv_head) * kv.slot_bytes;
    const float* key_scale = kv.int8 ? reinterpret_cast<const float*>(keys + kv.data_bytes) : nullptr;
    const float* value_scale = kv.int8 ? reinterpret_cast<const float*>(values + kv.data_bytes) : nullptr;
    load_tile(kv, keys, values, s);
    // Rows before row_begin see nothing of this tile, rows from row_whole on all of it.
    const int64_t unseen = tile_begin - first_position, partial = unseen + kTileKeys - 1;
    const int64_t row_begin = (unseen > 0 ? unseen : 0) * group;
    const int64_t row_whole = partial <= 0 ? 0 : partial * group < rows ? partial * group : rows;
    for_row_tiles(row_begin, rows, ScoreTile{s});
    for (int64_t row = row_begin; row < rows; ++row) {
      const int64_t seen = first_position + row / group - tile_begin + 1;
      soften(s, row, seen < kTileKeys ? seen : kTileKeys, key_scale, value_scale);
    }
    for (int64_t row = row_begin; row < row_whole; row += group) {  // the rows of one token see equally far
      for_row_tiles(row, row + group, OutputTile{s, first_position + row / group - tile_begin + 1});
    }
    for_row_tiles(row_whole, rows, OutputTile{s, kTileKeys});
  }
  for (int64_t token = token_begin; token < token_end; ++token) {
    for (int64_t g = 0; g < group; ++g) {
      put_output(s, (token - token_begin) * group + g, at(p.o, token) + (kv_head * group + g) * d);
    }
  }
}

}  // namespace taut::TAUT_ISA_NS

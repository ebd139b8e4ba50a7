// Causal attention over the paged cache; the arithmetic is attention_tile.h's.
//
// Rows are tokens x the head group, token by token, so the rows that see a tile are a suffix. A tile of keys or values is
// dequantized once into L1 and serves all of them.
#include "kernels/attention_direct.h"
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
      store(row + i, quad_value<0>(v));
      store(row + stride + i, quad_value<1>(v));
      store(row + 2 * stride + i, quad_value<2>(v));
      store(row + 3 * stride + i, quad_value<3>(v));
    }
    for (; i < b; ++i) {
      for (int64_t j = 0; j < 4; ++j) {
        row[j * stride + i] = static_cast<float>(source[i * 4 + j]);
      }
    }
  }
}

// [a / 4][b][4] int8 -> [a / 2][stride] pairs of bf16, in which int8 is exact; `a` a multiple of 4.
TAUT_FN void unpack_quads(const int8_t* x, int64_t a, int64_t b, int64_t stride, int32_t* y) {
  for (int64_t quad = 0; quad < a / 4; ++quad) {
    const int8_t* source = x + quad * b * 4;
    int32_t *row = y + quad * 2 * stride, *next = row + stride;
    int64_t i = 0;
    for (; i + 16 <= b; i += 16) {
      const i32x16 v = load_i32(source + i * 4);
      store_i32(row + i, join_pairs(quad_value<0>(v), quad_value<1>(v)));
      store_i32(next + i, join_pairs(quad_value<2>(v), quad_value<3>(v)));
    }
    for (; i < b; ++i) {
      const i32x16 pair = join_pairs(set1(source[i * 4]), set1(source[i * 4 + 1]));
      const i32x16 other = join_pairs(set1(source[i * 4 + 2]), set1(source[i * 4 + 3]));
      store_n(reinterpret_cast<float*>(row + i), as_f32(pair), 1);
      store_n(reinterpret_cast<float*>(next + i), as_f32(other), 1);
    }
  }
}

// [a][b] float -> [a / 2][stride] pairs, `a` even, whatever lies beyond b up to a multiple of 16 is 0.
TAUT_FN void round_rows(const float* x, int64_t a, int64_t b, int64_t stride, int32_t* y) {
  for (int64_t row = 0; row < a; row += 2, x += 2 * b, y += stride) {
    for (int64_t i = 0; i < b; i += 16) {
      store_i32(y + i, round_pairs(load_n(x + i, b - i), load_n(x + b + i, b - i)));
    }
  }
}

// The slots of one KV head, tile by tile from the first of a chunk.
struct Slots {
  const KvLayer& kv;
  const uint8_t* base;  // of the head's keys, or values, in block 0
  const int32_t* table;
  int64_t block_bytes;

  TAUT_MEMBER const uint8_t* operator()(int64_t tile) const { return base + table[tile] * block_bytes; }
  TAUT_MEMBER const int8_t* quads(int64_t tile) const { return reinterpret_cast<const int8_t*>((*this)(tile)); }
  TAUT_MEMBER const float* floats(int64_t tile) const { return reinterpret_cast<const float*>((*this)(tile)); }
  // Null for float slots.
  TAUT_MEMBER const float* scales(int64_t tile) const {
    return kv.int8 ? reinterpret_cast<const float*>((*this)(tile) + kv.data_bytes) : nullptr;
  }
  TAUT_MEMBER void fetch(int64_t tile) const {
    const uint8_t* slot = (*this)(tile);
    for (int64_t i = 0; i < kv.slot_bytes; i += 64) {
      prefetch(slot + i);
    }
  }
};

// One chunk of one call: which of its rows see how much.
struct Chunk {
  int64_t tiles;           // that some row sees
  int64_t first_key;       // absolute
  int64_t first_position;  // of row 0
  int64_t rows, group;
  Slots keys, values;

  // Keys of the tile that a row sees, at most 32; below 1: none.
  TAUT_MEMBER int64_t visible(int64_t row, int64_t tile) const {
    return least(first_position + row / group - (first_key + tile * kTileKeys) + 1, kTileKeys);
  }
  // Tiles of which a row sees something.
  TAUT_MEMBER int64_t tiles_of(int64_t row) const {
    return least((first_position + row / group - first_key) / kTileKeys + 1, tiles);
  }
  // Rows before it see nothing of the tile.
  TAUT_MEMBER int64_t row_begin(int64_t tile) const {
    const int64_t unseen = first_key + tile * kTileKeys - first_position;
    return unseen > 0 ? unseen * group : 0;
  }
  // Rows from it on see all of the tile.
  TAUT_MEMBER int64_t row_whole(int64_t tile) const {
    return least(row_begin_of_key(first_key + tile * kTileKeys + kTileKeys - 1), rows);
  }
  TAUT_MEMBER int64_t row_begin_of_key(int64_t key) const { return key > first_position ? (key - first_position) * group : 0; }
};

// The tile's keys as s.keys: [head_dim][32] float where they lie or unpacked, or pairs.
template <bool kBf16>
TAUT_FN void load_keys(const Slots& slots, int64_t tile, AttentionState& s) {
  const int64_t d = s.head_dim;
  if (kBf16) {
    slots.kv.int8 ? unpack_quads(slots.quads(tile), d, kTileKeys, kTileKeys, pairs_at(s.keys))
                  : round_rows(slots.floats(tile), d, kTileKeys, kTileKeys, pairs_at(s.keys));
  } else if (slots.kv.int8) {
    unpack_quads(slots.quads(tile), d, kTileKeys, kTileKeys, s.keys);
  } else {
    s.keys = const_cast<float*>(slots.floats(tile));
  }
}

template <bool kBf16>
TAUT_OWN void score_tiles(const Chunk& c, AttentionState& s, bool direct) {
  const KvLayer& kv = c.keys.kv;
  for (int64_t tile = 0; tile < c.tiles; ++tile) {
    float* scores = s.tile_scores(tile);
    const int64_t begin = c.row_begin(tile), whole = c.row_whole(tile), next = tile + 1 < c.tiles ? tile + 1 : tile;
    if (direct) {
      for_row_tiles(0, c.rows, DirectScores{s, scores, c.keys.quads(tile), c.keys.quads(next) - c.keys.quads(tile)});
    } else {
      if (kv.int8) {
        c.keys.fetch(next);
      }
      load_keys<kBf16>(c.keys, tile, s);
      for_row_tiles(begin, c.rows, ScoreTile<kBf16>{s, scores});
    }
    const auto visible = [&](int64_t row) { return c.visible(row, tile); };
    settle<false>(s, scores, begin, whole, visible, c.keys.scales(tile));
    settle<true>(s, scores, begin > whole ? begin : whole, c.rows, visible, c.keys.scales(tile));
  }
}

// The tile's values as [32][padded] float: unpacked into `place`, or float slots used where they lie; or as pairs in `place`.
template <bool kBf16>
TAUT_FN const float* load_values(const Slots& slots, int64_t tile, const AttentionState& s, float* place) {
  const int64_t d = s.head_dim;
  if (kBf16) {
    slots.kv.int8 ? unpack_quads(slots.quads(tile), kTileKeys, d, s.padded, pairs_at(place))
                  : round_rows(slots.floats(tile), kTileKeys, d, s.padded, pairs_at(place));
    return place;
  }
  if (slots.kv.int8) {
    unpack_quads(slots.quads(tile), kTileKeys, d, s.padded, place);
    return place;
  }
  const float* v = slots.floats(tile);
  if (s.padded == d) {
    return v;
  }
  for (int64_t t = 0; t < kTileKeys; ++t) {
    for (int64_t i = 0; i < d; i += 16) {
      store(place + t * s.padded + i, load_n(v + t * d + i, d - i));
    }
  }
  return place;
}

template <bool kBf16>
TAUT_OWN void output_tiles(const Chunk& c, const AttentionState& s, bool direct) {
  if (direct) {
    for (int64_t tile = 0; tile < c.tiles; ++tile) {
      weigh<kBf16>(s, tile, 0, c.values.scales(tile));
    }
    const auto quads = [&](int64_t tile) { return c.values.quads(tile); };
    for_row_tiles(0, c.rows, DirectOutput<decltype(quads)>{s, c.tiles, c.visible(c.rows - 1, c.tiles - 1), quads});
    return;
  }
  for (int64_t first = 0; first < c.tiles; first += kValueTiles) {
    const int64_t end = least(first + kValueTiles, c.tiles);
    const float* loaded[kValueTiles];
    for (int64_t tile = first; tile < end; ++tile) {
      if (tile + 1 < c.tiles && c.keys.kv.int8) {
        c.values.fetch(tile + 1);
      }
      weigh<kBf16>(s, tile, c.row_begin(tile), c.values.scales(tile));
      loaded[tile - first] = load_values<kBf16>(c.values, tile, s, s.values + (tile - first) * kTileKeys * s.padded);
    }
    const auto values = [&](int64_t tile) { return loaded[tile - first]; };
    using Tiles = OutputTiles<kBf16, decltype(values)>;
    const int64_t begin = c.row_begin(first), whole = c.row_whole(end - 1);
    for (int64_t row = begin; row < whole; row += c.group) {  // the rows of one token see equally far
      const int64_t last = least(c.tiles_of(row), end) - 1;
      for_row_tiles(row, row + c.group, Tiles{s, first, last + 1, c.visible(row, last), values, s.padded});
    }
    for_row_tiles(begin > whole ? begin : whole, c.rows, Tiles{s, first, end, kTileKeys, values, s.padded});
  }
}

// Sums of chunk `number` into s.sums, of the rows that see it; returns the first of them.
template <bool kBf16>
TAUT_FN int64_t attend_chunk(const Attention& p, const AttentionWork& w, AttentionState& s, int64_t number) {
  const KvLayer& kv = p.kv;
  const int64_t group = p.heads / kv.kv_heads, first_tile = number * p.chunk_tiles;
  const int64_t last_tile = p.positions[w.token_end - 1] / kTileKeys;
  const uint8_t* slot = kv.base + w.kv_head * kv.slot_bytes;
  const int32_t* table = w.table + first_tile;
  const Chunk c{least(last_tile + 1 - first_tile, p.chunk_tiles),
                first_tile * kTileKeys,
                p.positions[w.token_begin],
                s.rows,
                group,
                {kv, slot, table, p.block_bytes},
                {kv, slot + kv.kv_heads * kv.slot_bytes, table, p.block_bytes}};
  const int64_t begin = c.row_begin(0);
  const bool direct = !kBf16 && kv.int8 && s.rows == group && group <= kDirectRows && s.padded == kv.head_dim;
  begin_chunk(s, begin);
  score_tiles<kBf16>(c, s, direct);
  end_scores(s, begin);
  output_tiles<kBf16>(c, s, direct);
  end_weights(s, begin);
  return begin;
}

// Queries into the state, which has room for the scores of the chunks that they see.
template <bool kBf16>
TAUT_FN AttentionState begin_rows(const Attention& p, const AttentionWork& w, float* scratch, Sums& joined) {
  const int64_t group = p.heads / p.kv.kv_heads, rows = (w.token_end - w.token_begin) * group, d = p.kv.head_dim;
  const AttentionState s = make_state(scratch, d, rows, joined);
  for (int64_t row = 0; row < rows; ++row) {
    put_query<kBf16>(s, row, at(p.q, w.token_begin + row / group) + (w.kv_head * group + row % group) * d, p.scale);
  }
  return s;
}

TAUT_FN void put_outputs(const Attention& p, const AttentionWork& w, const Sums& sums) {
  const int64_t group = p.heads / p.kv.kv_heads, rows = (w.token_end - w.token_begin) * group, d = p.kv.head_dim;
  for (int64_t row = 0; row < rows; ++row) {
    put_output(sums, row, d, at(p.o, w.token_begin + row / group) + (w.kv_head * group + row % group) * d);
  }
}

TAUT_FN int64_t chunks_of(const Attention& p, const AttentionWork& w) {
  return p.positions[w.token_end - 1] / kTileKeys / p.chunk_tiles + 1;
}

template <bool kBf16>
TAUT_FN void attend(const Attention& p, const AttentionWork& w, float* scratch) {
  Sums joined;
  AttentionState s = begin_rows<kBf16>(p, w, scratch, joined);
  const Sums own = s.sums;
  for (int64_t chunk = 0; chunk < chunks_of(p, w); ++chunk) {
    s.sums = chunk == 0 ? joined : own;
    const int64_t begin = attend_chunk<kBf16>(p, w, s, chunk);
    if (chunk > 0) {
      join(joined, own, s.padded, begin, s.rows);
    }
  }
  put_outputs(p, w, joined);
}

template <bool kBf16>
TAUT_FN void attend_one(const Attention& p, const AttentionWork& w, int64_t chunk, float* partial, float* scratch) {
  Sums unused;
  AttentionState s = begin_rows<kBf16>(p, w, scratch, unused);
  s.sums = sums_at(partial, s.head_dim, s.rows);
  attend_chunk<kBf16>(p, w, s, chunk);
}

}  // namespace

int64_t attention_scratch(int64_t head_dim, int64_t rows, int64_t tiles) {
  return state_floats(head_dim, rows) + tiles * kTileKeys * rows + 64;
}

int64_t attention_partial(int64_t head_dim, int64_t rows) { return sums_floats(head_dim, rows); }

void attention(const Attention& p, const AttentionWork& w, float* scratch) {
  p.bf16 ? attend<true>(p, w, scratch) : attend<false>(p, w, scratch);
}

void attention_chunk(const Attention& p, const AttentionWork& w, int64_t chunk, float* partial, float* scratch) {
  p.bf16 ? attend_one<true>(p, w, chunk, partial, scratch) : attend_one<false>(p, w, chunk, partial, scratch);
}

void attention_join(const Attention& p, const AttentionWork& w, float* partials) {
  const int64_t group = p.heads / p.kv.kv_heads, rows = (w.token_end - w.token_begin) * group, d = p.kv.head_dim;
  const int64_t first_position = p.positions[w.token_begin], size = sums_floats(d, rows);
  const Sums joined = sums_at(partials, d, rows);
  for (int64_t chunk = 1; chunk < chunks_of(p, w); ++chunk) {
    const int64_t unseen = chunk * p.chunk_tiles * kTileKeys - first_position;
    join(joined, sums_at(partials + chunk * size, d, rows), round_up(d, 16), unseen > 0 ? unseen * group : 0, rows);
  }
  put_outputs(p, w, joined);
}

}  // namespace taut::TAUT_ISA_NS

// Causal attention over the paged cache; the arithmetic is attention_tile.h's.
//
// Rows are tokens x the head group, token by token, so the rows that see a tile are a suffix. A tile of keys or values is
// widened once into L1 and serves all of them.
#include "kernels/attention_slots.h"
#include "kernels/rows.h"

namespace taut::TAUT_ISA_NS {
namespace {

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

template <bool kBf16>
TAUT_OWN void score_tiles(const Chunk& c, AttentionState& s, bool direct) {
  for (int64_t tile = 0; tile < c.tiles; ++tile) {
    float* scores = s.tile_scores(tile);
    const int64_t begin = c.row_begin(tile), whole = c.row_whole(tile), next = tile + 1 < c.tiles ? tile + 1 : tile;
    if (direct) {
      const int64_t ahead = c.keys(next) - c.keys(tile);
      if (c.keys.slot.type == KvType::kInt8) {
        for_row_tiles(0, c.rows, DirectScores<4>{s, scores, c.keys.quads(tile), ahead});
      } else {
        for_row_tiles(0, c.rows, DirectScores<2>{s, scores, c.keys.quads(tile), ahead});
      }
    } else {
      c.keys.fetch(next);
      load_keys<kBf16>(c.keys, tile, s);
      for_row_tiles(begin, c.rows, ScoreTile<kBf16>{s, scores});
    }
    const auto visible = [&](int64_t row) { return c.visible(row, tile); };
    settle_tile<false>(s, scores, begin, whole, visible, c.keys.scales(tile));
    settle_tile<true>(s, scores, begin > whole ? begin : whole, c.rows, visible, c.keys.scales(tile));
  }
}

template <bool kBf16>
TAUT_OWN void output_tiles(const Chunk& c, const AttentionState& s, bool direct) {
  if (direct) {
    for (int64_t tile = 0; tile < c.tiles; ++tile) {
      weigh<kBf16>(s, tile, 0, c.values.scales(tile));
    }
    const auto quads = [&](int64_t tile) { return c.values.quads(tile); };
    const int64_t visible = c.visible(c.rows - 1, c.tiles - 1);
    if (c.values.slot.type == KvType::kInt8) {
      for_row_tiles(0, c.rows, DirectOutput<4, decltype(quads)>{s, c.tiles, visible, quads});
    } else {
      for_row_tiles(0, c.rows, DirectOutput<2, decltype(quads)>{s, c.tiles, visible, quads});
    }
    return;
  }
  for (int64_t first = 0; first < c.tiles; first += kValueTiles) {
    const int64_t end = least(first + kValueTiles, c.tiles);
    const float* loaded[kValueTiles];
    for (int64_t tile = first; tile < end; ++tile) {
      if (tile + 1 < c.tiles) {
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
  const int32_t* table = w.table + first_tile;
  const Chunk c{least(last_tile + 1 - first_tile, p.chunk_tiles),
                first_tile * kTileKeys,
                p.positions[w.token_begin],
                s.rows,
                group,
                {kv.keys, kv.base + kv.key_offset(w.kv_head), table, p.block_bytes},
                {kv.values, kv.base + kv.value_offset(w.kv_head), table, p.block_bytes}};
  const int64_t begin = c.row_begin(0);
  const bool direct = !kBf16 && s.rows == group && group <= kDirectRows && s.padded == kv.head_dim;
  begin_chunk(s, begin);
  score_tiles<kBf16>(c, s, direct && c.keys.is_direct());
  end_scores(s, begin);
  output_tiles<kBf16>(c, s, direct && c.values.is_direct());
  end_weights(s, begin);
  return begin;
}

// Queries into the state, which has room for the scores of the chunks that they see.
template <bool kBf16>
TAUT_FN AttentionState begin_rows(const Attention& p, const AttentionWork& w, float* scratch, Sums& joined) {
  const int64_t group = p.heads / p.kv.kv_heads, rows = (w.token_end - w.token_begin) * group, d = p.kv.head_dim;
  AttentionState s = make_state(scratch, d, rows, joined);
  s.limit = p.limit;
  s.beyond = p.beyond;
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
  return state_floats(head_dim, rows) + tiles * kTileKeys * rows + 16 * kTileKeys;  // the last rows are whole tiles of AMX
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

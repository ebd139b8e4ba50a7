// Attention arithmetic, one for all: prefill and decode, cached and not, any number of query rows. The keys are cut by absolute position
// into chunks of `chunk_tiles` tiles of 32. Per query row and chunk, over the keys t that the row sees (q already times the softmax scale),
//     s_t = (sum over d of q_d * k_td, fused in ascending d) * key scale, kept within [-limit, limit] where there is a limit
//     m = max of s_t;  p_t = exp(s_t - m);  l = sum of p_t, in 16 lanes from tile to tile, then the canonical tree
//     o_d = fused sum of p_t * value scale * v_td in ascending t
// and chunks are joined in ascending order (join below); o / l at the end. So a chunk may be computed by any thread. A row never
// depends on its companions, nor on bytes of tokens that it does not see. A row that sees one chunk is plain softmax attention.
//
// In bf16 arithmetic q, k, the weights p * value scale and v are rounded to bf16 (int8 keys and values are exact in it), and both fused
// sums take pairs of d, or of t, by dot_pairs (simd/pairs.h); scores, softmax and sums stay fp32. It is the arithmetic of every row, too.
// The same places then hold pairs: q [chunks of 64][rows][32], keys [d / 2][32], values [tile][32 / 2][padded], weights in the first
// half of their scores.
#pragma once
#include "kernels.h"
#include "kernels/tile.h"
#include "simd/math.h"

namespace taut::TAUT_ISA_NS {

constexpr int kTileKeys = static_cast<int>(kBlockTokens);
constexpr int kChunk = 64;          // columns of a chunk of queries: a constant stride (tile.h)
constexpr int64_t kValueTiles = 2;  // of values in L1 at once: a sweep over more keys loads and stores the sums less often
constexpr int kChunkPairs = kChunk / 2;
constexpr float kMinusInfinity = -__builtin_inff();

TAUT_FN int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }
TAUT_FN int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// What a chunk, or several joined ones, come to.
struct Sums {
  float* out = nullptr;      // [rows][padded], not yet divided by the total
  float* largest = nullptr;  // [rows]
  float* total = nullptr;    // [rows]
};

TAUT_FN int64_t sums_floats(int64_t head_dim, int64_t rows) { return round_up(rows * (round_up(head_dim, 16) + 2), 16); }

TAUT_FN Sums sums_at(float* place, int64_t head_dim, int64_t rows) {
  float* largest = place + rows * round_up(head_dim, 16);
  return {place, largest, largest + rows};
}

// `rows` query rows of one KV head, and the scores of one chunk. All in the thread's scratch; `sums` may lie elsewhere.
struct AttentionState {
  int64_t rows = 0;
  int64_t head_dim = 0, padded = 0;  // padded: head_dim rounded up to whole vectors
  float* q = nullptr;                // [chunks of 64][rows][64]
  Sums sums;                         // of the chunk
  float* keys = nullptr;             // [head_dim][32], one tile
  float* values = nullptr;           // [tile][32][padded], kValueTiles of them
  float* lanes = nullptr;            // [rows][16], of scores the largest so far, of weights the total
  float* scores = nullptr;           // [tiles][rows][32]
  float limit = 0;                   // of the scores' magnitude; 0: none
  int64_t* beyond = nullptr;         // counts the scores beyond it

  float* tile_scores(int64_t tile) const { return scores + tile * rows * kTileKeys; }
};

// Floats of scratch without the scores, which come last: tiles * 32 * rows.
TAUT_FN int64_t state_floats(int64_t head_dim, int64_t rows) {
  return rows * round_up(head_dim, kChunk) + 2 * sums_floats(head_dim, rows) +
         kTileKeys * (round_up(head_dim, 16) + kValueTiles * round_up(head_dim, 16)) + 16 * rows;
}

// `joined` gets a place of its own beside s.sums.
TAUT_FN AttentionState make_state(float* scratch, int64_t head_dim, int64_t rows, Sums& joined) {
  AttentionState s;
  s.rows = rows;
  s.head_dim = head_dim;
  s.padded = round_up(head_dim, 16);
  s.q = scratch;
  float* next = s.q + rows * round_up(head_dim, kChunk);
  s.sums = sums_at(next, head_dim, rows);
  next += sums_floats(head_dim, rows);
  joined = sums_at(next, head_dim, rows);
  s.keys = next + sums_floats(head_dim, rows);
  s.values = s.keys + kTileKeys * round_up(head_dim, 16);
  s.lanes = s.values + kValueTiles * kTileKeys * s.padded;
  s.scores = s.lanes + 16 * rows;
  return s;
}

TAUT_FN int32_t* pairs_at(float* place) { return reinterpret_cast<int32_t*>(place); }
TAUT_FN const int32_t* pairs_at(const float* place) { return reinterpret_cast<const int32_t*>(place); }

// Query row r, times the softmax scale, into its chunks.
template <bool kBf16>
TAUT_FN void put_query(const AttentionState& s, int64_t row, const float* q, float scale) {
  for (int64_t d = 0; d < s.head_dim; d += 16) {
    const f32x16 value = mul(load_n(q + d, s.head_dim - d), set1(scale));
    if (kBf16) {
      store_bf16(pairs_at(s.q) + ((d / kChunk) * s.rows + row) * kChunkPairs + d % kChunk / 2, value);
    } else {
      store(s.q + ((d / kChunk) * s.rows + row) * kChunk + d % kChunk, value);
    }
  }
}

TAUT_FN void begin_chunk(const AttentionState& s, int64_t row_begin) {
  for (int64_t row = row_begin; row < s.rows; ++row) {
    store(s.lanes + row * 16, set1(kMinusInfinity));
  }
}

// Products of rows and the keys of one tile, [d][32], into the tile's scores.
template <bool kBf16>
struct ScoreTile {
  const AttentionState& s;
  float* scores;

  template <int R>
  TAUT_OWN void operator()(int64_t row) const {
    constexpr int C = tile_vectors(R) < 2 ? 1 : 2;
    for (int column = 0; column < kTileKeys; column += 16 * C) {
      f32x16 acc[R][C];
      tile_zero(acc);
      for (int64_t d = 0; d < s.head_dim; d += kChunk) {
        const int64_t chunk_row = (d / kChunk) * s.rows + row, k = least(s.head_dim - d, kChunk);
        if (kBf16) {
          const int32_t* keys = pairs_at(s.keys) + d / 2 * kTileKeys + column;
          tile_dot<R, C, kChunkPairs>(acc, pairs_at(s.q) + chunk_row * kChunkPairs, keys, kTileKeys, k);
        } else {
          tile_fma<R, C, kChunk>(acc, s.q + chunk_row * kChunk, s.keys + d * kTileKeys + column, kTileKeys, k);
        }
      }
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
        for (int c = 0; c < C; ++c) {
          store(scores + (row + r) * kTileKeys + column + 16 * c, acc[r][c]);
        }
      }
    }
  }
};

// The products of rows [begin, end) with one tile become scores: times the keys' scales (null: 1), minus infinity from key `visible(row)`
// on (kWhole: all 32 are visible). The largest of each lane moves on. kGuard: scores stay within the limit; how many would not have.
template <bool kWhole, bool kGuard, typename Visible>
TAUT_FN int64_t settle(const AttentionState& s, float* tile, int64_t begin, int64_t end, const Visible& visible,
                       const float* key_scale) {
  const f32x16 one = set1(1.0f), hidden = set1(kMinusInfinity);
  const f32x16 low = set1(-s.limit), high = set1(s.limit);
  f32x16 beyond = zero();
  const bool scaled = key_scale != nullptr;
  const f32x16 scale_a = scaled ? load(key_scale) : one, scale_b = scaled ? load(key_scale + 16) : one;
  for (int64_t row = begin; row < end; ++row) {
    float* scores = tile + row * kTileKeys;
    f32x16 a = load(scores), b = load(scores + 16);
    if (scaled) {
      a = mul(a, scale_a);
      b = mul(b, scale_b);
    }
    f32x16 over_a = zero(), over_b = zero();
    if (kGuard) {
      over_a = select(lt(high, abs(a)), one, zero());
      over_b = select(lt(high, abs(b)), one, zero());
      a = max(low, min(high, a));  // a NaN stays one
      b = max(low, min(high, b));
    }
    if (!kWhole) {
      const int64_t n = visible(row);
      const mask16 seen_a = first_n(least(n, 16)), seen_b = first_n(n < 16 ? 0 : n - 16);
      a = select(seen_a, a, hidden);
      b = select(seen_b, b, hidden);
      over_a = select(seen_a, over_a, zero());
      over_b = select(seen_b, over_b, zero());
    }
    if (kGuard) {
      beyond = add(beyond, add(over_a, over_b));
    }
    if (scaled || !kWhole || kGuard) {
      store(scores, a);
      store(scores + 16, b);
    }
    store(s.lanes + row * 16, max(load(s.lanes + row * 16), max(a, b)));
  }
  return kGuard ? static_cast<int64_t>(reduce_add(beyond)) : 0;
}

// settle, guarded where there is a limit.
template <bool kWhole, typename Visible>
TAUT_FN void settle_tile(const AttentionState& s, float* tile, int64_t begin, int64_t end, const Visible& visible,
                         const float* key_scale) {
  if (s.limit == 0) {
    settle<kWhole, false>(s, tile, begin, end, visible, key_scale);
    return;
  }
  const int64_t beyond = settle<kWhole, true>(s, tile, begin, end, visible, key_scale);
  if (beyond != 0 && s.beyond != nullptr) {
    __atomic_fetch_add(s.beyond, beyond, __ATOMIC_RELAXED);
  }
}

// All scores of rows [begin, end) are there: their largest is known, their totals start.
TAUT_FN void end_scores(const AttentionState& s, int64_t begin) {
  for (int64_t row = begin; row < s.rows; ++row) {
    s.sums.largest[row] = reduce_max(load(s.lanes + row * 16));
    store(s.lanes + row * 16, zero());
  }
}

// Scores of rows [begin, rows) in one tile become weights p * value scale (null: 1); each lane's total moves on.
template <bool kBf16>
TAUT_OWN static void weigh(const AttentionState& s, int64_t tile, int64_t begin, const float* value_scale) {
  const float* constants = exp_constants();
  for (int64_t row = begin; row < s.rows; ++row) {
    float* scores = s.tile_scores(tile) + row * kTileKeys;
    const f32x16 largest = set1(s.sums.largest[row]);
    f32x16 a = exp_negative(sub(load(scores), largest), constants);
    f32x16 b = exp_negative(sub(load(scores + 16), largest), constants);
    store(s.lanes + row * 16, add(load(s.lanes + row * 16), add(a, b)));
    if (value_scale != nullptr) {  // scales of unseen keys may be anything, but nobody reads their weights
      a = mul(a, load(value_scale));
      b = mul(b, load(value_scale + 16));
    }
    if (kBf16) {
      store_bf16(scores, a);
      store_bf16(scores + 8, b);
    } else {
      store(scores, a);
      store(scores + 16, b);
    }
  }
}

TAUT_FN void end_weights(const AttentionState& s, int64_t begin) {
  for (int64_t row = begin; row < s.rows; ++row) {
    s.sums.total[row] = reduce_add(load(s.lanes + row * 16));
  }
}

// out += weights * values over tiles [begin, end), the last one's first `visible` keys; out starts at 0 with tile 0. `values(tile)` is
// [32][ldw] float, or [16][ldw] pairs.
template <bool kBf16, typename Values>
struct OutputTiles {
  const AttentionState& s;
  int64_t begin, end, visible;
  const Values& values;
  int64_t ldw;

  template <int R>
  TAUT_OWN void operator()(int64_t row) const {
    constexpr int C = tile_vectors(R);
    int64_t d = 0;
    for (; d + 16 * C <= s.padded; d += 16 * C) {
      run<R, C>(row, d);
    }
    for (; d < s.padded; d += 16) {
      run<R, 1>(row, d);
    }
  }

  template <int R, int C>
  TAUT_MEMBER void run(int64_t row, int64_t d) const {
    float* out = s.sums.out + row * s.padded + d;
    f32x16 acc[R][C];
    if (begin == 0) {
      tile_zero(acc);
    } else {
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
        for (int c = 0; c < C; ++c) {
          acc[r][c] = load(out + r * s.padded + 16 * c);
        }
      }
    }
    for (int64_t tile = begin; tile < end; ++tile) {
      const int64_t keys = tile + 1 < end ? kTileKeys : visible;
      const float* weights = s.tile_scores(tile) + row * kTileKeys;
      if (kBf16) {
        tile_dot<R, C, kTileKeys>(acc, pairs_at(weights), pairs_at(values(tile)) + d, ldw, keys);
      } else {
        tile_fma<R, C, kTileKeys>(acc, weights, values(tile) + d, ldw, keys);
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
      for (int c = 0; c < C; ++c) {
        store(out + r * s.padded + 16 * c, acc[r][c]);
      }
    }
  }
};

// Sums of earlier chunks take in those of the next: m' = max(m, m_c); a = exp(m - m'), b = exp(m_c - m');
// l = l * a + l_c * b;  o_d = o_d * a + o_cd * b (the first product fused).
TAUT_OWN static void join(const Sums& sums, const Sums& next, int64_t padded, int64_t row_begin, int64_t row_end) {
  for (int64_t row = row_begin; row < row_end; ++row) {
    const float before = sums.largest[row], here = next.largest[row], largest = here > before ? here : before;
    const f32x16 a = exp_negative(set1(before - largest), exp_constants()),
                 b = exp_negative(set1(here - largest), exp_constants());
    float factors[32];
    store(factors, a);
    store(factors + 16, b);
    sums.largest[row] = largest;
    sums.total[row] = __builtin_fmaf(sums.total[row], factors[0], next.total[row] * factors[16]);
    float* out = sums.out + row * padded;
    for (int64_t d = 0; d < padded; d += 16) {
      store(out + d, fma(load(out + d), a, mul(load(next.out + row * padded + d), b)));
    }
  }
}

TAUT_FN void put_output(const Sums& sums, int64_t row, int64_t head_dim, float* o) {
  const f32x16 total = set1(sums.total[row]);
  for (int64_t d = 0; d < head_dim; d += 16) {
    store_n(o + d, div(load(sums.out + row * round_up(head_dim, 16) + d), total), head_dim - d);
  }
}

}  // namespace taut::TAUT_ISA_NS

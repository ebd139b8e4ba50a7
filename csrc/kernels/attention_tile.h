// Attention arithmetic, one for all: prefill and decode, cached and not, any number of query rows. Per query row and tile of 32 keys,
//     s_t = (sum over d of q_d * k_td, fused in ascending d) * key scale     (q already times the softmax scale)
//     m'  = max(m, max of the visible s_t);  c = exp(m - m');  p_t = exp(s_t - m'), 0 where t is not visible
//     l   = l * c + sum of p_t;  o_d = o_d * c, then fused p_t * value scale * v_td over the visible t in ascending order
// and o / l at the end. A row never depends on its companions, nor on bytes of tokens that it does not see.
#pragma once
#include "kernels.h"
#include "kernels/tile.h"
#include "simd/math.h"

namespace taut::TAUT_ISA_NS {

constexpr int kTileKeys = static_cast<int>(kBlockTokens);
constexpr int kChunk = 64;                  // columns of a chunk of queries: a constant stride (tile.h)
constexpr int kQueryRows = 16 * kTileRows;  // query rows of a call, but for larger head groups
constexpr float kMinusInfinity = -__builtin_inff();

TAUT_FN int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// The state of `rows` query rows of one KV head, and one dequantized tile. All in the thread's scratch.
struct AttentionState {
  int64_t rows = 0, capacity = 0;
  int64_t head_dim = 0, padded = 0;  // padded: head_dim rounded up to whole vectors
  float* q = nullptr;                // [chunks][capacity][64]
  float* out = nullptr;              // [capacity][padded]
  float* scores = nullptr;           // [capacity][32]
  float* keys = nullptr;             // [head_dim][32]
  float* values = nullptr;           // [32][padded]
  float* largest = nullptr;          // [capacity]
  float* total = nullptr;            // [capacity]
  float* correction = nullptr;       // [capacity]
};

TAUT_FN int64_t scratch_floats(int64_t head_dim, int64_t capacity) {
  const int64_t padded = round_up(head_dim, 16), queries = round_up(head_dim, kChunk);
  return capacity * (queries + padded + kTileKeys + 3) + kTileKeys * (round_up(head_dim, 4) + padded) + 64;
}

TAUT_FN AttentionState make_state(float* scratch, int64_t head_dim, int64_t rows, int64_t capacity) {
  AttentionState s;
  s.rows = rows;
  s.capacity = capacity;
  s.head_dim = head_dim;
  s.padded = round_up(head_dim, 16);
  s.q = scratch;
  s.out = s.q + capacity * round_up(head_dim, kChunk);
  s.scores = s.out + capacity * s.padded;
  s.keys = s.scores + capacity * kTileKeys;
  s.values = s.keys + kTileKeys * round_up(head_dim, 4);
  s.largest = s.values + kTileKeys * s.padded;
  s.total = s.largest + capacity;
  s.correction = s.total + capacity;
  for (int64_t r = 0; r < rows; ++r) {
    s.largest[r] = kMinusInfinity;
    s.total[r] = 0.0f;
    for (int64_t d = 0; d < s.padded; d += 16) {
      store(s.out + r * s.padded + d, zero());
    }
  }
  return s;
}

// Query row r, times the softmax scale, into its chunks.
TAUT_FN void put_query(const AttentionState& s, int64_t row, const float* q, float scale) {
  for (int64_t d = 0; d < s.head_dim; d += 16) {
    float* chunk = s.q + (d / kChunk) * s.capacity * kChunk + row * kChunk + d % kChunk;
    store(chunk, mul(load_n(q + d, s.head_dim - d), set1(scale)));
  }
}

struct ScoreTile {
  const AttentionState& s;

  template <int R>
  TAUT_OWN void operator()(int64_t row) const {
    constexpr int C = tile_vectors(R) < 2 ? 1 : 2;
    for (int column = 0; column < kTileKeys; column += 16 * C) {
      f32x16 acc[R][C];
      tile_zero(acc);
      for (int64_t d = 0; d < s.head_dim; d += kChunk) {
        const float* q = s.q + (d / kChunk) * s.capacity * kChunk + row * kChunk;
        const int64_t n = s.head_dim - d < kChunk ? s.head_dim - d : kChunk;
        tile_fma<R, C, kChunk>(acc, q, s.keys + d * kTileKeys + column, kTileKeys, n);
      }
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
        for (int c = 0; c < C; ++c) {
          store(s.scores + (row + r) * kTileKeys + column + 16 * c, acc[r][c]);
        }
      }
    }
  }
};

// Scores of rows [begin, end) become weights p * value scale; their maxima and totals move on. Row r sees `visible(r)` keys of the
// tile, at least one; kWhole: all of them. Scales null: 1.
template <bool kWhole, typename Visible>
TAUT_FN void soften(const AttentionState& s, int64_t begin, int64_t end, const Visible& visible, const float* key_scale,
                    const float* value_scale) {
  const f32x16 one = set1(1.0f), hidden = set1(kMinusInfinity);
  const bool scaled = key_scale != nullptr;
  const f32x16 ka = scaled ? load(key_scale) : one, kb = scaled ? load(key_scale + 16) : one;
  const f32x16 va = scaled ? load(value_scale) : one, vb = scaled ? load(value_scale + 16) : one;
  for (int64_t row = begin; row < end; ++row) {
    float* scores = s.scores + row * kTileKeys;
    f32x16 a = load(scores), b = load(scores + 16);
    if (scaled) {
      a = mul(a, ka);
      b = mul(b, kb);
    }
    if (!kWhole) {
      const int64_t n = visible(row);
      a = select(first_n(n < 16 ? n : 16), a, hidden);
      b = select(first_n(n < 16 ? 0 : n - 16), b, hidden);
    }
    store(scores, a);
    store(scores + 16, b);
    const float tile_largest = reduce_max(max(a, b)), before = s.largest[row];
    const float largest = tile_largest > before ? tile_largest : before;
    s.correction[row] = before - largest;
    s.largest[row] = largest;
  }
  for (int64_t row = begin; row < end; row += 16) {
    store_n(s.correction + row, exp(load_n(s.correction + row, end - row)), end - row);
  }
  for (int64_t row = begin; row < end; ++row) {
    float* scores = s.scores + row * kTileKeys;
    const f32x16 largest = set1(s.largest[row]);
    f32x16 a = exp(sub(load(scores), largest)), b = exp(sub(load(scores + 16), largest));
    mask16 in_a, in_b;
    if (!kWhole) {
      const int64_t n = visible(row);
      in_a = first_n(n < 16 ? n : 16);
      in_b = first_n(n < 16 ? 0 : n - 16);
      a = select(in_a, a, zero());
      b = select(in_b, b, zero());
    }
    s.total[row] = __builtin_fmaf(s.total[row], s.correction[row], reduce_add(add(a, b)));
    if (scaled) {
      a = mul(a, va);
      b = mul(b, vb);
      if (!kWhole) {  // scales of unseen keys may be anything
        a = select(in_a, a, zero());
        b = select(in_b, b, zero());
      }
    }
    store(scores, a);
    store(scores + 16, b);
  }
}

// out = out * correction + weights * values over the first `visible` keys.
struct OutputTile {
  const AttentionState& s;
  int64_t visible;

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
    float* out = s.out + row * s.padded + d;
    f32x16 acc[R][C];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const f32x16 correction = set1(s.correction[row + r]);
#pragma GCC unroll 16
      for (int c = 0; c < C; ++c) {
        acc[r][c] = mul(load(out + r * s.padded + 16 * c), correction);
      }
    }
    tile_fma<R, C, kTileKeys>(acc, s.scores + row * kTileKeys, s.values + d, s.padded, visible);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
      for (int c = 0; c < C; ++c) {
        store(out + r * s.padded + 16 * c, acc[r][c]);
      }
    }
  }
};

TAUT_FN void put_output(const AttentionState& s, int64_t row, float* o) {
  const f32x16 total = set1(s.total[row]);
  for (int64_t d = 0; d < s.head_dim; d += 16) {
    store_n(o + d, div(load(s.out + row * s.padded + d), total), s.head_dim - d);
  }
}

}  // namespace taut::TAUT_ISA_NS

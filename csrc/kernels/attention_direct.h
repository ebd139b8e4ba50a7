// Decoding: the few rows of one token take int8 or bf16 keys and values straight from their blocks, in registers. The arithmetic is
// attention_tile.h's: a value widened in a register is the value that a tile unpacked into L1 holds. A lane of 32 bits holds kPer values
// of ascending k: four int8, or two bf16.
#pragma once
#include "kernels/attention_tile.h"

namespace taut::TAUT_ISA_NS {

constexpr int64_t kDirectRows = 3;

// Chains of fused multiply-adds that keep the units busy, as far as AVX2's 16 registers hold them.
constexpr int direct_vectors(int rows, int per) { return rows == 1 ? 4 : rows == 2 || per == 4 ? 2 : 1; }

// Byte j of every lane's four, as floats.
template <int J>
TAUT_FN f32x16 quad_value(i32x16 quads) {
  if constexpr (J == 3) {
    return to_f32(shift_right_signed<24>(quads));
  } else {
    return to_f32(shift_right_signed<24>(shift_left<24 - 8 * J>(quads)));
  }
}

// Value j of every lane's kPer.
template <int kPer, int J>
TAUT_FN f32x16 lane_value(i32x16 lanes) {
  if constexpr (kPer == 4) {
    return quad_value<J>(lanes);
  } else {
    return even_of(J == 0 ? lanes : shift_right_signed<16>(lanes));  // a mask would be one register more
  }
}

template <int kPer, int J, int R, int C, int kLdx>
TAUT_FN void direct_step(f32x16 (&acc)[R][C], const float* x, const int8_t* w) {
  asm("" : "+r"(w));  // loaded anew for every J: 4 bytes of a lane in a register for long are a register less
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) {
    const f32x16 value = lane_value<kPer, J>(load_i32(w + 64 * c));
    if (R > 2 || kPer == 2) {
      asm("" : "+r"(x));  // likewise: broadcasts of three rows, kept for the next c, would be one register too many
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      acc[r][c] = fma(set1(x[r * kLdx + J]), value, acc[r][c]);
    }
  }
}

// tile_fma over lanes: w [k / kPer][columns][kPer], `row_bytes` from one row of lanes to the next. What lies `ahead` bytes on is fetched
// into the cache: tiles lie scattered in the pool, and no hardware prefetcher finds the next.
template <int kPer, int R, int C, int kLdx>
TAUT_FN void direct_fma(f32x16 (&acc)[R][C], const float* x, const int8_t* w, int64_t row_bytes, int64_t k, int64_t ahead) {
  int64_t i = 0;
  for (; i + kPer <= k; i += kPer, w += row_bytes) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      prefetch(w + ahead + 64 * c);
    }
    direct_step<kPer, 0, R, C, kLdx>(acc, x + i, w);
    direct_step<kPer, 1, R, C, kLdx>(acc, x + i, w);
    if constexpr (kPer == 4) {
      direct_step<kPer, 2, R, C, kLdx>(acc, x + i, w);
      direct_step<kPer, 3, R, C, kLdx>(acc, x + i, w);
    }
  }
  if (i < k) {
    direct_step<kPer, 0, R, C, kLdx>(acc, x + i, w);
    if constexpr (kPer == 4) {
      if (i + 1 < k) {
        direct_step<kPer, 1, R, C, kLdx>(acc, x + i, w);
      }
      if (i + 2 < k) {
        direct_step<kPer, 2, R, C, kLdx>(acc, x + i, w);
      }
    }
  }
}

// Products of R rows and 32 keys [d / kPer][32][kPer]; the next tile's keys lie `ahead` bytes on.
template <int kPer>
struct DirectScores {
  const AttentionState& s;
  float* scores;
  const int8_t* keys;
  int64_t ahead;

  template <int R>
  TAUT_OWN void operator()(int64_t row) const {
    if constexpr (R <= kDirectRows) {
      constexpr int C = direct_vectors(R, kPer) < 2 ? 1 : 2;
      for (int column = 0; column < kTileKeys; column += 16 * C) {
        f32x16 acc[R][C];
        tile_zero(acc);
        for (int64_t d = 0; d < s.head_dim; d += kChunk) {
          const float* q = s.q + (d / kChunk) * s.rows * kChunk + row * kChunk;
          const int8_t* w = keys + d / kPer * kTileKeys * 4 + column * 4;
          direct_fma<kPer, R, C, kChunk>(acc, q, w, kTileKeys * 4, least(s.head_dim - d, kChunk), ahead);
        }
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
          for (int c = 0; c < C; ++c) {
            store(scores + (row + r) * kTileKeys + column + 16 * c, acc[r][c]);
          }
        }
      }
    }
  }
};

// out = weights * values over `tiles` tiles, the last one's first `visible` keys; `values(tile)` is [32 / kPer][d][kPer].
template <int kPer, typename Values>
struct DirectOutput {
  const AttentionState& s;
  int64_t tiles, visible;
  const Values& values;

  template <int R>
  TAUT_OWN void operator()(int64_t row) const {
    if constexpr (R <= kDirectRows) {
      constexpr int C = direct_vectors(R, kPer);
      int64_t d = 0;
      for (; d + 16 * C <= s.padded; d += 16 * C) {
        run<R, C>(row, d);
      }
      for (; d < s.padded; d += 16) {
        run<R, 1>(row, d);
      }
    }
  }

  template <int R, int C>
  TAUT_MEMBER void run(int64_t row, int64_t d) const {
    float* out = s.sums.out + row * s.padded + d;
    f32x16 acc[R][C];
    tile_zero(acc);
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int8_t* here = values(tile) + d * 4;
      const int8_t* next = tile + 1 < tiles ? values(tile + 1) + d * 4 : here;
      const int64_t keys = tile + 1 < tiles ? kTileKeys : visible;
      direct_fma<kPer, R, C, kTileKeys>(acc, s.tile_scores(tile) + row * kTileKeys, here, s.head_dim * 4, keys, next - here);
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) {
        store(out + r * s.padded + 16 * c, acc[r][c]);
      }
    }
  }
};

}  // namespace taut::TAUT_ISA_NS

// What the float linears share: where the sums of a group of rows wait, and how the four segments of K meet.
#pragma once
#include "kernels.h"
#include "kernels/tile.h"
#include "simd/math.h"

namespace taut::TAUT_ISA_NS {
namespace {

constexpr int kColumns = static_cast<int>(kPanelColumns);
constexpr int kGroupRows = 4 * kTileRows;  // rows that share a block of weights in L1

// Sums of a group: the running segment, s0 (+ s1), and s2.
struct SegmentSums {
  alignas(64) float running[kGroupRows * kColumns];
  alignas(64) float first[kGroupRows * kColumns];
  alignas(64) float third[kGroupRows * kColumns];
};

// One block of one panel for R rows: running += what step(acc, column) adds, from 0 where the block opens a segment.
template <int R, int C, typename Step>
TAUT_FN void add_block(float* running, bool opens, const Step& step) {
  f32x16 acc[R][C];
  for (int column = 0; column < kColumns; column += 16 * C) {
    if (opens) {
      tile_zero(acc);
    } else {
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
        for (int c = 0; c < C; ++c) {
          acc[r][c] = load(running + r * kColumns + column + 16 * c);
        }
      }
    }
    step(acc, column);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
      for (int c = 0; c < C; ++c) {
        store(running + r * kColumns + column + 16 * c, acc[r][c]);
      }
    }
  }
}

inline void open_empty(SegmentSums& sums, int64_t rows) {
  for (int64_t i = 0; i < rows * kColumns; i += 16) {
    store(sums.running + i, zero());
  }
}

// The end of segment s: the four segments meet as (s0 + s1) + (s2 + s3), which is left in `running`.
inline void close_segment(SegmentSums& sums, int s, int64_t rows) {
  for (int64_t i = 0; i < rows * kColumns; i += 16) {
    const f32x16 value = load(sums.running + i);
    if (s == 0) {
      store(sums.first + i, value);
    } else if (s == 1) {
      store(sums.first + i, add(load(sums.first + i), value));
    } else if (s == 2) {
      store(sums.third + i, value);
    } else {
      store(sums.running + i, add(load(sums.first + i), add(load(sums.third + i), value)));
    }
  }
}

inline void store_rows(const LinearF32& p, const SegmentSums& sums, int64_t row_begin, int64_t row_end, int64_t column_begin) {
  for (int64_t row = row_begin; row < row_end; ++row) {
    float* y = reinterpret_cast<float*>(reinterpret_cast<uint8_t*>(p.y) + row * p.y_row_bytes);
    for (int64_t i = 0; i < kColumns && column_begin + i < p.n; i += 16) {
      f32x16 value = load(sums.running + (row - row_begin) * kColumns + i);
      if (p.scale != nullptr) {
        const f32x16 scale = load(p.scale + column_begin + i);
        value = p.bias != nullptr ? fma(value, scale, load(p.bias + column_begin + i)) : mul(value, scale);
      } else if (p.bias != nullptr) {
        value = add(value, load(p.bias + column_begin + i));
      }
      store_n(y + column_begin + i, activate(value, p.activation), p.n - column_begin - i);
    }
  }
}

// Which tile of `tiles` begins at `row` of `rows`: the tiles of a group that streams its weights share the next block's lines.
TAUT_FN int64_t tile_index(int64_t row, int64_t rows) {
  const int64_t tiles = (rows + kTileRows - 1) / kTileRows;
  return (row * tiles + rows - 1) / rows;
}

}  // namespace
}  // namespace taut::TAUT_ISA_NS

// Linear in bf16 arithmetic over bf16 weights: LinearF32 of kernels.h, but that the inputs are rounded to bf16 (nearest even) and a segment
// is a sequence of dot_pairs (simd/pairs.h) from one pair of inputs to the next. Sums, bias and activation are fp32.
//
// One row and many take the same steps in the same order, so a row's bits do not depend on its companions.
#include "kernels/linear_sums.h"

namespace taut::TAUT_ISA_NS {
namespace {

constexpr int kBlockK = 128;  // 16 KB of weights
constexpr int kBlockPairs = kBlockK / 2;

struct Scratch {
  SegmentSums sums;
  alignas(64) int32_t x[kGroupRows * kBlockPairs];  // the group's inputs of a block
};

struct BlockTile {
  const int32_t *x, *w;
  int64_t k, rows;
  bool opens;
  float* running;

  template <int R>
  TAUT_MEMBER void operator()(int64_t row) const {
    constexpr int C = tile_vectors(R, true);
    const int64_t tile = tile_index(row, rows), tiles = (rows + kTileRows - 1) / kTileRows;
    const int32_t* inputs = x + row * kBlockPairs;
    add_block<R, C>(running + row * kColumns, opens, [&](f32x16(&acc)[R][C], int column) __attribute__((always_inline)) {
      if (column / (16 * C) % tiles == tile) {
        tile_dot<R, C, kBlockPairs, 4 * kColumns * kBlockPairs>(acc, inputs, w + column, kColumns, k);
      } else {
        tile_dot<R, C, kBlockPairs>(acc, inputs, w + column, kColumns, k);
      }
    });
  }
};

void round_inputs(const uint8_t* x, int64_t row_bytes, int64_t rows, int64_t k, int32_t* out) {
  for (int64_t row = 0; row < rows; ++row) {
    const float* source = reinterpret_cast<const float*>(x + row * row_bytes);
    for (int64_t i = 0; i < k; i += 16) {
      store_bf16(out + row * kBlockPairs + i / 2, load_n(source + i, k - i));
      prefetch(source + i + kBlockK);
    }
  }
}

void group_panel(const LinearF32& p, Scratch& scratch, int64_t row_begin, int64_t row_end, int64_t panel) {
  const int32_t* w = static_cast<const int32_t*>(p.w) + panel * kColumns * ((p.segment[4] + 1) / 2);
  const uint8_t* x = reinterpret_cast<const uint8_t*>(p.x) + row_begin * p.x_row_bytes;
  const int64_t rows = row_end - row_begin;
  SegmentSums& sums = scratch.sums;
  for (int s = 0; s < 4; ++s) {
    const int64_t begin = p.segment[s], end = p.segment[s + 1];
    if (begin == end) {
      open_empty(sums, rows);
    }
    for (int64_t k = begin; k < end; k += kBlockK) {
      const int64_t count = end - k < kBlockK ? end - k : kBlockK;
      round_inputs(x + 4 * k, p.x_row_bytes, rows, count, scratch.x);
      for_row_tiles(0, rows, BlockTile{scratch.x, w + k / 2 * kColumns, count, rows, k == begin, sums.running});
    }
    close_segment(sums, s, rows);
  }
  store_rows(p, sums, row_begin, row_end, panel * kColumns);
}

}  // namespace

void linear_bf16(const LinearF32& p, int64_t row_begin, int64_t row_end, int64_t panel_begin, int64_t panel_end) {
  Scratch scratch;
  for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
    for (int64_t row = row_begin; row < row_end; row += kGroupRows) {
      group_panel(p, scratch, row, row + kGroupRows < row_end ? row + kGroupRows : row_end, panel);
    }
  }
}

}  // namespace taut::TAUT_ISA_NS

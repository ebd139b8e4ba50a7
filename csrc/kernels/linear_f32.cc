// fp32 linear over packed panels of fp32, fp16, bf16 or int8 weights; see LinearF32 in kernels.h. Narrow weights are widened, exactly, on
// their way to the multiply; where several tiles share a block it is widened once.
//
// A panel is walked in blocks of kBlockK inputs: the block's weights (64 columns, 16 KB) come from memory once and stay in L1 while
// the row tiles of a group pass over them. Sums wait in a small buffer between blocks; the order of additions never changes.
#include "kernels/linear_sums.h"

namespace taut::TAUT_ISA_NS {
namespace {

constexpr int kBlockK = 64;

struct Scratch {
  SegmentSums sums;
  alignas(64) float x[kGroupRows * kBlockK];  // the group's inputs of a block
  alignas(64) float wide[kBlockK * kColumns];
};

template <int R, int C, int kAhead>
TAUT_FN void multiply(f32x16 (&acc)[R][C], const float* x, const bf16* w, int column, int64_t k) {
  tile_fma_pairs<R, C, kBlockK, kAhead>(acc, x, reinterpret_cast<const int32_t*>(w) + column, kColumns, k);
}
template <int R, int C, int kAhead, typename W>
TAUT_FN void multiply(f32x16 (&acc)[R][C], const float* x, const W* w, int column, int64_t k) {
  tile_fma<R, C, kBlockK, kAhead>(acc, x, w + column, kColumns, k);
}

constexpr bool is_pairs(const bf16*) { return true; }
constexpr bool is_pairs(const void*) { return false; }

// Of a column in a row of weights.
template <typename W>
constexpr int kStepBytes = is_pairs(static_cast<const W*>(nullptr)) ? 4 : int(sizeof(W));

template <typename W>
struct BlockTile {
  const float* x;
  const W* w;
  int64_t k, rows;
  bool opens, streams;
  float* running;

  template <int R>
  TAUT_MEMBER void operator()(int64_t row) const {
    if constexpr (is_pairs(static_cast<const W*>(nullptr))) {
      alone<R>(row);  // within its callers it would lack registers
    } else {
      multiply_rows<R>(row);
    }
  }

  template <int R>
  TAUT_OWN void alone(int64_t row) const {
    multiply_rows<R>(row);
  }

  template <int R>
  TAUT_MEMBER void multiply_rows(int64_t row) const {
    constexpr int C = tile_vectors(R, sizeof(W) < sizeof(float));
    const int64_t tile = tile_index(row, rows), tiles = (rows + kTileRows - 1) / kTileRows;
    const float* inputs = x + row * kBlockK;
    add_block<R, C>(running + row * kColumns, opens, [&](f32x16(&acc)[R][C], int column) __attribute__((always_inline)) {
      if (streams && column * kStepBytes<W> % 64 == 0 && column / (16 * C) % tiles == tile) {
        multiply<R, C, int(sizeof(W)) * kColumns * kBlockK>(acc, inputs, w, column, k);
      } else {
        multiply<R, C, 0>(acc, inputs, w, column, k);
      }
    });
  }
};

// Rows of x that are a power of two apart would fall into the same cache sets: copied side by side they do not, and one register
// addresses them all.
void gather_inputs(const uint8_t* x, int64_t row_bytes, int64_t rows, int64_t k, float* out) {
  for (int64_t row = 0; row < rows; ++row) {
    const float* source = reinterpret_cast<const float*>(x + row * row_bytes);
    for (int64_t i = 0; i < k; i += 16) {
      store(out + row * kBlockK + i, load_n(source + i, k - i));
      prefetch(source + i + kBlockK);
    }
  }
}

template <typename W>
void widen_block(const W* w, int64_t k, float* wide) {
  for (int64_t i = 0; i < k * kColumns; i += 32) {
    store(wide + i, load(w + i));
    store(wide + i + 16, load(w + i + 16));
    prefetch(w + i + kBlockK * kColumns);
  }
}

void widen_block(const bf16* w, int64_t k, float* wide) {
  for (int64_t pair = 0; pair < (k + 1) / 2; ++pair, w += 2 * kColumns, wide += 2 * kColumns) {
    for (int64_t i = 0; i < kColumns; i += 16) {
      const i32x16 pairs = load_i32(w + 2 * i);
      store(wide + i, even_of(pairs));
      store(wide + kColumns + i, odd_of(pairs));
      prefetch(w + 2 * i + kBlockK * kColumns);
    }
  }
}

template <typename W>
void group_panel(const LinearF32& p, Scratch& scratch, int64_t row_begin, int64_t row_end, int64_t panel) {
  const int64_t depth = p.store == Store::kBf16 ? (p.segment[4] + 1) / 2 * 2 : p.segment[4];
  const W* w = static_cast<const W*>(p.w) + panel * kColumns * depth;
  const int64_t rows = row_end - row_begin;
  SegmentSums& sums = scratch.sums;
  for (int s = 0; s < 4; ++s) {
    const int64_t begin = p.segment[s], end = p.segment[s + 1];
    if (begin == end) {
      open_empty(sums, rows);
    }
    for (int64_t k = begin; k < end; k += kBlockK) {
      const int64_t count = end - k < kBlockK ? end - k : kBlockK;
      gather_inputs(reinterpret_cast<const uint8_t*>(p.x) + row_begin * p.x_row_bytes + 4 * k, p.x_row_bytes, rows, count,
                    scratch.x);
      if (sizeof(W) < sizeof(float) && rows > kTileRows) {
        widen_block(w + k * kColumns, count, scratch.wide);
        for_row_tiles(0, rows, BlockTile<float>{scratch.x, scratch.wide, count, rows, k == begin, false, sums.running});
      } else {
        for_row_tiles(0, rows, BlockTile<W>{scratch.x, w + k * kColumns, count, rows, k == begin, true, sums.running});
      }
    }
    close_segment(sums, s, rows);
  }
  store_rows(p, sums, row_begin, row_end, panel * kColumns);
}

template <typename W>
void run(const LinearF32& p, int64_t row_begin, int64_t row_end, int64_t panel_begin, int64_t panel_end) {
  Scratch scratch;
  for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
    for (int64_t row = row_begin; row < row_end; row += kGroupRows) {
      group_panel<W>(p, scratch, row, row + kGroupRows < row_end ? row + kGroupRows : row_end, panel);
    }
  }
}

}  // namespace

void linear_f32(const LinearF32& p, int64_t row_begin, int64_t row_end, int64_t panel_begin, int64_t panel_end) {
  switch (p.store) {
    case Store::kF32:
      return run<float>(p, row_begin, row_end, panel_begin, panel_end);
    case Store::kF16:
      return run<f16>(p, row_begin, row_end, panel_begin, panel_end);
    case Store::kBf16:
      return run<bf16>(p, row_begin, row_end, panel_begin, panel_end);
    case Store::kI8:
      return run<int8_t>(p, row_begin, row_end, panel_begin, panel_end);
  }
}

}  // namespace taut::TAUT_ISA_NS

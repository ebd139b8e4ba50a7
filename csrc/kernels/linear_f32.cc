// fp32 linear over packed panels of fp32, fp16 or bf16 weights; see LinearF32 in kernels.h. Weights of 16 bits are widened, exactly, on
// their way to the multiply; where several tiles share a block it is widened once.
//
// A panel is walked in blocks of kBlockK inputs: the block's weights (64 columns, 16 KB) come from memory once and stay in L1 while
// the row tiles of a group pass over them. Sums wait in a small buffer between blocks; the order of additions never changes.
#include "kernels.h"
#include "kernels/tile.h"
#include "simd/math.h"

namespace taut::TAUT_ISA_NS {
namespace {

constexpr int kColumns = static_cast<int>(kPanelColumns);
constexpr int kBlockK = 64;
constexpr int kGroupRows = 4 * kTileRows;  // rows that share a block of weights in L1

// Sums of a group: the running segment, s0 (+ s1), and s2.
struct Sums {
  alignas(64) float running[kGroupRows * kColumns];
  alignas(64) float first[kGroupRows * kColumns];
  alignas(64) float third[kGroupRows * kColumns];
  alignas(64) float x[kGroupRows * kBlockK];  // the group's inputs of a block
  alignas(64) float wide[kBlockK * kColumns];
};

// One block of one panel for R rows: running += x * w, from 0 where the block opens a segment. The tiles of a group that streams its
// weights share the next block's lines.
template <int R, typename W>
TAUT_FN void block(const float* x, const W* w, int64_t k, bool opens, bool streams, float* running, int64_t tile,
                   int64_t tiles) {
  constexpr int C = tile_vectors(R, sizeof(W) < sizeof(float));
  f32x16 acc[R][C];
  for (int column = 0; column < kColumns; column += 16 * C) {
    const bool prefetches = streams && column / (16 * C) % tiles == tile;
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
    if (prefetches) {
      tile_fma<R, C, kBlockK, int(sizeof(W)) * kColumns * kBlockK>(acc, x, w + column, kColumns, k);
    } else {
      tile_fma<R, C, kBlockK>(acc, x, w + column, kColumns, k);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
      for (int c = 0; c < C; ++c) {
        store(running + r * kColumns + column + 16 * c, acc[r][c]);
      }
    }
  }
}

template <typename W>
struct BlockTile {
  const float* x;
  const W* w;
  int64_t k, rows;
  bool opens, streams;
  float* running;

  template <int R>
  TAUT_MEMBER void operator()(int64_t row) const {
    const int64_t tiles = (rows + kTileRows - 1) / kTileRows;
    block<R>(x + row * kBlockK, w, k, opens, streams, running + row * kColumns, (row * tiles + rows - 1) / rows, tiles);
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

// The end of segment s: the four segments meet as (s0 + s1) + (s2 + s3), which is left in `running`.
void close_segment(Sums& sums, int s, int64_t rows) {
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

void store_rows(const LinearF32& p, const Sums& sums, int64_t row_begin, int64_t row_end, int64_t column_begin) {
  for (int64_t row = row_begin; row < row_end; ++row) {
    float* y = reinterpret_cast<float*>(reinterpret_cast<uint8_t*>(p.y) + row * p.y_row_bytes);
    for (int64_t i = 0; i < kColumns && column_begin + i < p.n; i += 16) {
      f32x16 value = load(sums.running + (row - row_begin) * kColumns + i);
      if (p.bias != nullptr) {
        value = add(value, load(p.bias + column_begin + i));
      }
      store_n(y + column_begin + i, activate(value, p.activation), p.n - column_begin - i);
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

template <typename W>
void group_panel(const LinearF32& p, Sums& sums, int64_t row_begin, int64_t row_end, int64_t panel) {
  const W* w = static_cast<const W*>(p.w) + panel * kColumns * p.segment[4];
  for (int s = 0; s < 4; ++s) {
    const int64_t begin = p.segment[s], end = p.segment[s + 1];
    if (begin == end) {
      for (int64_t i = 0; i < (row_end - row_begin) * kColumns; i += 16) {
        store(sums.running + i, zero());
      }
    }
    for (int64_t k = begin; k < end; k += kBlockK) {
      const int64_t count = end - k < kBlockK ? end - k : kBlockK, rows = row_end - row_begin;
      gather_inputs(reinterpret_cast<const uint8_t*>(p.x) + row_begin * p.x_row_bytes + 4 * k, p.x_row_bytes, rows, count,
                    sums.x);
      if (sizeof(W) < sizeof(float) && rows > kTileRows) {
        widen_block(w + k * kColumns, count, sums.wide);
        for_row_tiles(0, rows, BlockTile<float>{sums.x, sums.wide, count, rows, k == begin, false, sums.running});
      } else {
        for_row_tiles(0, rows, BlockTile<W>{sums.x, w + k * kColumns, count, rows, k == begin, true, sums.running});
      }
    }
    close_segment(sums, s, row_end - row_begin);
  }
  store_rows(p, sums, row_begin, row_end, panel * kColumns);
}

template <typename W>
void run(const LinearF32& p, int64_t row_begin, int64_t row_end, int64_t panel_begin, int64_t panel_end) {
  Sums sums;
  for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
    for (int64_t row = row_begin; row < row_end; row += kGroupRows) {
      group_panel<W>(p, sums, row, row + kGroupRows < row_end ? row + kGroupRows : row_end, panel);
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
  }
}

}  // namespace taut::TAUT_ISA_NS

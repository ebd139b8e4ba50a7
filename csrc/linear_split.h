// How the work of a linear is cut into items for the threads: blocks of rows x chunks of 64-column panels.
#pragma once
#include <algorithm>
#include <cstdint>

namespace taut {

// Items next to each other share their panels, which come from memory once and from the shared cache for the other blocks.
struct LinearSplit {
  int64_t rows, block, blocks, panels, chunk, items;

  // Blocks of at most `most_rows` rows, as equal as whole tiles of tile_rows allow; chunks of at most most_panels, small enough that
  // every thread gets several items, and multiples of `unit`.
  LinearSplit(int64_t rows, int64_t panels, int64_t tile_rows, int64_t most_rows, int64_t most_panels, int64_t threads,
              int64_t unit = 1)
      : rows(rows), panels(panels) {
    const int64_t wanted = std::max<int64_t>(1, (rows + most_rows - 1) / most_rows), even = (rows + wanted - 1) / wanted;
    block = std::max<int64_t>(1, wanted == 1 ? rows : (even + tile_rows - 1) / tile_rows * tile_rows);
    blocks = (rows + block - 1) / block;
    chunk = std::max<int64_t>(1, std::min(most_panels, panels * blocks / (8 * threads)) / unit) * unit;
    items = blocks * ((panels + chunk - 1) / chunk);
  }

  // body(row_begin, row_end, panel_begin, panel_end)
  template <typename Body>
  void at(int64_t item, const Body& body) const {
    const int64_t row = item % blocks * block, panel = item / blocks * chunk;
    body(row, std::min(row + block, rows), panel, std::min(panel + chunk, panels));
  }
};

}  // namespace taut

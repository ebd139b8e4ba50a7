// The int8 linear over all threads of a pool.
#pragma once
#include "kernels.h"
#include "linear_split.h"
#include "threads.h"

namespace taut {

// Every thread's scratch must hold linear_q8_scratch bytes.
inline void run_linear_q8(const KernelTable& kernels, ThreadPool& pool, const volatile int32_t* abort, const LinearQ8& a,
                          int64_t rows) {
  const LinearSplit split(rows, a.n, kernels.tile_rows, 32 * kernels.tile_rows, 8, pool.size());
  pool.run(split.items, abort, [&](int64_t item, int thread) {
    split.at(item, [&](int64_t row, int64_t row_end, int64_t panel, int64_t panel_end) {
      kernels.linear_q8(a, row, row_end, panel, panel_end, pool.scratch(thread));
    });
  });
}

}  // namespace taut

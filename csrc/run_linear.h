// The int8 and int4 linears over all threads of a pool.
#pragma once
#include "kernels.h"
#include "linear_split.h"
#include "threads.h"

namespace taut {

// How the weights of a quantized linear are stored, and what runs them.
struct LinearKind {
  LinearQ8Fn KernelTable::* run;
  int64_t (*KernelTable::*scratch)(int64_t k, int64_t pieces);
};
inline constexpr LinearKind kLinearQ8{&KernelTable::linear_q8, &KernelTable::linear_q8_scratch};
inline constexpr LinearKind kLinearQ4{&KernelTable::linear_q4, &KernelTable::linear_q4_scratch};

inline int64_t scratch_floats(const KernelTable& kernels, const LinearKind& kind, const Pieces& pieces) {
  return ((kernels.*kind.scratch)(pieces.k, pieces.count) + 3) / 4;
}

// Every thread's scratch must hold scratch_floats.
inline void run_linear(const KernelTable& kernels, const LinearKind& kind, ThreadPool& pool, const volatile int32_t* abort,
                       const LinearQ8& a, int64_t rows) {
  const LinearSplit split(rows, a.panels(), kernels.tile_rows, kernels.block_rows, 8, pool.active(), a.panel_unit());
  pool.run(split.items, abort, [&](int64_t item, int thread) {
    split.at(item, [&](int64_t row, int64_t row_end, int64_t panel, int64_t panel_end) {
      (kernels.*kind.run)(a, row, row_end, panel, panel_end, pool.scratch(thread));
    });
  });
}

}  // namespace taut

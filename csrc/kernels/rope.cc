// Rotary embedding of float rows.
#include "kernels/rope_row.h"
#include "kernels/rows.h"

namespace taut::TAUT_ISA_NS {

void rope(const Rope& p, int64_t row_begin, int64_t row_end) {
  for (int64_t row = row_begin; row < row_end; ++row) {
    const float* turn = p.table + static_cast<int64_t>(p.positions[row]) * p.rotary_dim;
    for (int64_t head = 0; head < p.heads; ++head) {
      rope_head(at(p.x, row) + head * p.head_dim, at(p.y, row) + head * p.head_dim, turn, p.rotary_dim, p.head_dim);
    }
  }
}

}  // namespace taut::TAUT_ISA_NS

// float rows to quantized rows.
#include "kernels/quantize_row.h"
#include "kernels/rows.h"

namespace taut::TAUT_ISA_NS {

void quantize(const Quantize& p, int64_t row_begin, int64_t row_end) {
  for (int64_t row = row_begin; row < row_end; ++row) {
    quantize_row(at(p.x, row), p.out, row);
  }
}

}  // namespace taut::TAUT_ISA_NS

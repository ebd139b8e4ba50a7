// float rows to quantized rows.
#include "kernels/quantize_row.h"
#include "kernels/rows.h"

namespace taut::TAUT_ISA_NS {

void quantize(const Quantize& p, int64_t row_begin, int64_t row_end) {
  int64_t fallbacks = 0;
  for (int64_t row = row_begin; row < row_end; ++row) {
    fallbacks += quantize_row(at(p.x, row), p.out, row);
  }
  count_fallbacks(p.out, fallbacks);
}

}  // namespace taut::TAUT_ISA_NS

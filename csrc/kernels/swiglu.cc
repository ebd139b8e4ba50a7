// act(gate) * up, where gate and up are the halves of a row; optionally quantized on the way out.
#include "kernels/quantize_row.h"
#include "kernels/rows.h"
#include "simd/math.h"

namespace taut::TAUT_ISA_NS {

void swiglu(const Swiglu& p, int64_t row_begin, int64_t row_end, float* scratch) {
  int64_t fallbacks = 0;
  for (int64_t row = row_begin; row < row_end; ++row) {
    const float* gate = at(p.x, row);
    const float* up = gate + p.features;
    float* y = p.out.data != nullptr ? at(p.out, row) : scratch;
    for (int64_t i = 0; i < p.features; i += 16) {
      const int64_t n = p.features - i;
      store_n(y + i, mul(activate(load_n(gate + i, n), p.activation), load_n(up + i, n)), n);
    }
    if (p.quantized.data != nullptr) {
      fallbacks += quantize_row(y, p.quantized, row);
    }
  }
  count_fallbacks(p.quantized, fallbacks);
}

}  // namespace taut::TAUT_ISA_NS

// Rows of Euclidean length 1; a row shorter than 1e-12 is divided by 1e-12.
#include "kernels/rows.h"

namespace taut::TAUT_ISA_NS {

void normalize(const Elementwise& p, int64_t row_begin, int64_t row_end) {
  for (int64_t row = row_begin; row < row_end; ++row) {
    const float* x = at(p.x, row);
    float* y = at(p.y, row);
    f32x16 acc = zero();
    for (int64_t i = 0; i < p.features; i += 16) {
      const f32x16 v = load_n(x + i, p.features - i);
      acc = fma(v, v, acc);
    }
    const float length = __builtin_sqrtf(reduce_add(acc));
    const f32x16 divisor = set1(length < 1e-12f ? 1e-12f : length);  // NaN stays
    for (int64_t i = 0; i < p.features; i += 16) {
      store_n(y + i, div(load_n(x + i, p.features - i), divisor), p.features - i);
    }
  }
}

}  // namespace taut::TAUT_ISA_NS

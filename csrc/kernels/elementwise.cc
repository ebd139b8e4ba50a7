// Activations, add and mul, a row at a time.
#include "kernels/rows.h"
#include "simd/math.h"

namespace taut::TAUT_ISA_NS {

void elementwise(const Elementwise& p, int64_t row_begin, int64_t row_end) {
  for (int64_t row = row_begin; row < row_end; ++row) {
    const float* x = at(p.x, row);
    const float* b = p.binary == Binary::kNone ? x : at(p.b, row);
    float* y = at(p.y, row);
    for (int64_t i = 0; i < p.features; i += 16) {
      const int64_t n = p.features - i;
      f32x16 v = activate(load_n(x + i, n), p.activation);
      if (p.binary == Binary::kAdd) {
        v = add(v, load_n(b + i, n));
      } else if (p.binary == Binary::kMul) {
        v = mul(v, load_n(b + i, n));
      }
      store_n(y + i, v, n);
    }
  }
}

}  // namespace taut::TAUT_ISA_NS

// Row addressing, with the linkage of the ISA.
#pragma once
#include "kernels.h"
#include "simd/f32x16.h"

namespace taut::TAUT_ISA_NS {

TAUT_FN const float* at(const Rows<const float>& rows, int64_t row) {
  return reinterpret_cast<const float*>(reinterpret_cast<const uint8_t*>(rows.data) + row * rows.row_bytes);
}
TAUT_FN float* at(const Rows<float>& rows, int64_t row) {
  return reinterpret_cast<float*>(reinterpret_cast<uint8_t*>(rows.data) + row * rows.row_bytes);
}

// n floats from x to y (not overlapping, or the same).
TAUT_FN void copy_row(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) {
    store_n(y + i, load_n(x + i, n - i), n - i);
  }
}

}  // namespace taut::TAUT_ISA_NS

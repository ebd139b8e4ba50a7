// The rotation of one head's row.
#pragma once
#include "simd/f32x16.h"

namespace taut::TAUT_ISA_NS {

// turn: rotary_dim / 2 cosines, then as many sines. Column i turns with column i + rotary_dim / 2; the rest is copied. y may be x.
TAUT_FN void rope_head(const float* x, float* y, const float* turn, int64_t rotary_dim, int64_t head_dim) {
  const int64_t half = rotary_dim / 2;
  for (int64_t i = 0; i < half; i += 16) {
    const int64_t n = half - i;
    const f32x16 a = load_n(x + i, n), b = load_n(x + half + i, n), cosine = load_n(turn + i, n),
                 sine = load_n(turn + half + i, n);
    store_n(y + i, fnma(b, sine, mul(a, cosine)), n);
    store_n(y + half + i, fma(a, sine, mul(b, cosine)), n);
  }
  if (x != y) {
    for (int64_t i = rotary_dim; i < head_dim; i += 16) {
      store_n(y + i, load_n(x + i, head_dim - i), head_dim - i);
    }
  }
}

}  // namespace taut::TAUT_ISA_NS

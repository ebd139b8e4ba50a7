// The best of a row of logits, and exp((logit - best) / temperature) of all.
#include "kernels.h"
#include "simd/math.h"

namespace taut::TAUT_ISA_NS {

int64_t sharpen(const float* logits, int64_t n, float temperature, float* weights) {
  f32x16 most = set1(logits[0]);
  i32x16 largest = set1_i32(0);
  for (int64_t i = 0; i < n; i += 16) {
    const f32x16 v = n - i >= 16 ? load(logits + i) : select(first_n(n - i), load_n(logits + i, n - i), set1(logits[0]));
    most = max(v, most);
    largest = max_i32(largest, abs_bits(v));
  }
  if (reduce_max_i32(largest) >= 0x7f800000) return -1;
  const float best = reduce_max(most);
  int64_t first = 0;
  while (logits[first] != best) ++first;
  if (temperature <= 0.0f) return first;
  // The maximum is subtracted before the division: a tiny temperature gives -inf beside an exact 0, never inf - inf.
  const f32x16 shift = set1(best), scale = set1(temperature);
  for (int64_t i = 0; i < n; i += 16) {
    store_n(weights + i, exp(div(sub(load_n(logits + i, n - i), shift), scale)), n - i);
  }
  return first;
}

}  // namespace taut::TAUT_ISA_NS

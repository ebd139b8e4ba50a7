// One row per sequence: its mean, first, last or elementwise largest token.
#include "kernels/rows.h"

namespace taut::TAUT_ISA_NS {
namespace {

// The sum of the tokens in order, lane by lane, divided by their number.
TAUT_FN f32x16 mean_lanes(const Elementwise& p, int64_t column, int64_t token_begin, int64_t token_end) {
  const int64_t n = p.features - column;
  f32x16 sum = zero();
  for (int64_t token = token_begin; token < token_end; ++token) {
    sum = add(sum, load_n(at(p.x, token) + column, n));
  }
  return div(sum, set1(static_cast<float>(token_end - token_begin)));
}

// The largest; NaN if any is NaN, which the largest magnitude's bits tell.
TAUT_FN f32x16 max_lanes(const Elementwise& p, int64_t column, int64_t token_begin, int64_t token_end) {
  const int64_t n = p.features - column;
  f32x16 largest = load_n(at(p.x, token_begin) + column, n);
  i32x16 magnitude = set1_i32(0);
  for (int64_t token = token_begin; token < token_end; ++token) {
    const f32x16 x = load_n(at(p.x, token) + column, n);
    largest = max(largest, x);
    magnitude = max_i32(magnitude, abs_bits(x));
  }
  return add(largest, mul(min(set1(1.0f), as_f32(magnitude)), zero()));
}

}  // namespace

void pool(const Elementwise& p, Pool mode, int64_t sequence, int64_t token_begin, int64_t token_end) {
  float* y = at(p.y, sequence);
  if (mode == Pool::kCls || mode == Pool::kLast) {
    copy_row(at(p.x, mode == Pool::kCls ? token_begin : token_end - 1), y, p.features);
    return;
  }
  for (int64_t i = 0; i < p.features; i += 16) {
    const f32x16 v = mode == Pool::kMean ? mean_lanes(p, i, token_begin, token_end) : max_lanes(p, i, token_begin, token_end);
    store_n(y + i, v, p.features - i);
  }
}

}  // namespace taut::TAUT_ISA_NS

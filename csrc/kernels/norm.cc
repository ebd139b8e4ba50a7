// rms_norm and layer_norm, with the residual add before and the quantizer behind. Sums over a row are canonical: lane i of 16 takes
// the features i, i + 16, ... in order, then one tree.
#include "kernels/quantize_row.h"
#include "kernels/rows.h"

namespace taut::TAUT_ISA_NS {
namespace {

TAUT_FN float sum_of_squares(const float* x, int64_t n, float mean) {
  const f32x16 centre = set1(mean);
  f32x16 acc = zero();
  for (int64_t i = 0; i < n; i += 16) {
    const f32x16 d = keep_n(sub(load_n(x + i, n - i), centre), n - i);
    acc = fma(d, d, acc);
  }
  return reduce_add(acc);
}

TAUT_FN float sum_of(const float* x, int64_t n) {
  f32x16 acc = zero();
  for (int64_t i = 0; i < n; i += 16) {
    acc = add(acc, load_n(x + i, n - i));
  }
  return reduce_add(acc);
}

// 1 / sqrt(x)
TAUT_FN float inverse_sqrt(float x) { return 1.0f / __builtin_sqrtf(x); }

// False where the sum of squares is not finite: the span holds a NaN, an infinity, or numbers whose squares are too large.
TAUT_FN bool normalize_span(const Norm& p, const float* x, float* y) {
  const int64_t n = p.width;
  const float count = static_cast<float>(n);
  const float mean = p.layer ? sum_of(x, n) / count : 0.0f;
  const float squares = sum_of_squares(x, n, mean);
  const f32x16 centre = set1(mean), scale = set1(inverse_sqrt(squares / count + p.eps));
  for (int64_t i = 0; i < n; i += 16) {
    const f32x16 unit = mul(sub(load_n(x + i, n - i), centre), scale), gain = load_n(p.gain + i, n - i);
    store_n(y + i, p.bias != nullptr ? fma(unit, gain, load_n(p.bias + i, n - i)) : mul(unit, gain), n - i);
  }
  return squares < __builtin_inff();
}

// y into [-limit, limit], a NaN stays one; how many values were beyond.
TAUT_FN int64_t clamp_row(float* y, int64_t n, float limit) {
  const f32x16 low = set1(-limit), high = set1(limit);
  f32x16 beyond = zero();
  for (int64_t i = 0; i < n; i += 16) {
    const f32x16 value = load_n(y + i, n - i);
    beyond = add(beyond, select(lt(high, abs(value)), set1(1.0f), zero()));
    store_n(y + i, max(low, min(high, value)), n - i);
  }
  return static_cast<int64_t>(reduce_add(beyond));
}

TAUT_FN void count(int64_t* counter, int64_t number) {
  if (number != 0 && counter != nullptr) {
    __atomic_fetch_add(counter, number, __ATOMIC_RELAXED);
  }
}

TAUT_FN void add_rows(const float* x, const float* residual, float* sum, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) {
    store_n(sum + i, add(load_n(x + i, n - i), load_n(residual + i, n - i)), n - i);
  }
}

}  // namespace

void norm(const Norm& p, int64_t row_begin, int64_t row_end, float* scratch) {
  int64_t clamped = 0, nonfinite = 0, fallbacks = 0;
  for (int64_t row = row_begin; row < row_end; ++row) {
    const float* x = at(p.x, row);
    if (p.residual.data != nullptr) {
      float* sum = p.sum.data != nullptr ? at(p.sum, row) : scratch;
      add_rows(x, at(p.residual, row), sum, p.features);
      x = sum;
    } else if (p.sum.data != nullptr) {
      copy_row(x, at(p.sum, row), p.features);
    }
    float* y = p.out.data != nullptr ? at(p.out, row) : scratch + p.features + 16;
    for (int64_t begin = 0; begin < p.features; begin += p.width) {
      nonfinite += !normalize_span(p, x + begin, y + begin);
    }
    if (p.clamp > 0) {
      clamped += clamp_row(y, p.features, p.clamp);
    }
    if (p.quantized.data != nullptr) {
      fallbacks += quantize_row(y, p.quantized, row);
    }
  }
  count(p.clamped, clamped);
  count(p.nonfinite, nonfinite);
  count_fallbacks(p.quantized, fallbacks);
}

}  // namespace taut::TAUT_ISA_NS

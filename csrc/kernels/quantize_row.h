// One row to int8 (quantized_row.h), shared by every kernel that ends in quantized rows.
//
// Per scale group: scale = absmax / 127 and q = round to even(x * (127 / absmax)), so |q| <= 127. A group of zeros, or one too
// small for a finite inverse, gets scale 0. A group with a NaN or an infinity gets scale NaN and q = 0: only its row turns to NaN.
#pragma once
#include "kernels.h"
#include "simd/f32x16.h"

namespace taut::TAUT_ISA_NS {

struct Scale {
  float scale, inverse;
};

// From the bits of the largest magnitude.
TAUT_FN Scale scale_of(int32_t absmax_bits) {
  if (absmax_bits >= 0x7f800000) {
    return {bits_to_f32(0x7fc00000), 0.0f};
  }
  const float absmax = bits_to_f32(absmax_bits), inverse = 127.0f / absmax;
  return inverse <= 3.4028234663852886e38f ? Scale{absmax / 127.0f, inverse} : Scale{0.0f, 0.0f};
}

TAUT_FN int32_t absmax_bits(const float* x, int64_t n) {
  i32x16 m = set1_i32(0);
  for (int64_t i = 0; i < n; i += 16) {
    m = max_i32(m, abs_bits(load_n(x + i, n - i)));
  }
  return reduce_max_i32(m);
}

// q of n values into `out`; returns their sum. `inverse` 0 gives zeros whatever x holds.
TAUT_FN int32_t quantize_span(const float* x, int64_t n, float inverse, int8_t* out) {
  const f32x16 scale = set1(inverse);
  i32x16 sum = set1_i32(0);
  for (int64_t i = 0; i < n; i += 16) {
    const i32x16 q = inverse == 0.0f ? set1_i32(0) : round_to_i32(mul(load_n(x + i, n - i), scale));
    sum = add_i32(sum, q);
    if (n - i >= 16) {
      store_i8(out + i, q);
    } else {
      int8_t tail[16];
      store_i8(tail, q);
      for (int64_t j = 0; j < n - i; ++j) {
        out[i + j] = tail[j];
      }
    }
  }
  return reduce_add_i32(sum);
}

// x: rows.features values.
TAUT_FN void quantize_row(const float* x, const QuantizedRows& rows, int64_t row) {
  uint8_t* base = rows.data + row * rows.row_bytes;
  int8_t* values = reinterpret_cast<int8_t*>(base);
  float* scales = reinterpret_cast<float*>(base + rows.scales_offset);
  int32_t* sums = reinterpret_cast<int32_t*>(scales + rows.pieces.count);
  const int32_t* begin = rows.pieces.begin;
  const int32_t features = rows.features;
  int32_t first = 0;
  while (first < rows.pieces.count) {
    int32_t last = first + 1;
    while (last < rows.pieces.count && rows.piece_group[last] == rows.piece_group[first]) {
      ++last;
    }
    const int32_t end = begin[last] < features ? begin[last] : features;
    const Scale s = scale_of(absmax_bits(x + begin[first], end - begin[first]));
    for (int32_t p = first; p < last; ++p) {
      const int32_t stop = begin[p + 1] < features ? begin[p + 1] : features;
      scales[p] = s.scale;
      sums[p] = -128 * quantize_span(x + begin[p], stop - begin[p], s.inverse, values + begin[p]);
    }
    first = last;
  }
  for (int32_t k = features; k < rows.pieces.k; ++k) {
    values[k] = 0;
  }
}

}  // namespace taut::TAUT_ISA_NS

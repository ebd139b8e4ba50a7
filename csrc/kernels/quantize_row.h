// One row to int8 (quantized_row.h), shared by every kernel that ends in quantized rows: by its own range or by a calibrated one.
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

// The n (0..16) next values; kStatic: + offset.
template <bool kStatic>
TAUT_FN f32x16 load_shifted(const float* x, int64_t n, float offset) {
  return kStatic ? keep_n(add(load_n(x, n), set1(offset)), n) : load_n(x, n);
}

template <bool kStatic = false>
TAUT_FN int32_t absmax_bits(const float* x, int64_t n, float offset = 0) {
  i32x16 m = set1_i32(0);
  for (int64_t i = 0; i < n; i += 16) {
    m = max_i32(m, abs_bits(load_shifted<kStatic>(x + i, n - i, offset)));
  }
  return reduce_max_i32(m);
}

// q of n values into `out`; returns their sum. `inverse` 0 gives zeros whatever x holds. kStatic: of x + offset, whose products may be a
// little beyond 127.
template <bool kStatic = false>
TAUT_FN int32_t quantize_span(const float* x, int64_t n, float inverse, int8_t* out, float offset = 0) {
  const f32x16 scale = set1(inverse);
  i32x16 sum = set1_i32(0);
  for (int64_t i = 0; i < n; i += 16) {
    const f32x16 scaled = mul(load_shifted<kStatic>(x + i, n - i, offset), scale);
    const f32x16 bounded = kStatic ? min(max(scaled, set1(-127.0f)), set1(127.0f)) : scaled;
    const i32x16 q = inverse == 0.0f ? set1_i32(0) : round_to_i32(bounded);
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

// Pieces [first, last) of a row by one scale.
template <bool kStatic>
TAUT_FN void quantize_pieces(const float* x, const QuantizedRows& rows, uint8_t* base, int32_t first, int32_t last, Scale s) {
  int8_t* values = reinterpret_cast<int8_t*>(base);
  float* scales = reinterpret_cast<float*>(base + rows.scales_offset);
  int32_t* sums = reinterpret_cast<int32_t*>(scales + rows.pieces.count);
  for (int32_t p = first; p < last; ++p) {
    const int32_t begin = rows.pieces.begin[p], end = rows.pieces.begin[p + 1];
    const int32_t stop = end < rows.features ? end : rows.features;
    scales[p] = s.scale;
    sums[p] = -128 * quantize_span<kStatic>(x + begin, stop - begin, s.inverse, values + begin, rows.offset);
  }
}

// By the calibrated scale; false: by the row's own, because a value is beyond it.
TAUT_FN bool quantize_static(const float* x, const QuantizedRows& rows, uint8_t* base) {
  const int32_t bits = absmax_bits<true>(x, rows.features, rows.offset);
  const bool within = bits_to_f32(bits) <= rows.scale * 128.0f;  // false for a NaN
  const Scale s = within ? Scale{rows.scale, 1.0f / rows.scale} : scale_of(bits);
  quantize_pieces<true>(x, rows, base, 0, rows.pieces.count, s);
  return within;
}

TAUT_FN void quantize_dynamic(const float* x, const QuantizedRows& rows, uint8_t* base) {
  const int32_t* begin = rows.pieces.begin;
  const int32_t features = rows.features;
  int32_t first = 0;
  while (first < rows.pieces.count) {
    int32_t last = first + 1;
    while (last < rows.pieces.count && rows.piece_group[last] == rows.piece_group[first]) {
      ++last;
    }
    const int32_t end = begin[last] < features ? begin[last] : features;
    quantize_pieces<false>(x, rows, base, first, last, scale_of(absmax_bits(x + begin[first], end - begin[first])));
    first = last;
  }
}

// x: rows.features values. The number of rows that fell back to their own scale: 0 or 1.
TAUT_FN int64_t quantize_row(const float* x, const QuantizedRows& rows, int64_t row) {
  uint8_t* base = rows.data + row * rows.row_bytes;
  int64_t fallbacks = 0;
  if (rows.scale > 0) {
    fallbacks = quantize_static(x, rows, base) ? 0 : 1;
  } else {
    quantize_dynamic(x, rows, base);
  }
  for (int32_t k = rows.features; k < rows.pieces.k; ++k) {
    base[k] = 0;
  }
  return fallbacks;
}

TAUT_FN void count_fallbacks(const QuantizedRows& rows, int64_t fallbacks) {
  if (fallbacks != 0 && rows.fallbacks != nullptr) {
    __atomic_fetch_add(rows.fallbacks, fallbacks, __ATOMIC_RELAXED);
  }
}

}  // namespace taut::TAUT_ISA_NS

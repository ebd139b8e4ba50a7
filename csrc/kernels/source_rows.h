// Rows of a weight as its checkpoint stores them, for the packers.
#pragma once
#include "kernels/quantize_row.h"
#include "pack_q8.h"

namespace taut::TAUT_ISA_NS {
namespace {

constexpr int64_t kReadAhead = 256;  // most values of one read_source

template <typename T>
inline void widen_values(const T* from, int64_t n, float* to) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) store(to + i, load(from + i));
  for (; i < n; ++i) to[i] = to_f32(from[i]);
}

// n <= kReadAhead values of row `row` from column k on; zeros up to a multiple of 16.
inline void read_source(const PackQ8& p, int64_t row, int64_t k, int64_t n, float* to) {
  const uint8_t* base = p.w + row * p.row_bytes;
  if (p.source == Source::kF32) {
    __builtin_memcpy(to, base + 4 * k, size_t(4 * n));
  } else {
    const uint8_t* from = base + 2 * k;
    p.source == Source::kBf16 ? widen_values(reinterpret_cast<const bf16*>(from), n, to)
                              : widen_values(reinterpret_cast<const f16*>(from), n, to);
  }
  for (int64_t i = n; i % 16 != 0; ++i) to[i] = 0.0f;
}

// Bits of the largest magnitude of a row's columns [begin, end); above infinity's where they hold a NaN.
inline int32_t row_absmax_bits(const PackQ8& p, int64_t row, int64_t begin, int64_t end) {
  float values[kReadAhead];
  i32x16 largest = set1_i32(0);
  for (int64_t k = begin; k < end; k += kReadAhead) {
    const int64_t n = end - k < kReadAhead ? end - k : kReadAhead;
    read_source(p, row, k, n, values);
    for (int64_t i = 0; i < n; i += 16) largest = max_i32(largest, abs_bits(load(values + i)));
  }
  return reduce_max_i32(largest);
}

}  // namespace
}  // namespace taut::TAUT_ISA_NS

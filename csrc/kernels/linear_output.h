// What becomes of the sums of one row and panel of a quantized linear: scale (if groups have none), bias, activation, then gate, residual or quantization.
#pragma once
#include "kernels/quantize_row.h"
#include "linear_q8.h"
#include "simd/math.h"

namespace taut::TAUT_ISA_NS {
namespace {

constexpr int kPanel = 64;         // columns
constexpr int64_t kRowsAhead = 8;  // residual rows, a stride apart that no hardware prefetcher follows
#if defined(TAUT_AMX)
constexpr int64_t kRowsOfBlock = 512;  // a panel's weights are unpacked once for so many
#else
constexpr int64_t kRowsOfBlock = kBlockRows;
#endif
constexpr int64_t kWaitingBytes = kRowsOfBlock * kMostOutGroup * 4;

// Out of line in portable code, where every lane is a line of its own: inlined it takes minutes to compile.
#if defined(TAUT_ISA_scalar)
[[gnu::noinline]] f32x16 activated(f32x16 value, Activation activation) {
#else
TAUT_FN f32x16 activated(f32x16 value, Activation activation) {
#endif
  return activate(value, activation);
}

// s0 + s1, s2 and s3 of 64 columns: 16 of them together, `stride` floats from one 16 to the next.
struct RowSums {
  const float *first, *third, *fourth;
  int64_t stride;
};

// The output of a block of rows that begins at row_begin. `waiting`: kWaitingBytes for columns whose group of scale is not whole yet.
struct Output {
  const LinearQ8& args;
  const int64_t row_begin;
  float* const waiting;

  // Strip i of 16 columns of a panel.
  TAUT_MEMBER f32x16 scaled(int64_t panel, int64_t i, const RowSums& sums) const {
    const int64_t column = panel * kPanel + i * 16, at = i * sums.stride;
    const f32x16 sum = add(load(sums.first + at), add(load(sums.third + at), load(sums.fourth + at)));
    if (args.w_scale == nullptr) return args.bias ? add(sum, load(args.bias + column)) : sum;
    const f32x16 scale = load(args.w_scale + column);
    return args.bias ? fma(sum, scale, load(args.bias + column)) : mul(sum, scale);
  }

  // Columns beyond n are not written. The panels of one output group come in ascending order.
  [[gnu::noinline]] void store_row(int64_t row, int64_t panel, const RowSums& sums) const {
    const int64_t width = args.panel_columns(), column = panel * width;
    if (args.quantized == nullptr) {
      uint8_t* y = reinterpret_cast<uint8_t*>(args.y) + row * args.y_row_bytes;
      return store_columns(row, panel, sums, reinterpret_cast<float*>(y) + column);
    }
    const int64_t group = args.out_group, begin = group > width ? column % group : 0;
    float* values = waiting + (group > width ? (row - row_begin) * group : 0);
    store_columns(row, panel, sums, values + begin);
    const int64_t left = args.n - column, last = begin + (left < width ? left : width);
    for (int64_t end = group < width ? group : begin + width; end <= last; end += group) {
      if (end % group == 0) quantize_group(row, (column - begin + end) / group - 1, values + end - group);
    }
  }

  TAUT_MEMBER void store_columns(int64_t row, int64_t panel, const RowSums& sums, float* to) const {
    if (args.gated) return store_strips<true, false>(panel, sums, nullptr, to);
    if (args.residual == nullptr) return store_strips<false, false>(panel, sums, nullptr, to);
    const uint8_t* residual = reinterpret_cast<const uint8_t*>(args.residual) + row * args.residual_row_bytes;
    store_strips<false, true>(panel, sums, reinterpret_cast<const float*>(residual) + panel * kPanel, to);
  }

  // Apart for each form: a loop over all of them would keep its pointers on the stack.
  template <bool kGated, bool kAdds>
  TAUT_MEMBER void store_strips(int64_t panel, const RowSums& sums, const float* residual, float* to) const {
    constexpr int64_t kWidth = kGated ? kPanel / 2 : kPanel;
    for (int64_t i = 0, left = args.n - panel * kWidth; i < kWidth / 16 && left > 0; ++i, left -= 16) {
      f32x16 value = activated(scaled(panel, i, sums), args.activation);
      if constexpr (kGated) value = mul(value, scaled(panel, i + 2, sums));
      if constexpr (kAdds) {
        value = add(value, load_n(residual + 16 * i, left));
        prefetch(residual + 16 * i + kRowsAhead * args.residual_row_bytes / 4);
      }
      store_n(to + 16 * i, value, left);
    }
  }

  // quantize_row of one group.
  TAUT_MEMBER void quantize_group(int64_t row, int64_t index, const float* values) const {
    const int64_t group = args.out_group;
    uint8_t* base = args.quantized + row * args.quantized_row_bytes;
    float* scales = reinterpret_cast<float*>(base + args.quantized_scales_offset);
    int32_t* sums = reinterpret_cast<int32_t*>(scales + args.n / group);
    const Scale s = scale_of(absmax_bits(values, group));
    scales[index] = s.scale;
    sums[index] = -128 * quantize_span(values, group, s.inverse, reinterpret_cast<int8_t*>(base) + index * group);
  }
};

}  // namespace
}  // namespace taut::TAUT_ISA_NS

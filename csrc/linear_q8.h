// int8 linear: y[m, n] = act(fma(sum, w_scale[n], bias[n])) over quantized rows x and packed weights w.
//
// Packed weights: [N/64][K/4][64][4] uint8, each w + 128 with w in [-127, 127]; columns beyond N hold 128 and scale 0.
// The sum over K is canonical, so that every ISA, tile and row count gives the same bits:
//     dot_p  = int32 sum over piece p of (w + 128) * q, plus sums[p]      (exact)
//     s_i    = fma(float(dot_p), scale_p, s_i) over the pieces of segment i in order, from 0
//     sum    = (s_0 + s_1) + (s_2 + s_3)
// without bias: act(sum * w_scale[n]).
//
// Weights may have a scale for each group of inputs instead of one for the column; pieces are those groups, and float(dot_p) above is
// float(dot_p) * scale_p, scale_p above is group_scale[n, p]:
//     s_i    = fma(float(dot_p) * scale_p, group_scale[n, p], s_i)
//     y      = act(sum + bias[n])
// Behind that the output may take a residual, gate itself or become a quantized row: the bits are those of add, swiglu and quantize.
#pragma once
#include <cstdint>

#include "quantized_row.h"

namespace taut {

enum class Activation : int32_t { kNone = 0, kGelu = 1, kGeluTanh = 2, kSilu = 3, kRelu = 4, kTanh = 5 };

constexpr int64_t kBlockRows = 192;     // most rows of a work item: they share what a kernel prepares of a panel's weights
constexpr int64_t kMostOutGroup = 128;  // columns that share a scale of quantized output

struct LinearQ8 {
  const uint8_t* x = nullptr;  // quantized rows
  int64_t x_row_bytes = 0;
  int32_t scales_offset = 0;
  Pieces pieces;
  const uint8_t* w = nullptr;
  const float* w_scale = nullptr;      // [N padded to 64], or null: the weights have
  const float* group_scale = nullptr;  // [N/64][pieces][64]
  const float* bias = nullptr;         // [N padded to 64] or null
  float* y = nullptr;
  int64_t y_row_bytes = 0;
  int32_t n = 0;  // true columns of y: those beyond are not written
  Activation activation = Activation::kNone;

  // Gated: each panel holds 32 columns of a gate and the same 32 of what it gates; y[m, 32 p + i] = act(panel[i]) * panel[32 + i].
  bool gated = false;
  const float* residual = nullptr;  // added to y, or null; never with gated
  int64_t residual_row_bytes = 0;
  // Rows of y go to quantized rows instead, in groups of 32, 64 or 128 columns that divide n; null: they do not.
  uint8_t* quantized = nullptr;
  int64_t quantized_row_bytes = 0;
  int32_t quantized_scales_offset = 0, out_group = 0;

  int64_t panel_columns() const { return gated ? 32 : 64; }  // of y
  int64_t panels() const { return (n + panel_columns() - 1) / panel_columns(); }
  // Panels that share a scale of the output: work is split at multiples of them.
  int64_t panel_unit() const { return out_group > panel_columns() ? out_group / panel_columns() : 1; }
};

// Rows [row_begin, row_end) x 64-column panels [panel_begin, panel_end). Any split of the work at multiples
// of panel_unit gives the same bits.
// `scratch`: linear_q8_scratch(K, pieces) bytes of the kernel table, 64-byte aligned.
using LinearQ8Fn = void (*)(const LinearQ8&, int64_t row_begin, int64_t row_end, int64_t panel_begin, int64_t panel_end,
                            void* scratch);

}  // namespace taut

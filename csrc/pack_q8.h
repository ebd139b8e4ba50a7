// Quantizing and packing the weights of an int8 linear (layout: linear_q8.h).
//
// Per output row, or per group of inputs of a row: scale = absmax / 127, q = round to even(w * (127 / absmax)), as quant/schemes/int8.py
// has it, bit for bit.
#pragma once
#include <cstdint>

namespace taut {

enum class Source : int32_t { kF32 = 0, kF16 = 1, kBf16 = 2 };

struct PackQ8 {
  const uint8_t* w = nullptr;  // [n][k] of source, rows row_bytes apart
  int64_t row_bytes = 0;
  Source source = Source::kF32;
  int64_t n = 0, k = 0;
  int64_t weight_group = 0;   // inputs that share a scale: 32, 64 or 128 that divides k; 0: the whole row
  bool by_input = false;      // packed as LinearF32 reads int8 weights
  uint8_t* packed = nullptr;  // [n padded / 64][k padded / 4][64][4] of q + 128; by_input: [n padded / 64][k][64] of q
  float* scale = nullptr;     // [n padded to 64]; of groups: [n padded / 64][k / group][64]
};

// Panels [panel_begin, panel_end), padding included. Returns -1, or the first row that holds a NaN or an infinity (the panel is then
// left unfinished).
using PackQ8Fn = int64_t (*)(const PackQ8&, int64_t panel_begin, int64_t panel_end);

}  // namespace taut

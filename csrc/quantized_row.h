// The layout of one quantized activation row, shared by the quantizer and the int8 linear kernels.
//
// K inputs are cut into pieces; a piece lies inside one scale group and one canonical segment (quant/schemes/int8.py draws the cuts).
// A row is
//     values   K_padded integers int8 q in [-127, 127]; zero beyond K
//     scales   float32 per piece, at byte scales_offset (a multiple of 64); x ~ q * scale
//     sums     int32 per piece, right after the scales: -128 * sum of the piece's q (weights are stored as w + 128)
// Rows are 64-byte aligned and row_bytes apart.
#pragma once
#include <cstdint>

namespace taut {

struct Pieces {
  int32_t k = 0;                         // inputs, a multiple of 4 after padding
  int32_t count = 0;                     // pieces
  const int32_t* begin = nullptr;        // [count + 1] first k of each piece, multiples of 4 (but for the last: k)
  int32_t segment[5] = {0, 0, 0, 0, 0};  // piece index where each canonical segment starts; segment[4] == count
};

}  // namespace taut

// int4 linear: linear_q8.h's with weights of four bits, in groups of G = 32, 64 or 128 inputs that are also the pieces of the rows.
//
// Packed weights: [N/64][K/G] groups of q4_group_bytes(G):
//     [G/8][64 columns][4]  byte b of octet j holds u[8 j + b] | u[8 j + 4 + b] << 4, u in [0, 15]
//     [64] scale d, [64] offset o, float16
// A weight is w_scale[n] * (d * u - 128 o) (quant/schemes/int4.py). Columns beyond N hold zeros. The sum over K is canonical:
//     dot_p = int32 sum over piece p of u * q                              (exact)
//     s_i   = fma(scale_p * float(sums[p]), o_p, fma(float(dot_p) * scale_p, d_p, s_i))
//     sum   = (s_0 + s_1) + (s_2 + s_3),  y = act(fma(sum, w_scale[n], bias[n]))
#pragma once
#include "linear_q8.h"

namespace taut {

constexpr int64_t q4_group_bytes(int64_t group) { return group * 32 + 256; }

// `a.w` holds int4 weights; a.pieces all have their group's length. Scratch: linear_q4_scratch(K, pieces) bytes, 64-byte aligned.
using LinearQ4Fn = void (*)(const LinearQ8& a, int64_t row_begin, int64_t row_end, int64_t panel_begin, int64_t panel_end,
                            void* scratch);

}  // namespace taut

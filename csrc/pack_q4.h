// Quantizing and packing the weights of an int4 linear (layout: linear_q4.h), as quant/schemes/int4.py has it, bit for bit.
#pragma once
#include "pack_q8.h"

namespace taut {

// `scale` takes the columns' powers of two; `packed` [n padded / 64][k / group][group bytes].
struct PackQ4 : PackQ8 {
  int64_t group = 0;  // 32, 64 or 128; divides k
};

// As PackQ8Fn.
using PackQ4Fn = int64_t (*)(const PackQ4&, int64_t panel_begin, int64_t panel_end);

}  // namespace taut

// Portable int4 tiles.
#pragma once
#include "kernels/linear_q4_layout.h"

namespace taut::TAUT_ISA_NS {
namespace {

struct ScalarQ4 : Q4Layout {
  static void row(const int8_t* x, const uint8_t* w, int32_t octets, int32_t* dots) {
    for (int c = 0; c < kPanel; ++c) dots[c] = 0;
    for (int32_t j = 0; j < octets; ++j, x += 8, w += kPanel * 4) {
      for (int c = 0; c < kPanel; ++c) {
        for (int b = 0; b < 4; ++b) dots[c] += (w[c * 4 + b] & 15) * x[b] + (w[c * 4 + b] >> 4) * x[4 + b];
      }
    }
  }

  template <int R>
  static void tile(const LinearQ8& a, const Span& s, const Tile& t) {
    const int32_t group = a.pieces.begin[1];
    for (int32_t piece = s.first_piece; piece <= s.last_piece; ++piece) {
      const Part part = part_of(a, s, t, piece);
      const uint8_t* w = t.w + bytes(a, part.begin - s.begin);
      const f16 *scales = reinterpret_cast<const f16*>(w + int64_t(group) * 32), *offsets = scales + kPanel;
      for (int r = 0; r < R; ++r) {
        const int64_t row_bytes = r * a.x_row_bytes;
        row(reinterpret_cast<const int8_t*>(t.x + row_bytes) + part.begin, w, group / 8, t.dots);
        const float scale = float_at(part.scale + row_bytes),
                    factor = offset_factor(part.scale + row_bytes, part.sum + row_bytes);
        float* acc = t.acc + r * kPanel;
        for (int c = 0; c < kPanel; ++c) {
          acc[c] = __builtin_fmaf(float(t.dots[c]) * scale, to_f32(scales[c]), acc[c]);
          acc[c] = __builtin_fmaf(factor, to_f32(offsets[c]), acc[c]);
        }
      }
    }
  }
};

}  // namespace
}  // namespace taut::TAUT_ISA_NS

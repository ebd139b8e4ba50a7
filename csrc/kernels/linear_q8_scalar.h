// Portable tiles: the integer dot product in loops that a compiler can vectorize.
#pragma once
#include "linear_q8_driver.h"

namespace taut::TAUT_ISA_NS {
namespace {

struct Scalar : Q8Layout {
  static constexpr int kGroupTiles = 4;
  static constexpr int kSingleK = 256, kSharedK = 256;

  static void row(const int8_t* x, const uint8_t* w, int32_t quads, int32_t* dots) {
    for (int32_t q = 0; q < quads; ++q, x += 4, w += kPanel * 4) {
      const int16_t x0 = x[0], x1 = x[1], x2 = x[2], x3 = x[3];
      for (int c = 0; c < kPanel; ++c) {
        dots[c] += (w[c * 4] * x0 + w[c * 4 + 1] * x1) + (w[c * 4 + 2] * x2 + w[c * 4 + 3] * x3);
      }
    }
  }

  template <int R>
  static void tile(const LinearQ8& a, const Span& s, const Tile& t) {
    for (int32_t piece = s.first_piece; piece <= s.last_piece; ++piece) {
      const Part part = part_of(a, s, t, piece);
      for (int r = 0; r < R; ++r) {
        int32_t* dots = t.dots + r * kPanel;
        if (part.starts) {
          int32_t sum;
          __builtin_memcpy(&sum, part.sum + r * a.x_row_bytes, 4);
          for (int c = 0; c < kPanel; ++c) dots[c] = sum;
        }
        row(reinterpret_cast<const int8_t*>(t.x + r * a.x_row_bytes) + part.begin, t.w + int64_t(part.begin - s.begin) * kPanel,
            (part.end - part.begin) / 4, dots);
        if (!part.ends) continue;
        float scale;
        __builtin_memcpy(&scale, part.scale + r * a.x_row_bytes, 4);
        float* acc = t.acc + r * kPanel;
        if (part.group_scale == nullptr) {
          for (int c = 0; c < kPanel; ++c) acc[c] = __builtin_fmaf(float(dots[c]), scale, acc[c]);
        } else {
          for (int c = 0; c < kPanel; ++c) acc[c] = __builtin_fmaf(float(dots[c]) * scale, part.group_scale[c], acc[c]);
        }
      }
    }
  }
};

}  // namespace
}  // namespace taut::TAUT_ISA_NS

// AVX-VNNI int8 tiles: up to 6 rows x 2 registers of 8 columns, u8 weights times broadcast s8 activations. Twelve sums, two registers of
// weights and a broadcast are what sixteen registers hold.
#pragma once
#include "kernels/dot_avxvnni.h"
#include "kernels/finish_avx2.h"
#include "kernels/linear_q8_driver.h"

namespace taut::TAUT_ISA_NS {
namespace {

inline const __m256i& memory(const void* p) { return *static_cast<const __m256i*>(p); }

inline __m256i broadcast4(const uint8_t* x) {
  int32_t bytes;
  __builtin_memcpy(&bytes, x, 4);
  return _mm256_set1_epi32(bytes);
}

inline __m256i load_bytes(const uint8_t* w) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w)); }

// Registers of 8 columns in a strip.
template <int R>
constexpr int kStrip = R == 1   ? 8
                       : R == 2 ? 4
                                : 2;

// dot += the four inputs at x0 (rows 0 to 2) and x3 times C registers of weights.
template <int R, int C>
[[gnu::always_inline]] inline void multiply(const uint8_t* x0, const uint8_t* x3, int64_t stride, const __m256i (&w)[C],
                                            __m256i (&dot)[R][C]) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const uint8_t* x = r < 3 ? x0 + r * stride : x3 + (r - 3) * stride;
#pragma GCC unroll 4
    for (int c = 0; c < C; c += 2) dot4(dot[r][c], dot[r][c + 1], w[c], w[c + 1], x);
  }
}

struct AvxVnni : Q8Layout {
  static constexpr int kGroupTiles = 4;
  static constexpr int kSingleK = 128, kSharedK = 128;  // 8 KB of weights

  template <int R, int C>
  [[gnu::always_inline]] static inline void start(const LinearQ8& a, const Part& part, const int32_t* dots,
                                                  __m256i (&dot)[R][C]) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const __m256i sum = broadcast4(part.sum + r * a.x_row_bytes);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) dot[r][c] = part.starts ? sum : memory(dots + r * kPanel + c * 8);
    }
  }

  template <int R, int C, bool kFetch>
  [[gnu::always_inline]] static inline void strip(const LinearQ8& a, const Part& part, const Tile& t, const uint8_t* w,
                                                  int column) {
    __m256i dot[R][C];
    start(a, part, t.dots + column, dot);
    const int64_t stride = a.x_row_bytes, bytes = int64_t(part.end - part.begin) * kPanel;
    const uint8_t *x0 = t.x + part.begin, *x3 = x0 + 3 * stride;
    const uint8_t* ahead = w - column * 4 + (R <= 2 ? 4096 : 8192) + bytes / kPanel * column;
    for (const uint8_t* end = w + bytes; w != end; w += kPanel * 4, x0 += 4, x3 += 4) {
#pragma GCC unroll 4
      for (int c = 0; kFetch && c < C; c += 2) prefetch(ahead + c * 32);
      ahead += C * 32;
      __m256i weights[C];
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) weights[c] = load_bytes(w + c * 32);
      multiply<R, C>(x0, x3, stride, weights, dot);
    }
    const float* group_scale = part.group_scale == nullptr ? nullptr : part.group_scale + column;
    finish_piece<kPanel>({part.ends, part.scale, stride, group_scale, t.acc + column, t.dots + column}, dot);
  }

  template <int R>
  [[gnu::noinline]] static void tile(const LinearQ8& a, const Span& s, const Tile& t) {
    constexpr int C = kStrip<R>;
    for (int32_t piece = s.first_piece; piece <= s.last_piece; ++piece) {
      const Part part = part_of(a, s, t, piece);
      const uint8_t* w = t.w + int64_t(part.begin - s.begin) * kPanel;
      for (int column = 0; column < kPanel; column += C * 8) {
        if (column >= 16 * t.fetch_begin && column < 16 * t.fetch_end) {
          strip<R, C, true>(a, part, t, w + column * 4, column);
        } else {
          strip<R, C, false>(a, part, t, w + column * 4, column);
        }
      }
    }
  }
};

}  // namespace
}  // namespace taut::TAUT_ISA_NS

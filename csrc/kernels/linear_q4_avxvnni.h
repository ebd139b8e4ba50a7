// AVX-VNNI int4 tiles: two k-quads out of each 32 bytes.
#pragma once
#include "kernels/linear_q4_layout.h"
#include "kernels/linear_q8_avxvnni.h"
#include "kernels/nibbles_avx2.h"

namespace taut::TAUT_ISA_NS {
namespace {

struct AvxVnniQ4 : Q4Layout {
  // R rows of one group times a strip; `w` and `scales` at the strip's first column.
  template <int R, int C, bool kFetch>
  [[gnu::always_inline]] static inline void strip(const LinearQ8& a, const Part& part, const Tile& t, const uint8_t* w,
                                                  const uint8_t* scales, int column) {
    __m256i dot[R][C], weights[C];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) dot[r][c] = _mm256_setzero_si256();
    }
    const int64_t stride = a.x_row_bytes, bytes = int64_t(part.end - part.begin) * 32;
    const uint8_t *x0 = t.x + part.begin, *x3 = x0 + 3 * stride;
    const uint8_t* ahead = w - column * 4 + (R <= 2 ? 4096 : 8192) + bytes / kPanel * column;
    for (const uint8_t* end = w + bytes; w != end; w += kPanel * 4, x0 += 8, x3 += 8) {
#pragma GCC unroll 4
      for (int c = 0; kFetch && c < C; c += 2) prefetch(ahead + c * 32);
      ahead += C * 32;
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) weights[c] = low_nibbles(w + c * 32);
      multiply<R, C>(x0, x3, stride, weights, dot);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) weights[c] = high_nibbles(w + c * 32);
      multiply<R, C>(x0 + 4, x3 + 4, stride, weights, dot);
    }
    finish(a, part, t.acc + column, scales, dot);
  }

  template <int R, int C>
  [[gnu::always_inline]] static inline void finish(const LinearQ8& a, const Part& part, float* acc, const uint8_t* scales,
                                                   const __m256i (&dot)[R][C]) {
    const auto widen8 = [](const uint8_t* halves) {
      return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(halves)));
    };
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      const __m256 d = widen8(scales + c * 16), o = widen8(scales + kPanel * 2 + c * 16);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const uint8_t *scale = part.scale + r * a.x_row_bytes, *sum = part.sum + r * a.x_row_bytes;
        float* to = acc + r * kPanel + c * 8;
        const __m256 scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(dot[r][c]), _mm256_set1_ps(float_at(scale)));
        const __m256 factor = _mm256_set1_ps(offset_factor(scale, sum));
        _mm256_store_ps(to, _mm256_fmadd_ps(factor, o, _mm256_fmadd_ps(scaled, d, _mm256_load_ps(to))));
      }
    }
  }

  template <int R>
  [[gnu::noinline]] static void tile(const LinearQ8& a, const Span& s, const Tile& t) {
    constexpr int C = R <= 2 ? 4 : 2;
    for (int32_t piece = s.first_piece; piece <= s.last_piece; ++piece) {
      const Part part = part_of(a, s, t, piece);
      const uint8_t *w = t.w + bytes(a, part.begin - s.begin), *scales = w + int64_t(part.end - part.begin) * 32;
      for (int column = 0; column < kPanel; column += C * 8) {
        if (column >= 16 * t.fetch_begin && column < 16 * t.fetch_end) {
          strip<R, C, true>(a, part, t, w + column * 4, scales + column * 2, column);
        } else {
          strip<R, C, false>(a, part, t, w + column * 4, scales + column * 2, column);
        }
      }
    }
  }
};

}  // namespace
}  // namespace taut::TAUT_ISA_NS

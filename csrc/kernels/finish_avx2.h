// The end of a piece in every AVX2 tile of the int8 linear, AVX-VNNI's too.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace taut::TAUT_ISA_NS {
namespace {

// Where a tile's dot products go: into sums, or to `dots` where the span ends inside the piece.
struct Ending {
  bool ends;
  const uint8_t* scale;      // of row 0
  int64_t scale_bytes;       // from one row's to the next's
  const float* group_scale;  // of the weights' columns, or null
  float* acc;
  int32_t* dots;
};

// R rows, kStride sums apart, of C * 8 columns.
template <int kStride, int R, int C>
[[gnu::always_inline]] inline void finish_piece(const Ending& to, const __m256i (&dot)[R][C]) {
  if (!to.ends) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) _mm256_store_si256(reinterpret_cast<__m256i*>(to.dots + r * kStride + c * 8), dot[r][c]);
    }
  } else if (to.group_scale == nullptr) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const __m256 scale = _mm256_broadcast_ss(reinterpret_cast<const float*>(to.scale + r * to.scale_bytes));
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) {
        float* sum = to.acc + r * kStride + c * 8;
        _mm256_store_ps(sum, _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[r][c]), scale, _mm256_load_ps(sum)));
      }
    }
  } else {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const __m256 scale = _mm256_broadcast_ss(reinterpret_cast<const float*>(to.scale + r * to.scale_bytes));
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) {
        float* sum = to.acc + r * kStride + c * 8;
        const __m256 scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(dot[r][c]), scale);
        _mm256_store_ps(sum, _mm256_fmadd_ps(scaled, _mm256_loadu_ps(to.group_scale + c * 8), _mm256_load_ps(sum)));
      }
    }
  }
}

}  // namespace
}  // namespace taut::TAUT_ISA_NS

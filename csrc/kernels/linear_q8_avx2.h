// AVX2 tiles for few rows: signed weights, whose sign goes to the activations so that vpmaddubsw, which multiplies unsigned by signed
// bytes and saturates at 16 bits, stays exact: |w| * |q| <= 127 * 127, and two of them fit.
//
// Many rows take linear_q8_avx2_many.h.
#pragma once
#include <immintrin.h>

#include "kernels/finish_avx2.h"
#include "kernels/linear_q8_driver.h"

namespace taut::TAUT_ISA_NS {
namespace {

alignas(32) const int16_t kOnes[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
alignas(32) const uint32_t kFlip[8] = {0x80808080, 0x80808080, 0x80808080, 0x80808080,
                                       0x80808080, 0x80808080, 0x80808080, 0x80808080};

inline const __m256i& memory(const void* p) { return *static_cast<const __m256i*>(p); }

// Constants are memory operands on purpose: the accumulators leave no register for them.
inline __m256i signed_weights(const uint8_t* w) {
  __m256i out, packed = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w));
  asm("vpxor %2, %1, %0" : "=x"(out) : "x"(packed), "m"(memory(kFlip)));
  return out;
}

inline __m256i broadcast4(const uint8_t* x) {
  int32_t bytes;
  __builtin_memcpy(&bytes, x, 4);
  return _mm256_set1_epi32(bytes);
}

// Again for every strip: six of them and twelve accumulators are more than there are registers, and a spill costs more than a load.
inline __m256i broadcast4_again(const uint8_t* x) {
  __m256i out;
  asm volatile("vpbroadcastd %1, %0" : "=x"(out) : "m"(*reinterpret_cast<const int32_t*>(x)));
  return out;
}

// dot += q * w, four products a lane; `magnitude` is |w|. One asm block: GCC otherwise reassociates sums over the unrolled loop and
// spills the accumulators.
inline void multiply_add(__m256i& dot, __m256i w, __m256i magnitude, __m256i q) {
  __m256i t;
  asm("vpsignb %2, %4, %1\n\tvpmaddubsw %1, %3, %1\n\tvpmaddwd %5, %1, %1\n\tvpaddd %1, %0, %0"
      : "+x"(dot), "=&x"(t)
      : "x"(w), "x"(magnitude), "x"(q), "m"(memory(kOnes)));
}

struct Avx2 : Q8Layout {
  static constexpr int kGroupTiles = 4;
  static constexpr int kSingleK = 128, kSharedK = 128;  // 8 KB of weights

  template <int R, int C>
  [[gnu::always_inline]] static inline void start(const Part& part, const int32_t* dots, __m256i (&dot)[R][C]) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) {
        dot[r][c] = part.starts ? _mm256_setzero_si256() : memory(dots + r * kPanel + c * 8);
      }
    }
  }

  // R rows x C * 8 columns of one piece.
  template <int R, int C, bool kFetch>
  [[gnu::always_inline]] static inline void strip(const LinearQ8& a, const Part& part, const Tile& t, const uint8_t* w,
                                                  int column) {
    __m256i dot[R][C];
    start(part, t.dots + column, dot);
    const int64_t stride = a.x_row_bytes;
    const uint8_t* x0 = t.x + part.begin;
    const uint8_t* x3 = x0 + 3 * stride;  // two bases: row strides fit an addressing mode
    const int64_t bytes = int64_t(part.end - part.begin) * kPanel;
    // This strip's share of what comes a span or half of one later, in address order: fetching its own columns of it instead, line by
    // line a k-quad apart, halves the bandwidth.
    const uint8_t* ahead = w - column * 4 + (R <= 2 ? 4096 : 8192) + bytes / kPanel * column;
    for (const uint8_t* end = w + bytes; w != end; w += kPanel * 4, x0 += 4, x3 += 4) {
#pragma GCC unroll 4
      for (int c = 0; kFetch && c < C; c += 2) prefetch(ahead + c * 32);
      ahead += C * 32;
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) {
        const __m256i weights = signed_weights(w + c * 32), magnitude = _mm256_abs_epi8(weights);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          const uint8_t* x = r < 3 ? x0 + r * stride : x3 + (r - 3) * stride;
          multiply_add(dot[r][c], weights, magnitude, R < 5 ? broadcast4(x) : broadcast4_again(x));
        }
      }
    }
    const float* group_scale = part.group_scale == nullptr ? nullptr : part.group_scale + column;
    finish_piece<kPanel>({part.ends, part.scale, stride, group_scale, t.acc + column, t.dots + column}, dot);
  }

  template <int R>
  [[gnu::noinline]] static void tile(const LinearQ8& a, const Span& s, const Tile& t) {
    constexpr int kColumns = R == 1 ? 8 : R == 2 ? 4 : 2;
    for (int32_t piece = s.first_piece; piece <= s.last_piece; ++piece) {
      const Part part = part_of(a, s, t, piece);
      const uint8_t* w = t.w + int64_t(part.begin - s.begin) * kPanel;
      for (int column = 0; column < kPanel; column += kColumns * 8) {
        const bool fetch = column >= 16 * t.fetch_begin && column < 16 * t.fetch_end;
        if (fetch) {
          strip<R, kColumns, true>(a, part, t, w + column * 4, column);
        } else {
          strip<R, kColumns, false>(a, part, t, w + column * 4, column);
        }
      }
    }
  }
};

}  // namespace
}  // namespace taut::TAUT_ISA_NS

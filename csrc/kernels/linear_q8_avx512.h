// AVX-512 VNNI tiles: up to 6 rows x 4 registers of 16 columns, u8 weights times broadcast s8 activations.
//
// Six rows keep 24 sums, 4 weight registers and a broadcast in the 32 registers; the broadcast is its own load because an embedded
// one costs a tenth of the rate (Zen 5).
#pragma once
// GCC 12 warns of its own _mm512_undefined_* (bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#if defined(TAUT_EMULATE)
#include "tests/emulate_avx512.h"
#else
#include <immintrin.h>
#endif

#include "linear_q8_driver.h"

namespace taut::TAUT_ISA_NS {
namespace {

// dot += u8 w * s8 x, four products a lane. The instruction is written out because GCC 12 keeps an array of _mm512_dpbusd_epi32
// accumulators on the stack.
inline void dot4(__m512i& dot, __m512i w, __m512i x) {
#if defined(TAUT_EMULATE)
  dot = simde_mm512_dpbusd_epi32(dot, w, x);
#else
  asm("vpdpbusd %2, %1, %0" : "+v"(dot) : "v"(w), "v"(x));
#endif
}

inline __m512i broadcast4(const uint8_t* x) {
  int32_t bytes;
  __builtin_memcpy(&bytes, x, 4);
  return _mm512_set1_epi32(bytes);
}

struct Avx512 : Q8Layout {
  static constexpr int kGroupTiles = 4;
  static constexpr int kSingleK = 4096, kSharedK = 128;  // shared: 8 KB of weights stay in L1 for the other tiles
  static constexpr int kRegisters = 4;

  template <int R>
  [[gnu::always_inline]] static inline void start(const LinearQ8& a, const Part& part, const int32_t* dots,
                                                  __m512i (&dot)[R][kRegisters]) {
    if (part.starts) {
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const __m512i sum = broadcast4(part.sum + r * a.x_row_bytes);
#pragma GCC unroll 4
        for (int c = 0; c < kRegisters; ++c) dot[r][c] = sum;
      }
    } else {
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
        for (int c = 0; c < kRegisters; ++c) dot[r][c] = _mm512_load_si512(dots + r * kPanel + c * 16);
      }
    }
  }

  template <int R>
  [[gnu::always_inline]] static inline void finish(const LinearQ8& a, const Part& part, float* acc, int32_t* dots,
                                                   __m512i (&dot)[R][kRegisters]) {
    if (part.ends && part.group_scale == nullptr) {
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        float value;
        __builtin_memcpy(&value, part.scale + r * a.x_row_bytes, 4);
        const __m512 scale = _mm512_set1_ps(value);
#pragma GCC unroll 4
        for (int c = 0; c < kRegisters; ++c) {
          float* sum = acc + r * kPanel + c * 16;
          _mm512_store_ps(sum, _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[r][c]), scale, _mm512_load_ps(sum)));
        }
      }
    } else if (part.ends) {
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        float value;
        __builtin_memcpy(&value, part.scale + r * a.x_row_bytes, 4);
        const __m512 scale = _mm512_set1_ps(value);
#pragma GCC unroll 4
        for (int c = 0; c < kRegisters; ++c) {
          float* sum = acc + r * kPanel + c * 16;
          const __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(dot[r][c]), scale);
          _mm512_store_ps(sum, _mm512_fmadd_ps(scaled, _mm512_loadu_ps(part.group_scale + c * 16), _mm512_load_ps(sum)));
        }
      }
    } else {
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
        for (int c = 0; c < kRegisters; ++c) _mm512_store_si512(dots + r * kPanel + c * 16, dot[r][c]);
      }
    }
  }

  // Prefetches kLines lines a k-quad, in address order: all four where one tile streams alone, its share of a later span where a group
  // shares the work. A group looks further ahead, because it consumes in bursts.
  template <int R, int kLines>
  [[gnu::always_inline]] static inline void run_part(const LinearQ8& a, const Part& part, const Tile& t, const uint8_t* w) {
    __m512i dot[R][kRegisters], weights[kRegisters];
    start<R>(a, part, t.dots, dot);
    const int64_t stride = a.x_row_bytes;
    const uint8_t* x0 = t.x + part.begin;
    const uint8_t* x3 = x0 + 3 * stride;  // two bases: row strides fit an addressing mode
    const int64_t bytes = int64_t(part.end - part.begin) * kPanel;
    const uint8_t* ahead = w + (kLines == 4 ? 4096 : 16384) + bytes / 4 * t.fetch_begin;
    for (const uint8_t* end = w + bytes; w != end; w += kPanel * 4, x0 += 4, x3 += 4) {
      if (kLines > 0) {
#pragma GCC unroll 4
        for (int i = 0; i < kLines; ++i) prefetch(ahead + 64 * i);
        ahead += 64 * kLines;
      }
#pragma GCC unroll 4
      for (int c = 0; c < kRegisters; ++c) weights[c] = _mm512_loadu_si512(w + c * 64);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const __m512i x = broadcast4(r < 3 ? x0 + r * stride : x3 + (r - 3) * stride);
#pragma GCC unroll 4
        for (int c = 0; c < kRegisters; ++c) dot4(dot[r][c], weights[c], x);
      }
    }
    finish<R>(a, part, t.acc, t.dots, dot);
  }

  template <int R>
  [[gnu::noinline]] static void tile(const LinearQ8& a, const Span& s, const Tile& t) {
    const int lines = t.fetch_end - t.fetch_begin;
    for (int32_t piece = s.first_piece; piece <= s.last_piece; ++piece) {
      const Part part = part_of(a, s, t, piece);
      const uint8_t* w = t.w + int64_t(part.begin - s.begin) * kPanel;
      switch (lines) {
        case 0:
          run_part<R, 0>(a, part, t, w);
          break;
        case 1:
          run_part<R, 1>(a, part, t, w);
          break;
        case 2:
          run_part<R, 2>(a, part, t, w);
          break;
        default:
          run_part<R, 4>(a, part, t, w);
      }
    }
  }
};

}  // namespace
}  // namespace taut::TAUT_ISA_NS

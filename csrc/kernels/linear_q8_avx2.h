// AVX2 tiles: activations are int16, u8 weights are widened to int16 by a byte shuffle, vpmaddwd adds two products exactly.
//
// The ceiling is 2 vpmaddwd (and 2 vpaddd beside them) a cycle: 32 multiply-adds. Shuffling costs 2 of the 2 + 4 * rows operations
// per weight register, so from kWideTiles tiles on a strip of 16 columns is widened once into L1 and shared.
#pragma once
#include <immintrin.h>

#include "linear_q8_driver.h"

namespace taut::TAUT_ISA_NS {
namespace {

// Bytes (k0, k1) and (k2, k3) of each 4-byte column as zero-extended int16 pairs.
alignas(32) const uint8_t kWidenLow[32] = {0, 128, 1, 128, 4, 128, 5, 128, 8, 128, 9, 128, 12, 128, 13, 128,
                                           0, 128, 1, 128, 4, 128, 5, 128, 8, 128, 9, 128, 12, 128, 13, 128};
alignas(32) const uint8_t kWidenHigh[32] = {2, 128, 3, 128, 6, 128, 7, 128, 10, 128, 11, 128, 14, 128, 15, 128,
                                            2, 128, 3, 128, 6, 128, 7, 128, 10, 128, 11, 128, 14, 128, 15, 128};

// The mask is a memory operand on purpose: 12 accumulators leave no register for it.
inline __m256i widen8(const uint8_t* w, const uint8_t (&mask)[32]) {
  __m256i wide, packed = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w));
  asm("vpshufb %2, %1, %0" : "=x"(wide) : "x"(packed), "m"(*reinterpret_cast<const __m256i*>(mask)));
  return wide;
}

inline __m256i broadcast4(const uint8_t* x) {
  int32_t bytes;
  __builtin_memcpy(&bytes, x, 4);
  return _mm256_set1_epi32(bytes);
}

// dot += x * w in one asm block: GCC otherwise reassociates sums over the unrolled loop and spills the accumulators.
inline void multiply_add(__m256i& dot, __m256i w, __m256i x) {
  __m256i product;
  asm("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+x"(dot), "=&x"(product) : "x"(w), "x"(x));
}

struct Avx2 {
  static constexpr int kActBytes = 2;
  static constexpr int kGroupTiles = 16;
  static constexpr int kSingleK = 128, kSharedK = 128;  // 8 KB of weights
  static constexpr int kWideTiles = 5, kWideColumns = 16, kWideK = 512;
  static constexpr int kWideBytes = kWideK * kWideColumns * 2;

  template <int R, int C>
  [[gnu::always_inline]] static inline void start(const LinearQ8& a, const Part& part, const int32_t* dots,
                                                  __m256i (&dot)[R][C]) {
    if (part.starts) {
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) dot[r][c] = broadcast4(part.sum + r * a.x_row_bytes);
      }
    } else {
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) dot[r][c] = _mm256_load_si256(reinterpret_cast<const __m256i*>(dots + r * kPanel + c * 8));
      }
    }
  }

  template <int R, int C>
  [[gnu::always_inline]] static inline void finish(const LinearQ8& a, const Part& part, float* acc, int32_t* dots,
                                                   __m256i (&dot)[R][C]) {
    if (part.ends) {
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const __m256 scale = _mm256_broadcast_ss(reinterpret_cast<const float*>(part.scale + r * a.x_row_bytes));
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) {
          float* sum = acc + r * kPanel + c * 8;
          _mm256_store_ps(sum, _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[r][c]), scale, _mm256_load_ps(sum)));
        }
      }
    } else {
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) _mm256_store_si256(reinterpret_cast<__m256i*>(dots + r * kPanel + c * 8), dot[r][c]);
      }
    }
  }

  // One k-pair: C registers of widened weights against R rows. x3 is row 3: two bases, so that row strides fit an addressing mode.
  template <int R, int C>
  [[gnu::always_inline]] static inline void pair(const __m256i (&w)[C], const uint8_t* x0, const uint8_t* x3, int64_t stride,
                                                 __m256i (&dot)[R][C]) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const __m256i x = broadcast4(r < 3 ? x0 + r * stride : x3 + (r - 3) * stride);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) multiply_add(dot[r][c], w[c], x);
    }
  }

  // R rows x C * 8 columns of one piece from packed weights.
  template <int R, int C, bool kFetch>
  [[gnu::always_inline]] static inline void packed_strip(const LinearQ8& a, const Part& part, const Tile& t, const uint8_t* w,
                                                         int column) {
    __m256i dot[R][C], wide[C];
    start(a, part, t.dots + column, dot);
    const int64_t stride = a.x_row_bytes;
    const uint8_t* x0 = t.x + part.begin * kActBytes;
    const uint8_t* x3 = x0 + 3 * stride;
    const int64_t bytes = int64_t(part.end - part.begin) * kPanel;
    // This strip's share of what comes a span or half of one later, in address order: fetching its own columns of it instead, line by
    // line a k-quad apart, halves the bandwidth.
    const uint8_t* ahead = w - column * 4 + (R <= 2 ? 4096 : 8192) + bytes / kPanel * column;
    for (const uint8_t* end = w + bytes; w != end; w += kPanel * 4, x0 += 8, x3 += 8) {
#pragma GCC unroll 4
      for (int c = 0; kFetch && c < C; c += 2) prefetch(ahead + c * 32);
      ahead += C * 32;
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) wide[c] = widen8(w + c * 32, kWidenLow);
      pair(wide, x0, x3, stride, dot);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) wide[c] = widen8(w + c * 32, kWidenHigh);
      pair(wide, x0 + 4, x3 + 4, stride, dot);
    }
    finish(a, part, t.acc + column, t.dots + column, dot);
  }

  // The inner loop of a full tile: `pairs` k-pairs, even, of widened weights against six rows. One block of assembler, because the loop
  // runs at the front end's limit (32 instructions of work in 6 cycles) and every register move that a compiler adds costs.
  [[gnu::always_inline]] static inline void six_rows(const uint8_t* w, const uint8_t* x0, const uint8_t* x3, int64_t stride,
                                                     int64_t pairs, __m256i (&dot)[6][2]) {
#define TAUT_ROW(address, a, b)            \
  "vpbroadcastd " address                  \
  ", %%ymm14\n\t"                          \
  "vpmaddwd %%ymm12, %%ymm14, %%ymm15\n\t" \
  "vpaddd %%ymm15, %" a ", %" a            \
  "\n\t"                                   \
  "vpmaddwd %%ymm13, %%ymm14, %%ymm14\n\t" \
  "vpaddd %%ymm14, %" b ", %" b "\n\t"
#define TAUT_PAIR(w_at, x_at)                                                                                              \
  "vmovdqa " w_at                                                                                                          \
  "(%%rax), %%ymm12\n\t"                                                                                                   \
  "vmovdqa 32+" w_at "(%%rax), %%ymm13\n\t" TAUT_ROW(x_at "(%%rcx)", "0", "1") TAUT_ROW(x_at "(%%rcx,%[s])", "2", "3")     \
      TAUT_ROW(x_at "(%%rcx,%[s],2)", "4", "5") TAUT_ROW(x_at "(%%rdx)", "6", "7") TAUT_ROW(x_at "(%%rdx,%[s])", "8", "9") \
          TAUT_ROW(x_at "(%%rdx,%[s],2)", "10", "11")
    asm volatile(
        "mov %[w], %%rax\n\t"
        "mov %[x0], %%rcx\n\t"
        "mov %[x3], %%rdx\n\t"
        "mov %[n], %%rdi\n\t"
        "1:\n\t" TAUT_PAIR("0", "0") TAUT_PAIR("64", "4")
        "add $128, %%rax\n\t"
        "add $8, %%rcx\n\t"
        "add $8, %%rdx\n\t"
        "sub $2, %%rdi\n\t"
        "jnz 1b\n\t"
        : "+x"(dot[0][0]), "+x"(dot[0][1]), "+x"(dot[1][0]), "+x"(dot[1][1]), "+x"(dot[2][0]), "+x"(dot[2][1]), "+x"(dot[3][0]),
          "+x"(dot[3][1]), "+x"(dot[4][0]), "+x"(dot[4][1]), "+x"(dot[5][0]), "+x"(dot[5][1])
        : [w] "r"(w), [x0] "r"(x0), [x3] "r"(x3), [n] "r"(pairs), [s] "r"(stride)
        : "rax", "rcx", "rdx", "rdi", "xmm12", "xmm13", "xmm14", "xmm15", "cc", "memory");
#undef TAUT_PAIR
#undef TAUT_ROW
  }

  // R rows x 16 columns of one piece from widened weights.
  template <int R>
  [[gnu::always_inline]] static inline void wide_strip(const LinearQ8& a, const Part& part, const Tile& t, const uint8_t* w) {
    __m256i dot[R][2];
    start(a, part, t.dots, dot);
    const int64_t stride = a.x_row_bytes;
    const uint8_t* x0 = t.x + part.begin * kActBytes;
    const uint8_t* x3 = x0 + 3 * stride;
    const int64_t pairs = int64_t(part.end - part.begin) / 2;
    if constexpr (R == 6) {
      six_rows(w, x0, x3, stride, pairs, dot);
    } else {
      for (const uint8_t* const end = w + pairs * 64; w != end; w += 128, x0 += 8, x3 += 8) {
        const __m256i* v = reinterpret_cast<const __m256i*>(w);
        const __m256i low[2] = {_mm256_load_si256(v), _mm256_load_si256(v + 1)};
        pair(low, x0, x3, stride, dot);
        const __m256i high[2] = {_mm256_load_si256(v + 2), _mm256_load_si256(v + 3)};
        pair(high, x0 + 4, x3 + 4, stride, dot);
      }
    }
    finish(a, part, t.acc, t.dots, dot);
  }

  // [quads][16 of 64 columns][4] bytes to [2 * quads][16][2] int16.
  static void widen(const uint8_t* w, int32_t quads, uint8_t* wide) {
    for (int32_t q = 0; q < quads; ++q, w += kPanel * 4, wide += 128) {
      __m256i* to = reinterpret_cast<__m256i*>(wide);
      _mm256_store_si256(to, widen8(w, kWidenLow));
      _mm256_store_si256(to + 1, widen8(w + 32, kWidenLow));
      _mm256_store_si256(to + 2, widen8(w, kWidenHigh));
      _mm256_store_si256(to + 3, widen8(w + 32, kWidenHigh));
    }
  }

  template <int R, int kPath>
  [[gnu::noinline]] static void tile(const LinearQ8& a, const Span& s, const Tile& t) {
    constexpr int kColumns = R == 1 ? 8 : R == 2 ? 4 : 2;
    for (int32_t piece = s.first_piece; piece <= s.last_piece; ++piece) {
      const Part part = part_of(a, s, t, piece);
      if (kPath == 1) {
        wide_strip<R>(a, part, t, t.w + int64_t(part.begin - s.begin) * 32);
        continue;
      }
      const uint8_t* w = t.w + int64_t(part.begin - s.begin) * kPanel;
      for (int column = 0; column < kPanel; column += kColumns * 8) {
        const bool fetch = column >= 16 * t.fetch_begin && column < 16 * t.fetch_end;
        if (fetch) {
          packed_strip<R, kColumns, true>(a, part, t, w + column * 4, column);
        } else {
          packed_strip<R, kColumns, false>(a, part, t, w + column * 4, column);
        }
      }
    }
  }
};

}  // namespace
}  // namespace taut::TAUT_ISA_NS

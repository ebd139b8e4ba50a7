// AVX2 int4 tiles for few rows. Four bits times eight are so small that vpmaddubsw is exact and eight of its sums still fit 16 bits:
// 8 * 2 * 15 * 127 = 30,480. So 32 inputs are summed in 16 bits before they are widened.
//
// Many rows take linear_q4_avx2_many.h.
#pragma once
#include "kernels/linear_q4_layout.h"
#include "kernels/linear_q8_avx2.h"
#include "kernels/nibbles_avx2.h"

namespace taut::TAUT_ISA_NS {
namespace {

constexpr int kBlock = 32;  // inputs summed in 16 bits

// dot += u * q in 16 bits, two products a lane; in assembler for the reason that linear_q8_avx2.h gives.
inline void multiply_add16(__m256i& dot, __m256i u, __m256i q) {
  __m256i t;
  asm("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0" : "+x"(dot), "=&x"(t) : "x"(u), "x"(q));
}
// Sums of 16 bits to sums of 32; the ones stay in memory, because the loop before leaves no register for them.
inline __m256i widen_sums(__m256i dot) {
  __m256i out;
  asm volatile("vpmaddwd %2, %1, %0" : "=x"(out) : "x"(dot), "m"(memory(kOnes)));
  return out;
}

// acc = fma(factor, o, fma(float(dot) * scale, d, acc))
inline void finish_group(float* acc, __m256i dot, __m256 scale, __m256 factor, __m256 d, __m256 o) {
  const __m256 scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(dot), scale);
  _mm256_store_ps(acc, _mm256_fmadd_ps(factor, o, _mm256_fmadd_ps(scaled, d, _mm256_load_ps(acc))));
}

inline __m256 widen8(const uint8_t* halves) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(halves)));
}

// dot[r] = 32 inputs of R = 2..6 rows times 16 columns. All in assembler, because it takes all sixteen registers.
#define TAUT_ROW(x, a, b)                    \
  "vpbroadcastd " x                          \
  ", %%ymm14\n\t"                            \
  "vpmaddubsw %%ymm14, %%ymm12, %%ymm15\n\t" \
  "vpaddw %%ymm15, %" a ", %" a              \
  "\n\t"                                     \
  "vpmaddubsw %%ymm14, %%ymm13, %%ymm14\n\t" \
  "vpaddw %%ymm14, %" b ", %" b "\n\t"
#define TAUT_ROWS2(k) TAUT_ROW(k "(%[x0])", "0", "1") TAUT_ROW(k "(%[x0],%[stride])", "2", "3")
#define TAUT_ROWS3(k) TAUT_ROWS2(k) TAUT_ROW(k "(%[x0],%[stride],2)", "4", "5")
#define TAUT_ROWS4(k) TAUT_ROWS3(k) TAUT_ROW(k "(%[x3])", "6", "7")
#define TAUT_ROWS5(k) TAUT_ROWS4(k) TAUT_ROW(k "(%[x3],%[stride])", "8", "9")
#define TAUT_ROWS6(k) TAUT_ROWS5(k) TAUT_ROW(k "(%[x3],%[stride],2)", "10", "11")
#define TAUT_NIBBLES(shift)                                        \
  "vmovdqu (%[w]), %%ymm12\n\tvmovdqu 32(%[w]), %%ymm13\n\t" shift \
  "vpand %[low], %%ymm12, %%ymm12\n\tvpand %[low], %%ymm13, %%ymm13\n\t"
#define TAUT_ZERO(i) "vpxor %" i ", %" i ", %" i "\n\t"
#define TAUT_OCTETS(rows)                                                                                                    \
  asm volatile(TAUT_ZERO("0") TAUT_ZERO("1") TAUT_ZERO("2") TAUT_ZERO("3") TAUT_ZERO("4") TAUT_ZERO("5") TAUT_ZERO("6")      \
                   TAUT_ZERO("7") TAUT_ZERO("8") TAUT_ZERO("9") TAUT_ZERO("10") TAUT_ZERO("11") "0:\n\t" TAUT_NIBBLES("")    \
                       rows("") TAUT_NIBBLES("vpsrlw $4, %%ymm12, %%ymm12\n\tvpsrlw $4, %%ymm13, %%ymm13\n\t")               \
                           rows("4") "add $256, %[w]\n\tadd $8, %[x0]\n\tadd $8, %[x3]\n\tcmp %[end], %[w]\n\tjne 0b"        \
               : "=&x"(dot[0][0]), "=&x"(dot[0][1]), "=&x"(dot[1][0]), "=&x"(dot[1][1]), "=&x"(dot[2][0]), "=&x"(dot[2][1]), \
                 "=&x"(dot[3][0]), "=&x"(dot[3][1]), "=&x"(dot[4][0]), "=&x"(dot[4][1]), "=&x"(dot[5][0]),                   \
                 "=&x"(dot[5][1]), [w] "+r"(w), [x0] "+r"(x0), [x3] "+r"(x3)                                                 \
               : [stride] "r"(stride), [end] "r"(w + kBlock / 8 * kPanel * 4), [low] "m"(memory(kLowNibbles))                \
               : "xmm12", "xmm13", "xmm14", "xmm15", "cc", "memory")

template <int R>
[[gnu::always_inline]] inline void octets(const uint8_t* w, const uint8_t* x0, const uint8_t* x3, int64_t stride,
                                          __m256i (&dot)[kTileRows][2]) {
  if constexpr (R == 2) TAUT_OCTETS(TAUT_ROWS2);
  if constexpr (R == 3) TAUT_OCTETS(TAUT_ROWS3);
  if constexpr (R == 4) TAUT_OCTETS(TAUT_ROWS4);
  if constexpr (R == 5) TAUT_OCTETS(TAUT_ROWS5);
  if constexpr (R == 6) TAUT_OCTETS(TAUT_ROWS6);
}
#undef TAUT_OCTETS
#undef TAUT_ZERO
#undef TAUT_NIBBLES
#undef TAUT_ROWS6
#undef TAUT_ROWS5
#undef TAUT_ROWS4
#undef TAUT_ROWS3
#undef TAUT_ROWS2
#undef TAUT_ROW

struct Avx2Q4 : Q4Layout {
  // 32 inputs of one row times 32 columns.
  [[gnu::always_inline]] static inline void row_block(const uint8_t* w, const uint8_t* x, __m256i (&dot)[4]) {
#pragma GCC unroll 1
    for (int octet = 0; octet < kBlock / 8; ++octet, w += kPanel * 4, x += 8) {
      const __m256i first = broadcast4(x), second = broadcast4(x + 4);
#pragma GCC unroll 4
      for (int c = 0; c < 4; ++c) {
        multiply_add16(dot[c], low_nibbles(w + c * 32), first);
        multiply_add16(dot[c], high_nibbles(w + c * 32), second);
      }
    }
  }

  // R rows of one group times a strip of 32 (one row) or 16 columns; `w` and `scales` at the strip's first column.
  template <int R, bool kFetch>
  [[gnu::always_inline]] static inline void strip(const LinearQ8& a, const Part& part, const Tile& t, const uint8_t* w,
                                                  const uint8_t* scales, int column) {
    constexpr int C = R == 1 ? 4 : 2, kRows = R == 1 ? 1 : kTileRows;
    const int64_t stride = a.x_row_bytes, bytes = int64_t(part.end - part.begin) * 32;
    const uint8_t *x0 = t.x + part.begin, *x3 = x0 + 3 * stride;
    const uint8_t* ahead = w - column * 4 + (R <= 2 ? 4096 : 8192) + bytes / kPanel * column;
    for (int32_t k = part.begin; k < part.end; k += kBlock, w += kBlock * 32, x0 += kBlock, x3 += kBlock) {
      for (int i = 0; kFetch && i < 2 * C; ++i, ahead += 64) prefetch(ahead);
      __m256i dot[kRows][C];
      if constexpr (R == 1) {
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) dot[0][c] = _mm256_setzero_si256();
        row_block(w, x0, dot[0]);
      } else {
        octets<R>(w, x0, x3, stride, dot);
      }
      const bool first = k == part.begin, last = k + kBlock == part.end;
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
        const __m256 scale = _mm256_set1_ps(float_at(part.scale + r * stride)),
                     factor = _mm256_set1_ps(offset_factor(part.scale + r * stride, part.sum + r * stride));
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) {
          int32_t* sums = t.dots + r * kPanel + column + c * 8;
          __m256i sum = widen_sums(dot[r][c]);
          if (!first) sum = _mm256_add_epi32(sum, memory(sums));
          if (last) {
            finish_group(t.acc + r * kPanel + column + c * 8, sum, scale, factor, widen8(scales + c * 16),
                         widen8(scales + kPanel * 2 + c * 16));
          } else {
            _mm256_store_si256(reinterpret_cast<__m256i*>(sums), sum);
          }
        }
      }
    }
  }

  template <int R>
  [[gnu::noinline]] static void tile(const LinearQ8& a, const Span& s, const Tile& t) {
    constexpr int kColumns = R == 1 ? 32 : 16;
    for (int32_t piece = s.first_piece; piece <= s.last_piece; ++piece) {
      const Part part = part_of(a, s, t, piece);
      const uint8_t *w = t.w + bytes(a, part.begin - s.begin), *scales = w + int64_t(part.end - part.begin) * 32;
      for (int column = 0; column < kPanel; column += kColumns) {
        if (column >= 16 * t.fetch_begin && column < 16 * t.fetch_end) {
          strip<R, true>(a, part, t, w + column * 4, scales + column * 2, column);
        } else {
          strip<R, false>(a, part, t, w + column * 4, scales + column * 2, column);
        }
      }
    }
  }
};

}  // namespace
}  // namespace taut::TAUT_ISA_NS

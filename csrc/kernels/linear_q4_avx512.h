// AVX-512 VNNI int4 tiles: two k-quads out of each 64 bytes, for which the shifter and the masks have ports to spare (Zen 5).
#pragma once
#include "kernels/linear_q4_layout.h"
#include "kernels/linear_q8_avx512.h"

namespace taut::TAUT_ISA_NS {
namespace {

[[maybe_unused]] const uint32_t kLowNibbles = 0x0f0f0f0f;

inline i32x16 lanes(__m512i v) {
#if defined(TAUT_EMULATE)
  i32x16 out;
  __builtin_memcpy(&out, &v, 64);
  return out;
#else
  return {v};
#endif
}

// The low or high nibbles of 64 bytes. Assembler, so that the packed weights are read twice rather than kept in registers that the sums
// need.
inline __m512i low_nibbles(const uint8_t* w) {
#if defined(TAUT_EMULATE)
  return _mm512_and_si512(_mm512_loadu_si512(w), _mm512_set1_epi8(15));
#else
  __m512i out;
  asm volatile("vmovdqu64 %1, %0\n\tvpandd %2%{1to16%}, %0, %0"
               : "=v"(out)
               : "m"(*reinterpret_cast<const __m512i*>(w)), "m"(kLowNibbles));
  return out;
#endif
}
inline __m512i high_nibbles(const uint8_t* w) {
#if defined(TAUT_EMULATE)
  return _mm512_and_si512(_mm512_srli_epi16(_mm512_loadu_si512(w), 4), _mm512_set1_epi8(15));
#else
  __m512i out;
  asm volatile("vpsrlw $4, %1, %0\n\tvpandd %2%{1to16%}, %0, %0"
               : "=v"(out)
               : "m"(*reinterpret_cast<const __m512i*>(w)), "m"(kLowNibbles));
  return out;
#endif
}

struct Avx512Q4 : Q4Layout {
  static constexpr int kRegisters = 4;

  // Four inputs of a row times 64 columns.
  [[gnu::always_inline]] static inline void multiply_row(const uint8_t* x, const __m512i (&u)[kRegisters],
                                                         __m512i (&dot)[kRegisters]) {
#if defined(TAUT_EMULATE)
    for (int c = 0; c < kRegisters; ++c) dot4(dot[c], u[c], broadcast4(x));
#else
    __m512i q;
    asm volatile(
        "vpbroadcastd %9, %4\n\tvpdpbusd %4, %5, %0\n\tvpdpbusd %4, %6, %1\n\tvpdpbusd %4, %7, %2\n\tvpdpbusd %4, %8, %3"
        : "+v"(dot[0]), "+v"(dot[1]), "+v"(dot[2]), "+v"(dot[3]), "=&v"(q)
        : "v"(u[0]), "v"(u[1]), "v"(u[2]), "v"(u[3]), "m"(*reinterpret_cast<const uint32_t*>(x)));
#endif
  }

  template <int R>
  [[gnu::always_inline]] static inline void multiply(const uint8_t* x0, const uint8_t* x3, int64_t stride,
                                                     const __m512i (&u)[kRegisters], __m512i (&dot)[R][kRegisters]) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) multiply_row(r < 3 ? x0 + r * stride : x3 + (r - 3) * stride, u, dot[r]);
  }

  // kLines: 64-byte lines of a later group that are fetched per octet.
  template <int R, int kLines>
  [[gnu::always_inline]] static inline void run_group(const LinearQ8& a, const Part& part, const Tile& t, const uint8_t* w) {
    __m512i dot[R][kRegisters], weights[kRegisters];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < kRegisters; ++c) dot[r][c] = _mm512_setzero_si512();
    }
    const int64_t stride = a.x_row_bytes, bytes = int64_t(part.end - part.begin) * 32;
    const uint8_t *x0 = t.x + part.begin, *x3 = x0 + 3 * stride, *end = w + bytes;
    const uint8_t* ahead = w + (kLines == 4 ? 4096 : 8192) + bytes / 4 * t.fetch_begin;
    for (; w != end; w += kPanel * 4, x0 += 8, x3 += 8) {
#pragma GCC unroll 4
      for (int i = 0; i < kLines; ++i) prefetch(ahead + 64 * i);
      ahead += 64 * kLines;
#pragma GCC unroll 4
      for (int c = 0; c < kRegisters; ++c) weights[c] = low_nibbles(w + c * 64);
      multiply<R>(x0, x3, stride, weights, dot);
#pragma GCC unroll 4
      for (int c = 0; c < kRegisters; ++c) weights[c] = high_nibbles(w + c * 64);
      multiply<R>(x0 + 4, x3 + 4, stride, weights, dot);
    }
    finish<R>(a, part, t, end, dot);
  }

  template <int R>
  [[gnu::always_inline]] static inline void finish(const LinearQ8& a, const Part& part, const Tile& t, const uint8_t* scales,
                                                   const __m512i (&dot)[R][kRegisters]) {
#pragma GCC unroll 4
    for (int c = 0; c < kRegisters; ++c) {
      const f16* values = reinterpret_cast<const f16*>(scales) + 16 * c;
      const f32x16 d = load(values), o = load(values + kPanel);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const uint8_t *scale = part.scale + r * a.x_row_bytes, *sum = part.sum + r * a.x_row_bytes;
        float* acc = t.acc + r * kPanel + 16 * c;
        const f32x16 scaled = mul(to_f32(lanes(dot[r][c])), set1(float_at(scale)));
        store(acc, fma(set1(offset_factor(scale, sum)), o, fma(scaled, d, load(acc))));
      }
    }
  }

  template <int R>
  [[gnu::noinline]] static void tile(const LinearQ8& a, const Span& s, const Tile& t) {
    for (int32_t piece = s.first_piece; piece <= s.last_piece; ++piece) {
      const Part part = part_of(a, s, t, piece);
      const uint8_t* w = t.w + bytes(a, part.begin - s.begin);
      switch (t.fetch_end - t.fetch_begin) {
        case 0:
          run_group<R, 0>(a, part, t, w);
          break;
        case 1:
          run_group<R, 1>(a, part, t, w);
          break;
        case 2:
          run_group<R, 2>(a, part, t, w);
          break;
        default:
          run_group<R, 4>(a, part, t, w);
      }
    }
  }
};

}  // namespace
}  // namespace taut::TAUT_ISA_NS

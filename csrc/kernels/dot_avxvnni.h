// The dot product of AVX-VNNI: u8 times s8, four products a lane, exact.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace taut::TAUT_ISA_NS {
namespace {

// dot += w * x. Written out for the reason that linear_q8_avx512.h gives.
[[gnu::always_inline]] inline void dot4(__m256i& dot, __m256i w, __m256i x) {
#if defined(TAUT_EMULATE_VNNI)  // for a machine without it: the same sums of AVX2
  const __m256i low = _mm256_set1_epi16(255);
  const __m256i even = _mm256_madd_epi16(_mm256_and_si256(w, low), _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8));
  const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(w, 8), _mm256_srai_epi16(x, 8));
  dot = _mm256_add_epi32(dot, _mm256_add_epi32(even, odd));
#else
  asm volatile("%{vex%} vpdpbusd %2, %1, %0" : "+x"(dot) : "x"(w), "x"(x));
#endif
}

// Both sums += w * the four inputs at `x`; the broadcast is inside, because a compiler moves it and then lacks registers.
[[gnu::always_inline]] inline void dot4(__m256i& dot0, __m256i& dot1, __m256i w0, __m256i w1, const uint8_t* x) {
#if defined(TAUT_EMULATE_VNNI)
  int32_t bytes;
  __builtin_memcpy(&bytes, x, 4);
  dot4(dot0, w0, _mm256_set1_epi32(bytes));
  dot4(dot1, w1, _mm256_set1_epi32(bytes));
#else
  __m256i q;
  asm volatile("vpbroadcastd %5, %2\n\t%{vex%} vpdpbusd %2, %3, %0\n\t%{vex%} vpdpbusd %2, %4, %1"
               : "+x"(dot0), "+x"(dot1), "=&x"(q)
               : "x"(w0), "x"(w1), "m"(*reinterpret_cast<const uint32_t*>(x)));
#endif
}

}  // namespace
}  // namespace taut::TAUT_ISA_NS

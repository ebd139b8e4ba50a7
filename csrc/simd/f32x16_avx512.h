// f32x16 on AVX-512 (F, BW, DQ, VL): one zmm.
#pragma once
#if !defined(TAUT_EMULATE)  // a test may bring its own intrinsics
#include <immintrin.h>
#endif

#include <cstdint>

#include "simd/narrow.h"

namespace taut::TAUT_ISA_NS {

struct f32x16 {
  __m512 v;
};
struct i32x16 {
  __m512i v;
};
struct mask16 {
  __mmask16 v;
};

TAUT_FN f32x16 zero() { return {_mm512_setzero_ps()}; }
TAUT_FN f32x16 set1(float x) { return {_mm512_set1_ps(x)}; }
TAUT_FN f32x16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
TAUT_FN f32x16 load(const f16* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))}; }
TAUT_FN f32x16 load(const bf16* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
TAUT_FN f32x16 load(const int8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
TAUT_FN void store(float* p, f32x16 a) { _mm512_storeu_ps(p, a.v); }
TAUT_FN mask16 first_n(int64_t n) { return {static_cast<__mmask16>((1u << n) - 1)}; }
TAUT_FN f32x16 load_partial(const float* p, int64_t n) { return {_mm512_maskz_loadu_ps(first_n(n).v, p)}; }
TAUT_FN void store_partial(float* p, f32x16 a, int64_t n) { _mm512_mask_storeu_ps(p, first_n(n).v, a.v); }

TAUT_FN f32x16 add(f32x16 a, f32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
TAUT_FN f32x16 sub(f32x16 a, f32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
TAUT_FN f32x16 mul(f32x16 a, f32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
TAUT_FN f32x16 div(f32x16 a, f32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
TAUT_FN f32x16 sqrt(f32x16 a) { return {_mm512_sqrt_ps(a.v)}; }
TAUT_FN f32x16 max(f32x16 a, f32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }
TAUT_FN f32x16 min(f32x16 a, f32x16 b) { return {_mm512_min_ps(a.v, b.v)}; }
TAUT_FN f32x16 fma(f32x16 a, f32x16 b, f32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }    // a * b + c
TAUT_FN f32x16 fnma(f32x16 a, f32x16 b, f32x16 c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }  // c - a * b

TAUT_FN mask16 lt(f32x16 a, f32x16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
TAUT_FN f32x16 select(mask16 m, f32x16 a, f32x16 b) { return {_mm512_mask_blend_ps(m.v, b.v, a.v)}; }  // m ? a : b

TAUT_FN i32x16 set1_i32(int32_t x) { return {_mm512_set1_epi32(x)}; }
TAUT_FN i32x16 load_i32(const void* p) { return {_mm512_loadu_si512(p)}; }
TAUT_FN void store_i32(void* p, i32x16 a) { _mm512_storeu_si512(p, a.v); }
TAUT_FN i32x16 load_i8(const int8_t* p) { return {_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))}; }
// Values must fit.
TAUT_FN void store_i8(int8_t* p, i32x16 a) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v)); }
// The upper 16 bits of every lane.
TAUT_FN void store_upper16(void* p, i32x16 a) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(a.v, 16)));
}
TAUT_FN i32x16 add_i32(i32x16 a, i32x16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
TAUT_FN i32x16 sub_i32(i32x16 a, i32x16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
TAUT_FN i32x16 max_i32(i32x16 a, i32x16 b) { return {_mm512_max_epi32(a.v, b.v)}; }
TAUT_FN i32x16 min_i32(i32x16 a, i32x16 b) { return {_mm512_min_epi32(a.v, b.v)}; }
TAUT_FN i32x16 bit_and(i32x16 a, i32x16 b) { return {_mm512_and_si512(a.v, b.v)}; }
TAUT_FN i32x16 bit_or(i32x16 a, i32x16 b) { return {_mm512_or_si512(a.v, b.v)}; }
TAUT_FN i32x16 bit_xor(i32x16 a, i32x16 b) { return {_mm512_xor_si512(a.v, b.v)}; }
template <int N>
TAUT_FN i32x16 shift_left(i32x16 a) {
  return {_mm512_slli_epi32(a.v, N)};
}
template <int N>
TAUT_FN i32x16 shift_right_signed(i32x16 a) {
  return {_mm512_srai_epi32(a.v, N)};
}

TAUT_FN f32x16 as_f32(i32x16 a) { return {_mm512_castsi512_ps(a.v)}; }
TAUT_FN i32x16 as_i32(f32x16 a) { return {_mm512_castps_si512(a.v)}; }
TAUT_FN f32x16 to_f32(i32x16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
// Nearest even; |a| <= 2^22.
TAUT_FN i32x16 round_to_i32(f32x16 a) { return {_mm512_cvtps_epi32(a.v)}; }

// Canonical tree: lanes i and i + 8, then i + 4, i + 2, i + 1.
TAUT_FN float reduce_add(f32x16 a) {
  const __m256 h = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}
TAUT_FN float reduce_max(f32x16 a) {
  const __m256 h = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(q, _mm_shuffle_ps(q, q, 1)));
}
TAUT_FN int32_t reduce_add_i32(i32x16 a) {
  const __m256i h = _mm256_add_epi32(_mm512_castsi512_si256(a.v), _mm512_extracti64x4_epi64(a.v, 1));
  __m128i q = _mm_add_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
  q = _mm_add_epi32(q, _mm_shuffle_epi32(q, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(q, _mm_shuffle_epi32(q, 0xb1)));
}
TAUT_FN int32_t reduce_max_i32(i32x16 a) {
  const __m256i h = _mm256_max_epi32(_mm512_castsi512_si256(a.v), _mm512_extracti64x4_epi64(a.v, 1));
  __m128i q = _mm_max_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
  q = _mm_max_epi32(q, _mm_shuffle_epi32(q, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(q, _mm_shuffle_epi32(q, 0xb1)));
}

TAUT_FN void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

}  // namespace taut::TAUT_ISA_NS

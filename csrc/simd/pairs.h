// Pairs of bf16, one in each of 16 lanes: the even one of the pair in the lane's lower half, the odd one in the upper half.
//
// dot_pairs is vdpbf16ps (AVX512_BF16) where TAUT_AVX512_BF16 says so. Everywhere else it is that instruction as Intel documents it: two
// fused multiply-adds, the odd one first, each rounded to nearest even, with subnormal inputs and results taken as 0. One case is left to
// the hardware: a sum that only rounding lifts to 2^-126 may be 0 there.
#pragma once
#include "simd/f32x16.h"

namespace taut::TAUT_ISA_NS {

TAUT_FN f32x16 even_of(i32x16 pairs) { return as_f32(shift_left<16>(pairs)); }
TAUT_FN f32x16 odd_of(i32x16 pairs) { return as_f32(bit_and(pairs, set1_i32(static_cast<int32_t>(0xffff0000)))); }
// The even one and a 0.
TAUT_FN i32x16 half_of(i32x16 pairs) { return bit_and(pairs, set1_i32(0xffff)); }

// Of floats whose lower 16 bits are 0.
TAUT_FN i32x16 join_pairs(f32x16 even, f32x16 odd) {
  return bit_or(half_of(shift_right_signed<16>(as_i32(even))), as_i32(odd));
}

// The nearest bf16, ties to even, as a float; infinities stay, a NaN stays one.
TAUT_FN f32x16 round_bf16(f32x16 a) {
  const i32x16 odd = bit_and(shift_right_signed<16>(as_i32(a)), set1_i32(1));
  const f32x16 nearest = as_f32(add_i32(as_i32(a), add_i32(odd, set1_i32(0x7fff))));
  const f32x16 rounded = select(lt(abs(a), set1(__builtin_inff())), nearest, add(a, a));
  return as_f32(bit_and(as_i32(rounded), set1_i32(static_cast<int32_t>(0xffff0000))));
}

TAUT_FN i32x16 round_pairs(f32x16 even, f32x16 odd) { return join_pairs(round_bf16(even), round_bf16(odd)); }

// 16 values side by side, as eight pairs. (The instruction makes subnormals 0, as which dot_pairs takes them anyway.)
#if defined(TAUT_AVX512_BF16)
TAUT_FN void store_bf16(void* p, f32x16 a) {
  __m256i narrow;
  asm("vcvtneps2bf16 %1, %0" : "=v"(narrow) : "v"(a.v));
  _mm256_storeu_si256(static_cast<__m256i*>(p), narrow);
}
#else
TAUT_FN void store_bf16(void* p, f32x16 a) { store_upper16(p, as_i32(round_bf16(a))); }
#endif

// sums + products of 16 pairs with 16 pairs.
#if defined(TAUT_AVX512_BF16)
TAUT_FN void dot_pairs(f32x16& sums, i32x16 x, i32x16 w) { asm("vdpbf16ps %2, %1, %0" : "+v"(sums.v) : "v"(w.v), "v"(x.v)); }
#else
TAUT_FN f32x16 flush(f32x16 a) { return select(lt(abs(a), set1(0x1p-126f)), copy_sign(zero(), a), a); }
// A call, because a tile that holds it dozens of times takes minutes to compile.
[[maybe_unused]] TAUT_OWN static void dot_pairs(f32x16& sums, const i32x16& x, const i32x16& w) {
  const f32x16 first = flush(fma(flush(odd_of(x)), flush(odd_of(w)), flush(sums)));
  sums = flush(fma(flush(even_of(x)), flush(even_of(w)), first));
}
#endif

}  // namespace taut::TAUT_ISA_NS

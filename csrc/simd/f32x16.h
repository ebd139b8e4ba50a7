// One logical vector of 16 lanes for every ISA: AVX-512 one register, AVX2 two, scalar an array.
//
// The contract (the ISA headers only specialise it): the same call gives the same bits on every ISA. A multiply and an add fuse
// only in fma/fnma. max(a, b) is a > b ? a : b and min(a, b) is a < b ? a : b, so a NaN in b comes through and one in a does not.
// Everything has internal linkage in the namespace of its ISA: an inline function compiled for AVX-512 must never be picked
// by the linker for an older CPU. For the same reason kernel files include no std:: headers.
#pragma once
#include <cstddef>
#include <cstdint>

#define TAUT_FN static inline __attribute__((always_inline))
#define TAUT_MEMBER inline __attribute__((always_inline))
#define TAUT_OWN __attribute__((noinline))  // a tile alone in its function keeps its sums in registers

#if defined(TAUT_ISA_avx512) && !defined(TAUT_EMULATE)
#include "simd/f32x16_avx512.h"
#elif defined(TAUT_ISA_avx2) && !defined(TAUT_EMULATE)
#include "simd/f32x16_avx2.h"
#else
#include "simd/f32x16_scalar.h"
#endif

namespace taut::TAUT_ISA_NS {

// The n (0..16) next values, zeros beyond: safe at the end of a buffer.
TAUT_FN f32x16 load_n(const float* p, int64_t n) { return n >= 16 ? load(p) : load_partial(p, n); }
TAUT_FN void store_n(float* p, f32x16 v, int64_t n) {
  if (n >= 16) {
    store(p, v);
  } else {
    store_partial(p, v, n);
  }
}

// Lanes below n kept, zero above.
TAUT_FN f32x16 keep_n(f32x16 v, int64_t n) { return n >= 16 ? v : select(first_n(n), v, zero()); }

TAUT_FN f32x16 abs(f32x16 a) { return as_f32(bit_and(as_i32(a), set1_i32(0x7fffffff))); }
TAUT_FN f32x16 neg(f32x16 a) { return as_f32(bit_xor(as_i32(a), set1_i32(INT32_MIN))); }
// Magnitude of a, sign of s.
TAUT_FN f32x16 copy_sign(f32x16 a, f32x16 s) {
  return as_f32(bit_or(bit_and(as_i32(a), set1_i32(0x7fffffff)), bit_and(as_i32(s), set1_i32(INT32_MIN))));
}
// Bits of |a|: ordered as integers like the magnitudes, NaN above infinity, so an integer max propagates NaN.
TAUT_FN i32x16 abs_bits(f32x16 a) { return bit_and(as_i32(a), set1_i32(0x7fffffff)); }

}  // namespace taut::TAUT_ISA_NS

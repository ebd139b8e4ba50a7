// f32x16 in plain C++: the default of the contract, and what the vector ISAs are compared with.
#pragma once
#include <cstdint>

#include "simd/narrow.h"

// Every lane of an expression in i.
#define TAUT_LANES(type, expression) \
  type r;                            \
  for (int i = 0; i < 16; ++i) {     \
    r.v[i] = (expression);           \
  }                                  \
  return r

namespace taut::TAUT_ISA_NS {

struct f32x16 {
  float v[16];
};
struct i32x16 {
  int32_t v[16];
};
struct mask16 {
  int32_t v[16];
};

TAUT_FN f32x16 zero() { TAUT_LANES(f32x16, 0.0f); }
TAUT_FN f32x16 set1(float x) { TAUT_LANES(f32x16, x); }
TAUT_FN f32x16 load(const float* p) { TAUT_LANES(f32x16, p[i]); }
TAUT_FN f32x16 load(const f16* p) { TAUT_LANES(f32x16, to_f32(p[i])); }
TAUT_FN f32x16 load(const bf16* p) { TAUT_LANES(f32x16, to_f32(p[i])); }
TAUT_FN f32x16 load(const int8_t* p) { TAUT_LANES(f32x16, static_cast<float>(p[i])); }
TAUT_FN void store(float* p, f32x16 a) {
  for (int i = 0; i < 16; ++i) {
    p[i] = a.v[i];
  }
}
TAUT_FN mask16 first_n(int64_t n) { TAUT_LANES(mask16, i < n ? -1 : 0); }
TAUT_FN f32x16 load_partial(const float* p, int64_t n) { TAUT_LANES(f32x16, i < n ? p[i] : 0.0f); }
TAUT_FN void store_partial(float* p, f32x16 a, int64_t n) {
  for (int i = 0; i < n; ++i) {
    p[i] = a.v[i];
  }
}

TAUT_FN f32x16 add(f32x16 a, f32x16 b) { TAUT_LANES(f32x16, a.v[i] + b.v[i]); }
TAUT_FN f32x16 sub(f32x16 a, f32x16 b) { TAUT_LANES(f32x16, a.v[i] - b.v[i]); }
TAUT_FN f32x16 mul(f32x16 a, f32x16 b) { TAUT_LANES(f32x16, a.v[i] * b.v[i]); }
TAUT_FN f32x16 div(f32x16 a, f32x16 b) { TAUT_LANES(f32x16, a.v[i] / b.v[i]); }
TAUT_FN f32x16 sqrt(f32x16 a) { TAUT_LANES(f32x16, __builtin_sqrtf(a.v[i])); }
TAUT_FN f32x16 max(f32x16 a, f32x16 b) { TAUT_LANES(f32x16, a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
TAUT_FN f32x16 min(f32x16 a, f32x16 b) { TAUT_LANES(f32x16, a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
TAUT_FN f32x16 fma(f32x16 a, f32x16 b, f32x16 c) { TAUT_LANES(f32x16, __builtin_fmaf(a.v[i], b.v[i], c.v[i])); }
TAUT_FN f32x16 fnma(f32x16 a, f32x16 b, f32x16 c) { TAUT_LANES(f32x16, __builtin_fmaf(-a.v[i], b.v[i], c.v[i])); }

TAUT_FN mask16 lt(f32x16 a, f32x16 b) { TAUT_LANES(mask16, a.v[i] < b.v[i] ? -1 : 0); }
TAUT_FN f32x16 select(mask16 m, f32x16 a, f32x16 b) { TAUT_LANES(f32x16, m.v[i] != 0 ? a.v[i] : b.v[i]); }

TAUT_FN i32x16 set1_i32(int32_t x) { TAUT_LANES(i32x16, x); }
TAUT_FN i32x16 load_i32(const void* p) {
  i32x16 r;
  __builtin_memcpy(&r, p, 64);
  return r;
}
TAUT_FN void store_i32(void* p, i32x16 a) { __builtin_memcpy(p, &a, 64); }
TAUT_FN i32x16 load_i8(const int8_t* p) { TAUT_LANES(i32x16, p[i]); }
// Values must fit.
TAUT_FN void store_i8(int8_t* p, i32x16 a) {
  for (int i = 0; i < 16; ++i) {
    p[i] = static_cast<int8_t>(a.v[i]);
  }
}
// The upper 16 bits of every lane.
TAUT_FN void store_upper16(void* p, i32x16 a) {
  for (int i = 0; i < 16; ++i) {
    __builtin_memcpy(static_cast<char*>(p) + 2 * i, reinterpret_cast<const char*>(&a.v[i]) + 2, 2);
  }
}
// Integer sums wrap, as they do in vector registers.
TAUT_FN int32_t wrap(uint32_t x) { return static_cast<int32_t>(x); }
TAUT_FN uint32_t bits(int32_t x) { return static_cast<uint32_t>(x); }
TAUT_FN i32x16 add_i32(i32x16 a, i32x16 b) { TAUT_LANES(i32x16, wrap(bits(a.v[i]) + bits(b.v[i]))); }
TAUT_FN i32x16 sub_i32(i32x16 a, i32x16 b) { TAUT_LANES(i32x16, wrap(bits(a.v[i]) - bits(b.v[i]))); }
TAUT_FN i32x16 max_i32(i32x16 a, i32x16 b) { TAUT_LANES(i32x16, a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
TAUT_FN i32x16 min_i32(i32x16 a, i32x16 b) { TAUT_LANES(i32x16, a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
TAUT_FN i32x16 bit_and(i32x16 a, i32x16 b) { TAUT_LANES(i32x16, a.v[i] & b.v[i]); }
TAUT_FN i32x16 bit_or(i32x16 a, i32x16 b) { TAUT_LANES(i32x16, a.v[i] | b.v[i]); }
TAUT_FN i32x16 bit_xor(i32x16 a, i32x16 b) { TAUT_LANES(i32x16, a.v[i] ^ b.v[i]); }
template <int N>
TAUT_FN i32x16 shift_left(i32x16 a) {
  TAUT_LANES(i32x16, wrap(bits(a.v[i]) << N));
}
template <int N>
TAUT_FN i32x16 shift_right_signed(i32x16 a) {
  TAUT_LANES(i32x16, a.v[i] >> N);
}

TAUT_FN f32x16 as_f32(i32x16 a) {
  f32x16 r;
  __builtin_memcpy(&r, &a, 64);
  return r;
}
TAUT_FN i32x16 as_i32(f32x16 a) {
  i32x16 r;
  __builtin_memcpy(&r, &a, 64);
  return r;
}
TAUT_FN f32x16 to_f32(i32x16 a) { TAUT_LANES(f32x16, static_cast<float>(a.v[i])); }
// Nearest even; |a| <= 2^22. Adding 1.5 * 2^23 leaves the rounded integer in the low mantissa bits.
TAUT_FN i32x16 round_to_i32(f32x16 a) {
  const f32x16 magic = set1(12582912.0f);
  return sub_i32(as_i32(add(a, magic)), as_i32(magic));
}

// Canonical tree: lanes i and i + 8, then i + 4, i + 2, i + 1.
TAUT_FN float reduce_add(f32x16 a) {
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) {
      a.v[i] = a.v[i] + a.v[i + half];
    }
  }
  return a.v[0];
}
TAUT_FN float reduce_max(f32x16 a) {
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) {
      a.v[i] = a.v[i] > a.v[i + half] ? a.v[i] : a.v[i + half];
    }
  }
  return a.v[0];
}
TAUT_FN int32_t reduce_add_i32(i32x16 a) {
  uint32_t sum = 0;
  for (int i = 0; i < 16; ++i) {
    sum += bits(a.v[i]);
  }
  return wrap(sum);
}
TAUT_FN int32_t reduce_max_i32(i32x16 a) {
  int32_t m = a.v[0];
  for (int i = 1; i < 16; ++i) {
    m = a.v[i] > m ? a.v[i] : m;
  }
  return m;
}

TAUT_FN void prefetch(const void*) {}

}  // namespace taut::TAUT_ISA_NS

#undef TAUT_LANES

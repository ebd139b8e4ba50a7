// Numbers of 16 bits and the floats of the same values. Includers define TAUT_FN: internal linkage, as in f32x16.h.
#pragma once
#include <cstdint>

namespace taut {

// Stored in 16 bits, computed as the float of the same value.
struct f16 {
  uint16_t bits;
};
struct bf16 {
  uint16_t bits;
};

TAUT_FN float bits_to_f32(int32_t bits) {
  float f;
  __builtin_memcpy(&f, &bits, 4);
  return f;
}
TAUT_FN int32_t f32_to_bits(float f) {
  int32_t bits;
  __builtin_memcpy(&bits, &f, 4);
  return bits;
}

TAUT_FN float to_f32(bf16 b) { return bits_to_f32(static_cast<int32_t>(uint32_t{b.bits} << 16)); }
TAUT_FN float to_f32(f16 h) {
  const uint32_t sign = static_cast<uint32_t>(h.bits & 0x8000) << 16, rest = h.bits & 0x7fff;
  if (rest >= 0x7c00) {  // infinity, NaN
    return bits_to_f32(static_cast<int32_t>(sign | 0x7f800000 | (rest & 0x3ff) << 13));
  }
  if (rest >= 0x0400) {
    return bits_to_f32(static_cast<int32_t>(sign | ((rest << 13) + (112u << 23))));
  }
  return static_cast<float>(static_cast<int32_t>(rest)) * (sign != 0 ? -0x1p-24f : 0x1p-24f);  // zero, subnormal
}

// Nearest even; |x| < 65520.
TAUT_FN f16 to_f16(float x) {
  const uint32_t bits = static_cast<uint32_t>(f32_to_bits(x)), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
  if (rest < 113u << 23) {  // below 2^-14: a multiple of 2^-24, which adding 1/2 rounds to
    const uint32_t shifted = static_cast<uint32_t>(f32_to_bits(bits_to_f32(static_cast<int32_t>(rest)) + 0.5f));
    return {static_cast<uint16_t>(sign | (shifted - 0x3f000000u))};
  }
  return {static_cast<uint16_t>(sign | ((rest - (112u << 23) + 0xfff + (rest >> 13 & 1)) >> 13))};
}

}  // namespace taut

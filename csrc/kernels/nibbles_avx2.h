// Four-bit weights to bytes, on AVX2.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace taut::TAUT_ISA_NS {
namespace {

alignas(32) const uint32_t kLowNibbles[8] = {0x0f0f0f0f, 0x0f0f0f0f, 0x0f0f0f0f, 0x0f0f0f0f,
                                             0x0f0f0f0f, 0x0f0f0f0f, 0x0f0f0f0f, 0x0f0f0f0f};

// The low or high nibbles of 32 bytes. Assembler and volatile, so that the packed weights are read twice and when they
// are used, rather than kept in registers that the sums need.
inline __m256i low_nibbles(const uint8_t* w) {
  __m256i out;
  asm volatile("vmovdqu %1, %0\n\tvpand %2, %0, %0"
               : "=x"(out)
               : "m"(*reinterpret_cast<const __m256i_u*>(w)), "m"(*reinterpret_cast<const __m256i*>(kLowNibbles)));
  return out;
}
inline __m256i high_nibbles(const uint8_t* w) {
  __m256i out;
  asm volatile("vmovdqu %1, %0\n\tvpsrlw $4, %0, %0\n\tvpand %2, %0, %0"
               : "=x"(out)
               : "m"(*reinterpret_cast<const __m256i_u*>(w)), "m"(*reinterpret_cast<const __m256i*>(kLowNibbles)));
  return out;
}

}  // namespace
}  // namespace taut::TAUT_ISA_NS

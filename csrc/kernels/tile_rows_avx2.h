// Activations in the order in which AVX2's tiles for many rows read them: [K / 4][6 rows][4] bytes.
#pragma once
#include "kernels/linear_q8_avx2.h"

namespace taut::TAUT_ISA_NS {
namespace {

constexpr int kQuadBytes = 4 * kTileRows;  // of a tile

// Where what comes beside the values begins.
inline int64_t tile_values_bytes(int64_t k) { return (k / 4 * kQuadBytes + 63) / 64 * 64; }

// kFlip is added to every byte modulo 256: 128 turns s8 into u8.
template <uint8_t kFlip>
void copy_tile_values(const uint8_t* const (&row)[kTileRows], int64_t k, uint8_t* to) {
  int64_t i = 0;
  const __m128i flip = _mm_set1_epi8(char(kFlip));
  for (; i + 16 <= k; i += 16, to += 4 * kQuadBytes) {
    __m128i v[kTileRows];
    for (int r = 0; r < kTileRows; ++r)
      v[r] = _mm_xor_si128(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row[r] + i)), flip);
    const __m128i a = _mm_unpacklo_epi32(v[0], v[1]), b = _mm_unpacklo_epi32(v[2], v[3]), c = _mm_unpackhi_epi32(v[0], v[1]),
                  d = _mm_unpackhi_epi32(v[2], v[3]);
    const __m128i four[4] = {_mm_unpacklo_epi64(a, b), _mm_unpackhi_epi64(a, b), _mm_unpacklo_epi64(c, d),
                             _mm_unpackhi_epi64(c, d)};
    const __m128i two[2] = {_mm_unpacklo_epi32(v[4], v[5]), _mm_unpackhi_epi32(v[4], v[5])};
    for (int q = 0; q < 4; ++q) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + q * kQuadBytes), four[q]);
      const __m128i last = q % 2 == 0 ? two[q / 2] : _mm_unpackhi_epi64(two[q / 2], two[q / 2]);
      _mm_storel_epi64(reinterpret_cast<__m128i*>(to + q * kQuadBytes + 16), last);
    }
  }
  for (; i < k; i += 4, to += kQuadBytes) {
    for (int r = 0; r < kTileRows; ++r) {
      uint32_t four;
      __builtin_memcpy(&four, row[r] + i, 4);
      four ^= 0x01010101u * kFlip;
      __builtin_memcpy(to + 4 * r, &four, 4);
    }
  }
}

}  // namespace
}  // namespace taut::TAUT_ISA_NS

// The fastest multiply-add loops of this ISA, in registers, and the fastest read. See peak.h.
#include "peak.h"

#include "simd/f32x16.h"
#if defined(TAUT_AVX_VNNI)
#include "kernels/dot_avxvnni.h"
#elif defined(TAUT_AMX)
#include "kernels/tiles_amx.h"
#endif

namespace taut::TAUT_ISA_NS {
namespace {

constexpr int kChains = 12;  // beyond latency x rate of every instruction below

}  // namespace

#if defined(TAUT_ISA_avx512) && !defined(TAUT_EMULATE)

// Written out, so that neither the order nor the number of instructions is the compiler's.
#define TAUT_PEAK(instruction, macs, bits)                                                     \
  __m512i sums[kChains];                                                                       \
  _Pragma("GCC unroll 12") for (int i = 0; i < kChains; ++i) sums[i] = _mm512_setzero_si512(); \
  const __m512i x = _mm512_set1_epi32(bits);                                                   \
  for (int64_t round = 0; round < rounds; ++round) {                                           \
    _Pragma("GCC unroll 12") for (int i = 0; i < kChains; ++i) {                               \
      asm volatile(instruction " %1, %1, %0" : "+v"(sums[i]) : "v"(x));                        \
    }                                                                                          \
  }                                                                                            \
  return rounds * kChains * (macs)

#if defined(TAUT_AMX)
int64_t peak_int8(int64_t rounds) {
  alignas(64) static const uint8_t values[2 * kTileBytes] = {1, 2, 3};
  tiles_begin();
  tile_load<4>(values, 64), tile_load<5>(values, 64), tile_load<6>(values, 64), tile_load<7>(values, 64);
  tile_clear<0>(), tile_clear<1>(), tile_clear<2>(), tile_clear<3>();
  for (int64_t round = 0; round < rounds; ++round) {
    tile_dot<0, 4, 6>(), tile_dot<1, 4, 7>(), tile_dot<2, 5, 6>(), tile_dot<3, 5, 7>();
  }
  tiles_end();
  return rounds * 4 * 16 * 16 * 64;
}
#else
int64_t peak_int8(int64_t rounds) { TAUT_PEAK("vpdpbusd", 64, 0x5b3d7f11); }
int64_t peak_f32(int64_t rounds) { TAUT_PEAK("vfmadd231ps", 16, 0x3f000000); }
// The caller checks that the processor has AVX512_BF16.
int64_t peak_bf16(int64_t rounds) { TAUT_PEAK("vdpbf16ps", 32, 0x3f003f00); }
#endif

#elif defined(TAUT_AVX_VNNI)  // the other ceilings are AVX2's

int64_t peak_int8(int64_t rounds) {
  __m256i sums[kChains];
#pragma GCC unroll 12
  for (int i = 0; i < kChains; ++i) sums[i] = _mm256_setzero_si256();
  const __m256i x = _mm256_set1_epi32(0x3d117f5b);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) dot4(sums[i], x, x);
  }
  return rounds * kChains * 32;
}

#elif defined(TAUT_ISA_avx2)

int64_t peak_int8(int64_t rounds) {
  __m256i sums[kChains];
#pragma GCC unroll 12
  for (int i = 0; i < kChains; ++i) sums[i] = _mm256_setzero_si256();
  const __m256i x = _mm256_set1_epi32(0x3d117f5b), ones = _mm256_set1_epi16(1);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) {
      __m256i t;
      asm volatile("vpmaddubsw %2, %2, %1\n\tvpmaddwd %3, %1, %1\n\tvpaddd %1, %0, %0"
                   : "+x"(sums[i]), "=&x"(t)
                   : "x"(x), "x"(ones));
    }
  }
  return rounds * kChains * 32;
}

int64_t peak_f32(int64_t rounds) {
  __m256 sums[kChains];
#pragma GCC unroll 12
  for (int i = 0; i < kChains; ++i) sums[i] = _mm256_setzero_ps();
  const __m256 x = _mm256_set1_ps(0.5f);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) asm volatile("vfmadd231ps %1, %1, %0" : "+x"(sums[i]) : "x"(x));
  }
  return rounds * kChains * 8;
}

int64_t peak_bf16(int64_t) { return 0; }

#else

// What a compiler makes of the plain loops; asm hides the values from it.
int64_t peak_int8(int64_t rounds) {
  int16_t x[64], w[64];
  int32_t sums[32];
  for (int i = 0; i < 64; ++i) x[i] = w[i] = int16_t(i);
  for (int i = 0; i < 32; ++i) sums[i] = 0;
  for (int64_t round = 0; round < rounds; ++round) {
    for (int i = 0; i < 32; ++i) sums[i] += x[2 * i] * w[2 * i] + x[2 * i + 1] * w[2 * i + 1];
    asm volatile("" : : "r"(sums), "r"(x), "r"(w) : "memory");
  }
  return rounds * 64;
}

int64_t peak_f32(int64_t rounds) {
  float x[32], sums[32];
  for (int i = 0; i < 32; ++i) x[i] = 0.5f, sums[i] = 0.0f;
  for (int64_t round = 0; round < rounds; ++round) {
    for (int i = 0; i < 32; ++i) sums[i] += x[i] * x[i];
    asm volatile("" : : "r"(sums), "r"(x) : "memory");
  }
  return rounds * 32;
}

int64_t peak_bf16(int64_t) { return 0; }

#endif

#if !defined(TAUT_AVX_VNNI) && !defined(TAUT_AMX)
int32_t peak_read(const uint8_t* p, int64_t bytes, int64_t ahead) {
  i32x16 a = set1_i32(0), b = a;
  for (const uint8_t* end = p + bytes; p != end; p += 256) {
    if (ahead != 0) {
      for (int i = 0; i < 256; i += 64) prefetch(p + ahead + i);
    }
    a = bit_xor(a, bit_xor(load_i32(p), load_i32(p + 64)));
    b = bit_xor(b, bit_xor(load_i32(p + 128), load_i32(p + 192)));
  }
  return reduce_max_i32(bit_xor(a, b));
}
#endif

}  // namespace taut::TAUT_ISA_NS

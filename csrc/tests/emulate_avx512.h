// AVX-512 for a machine without it: SIMDe (libsimde-dev), plus what its release lacks or rounds twice.
#pragma once
#define SIMDE_ENABLE_NATIVE_ALIASES
// Its whole avx512.h takes minutes to compile.
#include <simde/x86/avx512/and.h>
#include <simde/x86/avx512/dpbusd.h>
#include <simde/x86/avx512/load.h>
#include <simde/x86/avx512/loadu.h>
#include <simde/x86/avx512/mul.h>
#include <simde/x86/avx512/set1.h>
#include <simde/x86/avx512/setzero.h>
#include <simde/x86/avx512/srli.h>
#include <simde/x86/avx512/store.h>
#include <simde/x86/avx512/storeu.h>

inline __m512 emulate_fmadd_ps(__m512 a, __m512 b, __m512 c) {
  float x[16], y[16], z[16];
  __builtin_memcpy(x, &a, 64);
  __builtin_memcpy(y, &b, 64);
  __builtin_memcpy(z, &c, 64);
  for (int i = 0; i < 16; ++i) z[i] = __builtin_fmaf(x[i], y[i], z[i]);
  __builtin_memcpy(&c, z, 64);
  return c;
}

inline __m512 emulate_cvtepi32_ps(__m512i a) {
  int32_t x[16];
  float y[16];
  __m512 to;
  __builtin_memcpy(x, &a, 64);
  for (int i = 0; i < 16; ++i) y[i] = float(x[i]);
  __builtin_memcpy(&to, y, 64);
  return to;
}

#undef _mm512_fmadd_ps
#define _mm512_fmadd_ps emulate_fmadd_ps
#undef _mm512_cvtepi32_ps
#define _mm512_cvtepi32_ps emulate_cvtepi32_ps

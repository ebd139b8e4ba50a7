// Compares every function of f32x16_avx512.h, emulated by SIMDe, with f32x16_scalar.h on random and special values, bit for bit.
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>

#define TAUT_EMULATE
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx2.h>
#include <simde/x86/avx512.h>

// What this SIMDe lacks, or (fused multiply-add without host support) rounds twice: lane by lane from Intel's description.
template <typename To, typename From>
static To cast(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}
template <typename T, int N>
struct Lanes {
  T v[N];
};
using Floats = Lanes<float, 16>;
using Ints = Lanes<int32_t, 16>;
template <typename To, typename Function>
static To lanes(const Function& function) {
  To to;
  for (int i = 0; i < 16; ++i) to.v[i] = function(i);
  return to;
}
using __mmask16 = uint16_t;
static __m512 fused(__m512 a, __m512 b, __m512 c, float sign) {
  const auto x = cast<Floats>(a), y = cast<Floats>(b), z = cast<Floats>(c);
  return cast<__m512>(lanes<Floats>([&](int i) { return std::fmaf(sign * x.v[i], y.v[i], z.v[i]); }));
}
#undef _mm512_fmadd_ps
#undef _mm512_fnmadd_ps
#define _mm512_fmadd_ps(a, b, c) fused(a, b, c, 1.0f)
#define _mm512_fnmadd_ps(a, b, c) fused(a, b, c, -1.0f)
static __m512 _mm512_maskz_loadu_ps(__mmask16 mask, const float* p) {
  return cast<__m512>(lanes<Floats>([&](int i) { return mask >> i & 1 ? p[i] : 0.0f; }));
}
static void _mm512_mask_storeu_ps(float* p, __mmask16 mask, __m512 a) {
  for (int i = 0; i < 16; ++i) {
    if (mask >> i & 1) p[i] = cast<Floats>(a).v[i];
  }
}
static __m512i _mm512_cvtepi8_epi32(__m128i a) {
  const auto x = cast<Lanes<int8_t, 16>>(a);
  return cast<__m512i>(lanes<Ints>([&](int i) { return x.v[i]; }));
}
static __m128i _mm512_cvtepi32_epi8(__m512i a) {
  const auto x = cast<Ints>(a);
  return cast<__m128i>(lanes<Lanes<int8_t, 16>>([&](int i) { return static_cast<int8_t>(x.v[i]); }));
}
static __m256i _mm512_cvtepi32_epi16(__m512i a) {
  const auto x = cast<Ints>(a);
  return cast<__m256i>(lanes<Lanes<int16_t, 16>>([&](int i) { return static_cast<int16_t>(x.v[i]); }));
}
static __m512 _mm512_cvtepi32_ps(__m512i a) {
  const auto x = cast<Ints>(a);
  return cast<__m512>(lanes<Floats>([&](int i) { return static_cast<float>(x.v[i]); }));
}
static __m512i _mm512_cvtps_epi32(__m512 a) {
  const auto x = cast<Floats>(a);
  return cast<__m512i>(lanes<Ints>([&](int i) { return static_cast<int32_t>(std::nearbyint(x.v[i])); }));
}
static __m256 _mm512_extractf32x8_ps(__m512 a, int half) {
  Lanes<float, 8> to;
  std::memcpy(&to, reinterpret_cast<const char*>(&a) + 32 * half, 32);
  return cast<__m256>(to);
}
static __m512i _mm512_srai_epi32(__m512i a, unsigned n) {
  const auto x = cast<Ints>(a);
  return cast<__m512i>(lanes<Ints>([&](int i) { return x.v[i] >> n; }));
}

static __m512i _mm512_cvtepu16_epi32(__m256i a) {
  const auto x = cast<Lanes<uint16_t, 16>>(a);
  return cast<__m512i>(lanes<Ints>([&](int i) { return x.v[i]; }));
}
static float half(uint16_t bits) {
  const float magnitude = (bits & 0x7c00) == 0x7c00 ? (bits & 0x3ff ? NAN : INFINITY)
                          : bits & 0x7c00 ? std::ldexp(float(1024 + (bits & 0x3ff)), (bits >> 10 & 31) - 25)
                                          : std::ldexp(float(bits & 0x3ff), -24);
  return std::copysign(magnitude, bits & 0x8000 ? -1.0f : 1.0f);
}
static __m512 _mm512_cvtph_ps(__m256i a) {
  const auto x = cast<Lanes<uint16_t, 16>>(a);
  return cast<__m512>(lanes<Floats>([&](int i) { return half(x.v[i]); }));
}

#define TAUT_FN static inline
#define TAUT_ISA_NS avx512
#include "simd/f32x16_avx512.h"
#undef TAUT_ISA_NS
#define TAUT_ISA_NS scalar
#include "simd/f32x16_scalar.h"

namespace wide = taut::avx512;
namespace plain = taut::scalar;

static int failures = 0;
template <typename A, typename B>
void same(const char* name, const A& a, const B& b, bool floats) {
  static_assert(sizeof(A) == sizeof(B));
  uint32_t x[sizeof(A) / 4], y[sizeof(A) / 4];
  std::memcpy(x, &a, sizeof a), std::memcpy(y, &b, sizeof b);
  for (size_t i = 0; i < sizeof(A) / 4; ++i) {
    const bool both_nan = floats && (x[i] & 0x7fffffff) > 0x7f800000 && (y[i] & 0x7fffffff) > 0x7f800000;
    if (x[i] != y[i] && !both_nan) {
      std::printf("%s: lane %zu: %08x, not %08x\n", name, i, x[i], y[i]);
      ++failures;
      return;
    }
  }
}

int main() {
  std::mt19937 random(7);
  const float special[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1.5f, -2.5f, 1e-40f, 3e38f, 0.5f};
  for (int round = 0; round < 200; ++round) {
    float f[3][16];
    int32_t n[2][16];
    for (auto& row : f)
      for (float& x : row) x = round % 2 ? special[random() % 10] : (float(random()) / 2147483648.0f - 1.0f) * 300.0f;
    for (auto& row : n)
      for (int32_t& x : row) x = int32_t(random());
    const auto wa = wide::load(f[0]), wb = wide::load(f[1]), wc = wide::load(f[2]);
    const auto pa = plain::load(f[0]), pb = plain::load(f[1]), pc = plain::load(f[2]);
    const auto wn = wide::load_i32(n[0]), wm = wide::load_i32(n[1]);
    const auto pn = plain::load_i32(n[0]), pm = plain::load_i32(n[1]);
#define SAME2(name) same(#name, wide::name(wa, wb), plain::name(pa, pb), true)
#define SAME3(name) same(#name, wide::name(wa, wb, wc), plain::name(pa, pb, pc), true)
#define SAMEI(name) same(#name, wide::name(wn, wm), plain::name(pn, pm), false)
    SAME2(add), SAME2(sub), SAME2(mul), SAME2(div), SAME2(max), SAME2(min), SAME3(fma), SAME3(fnma);
    SAMEI(add_i32), SAMEI(sub_i32), SAMEI(max_i32), SAMEI(min_i32), SAMEI(bit_and), SAMEI(bit_or), SAMEI(bit_xor);
    same("sqrt", wide::sqrt(wa), plain::sqrt(pa), true);
    same("zero", wide::zero(), plain::zero(), true);
    same("set1", wide::set1(f[0][0]), plain::set1(f[0][0]), true);
    same("set1_i32", wide::set1_i32(n[0][0]), plain::set1_i32(n[0][0]), false);
    same("select", wide::select(wide::lt(wa, wb), wa, wb), plain::select(plain::lt(pa, pb), pa, pb), true);
    same("shift_left", wide::shift_left<23>(wn), plain::shift_left<23>(pn), false);
    same("shift_right", wide::shift_right_signed<5>(wn), plain::shift_right_signed<5>(pn), false);
    same("to_f32", wide::to_f32(wn), plain::to_f32(pn), true);
    same("casts", wide::as_f32(wide::as_i32(wa)), plain::as_f32(plain::as_i32(pa)), true);
    same("load_i8", wide::load_i8(reinterpret_cast<int8_t*>(n)), plain::load_i8(reinterpret_cast<int8_t*>(n)), false);
    same("load int8", wide::load(reinterpret_cast<int8_t*>(n)), plain::load(reinterpret_cast<int8_t*>(n)), true);
    same("load f16", wide::load(reinterpret_cast<taut::f16*>(n)), plain::load(reinterpret_cast<taut::f16*>(n)), true);
    same("load bf16", wide::load(reinterpret_cast<taut::bf16*>(n)), plain::load(reinterpret_cast<taut::bf16*>(n)), true);
    same("reduce_add", wide::reduce_add(wa), plain::reduce_add(pa), true);
    same("reduce_max", wide::reduce_max(wa), plain::reduce_max(pa), true);
    same("reduce_add_i32", wide::reduce_add_i32(wn), plain::reduce_add_i32(pn), false);
    same("reduce_max_i32", wide::reduce_max_i32(wn), plain::reduce_max_i32(pn), false);
    if (round % 2 == 0) same("round_to_i32", wide::round_to_i32(wa), plain::round_to_i32(pa), false);
    for (int count = 0; count < 16; ++count) {
      float x[16] = {}, y[16] = {};
      same("load_partial", wide::load_partial(f[0], count), plain::load_partial(f[0], count), true);
      wide::store_partial(x, wa, count), plain::store_partial(y, pa, count);
      same("store_partial", x, y, true);
      same("first_n", wide::select(wide::first_n(count), wa, wb), plain::select(plain::first_n(count), pa, pb), true);
    }
    int8_t bytes[2][16];
    const auto small_w = wide::shift_right_signed<24>(wn);
    const auto small_p = plain::shift_right_signed<24>(pn);
    wide::store_i8(bytes[0], small_w), plain::store_i8(bytes[1], small_p);
    same("store_i8", bytes[0], bytes[1], false);
  }
  return failures != 0;
}

// AMX: eight tiles of up to 16 rows x 64 bytes, and the int8 and bf16 products of two of them. Emulated by plain loops under TAUT_EMULATE_AMX.
#pragma once
#include <cstdint>
#include <cstring>

namespace taut::TAUT_ISA_NS {
namespace {

constexpr int64_t kTileBytes = 1024;  // 16 rows of 64 bytes

#if defined(TAUT_EMULATE_AMX)

struct Tiles {
  alignas(64) int8_t value[8][kTileBytes];
};
thread_local Tiles emulated;

inline void tiles_begin() {}
inline void tiles_end() {}
template <int T>
void tile_clear() {
  std::memset(emulated.value[T], 0, kTileBytes);
}
template <int T>
void tile_load(const void* from, int64_t stride) {
  for (int r = 0; r < 16; ++r) std::memcpy(emulated.value[T] + 64 * r, static_cast<const uint8_t*>(from) + r * stride, 64);
}
template <int T>
void tile_save(void* to, int64_t stride = 64) {
  for (int r = 0; r < 16; ++r) std::memcpy(static_cast<uint8_t*>(to) + r * stride, emulated.value[T] + 64 * r, 64);
}
template <int C, int A, int B>
void tile_dot() {
  int32_t sums[16][16];
  std::memcpy(sums, emulated.value[C], kTileBytes);
  for (int m = 0; m < 16; ++m) {
    for (int n = 0; n < 16; ++n) {
      for (int k = 0; k < 64; ++k) sums[m][n] += emulated.value[A][m * 64 + k] * emulated.value[B][k / 4 * 64 + n * 4 + k % 4];
    }
  }
  std::memcpy(emulated.value[C], sums, kTileBytes);
}

template <int C, int A, int B>
void tile_dot_bf16() {
  const auto wide = [](const int8_t* at) {
    uint16_t bits;
    std::memcpy(&bits, at, 2);
    const uint32_t word = uint32_t(bits) << 16;
    float value;
    std::memcpy(&value, &word, 4);
    return __builtin_fabsf(value) < 0x1p-126f ? __builtin_copysignf(0.0f, value) : value;
  };
  const auto flushed = [](float a) { return __builtin_fabsf(a) < 0x1p-126f ? __builtin_copysignf(0.0f, a) : a; };
  float sums[16][16];
  std::memcpy(sums, emulated.value[C], kTileBytes);
  for (int m = 0; m < 16; ++m) {
    for (int n = 0; n < 16; ++n) {
      float half[2] = {0, 0};
      for (int k = 0; k < 32; ++k) {
        const float a = wide(emulated.value[A] + m * 64 + 2 * k), b = wide(emulated.value[B] + k / 2 * 64 + n * 4 + k % 2 * 2);
        half[k % 2] = flushed(__builtin_fmaf(a, b, half[k % 2]));
      }
      sums[m][n] = flushed(flushed(sums[m][n]) + flushed(half[0] + half[1]));
    }
  }
  std::memcpy(emulated.value[C], sums, kTileBytes);
}

#else

// The configuration is a thread's own. Who needs tiles takes them for one call and gives them back, so that no other code pays for
// their state when the system switches threads.
inline void tiles_begin() {
  struct alignas(64) {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } const all;
  asm volatile("ldtilecfg %0" : : "m"(all));  // GCC's _tile_loadconfig says that it reads eight bytes, so the others might go
}
inline void tiles_end() { asm volatile("tilerelease"); }

// The tile is part of the instruction.
template <int T>
[[gnu::always_inline]] inline void tile_clear() {
  asm volatile("tilezero %%tmm%c0" : : "i"(T));
}
template <int T>
[[gnu::always_inline]] inline void tile_load(const void* from, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(T) : "memory");
}
template <int T>
[[gnu::always_inline]] inline void tile_save(void* to, int64_t stride = 64) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(T) : "memory");
}
// C (int32) += A (signed, rows x 64) times B (signed, [16 quads][16 columns][4]).
template <int C, int A, int B>
[[gnu::always_inline]] inline void tile_dot() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
}

// C (fp32) += A (bf16, rows x 32) times B (bf16, [16 pairs][16 columns][2]).
template <int C, int A, int B>
[[gnu::always_inline]] inline void tile_dot_bf16() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
}

#endif

}  // namespace
}  // namespace taut::TAUT_ISA_NS

// The register tile of every float product: acc[r][c] += sum over k of x[r][k] * w[k][16c .. 16c + 15], one fused multiply-add
// per k in ascending order. Any tile shape gives the same bits.
#pragma once
#include "simd/f32x16.h"
#include "simd/pairs.h"

namespace taut::TAUT_ISA_NS {

// Most rows and vectors whose accumulators stay in registers (AVX2 has 16, AVX-512 32; GCC keeps them there only fully unrolled).
#if defined(TAUT_ISA_avx512)
constexpr int kTileRows = 6;
constexpr int tile_vectors(int, bool = false) { return 4; }
#elif defined(TAUT_ISA_avx2)
constexpr int kTileRows = 6;
// Widened weights (of 16 bits) are registers too, where floats can stay memory operands.
constexpr int tile_vectors(int rows, bool widens = false) { return rows == 1 ? 4 : rows <= (widens ? 2 : 3) ? 2 : 1; }
#else  // nothing stays in registers: the smallest code, which compiles in seconds instead of minutes
constexpr int kTileRows = 1;
constexpr int tile_vectors(int, bool = false) { return 1; }
#endif

template <int R, int C>
TAUT_FN void tile_zero(f32x16 (&acc)[R][C]) {
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) {
      acc[r][c] = zero();
    }
  }
}

// One k: x points at row 0's value, w at row k. kAhead > 0 prefetches the weights' lines so many bytes ahead.
template <int R, int C, int kLdx, int kAhead, typename W>
TAUT_FN void tile_step(f32x16 (&acc)[R][C], const float* x, const W* w) {
  const auto fetch = [w](int c) __attribute__((always_inline)) {
    if (kAhead > 0 && 16 * c * sizeof(W) % 64 == 0) {
      prefetch(reinterpret_cast<const uint8_t*>(w + 16 * c) + kAhead);
    }
  };
  if constexpr (R == 1) {  // as many columns at once as there are sums would lack registers where they are widened
    const f32x16 value = set1(x[0]);
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) {
      acc[0][c] = fma(value, load(w + 16 * c), acc[0][c]);
      fetch(c);
    }
    return;
  }
  f32x16 column[C];
#pragma GCC unroll 16
  for (int c = 0; c < C; ++c) {
    column[c] = load(w + 16 * c);
    fetch(c);
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    const f32x16 value = set1(x[r * kLdx]);
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) {
      acc[r][c] = fma(value, column[c], acc[r][c]);
    }
  }
}

// bf16 dot products: acc[r][c] += sum over pairs of k, ascending, of x[r][pair] * w[pair][16c .. 16c + 15]. x and w point at pairs (32 bits),
// w's rows of pairs are ldw apart, x's rows kLdx. An odd k ends with a pair whose odd halves are not looked at.
template <int R, int C, int kLdx, int kAhead, bool kHalf>
TAUT_FN void tile_dot_step(f32x16 (&acc)[R][C], const int32_t* x, const int32_t* w) {
  i32x16 column[C];
#pragma GCC unroll 16
  for (int c = 0; c < C; ++c) {
    column[c] = kHalf ? half_of(load_i32(w + 16 * c)) : load_i32(w + 16 * c);
    if (kAhead > 0) {
      prefetch(reinterpret_cast<const uint8_t*>(w + 16 * c) + kAhead);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    const i32x16 value = kHalf ? half_of(set1_i32(x[r * kLdx])) : set1_i32(x[r * kLdx]);
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) {
      dot_pairs(acc[r][c], value, column[c]);
    }
  }
}

template <int R, int C, int kLdx, int kAhead = 0>
TAUT_FN void tile_dot(f32x16 (&acc)[R][C], const int32_t* x, const int32_t* w, int64_t ldw, int64_t k) {
  for (int64_t i = 0; i < k / 2; ++i) {
    tile_dot_step<R, C, kLdx, kAhead, false>(acc, x + i, w + i * ldw);
  }
  if (k % 2 != 0) {
    tile_dot_step<R, C, kLdx, 0, true>(acc, x + k / 2, w + k / 2 * ldw);
  }
}

// x: row r at x + r * kLdx, a constant so that one register addresses all rows. w (float, f16 or int8): row k at w + k * ldw. Strides in elements.
// Two steps a turn where the registers allow it.
template <int R, int C, int kLdx, int kAhead = 0, typename W>
TAUT_FN void tile_fma(f32x16 (&acc)[R][C], const float* x, const W* w, int64_t ldw, int64_t k) {
  int64_t i = 0;
  if (C == 1) {
    for (; i + 2 <= k; i += 2) {
      tile_step<R, C, kLdx, kAhead>(acc, x + i, w + i * ldw);
      tile_step<R, C, kLdx, kAhead>(acc, x + i + 1, w + (i + 1) * ldw);
    }
  }
  for (; i < k; ++i) {
    tile_step<R, C, kLdx, kAhead>(acc, x + i, w + i * ldw);
  }
}

// tile_fma on weights in pairs of k: w points at pairs, ldw apart. An odd k reads the pair's odd half too: both sides have a 0 there.
template <int R, int C, int kLdx, int kAhead = 0>
TAUT_FN void tile_fma_pairs(f32x16 (&acc)[R][C], const float* x, const int32_t* w, int64_t ldw, int64_t k) {
  for (int64_t i = 0; i < k; i += 2, w += ldw) {
#pragma GCC unroll 2
    for (int odd = 0; odd < 2; ++odd) {
      asm("" : "+r"(w) : : "memory");  // what the even half keeps would be registers that AVX2 lacks
      f32x16 column[C];
#pragma GCC unroll 16
      for (int c = 0; c < C; ++c) {
        const i32x16 pairs = load_i32(w + 16 * c);
        column[c] = even_of(odd ? shift_right_signed<16>(pairs) : pairs);  // a mask would be one register more
        if (kAhead > 0 && !odd) {
          prefetch(reinterpret_cast<const uint8_t*>(w + 16 * c) + kAhead);
        }
      }
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const f32x16 value = set1(x[r * kLdx + i + odd]);
#pragma GCC unroll 16
        for (int c = 0; c < C; ++c) {
          acc[r][c] = fma(value, column[c], acc[r][c]);
        }
      }
    }
  }
}

// body.template operator()<rows>(row), rows at most R: no larger tile is compiled.
template <int R, typename Body>
TAUT_FN void call_tile(int64_t row, int64_t rows, const Body& body) {
  if constexpr (R > 1) {
    if (rows < R) {
      return call_tile<R - 1>(row, rows, body);
    }
  }
  body.template operator()<R>(row);
}

// Calls body.template operator()<R>(row) for tiles of at most kTileRows rows that cover [begin, end), as equal as possible: a
// short last tile would waste registers.
template <typename Body>
TAUT_FN void for_row_tiles(int64_t begin, int64_t end, const Body& body) {
  while (begin < end) {
    const int64_t left = end - begin, tiles = (left + kTileRows - 1) / kTileRows;
    const int64_t rows = (left + tiles - 1) / tiles;
    call_tile<kTileRows>(begin, rows, body);
    begin += rows;
  }
}

}  // namespace taut::TAUT_ISA_NS

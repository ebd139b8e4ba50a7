// Attention's products of bf16 in blocks of 32, as AMX multiplies: sum += (the fused sum of the even products, ascending, from 0) +
// (that of the odd ones), each step rounded to nearest even with subnormals taken as 0. Where inputs are no multiple of 32 zeros follow.
// The layouts are those of products in pairs (attention_tile.h). Every table has these kernels; without AMX they imitate it.
#pragma once
#include "kernels/attention_tile.h"
#if defined(TAUT_AMX)
#include "kernels/tiles_amx.h"
#endif

namespace taut::TAUT_ISA_NS {
namespace {

constexpr int64_t kBlockPairs = 16;

#if defined(TAUT_AMX)

// For the time of a call.
struct Blocks {
  Blocks() { tiles_begin(); }
  ~Blocks() { tiles_end(); }
  Blocks(const Blocks&) = delete;
  Blocks& operator=(const Blocks&) = delete;
};

// 16 or 32 rows with the 32 keys of a tile. Rows beyond the last are computed too: they land where the next tile's scores go, or in the
// scratch's last rows.
template <int kTiles>
inline void score_rows(const AttentionState& s, float* scores, int64_t row) {
  const int64_t steps = (s.head_dim + 31) / 32, keys_stride = kTileKeys * 4, q_stride = kChunkPairs * 4;
  tile_clear<0>(), tile_clear<1>();
  if (kTiles == 2) tile_clear<2>(), tile_clear<3>();
  for (int64_t i = 0; i < steps; ++i) {
    const int32_t* q = pairs_at(s.q) + (i / 2 * s.rows + row) * kChunkPairs + i % 2 * kBlockPairs;
    const int32_t* keys = pairs_at(s.keys) + i * kBlockPairs * kTileKeys;
    tile_load<4>(q, q_stride);
    tile_load<6>(keys, keys_stride);
    tile_dot_bf16<0, 4, 6>();
    tile_load<7>(keys + 16, keys_stride);
    tile_dot_bf16<1, 4, 7>();
    if (kTiles == 2) {
      tile_load<5>(q + 16 * kChunkPairs, q_stride);
      tile_dot_bf16<2, 5, 6>();
      tile_dot_bf16<3, 5, 7>();
    }
  }
  float* to = scores + row * kTileKeys;
  tile_save<0>(to, keys_stride), tile_save<1>(to + 16, keys_stride);
  if (kTiles == 2) tile_save<2>(to + 16 * kTileKeys, keys_stride), tile_save<3>(to + 16 * kTileKeys + 16, keys_stride);
}

TAUT_OWN static void score_blocks(const AttentionState& s, float* scores) {
  int64_t row = 0;
  for (; row + 16 < s.rows; row += 32) score_rows<2>(s, scores, row);
  if (row < s.rows) score_rows<1>(s, scores, row);
}

// Column tile C of 16 rows' sums.
template <int C>
inline void begin_sums(const float* out, int64_t stride, bool first) {
  first ? tile_clear<C>() : tile_load<C>(out + 16 * C, stride);
}

template <int C>
inline void end_sums(float* out, int64_t stride, int64_t rows) {
  if (rows == 16) return tile_save<C>(out + 16 * C, stride);
  alignas(64) float last[16 * 16];
  tile_save<C>(last, 64);
  for (int64_t r = 0; r < rows; ++r) store(out + r * stride / 4 + 16 * C, load(last + 16 * r));
}

template <int kColumns, typename Values>
inline void output_rows(const AttentionState& s, int64_t begin, int64_t end, const Values& values, int64_t row,
                        int64_t column) {
  const int64_t stride = s.padded * 4, rows = least(16, s.rows - row);
  float* out = s.sums.out + row * s.padded + column;
  begin_sums<0>(out, stride, begin == 0);
  if (kColumns > 1) begin_sums<1>(out, stride, begin == 0);
  if (kColumns > 2) begin_sums<2>(out, stride, begin == 0);
  if (kColumns > 3) begin_sums<3>(out, stride, begin == 0);
  for (int64_t tile = begin; tile < end; ++tile) {
    const int32_t* v = pairs_at(values(tile)) + column;
    tile_load<4>(s.tile_scores(tile) + row * kTileKeys, kTileKeys * 4);
    tile_load<5>(v, stride), tile_dot_bf16<0, 4, 5>();
    if (kColumns > 1) tile_load<6>(v + 16, stride), tile_dot_bf16<1, 4, 6>();
    if (kColumns > 2) tile_load<7>(v + 32, stride), tile_dot_bf16<2, 4, 7>();
    if (kColumns > 3) tile_load<5>(v + 48, stride), tile_dot_bf16<3, 4, 5>();
  }
  end_sums<0>(out, stride, rows);
  if (kColumns > 1) end_sums<1>(out, stride, rows);
  if (kColumns > 2) end_sums<2>(out, stride, rows);
  if (kColumns > 3) end_sums<3>(out, stride, rows);
}

// out += weights * values over tiles [begin, end); out starts at 0 with tile 0.
template <typename Values>
TAUT_OWN void output_blocks(const AttentionState& s, int64_t begin, int64_t end, const Values& values) {
  for (int64_t row = 0; row < s.rows; row += 16) {
    int64_t column = 0;
    for (; column + 64 <= s.padded; column += 64) output_rows<4>(s, begin, end, values, row, column);
    if (s.padded - column == 48) output_rows<3>(s, begin, end, values, row, column);
    if (s.padded - column == 32) output_rows<2>(s, begin, end, values, row, column);
    if (s.padded - column == 16) output_rows<1>(s, begin, end, values, row, column);
  }
}

#else

struct Blocks {};

TAUT_FN f32x16 no_subnormals(f32x16 a) { return select(lt(abs(a), set1(0x1p-126f)), copy_sign(zero(), a), a); }

// sum + products of a block, of one row's pairs and 16 columns, ldw pairs apart.
TAUT_OWN static f32x16 add_block(f32x16 sum, const int32_t* x, const int32_t* w, int64_t ldw) {
  f32x16 even = zero(), odd = zero();
  for (int64_t i = 0; i < kBlockPairs; ++i) {
    const i32x16 a = set1_i32(x[i]), b = load_i32(w + i * ldw);
    even = no_subnormals(fma(no_subnormals(even_of(a)), no_subnormals(even_of(b)), even));
    odd = no_subnormals(fma(no_subnormals(odd_of(a)), no_subnormals(odd_of(b)), odd));
  }
  return no_subnormals(add(no_subnormals(sum), no_subnormals(add(even, odd))));
}

TAUT_OWN static void score_blocks(const AttentionState& s, float* scores) {
  for (int64_t row = 0; row < s.rows; ++row) {
    for (int64_t column = 0; column < kTileKeys; column += 16) {
      f32x16 sum = zero();
      for (int64_t i = 0; i < (s.head_dim + 31) / 32; ++i) {
        const int32_t* q = pairs_at(s.q) + (i / 2 * s.rows + row) * kChunkPairs + i % 2 * kBlockPairs;
        sum = add_block(sum, q, pairs_at(s.keys) + i * kBlockPairs * kTileKeys + column, kTileKeys);
      }
      store(scores + row * kTileKeys + column, sum);
    }
  }
}

template <typename Values>
TAUT_OWN void output_blocks(const AttentionState& s, int64_t begin, int64_t end, const Values& values) {
  for (int64_t row = 0; row < s.rows; ++row) {
    for (int64_t column = 0; column < s.padded; column += 16) {
      float* out = s.sums.out + row * s.padded + column;
      f32x16 sum = begin == 0 ? zero() : load(out);
      for (int64_t tile = begin; tile < end; ++tile) {
        sum = add_block(sum, pairs_at(s.tile_scores(tile) + row * kTileKeys), pairs_at(values(tile)) + column, s.padded);
      }
      store(out, sum);
    }
  }
}

#endif

// Query row r, as put_query lays it out, with the zeros of its last block.
TAUT_FN void put_query_block(const AttentionState& s, int64_t row, const float* q, float scale) {
  put_query<true>(s, row, q, scale);
  const int64_t d = s.padded;
  if (d % 32 != 0) store_bf16(pairs_at(s.q) + (d / kChunk * s.rows + row) * kChunkPairs + d % kChunk / 2, zero());
}

#if defined(TAUT_ISA_avx512) && !defined(TAUT_EMULATE)
// Rows of 16 pairs, `stride` apart, become columns.
inline void transpose_pairs(const int32_t* from, int64_t stride, int32_t* to, int64_t to_stride) {
  __m512i a[16], b[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) a[i] = _mm512_loadu_si512(from + i * stride);
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]), b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]), a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
    a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]), a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    b[i] = _mm512_shuffle_i32x4(a[i], a[i + 4], 0x88), b[i + 4] = _mm512_shuffle_i32x4(a[i], a[i + 4], 0xdd);
    b[i + 8] = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0x88), b[i + 12] = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0xdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    _mm512_storeu_si512(to + i * to_stride, _mm512_shuffle_i32x4(b[i], b[i + 8], 0x88));
    _mm512_storeu_si512(to + (i + 8) * to_stride, _mm512_shuffle_i32x4(b[i], b[i + 8], 0xdd));
    _mm512_storeu_si512(to + (i + 4) * to_stride, _mm512_shuffle_i32x4(b[i + 4], b[i + 12], 0x88));
    _mm512_storeu_si512(to + (i + 12) * to_stride, _mm512_shuffle_i32x4(b[i + 4], b[i + 12], 0xdd));
  }
}
#else
inline void transpose_pairs(const int32_t* from, int64_t stride, int32_t* to, int64_t to_stride) {
  for (int64_t i = 0; i < 16; ++i) {
    for (int64_t j = 0; j < 16; ++j) to[j * to_stride + i] = from[i * stride + j];
  }
}
#endif

// Keys of n tokens, `stride` floats apart, to pairs [head_dim / 2][32]; zeros fill the tile and the last block.
TAUT_OWN static void round_key_blocks(const float* k, int64_t stride, int64_t n, const AttentionState& s) {
  alignas(64) int32_t rows[kTileKeys * kBlockPairs];
  for (int64_t d = 0; d < s.head_dim; d += 32) {
    for (int64_t t = 0; t < kTileKeys; ++t) {
      for (int64_t i = 0; i < 32; i += 16) {
        const int64_t left = t < n ? s.head_dim - d - i : 0;
        store_bf16(rows + t * kBlockPairs + i / 2, left > 0 ? load_n(k + t * stride + d + i, left) : zero());
      }
    }
    int32_t* to = pairs_at(s.keys) + d / 2 * kTileKeys;
    transpose_pairs(rows, kBlockPairs, to, kTileKeys);
    transpose_pairs(rows + 16 * kBlockPairs, kBlockPairs, to + 16, kTileKeys);
  }
}

// Values of n tokens to pairs, [tiles][16][padded]; zeros fill the last tile.
TAUT_OWN static void round_value_blocks(const float* v, int64_t stride, int64_t n, const AttentionState& s) {
  for (int64_t t = 0; t < round_up(n, kTileKeys); t += 2) {
    for (int64_t i = 0; i < s.head_dim; i += 16) {
      const f32x16 even = t < n ? load_n(v + t * stride + i, s.head_dim - i) : zero();
      const f32x16 odd = t + 1 < n ? load_n(v + (t + 1) * stride + i, s.head_dim - i) : zero();
      store_i32(pairs_at(s.values) + t / 2 * s.padded + i, round_pairs(even, odd));
    }
  }
}

}  // namespace
}  // namespace taut::TAUT_ISA_NS

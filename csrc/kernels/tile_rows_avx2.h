// What AVX2's classes for many rows share: tiles of six rows against strips of 16 columns, whose activations lie in the order in
// which tiles read them, [K / 4][6 rows][4] bytes.
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

// A block of rows cut into tiles. Derived classes copy the rows into x_, so that one object serves many panels.
class RowTiles {
 public:
  static constexpr int kTiles = int(kBlockRows) / kTileRows;

 protected:
  static constexpr int kColumns = 16;
  static constexpr int32_t kSpanK = 512;  // what is prepared of a strip stays in L1 for the block's tiles

  using Sums = float[3][kBlockRows * kPanel];

  RowTiles(const Output& out, int64_t row_end, int64_t tile_bytes, uint8_t* x)
      : out_(out),
        a_(out.args),
        row_end_(row_end),
        tiles_(int((row_end - out.row_begin + kTileRows - 1) / kTileRows)),
        tile_bytes_(tile_bytes),
        x_(x) {}

  // Sums of a strip and tile: [6][16].
  int64_t value(int strip, int tile) const { return (int64_t(strip) * tiles_ + tile) * kTileRows * kColumns; }

  // The rows of a tile; those beyond the last are copies of it, whose sums nobody reads.
  void rows_of(int tile, const uint8_t* (&row)[kTileRows]) const {
    for (int r = 0; r < kTileRows; ++r) {
      const int64_t index = out_.row_begin + int64_t(tile) * kTileRows + r;
      row[r] = a_.x + (index < row_end_ ? index : row_end_ - 1) * a_.x_row_bytes;
    }
  }

  // run_span(span, sums) adds a span's products.
  template <class RunSpan>
  void sum_and_store(int64_t panel, Sums& sums, RunSpan run_span) const {
    sum_segments(a_.pieces, kSpanK, {sums[0], sums[1], sums[2]}, int64_t(tiles_) * kTileRows * kPanel, run_span);
    for (int64_t i = 0; i < row_end_ - out_.row_begin; ++i) {
      const int64_t v = value(0, int(i / kTileRows)) + i % kTileRows * kColumns;
      out_.store_row(out_.row_begin + i, panel, {sums[0] + v, sums[1] + v, sums[2] + v, value(1, 0)});
    }
  }

  const Output& out_;
  const LinearQ8& a_;
  const int64_t row_end_;
  const int tiles_;
  const int64_t tile_bytes_;
  uint8_t* const x_;
};

}  // namespace
}  // namespace taut::TAUT_ISA_NS

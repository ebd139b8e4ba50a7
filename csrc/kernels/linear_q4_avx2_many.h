// The AVX2 int4 linear for many rows: six rows x 16 columns, summed in 16 bits over 32 inputs at a time (linear_q4_avx2.h says why that
// is exact). A strip's nibbles are unpacked once into L1 for all tiles of the group.
#pragma once
#include "kernels/linear_q4_avx2.h"
#include "kernels/tile_rows_avx2.h"

namespace taut::TAUT_ISA_NS {
namespace {

class ManyRowsQ4 : RowTiles {
 public:
  static constexpr int64_t kLeast = 12;  // rows; fewer do not pay for the unpacking

  static int64_t scratch_bytes(int64_t k, int64_t pieces) { return int64_t(sizeof(Work)) + kTiles * tile_bytes(k, pieces); }

  // Rows [out.row_begin, row_end), at most kBlockRows of them.
  ManyRowsQ4(const Output& out, int64_t row_end, void* scratch)
      : RowTiles(out, row_end, tile_bytes(out.args.pieces.k, out.args.pieces.count),
                 static_cast<uint8_t*>(scratch) + sizeof(Work)),
        work_(*static_cast<Work*>(scratch)) {
    for (int t = 0; t < tiles_; ++t) copy_tile(t);
  }

  void run_panel(int64_t panel, bool) {
    const uint8_t* w = a_.w + panel * Q4Layout::bytes(a_, a_.pieces.k);
    sum_and_store(panel, work_.acc, [&](const Span& s, float* sums) { run_span(s, w + Q4Layout::bytes(a_, s.begin), sums); });
  }

 private:
  struct Work {
    alignas(64) float acc[3][kBlockRows * kPanel];
    alignas(64) uint8_t weights[kSpanK * kColumns];      // [span / 4][16][4]
    alignas(64) float scales[kSpanK / 32][2][kColumns];  // d and o of the span's groups
    alignas(64) int32_t dots[kTileRows * kColumns];
  };

  // A tile's values, then [pieces][scale, factor of the offset][6 rows].
  static int64_t tile_bytes(int64_t k, int64_t pieces) {
    return tile_values_bytes(k) + (pieces * 2 * kTileRows * 4 + 63) / 64 * 64;
  }

  void copy_tile(int t) {
    uint8_t* to = x_ + t * tile_bytes_;
    float* scales = reinterpret_cast<float*>(to + tile_values_bytes(a_.pieces.k));
    const uint8_t* row[kTileRows];
    rows_of(t, row);
    for (int r = 0; r < kTileRows; ++r) {
      const uint8_t *scale = row[r] + a_.scales_offset, *sum = scale + 4 * int64_t(a_.pieces.count);
      for (int32_t p = 0; p < a_.pieces.count; ++p, scale += 4, sum += 4) {
        scales[p * 2 * kTileRows + r] = float_at(scale);
        scales[(p * 2 + 1) * kTileRows + r] = offset_factor(scale, sum);
      }
    }
    copy_tile_values<0>(row, a_.pieces.k, to);
  }

  void run_span(const Span& s, const uint8_t* w, float* sums) {
    const int64_t span_bytes = Q4Layout::bytes(a_, s.end - s.begin);
    for (int strip = 0; strip < kPanel / kColumns; ++strip) {
      // This strip's quarter of the next span, in address order.
      unpack(s, w, strip, w + span_bytes + span_bytes / 4 * strip);
      for (int t = 0; t < tiles_; ++t) run_tile(s, x_ + t * tile_bytes_, sums + value(strip, t));
    }
  }

  void unpack(const Span& s, const uint8_t* w, int strip, const uint8_t* ahead) {
    const int64_t group = a_.pieces.begin[1];
    uint8_t* to = work_.weights;
    for (int32_t piece = s.first_piece; piece <= s.last_piece; ++piece, w += q4_group_bytes(group)) {
      const uint8_t* from = w + strip * kColumns * 4;
      for (int64_t octet = 0; octet < group / 8; ++octet, from += kPanel * 4, to += 128, ahead += 64) {
        prefetch(ahead);
        for (int c = 0; c < 2; ++c) {
          _mm256_store_si256(reinterpret_cast<__m256i*>(to) + c, low_nibbles(from + c * 32));
          _mm256_store_si256(reinterpret_cast<__m256i*>(to) + 2 + c, high_nibbles(from + c * 32));
        }
      }
      float (&scales)[2][kColumns] = work_.scales[piece - s.first_piece];
      const f16* halves = reinterpret_cast<const f16*>(w + group * 32) + strip * kColumns;
      for (int i = 0; i < 2; ++i) store(scales[i], load(halves + i * kPanel));
    }
  }

  void run_tile(const Span& s, const uint8_t* x, float* acc) {
    const float* factors = reinterpret_cast<const float*>(x + tile_values_bytes(a_.pieces.k)) + s.first_piece * 2 * kTileRows;
    const int64_t blocks = a_.pieces.begin[1] / kBlock;
    const uint8_t* w = work_.weights;
    x += s.begin / 4 * kQuadBytes;
    for (int32_t piece = s.first_piece; piece <= s.last_piece; ++piece, factors += 2 * kTileRows) {
      for (int64_t b = 0; b < blocks; ++b, w += kBlock * kColumns, x += kBlock / 4 * kQuadBytes) {
        __m256i dot[kTileRows][2];
        block(w, x, dot);
        if (b + 1 < blocks) {
          b == 0 ? keep<false>(dot) : keep<true>(dot);
        } else {
          const float (&scales)[2][kColumns] = work_.scales[piece - s.first_piece];
          b == 0 ? finish<false>(dot, scales, factors, acc) : finish<true>(dot, scales, factors, acc);
        }
      }
    }
  }

  // A sum in 32 bits; kAdds: to that of the group's blocks before.
  template <bool kAdds>
  [[gnu::always_inline]] static inline __m256i widen(__m256i dot, const int32_t* sum) {
    const __m256i wide = widen_sums(dot);
    return kAdds ? _mm256_add_epi32(wide, memory(sum)) : wide;
  }

  template <bool kAdds>
  [[gnu::always_inline]] inline void keep(const __m256i (&dot)[kTileRows][2]) {
#pragma GCC unroll 6
    for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 2
      for (int c = 0; c < 2; ++c) {
        int32_t* sum = work_.dots + r * kColumns + 8 * c;
        _mm256_store_si256(reinterpret_cast<__m256i*>(sum), widen<kAdds>(dot[r][c], sum));
      }
    }
  }

  template <bool kAdds>
  [[gnu::always_inline]] inline void finish(const __m256i (&dot)[kTileRows][2], const float (&scales)[2][kColumns],
                                            const float* factors, float* acc) {
#pragma GCC unroll 6
    for (int r = 0; r < kTileRows; ++r) {
      const __m256 scale = _mm256_broadcast_ss(factors + r), factor = _mm256_broadcast_ss(factors + kTileRows + r);
#pragma GCC unroll 2
      for (int c = 0; c < 2; ++c) {
        const int at = r * kColumns + 8 * c;
        finish_sum(acc + at, widen<kAdds>(dot[r][c], work_.dots + at), scale, factor, scales[0] + 8 * c, scales[1] + 8 * c);
      }
    }
  }

  // finish_group of linear_q4_avx2.h with d and o in memory, for want of registers.
  [[gnu::always_inline]] static inline void finish_sum(float* acc, __m256i dot, __m256 scale, __m256 factor, const float* d,
                                                       const float* o) {
    __m256 sum;
    asm volatile(
        "vcvtdq2ps %1, %1\n\tvmovaps %0, %2\n\tvmulps %3, %1, %1\n\tvfmadd231ps %5, %1, %2\n\tvfmadd231ps %6, %4, %2\n\t"
        "vmovaps %2, %0"
        : "+m"(*reinterpret_cast<__m256*>(acc)), "+x"(dot), "=&x"(sum)
        : "x"(scale), "x"(factor), "m"(*reinterpret_cast<const __m256*>(d)), "m"(*reinterpret_cast<const __m256*>(o)));
  }

  // The sums of 32 inputs in 16 bits. Assembler for the reason that linear_q8_avx2_many.h gives; the first quad sets the sums.
#define TAUT_SIX_ROWS(row, q)                                                                                     \
  row(q, "0", "0", "1") row(q, "4", "2", "3") row(q, "8", "4", "5") row(q, "12", "6", "7") row(q, "16", "8", "9") \
      row(q, "20", "10", "11")
#define TAUT_FIRST_ROW(q, offset, a, b) \
  "vpbroadcastd " offset                \
  "(%[x]), %%ymm14\n\t"                 \
  "vpmaddubsw %%ymm14, %%ymm12, %" a    \
  "\n\t"                                \
  "vpmaddubsw %%ymm14, %%ymm13, %" b "\n\t"
#define TAUT_ROW(q, offset, a, b)            \
  "vpbroadcastd 24*" q "+" offset            \
  "(%[x]), %%ymm14\n\t"                      \
  "vpmaddubsw %%ymm14, %%ymm12, %%ymm15\n\t" \
  "vpaddw %%ymm15, %" a ", %" a              \
  "\n\t"                                     \
  "vpmaddubsw %%ymm14, %%ymm13, %%ymm14\n\t" \
  "vpaddw %%ymm14, %" b ", %" b "\n\t"
#define TAUT_QUAD(row, q) "vmovdqa 64*" q "(%[w]), %%ymm12\n\tvmovdqa 64*" q "+32(%[w]), %%ymm13\n\t" TAUT_SIX_ROWS(row, q)

  [[gnu::always_inline]] static inline void block(const uint8_t* w, const uint8_t* x, __m256i (&dot)[kTileRows][2]) {
    asm volatile(TAUT_QUAD(TAUT_FIRST_ROW, "0") TAUT_QUAD(TAUT_ROW, "1") TAUT_QUAD(TAUT_ROW, "2") TAUT_QUAD(TAUT_ROW, "3")
                     TAUT_QUAD(TAUT_ROW, "4") TAUT_QUAD(TAUT_ROW, "5") TAUT_QUAD(TAUT_ROW, "6") TAUT_QUAD(TAUT_ROW, "7")
                 : "=&x"(dot[0][0]), "=&x"(dot[0][1]), "=&x"(dot[1][0]), "=&x"(dot[1][1]), "=&x"(dot[2][0]), "=&x"(dot[2][1]),
                   "=&x"(dot[3][0]), "=&x"(dot[3][1]), "=&x"(dot[4][0]), "=&x"(dot[4][1]), "=&x"(dot[5][0]), "=&x"(dot[5][1])
                 : [w] "r"(w), [x] "r"(x)
                 : "xmm12", "xmm13", "xmm14", "xmm15", "memory");
  }
#undef TAUT_QUAD
#undef TAUT_ROW
#undef TAUT_FIRST_ROW
#undef TAUT_SIX_ROWS

  Work& work_;
};

}  // namespace
}  // namespace taut::TAUT_ISA_NS

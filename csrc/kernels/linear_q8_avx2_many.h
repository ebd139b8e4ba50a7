// The AVX2 int8 linear for many rows: six rows x 16 columns at a time, three instructions for 32 multiply-adds.
//
// vpmaddubsw multiplies unsigned by signed bytes and adds two products, saturating at 16 bits. With u = q + 128 in [1, 255] the pair
// u0 * w0 + u1 * w1 cannot saturate while |w0 + w1| <= 128, which holds for about 99 % of all pairs and for all 32 of a k-quad in two
// thirds of the quads (SmolLM2-135M 68 %, normal weights 69 %). So every strip of weights is sorted, k-quad by k-quad: `plain` quads, whose pairs all are safe, are multiplied as they
// are (sum q * w = sum u * w - 128 * sum w); `signed` quads give the sign of the weight to the activation, at one more instruction:
//     q * w = |w| * (q ^ m) + |w| where m = -1 for w < 0    (q ^ -1 = -q - 1)
// Both constants are sums over a column of weights: the dot product starts from them. The order of quads inside a piece is free,
// because integer sums are exact. A group's rows are first copied into the order in which tiles read them.
#pragma once
#include <algorithm>

#include "kernels/tile_rows_avx2.h"

namespace taut::TAUT_ISA_NS {
namespace {

class ManyRows : RowTiles {
 public:
  static constexpr int64_t kLeast = 5 * kTileRows;  // rows; fewer do not pay for the sorting

  static int64_t scratch_bytes(int64_t k, int64_t pieces) { return int64_t(sizeof(Work)) + kTiles * tile_bytes(k, pieces); }

  // Rows [out.row_begin, row_end), at most kBlockRows of them.
  ManyRows(const Output& out, int64_t row_end, void* scratch)
      : RowTiles(out, row_end, tile_bytes(out.args.pieces.k, out.args.pieces.count),
                 static_cast<uint8_t*>(scratch) + sizeof(Work)),
        work_(*static_cast<Work*>(scratch)) {
    for (int t = 0; t < tiles_; ++t) copy_tile(t);
  }

  void run_panel(int64_t panel, bool) {
    const uint8_t* w = a_.w + panel * kPanel * a_.pieces.k;
    const float* group_scale = group_scales(a_, panel);
    sum_and_store(panel, work_.acc,
                  [&](const Span& s, float* sums) { run_span(s, w + int64_t(s.begin) * kPanel, sums, group_scale); });
  }

 private:
  static constexpr int kQuads = kSpanK / 4;

  // A piece's part of a strip, sorted.
  struct Sorted {
    alignas(32) int32_t start[kColumns];
    const uint8_t* plain;                                          // [plain_end - plain_at][16][4] weights
    const uint8_t* with_sign;                                      // [...][magnitude, sign ^ 128][16][4]
    const int32_t *plain_at, *plain_end, *signed_at, *signed_end;  // byte offsets of the quads' activations
  };

  struct Work {
    alignas(64) float acc[3][kBlockRows * kPanel];
    alignas(64) int32_t dots[kBlockRows * kPanel];
    alignas(64) uint8_t plain[(kQuads + 1) * 64];  // one more: a quad is written in both forms before its place is known
    alignas(64) uint8_t with_sign[(kQuads + 1) * 128];
    int32_t plain_at[kQuads + 1], signed_at[kQuads + 1];
    alignas(64) Sorted parts[kQuads];
  };

  // A tile: [K / 4][6 rows][4] u8 activations, then [pieces][6 rows] scales.
  static int64_t tile_bytes(int64_t k, int64_t pieces) {
    return tile_values_bytes(k) + (pieces * kTileRows * 4 + 63) / 64 * 64;
  }

  void copy_tile(int t) {
    const int64_t k = a_.pieces.k;
    uint8_t* to = x_ + t * tile_bytes_;
    float* scales = reinterpret_cast<float*>(to + tile_values_bytes(k));
    const uint8_t* row[kTileRows];
    rows_of(t, row);
    for (int r = 0; r < kTileRows; ++r) {
      for (int32_t p = 0; p < a_.pieces.count; ++p)
        __builtin_memcpy(scales + p * kTileRows + r, row[r] + a_.scales_offset + 4 * p, 4);
    }
    copy_tile_values<128>(row, k, to);
  }

  void run_span(const Span& s, const uint8_t* w, float* sums, const float* group_scale) {
    for (int strip = 0; strip < kPanel / kColumns; ++strip) {
      sort_strip(s, w + strip * kColumns * 4, strip == 0);
      const float* own = group_scale == nullptr ? nullptr : group_scale + strip * kColumns;
      for (int t = 0; t < tiles_; ++t) {
        run_tile(s, x_ + t * tile_bytes_, sums + value(strip, t), work_.dots + value(strip, t), own);
      }
    }
  }

  void sort_strip(const Span& s, const uint8_t* w, bool first_strip) {
    uint8_t *plain = work_.plain, *with_sign = work_.with_sign;
    int32_t *plain_at = work_.plain_at, *signed_at = work_.signed_at;
    Sorted* to = work_.parts;
    for (int32_t piece = s.first_piece; piece <= s.last_piece; ++piece, ++to) {
      const int32_t begin = std::max(a_.pieces.begin[piece], s.begin), end = std::min(a_.pieces.begin[piece + 1], s.end);
      to->plain = plain, to->with_sign = with_sign, to->plain_at = plain_at, to->signed_at = signed_at;
      sort_part((end - begin) / 4, w, first_strip ? (s.end - s.begin) * kPanel : 0, plain, with_sign, plain_at, signed_at,
                to->start);
      to->plain_end = plain_at, to->signed_end = signed_at;
      w += int64_t(end - begin) * kPanel;
    }
  }

  // Moves the four cursors beyond what it wrote. `ahead`: fetches the whole quad that many bytes later, if not 0.
  static void sort_part(int32_t quads, const uint8_t* w, int64_t ahead, uint8_t*& plain, uint8_t*& with_sign,
                        int32_t*& plain_at, int32_t*& signed_at, int32_t* start) {
    const __m256i flip = _mm256_set1_epi8(-128), ones = _mm256_set1_epi8(1), pair_ones = _mm256_set1_epi16(1),
                  bias = _mm256_set1_epi16(-128), limit = _mm256_set1_epi16(128), zero = _mm256_setzero_si256();
    __m256i sum[2] = {zero, zero};
    for (int32_t q = 0; q < quads; ++q, w += kPanel * 4) {
      for (int i = 0; ahead != 0 && i < 4; ++i) prefetch(w + ahead + i * 64);
      __m256i weights[2], largest = zero, constant[2][2];
      for (int c = 0; c < 2; ++c) {
        weights[c] = _mm256_xor_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(w + c * 32)), flip);
        const __m256i pairs = _mm256_maddubs_epi16(ones, weights[c]), magnitude = _mm256_abs_epi8(weights[c]),
                      sign = _mm256_cmpgt_epi8(zero, weights[c]);
        largest = _mm256_max_epi16(largest, _mm256_abs_epi16(pairs));
        constant[c][0] = _mm256_madd_epi16(pairs, bias);
        constant[c][1] = _mm256_madd_epi16(_mm256_maddubs_epi16(ones, _mm256_and_si256(magnitude, sign)), pair_ones);
        _mm256_store_si256(reinterpret_cast<__m256i*>(plain) + c, weights[c]);
        _mm256_store_si256(reinterpret_cast<__m256i*>(with_sign) + c, magnitude);
        _mm256_store_si256(reinterpret_cast<__m256i*>(with_sign) + 2 + c, _mm256_xor_si256(sign, flip));
      }
      const __m256i over = _mm256_cmpgt_epi16(largest, limit);
      const int keeps_sign = !_mm256_testz_si256(over, over);
      const __m256i which = _mm256_set1_epi32(-keeps_sign);
      for (int c = 0; c < 2; ++c) sum[c] = _mm256_add_epi32(sum[c], _mm256_blendv_epi8(constant[c][0], constant[c][1], which));
      *plain_at = *signed_at = q * kQuadBytes;
      plain_at += 1 - keeps_sign, plain += 64 * (1 - keeps_sign);
      signed_at += keeps_sign, with_sign += 128 * keeps_sign;
    }
    for (int c = 0; c < 2; ++c) _mm256_store_si256(reinterpret_cast<__m256i*>(start) + c, sum[c]);
  }

  // group_scale: of the strip, a panel's width from one piece to the next; or null.
  void run_tile(const Span& s, const uint8_t* x, float* acc, int32_t* dots, const float* group_scale) {
    const float* scales = reinterpret_cast<const float*>(x + tile_values_bytes(a_.pieces.k));
    const Sorted* part = work_.parts;
    for (int32_t piece = s.first_piece; piece <= s.last_piece; ++piece, ++part) {
      const int32_t begin = a_.pieces.begin[piece], end = a_.pieces.begin[piece + 1];
      __m256i dot[kTileRows][2];
#pragma GCC unroll 6
      for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 2
        for (int c = 0; c < 2; ++c) dot[r][c] = memory(part->start + 8 * c);
      }
      if (begin < s.begin) {
#pragma GCC unroll 6
        for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 2
          for (int c = 0; c < 2; ++c) dot[r][c] = _mm256_add_epi32(dot[r][c], memory(dots + r * kColumns + 8 * c));
        }
      }
      const uint8_t* quads = x + std::max(begin, s.begin) / 4 * kQuadBytes;
      if (part->plain_at != part->plain_end) plain_quads(part->plain, quads, part->plain_at, part->plain_end, dot);
      if (part->signed_at != part->signed_end) signed_quads(part->with_sign, quads, part->signed_at, part->signed_end, dot);
      const float* own = group_scale == nullptr ? nullptr : group_scale + int64_t(piece) * kPanel;
      const uint8_t* scale = reinterpret_cast<const uint8_t*>(scales + piece * kTileRows);
      finish_piece<kColumns>({end <= s.end, scale, 4, own, acc, dots}, dot);
    }
  }

  // Assembler, because these loops run at the front end's limit and every move that a compiler adds costs. rax: the quad's activations.
#define TAUT_SIX_ROWS(row) \
  row("0", "0", "1") row("4", "2", "3") row("8", "4", "5") row("12", "6", "7") row("16", "8", "9") row("20", "10", "11")
#define TAUT_QUADS(before, row, weight_bytes)                                                                                  \
  asm volatile(                                                                                                                \
      "mov %[w], %%rcx\n\t"                                                                                                    \
      "mov %[at], %%rdx\n\t"                                                                                                   \
      "vmovdqa %[ones], %%ymm13\n\t"                                                                                           \
      "1:\n\t"                                                                                                                 \
      "movslq (%%rdx), %%rax\n\t" before TAUT_SIX_ROWS(row) "add $" weight_bytes                                               \
                                                            ", %%rcx\n\t"                                                      \
                                                            "add $4, %%rdx\n\t"                                                \
                                                            "cmp %[end], %%rdx\n\t"                                            \
                                                            "jne 1b\n\t"                                                       \
      : "+x"(dot[0][0]), "+x"(dot[0][1]), "+x"(dot[1][0]), "+x"(dot[1][1]), "+x"(dot[2][0]), "+x"(dot[2][1]), "+x"(dot[3][0]), \
        "+x"(dot[3][1]), "+x"(dot[4][0]), "+x"(dot[4][1]), "+x"(dot[5][0]), "+x"(dot[5][1])                                    \
      : [w] "r"(w), [at] "r"(at), [x] "r"(x), [end] "r"(end), [ones] "m"(memory(kOnes))                                        \
      : "rax", "rcx", "rdx", "xmm12", "xmm13", "xmm14", "xmm15", "cc", "memory")
#define TAUT_PLAIN_ROW(offset, a, b)           \
  "vpbroadcastd " offset                       \
  "(%[x],%%rax), %%ymm14\n\t"                  \
  "vpmaddubsw (%%rcx), %%ymm14, %%ymm15\n\t"   \
  "vpmaddwd %%ymm13, %%ymm15, %%ymm15\n\t"     \
  "vpaddd %%ymm15, %" a ", %" a                \
  "\n\t"                                       \
  "vpmaddubsw 32(%%rcx), %%ymm14, %%ymm14\n\t" \
  "vpmaddwd %%ymm13, %%ymm14, %%ymm14\n\t"     \
  "vpaddd %%ymm14, %" b ", %" b "\n\t"
#define TAUT_SIGNED_ROW(offset, a, b)        \
  "vpbroadcastd " offset                     \
  "(%[x],%%rax), %%ymm14\n\t"                \
  "vpxor 64(%%rcx), %%ymm14, %%ymm15\n\t"    \
  "vpmaddubsw %%ymm15, %%ymm12, %%ymm15\n\t" \
  "vpmaddwd %[ones], %%ymm15, %%ymm15\n\t"   \
  "vpaddd %%ymm15, %" a ", %" a              \
  "\n\t"                                     \
  "vpxor 96(%%rcx), %%ymm14, %%ymm14\n\t"    \
  "vpmaddubsw %%ymm14, %%ymm13, %%ymm14\n\t" \
  "vpmaddwd %[ones], %%ymm14, %%ymm14\n\t"   \
  "vpaddd %%ymm14, %" b ", %" b "\n\t"

  [[gnu::always_inline]] static inline void plain_quads(const uint8_t* w, const uint8_t* x, const int32_t* at,
                                                        const int32_t* end, __m256i (&dot)[kTileRows][2]) {
    TAUT_QUADS("", TAUT_PLAIN_ROW, "64");
  }
  [[gnu::always_inline]] static inline void signed_quads(const uint8_t* w, const uint8_t* x, const int32_t* at,
                                                         const int32_t* end, __m256i (&dot)[kTileRows][2]) {
    TAUT_QUADS("vmovdqa (%%rcx), %%ymm12\n\tvmovdqa 32(%%rcx), %%ymm13\n\t", TAUT_SIGNED_ROW, "128");
  }
#undef TAUT_SIGNED_ROW
#undef TAUT_PLAIN_ROW
#undef TAUT_QUADS
#undef TAUT_SIX_ROWS

  Work& work_;
};

}  // namespace
}  // namespace taut::TAUT_ISA_NS

// The int8 and int4 linears of many rows on AMX: 32 rows x 32 columns at a time, four tiles of sums.
//
// A panel's weights are unpacked once for a block of up to 512 rows, into tiles of signed bytes that lie one after the other; a piece
// whose length is no multiple of 64 ends in zeros, so that what a row holds behind the piece does not count. While the matrix unit
// multiplies one piece, the vector units scale the sums of the piece before: both take about as long.
#pragma once
#include "kernels/linear_q4_layout.h"
#include "kernels/tiles_amx.h"

namespace taut::TAUT_ISA_NS {
namespace {

constexpr int64_t kStepK = 64;                  // inputs of a tile
constexpr int64_t kStepBytes = 4 * kTileBytes;  // a step's weights: four tiles of 16 columns

enum class Scales {
  kColumn,
  kGroup,
  kOffset
};  // of the weights: beyond the kernel, per group, per group with an offset (int4)

struct AmxQ8 {
  static constexpr bool kOffsets = false;
  static int64_t bytes(const LinearQ8&, int64_t k) { return k * kPanel; }

  // 64 columns of `quads` k-quads into steps, ended by zeros; nothing to do for the group's scales.
  static void unpack(const uint8_t* w, int64_t quads, uint8_t* to, float*) {
    const i32x16 flip = set1_i32(int32_t(0x80808080));
    for (int64_t q = 0; q < quads; ++q, w += 256) {
      uint8_t* row = to + q / 16 * kStepBytes + q % 16 * 64;
      for (int c = 0; c < 4; ++c) store_i32(row + c * kTileBytes, bit_xor(load_i32(w + 64 * c), flip));
    }
  }
};

struct AmxQ4 {
  static constexpr bool kOffsets = true;
  static int64_t bytes(const LinearQ8& a, int64_t k) { return Q4Layout::bytes(a, k); }

  // As AmxQ8's; scales: d and o of 64 columns.
  static void unpack(const uint8_t* w, int64_t quads, uint8_t* to, float* scales) {
    const i32x16 low = set1_i32(0x0f0f0f0f);
    for (int64_t q = 0; q < quads; q += 2, w += 256) {
      uint8_t* row = to + q / 16 * kStepBytes + q % 16 * 64;
      for (int c = 0; c < 4; ++c) {
        const i32x16 both = load_i32(w + 64 * c);
        store_i32(row + c * kTileBytes, bit_and(both, low));
        store_i32(row + c * kTileBytes + 64, bit_and(shift_right_signed<4>(both), low));
      }
    }
    for (int i = 0; i < 2 * kPanel; i += 16) store(scales + i, load(reinterpret_cast<const f16*>(w) + i));
  }
};

template <class Weights>
class AmxRows {
 public:
  static constexpr int64_t kLeast = 16;  // rows: a tile

  static int64_t scratch_bytes(int64_t k, int64_t pieces) {
    return int64_t(sizeof(Work)) + most_steps(k, pieces) * kStepBytes + scales_bytes(pieces) + 2 * pieces * kRowsOfBlock * 4 +
           (pieces * 4 + 4 + 63) / 64 * 64;
  }

  // Rows [out.row_begin, row_end), at most kRowsOfBlock of them and at least kLeast.
  AmxRows(const Output& out, int64_t row_end, void* scratch)
      : out_(out),
        a_(out.args),
        rows_(row_end - out.row_begin),
        tiles_((rows_ + 15) / 16),
        work_(*static_cast<Work*>(scratch)),
        weights_(static_cast<uint8_t*>(scratch) + sizeof(Work)),
        group_scales_(reinterpret_cast<float*>(weights_ + most_steps(a_.pieces.k, a_.pieces.count) * kStepBytes)),
        row_scale_(group_scales_ + scales_bytes(a_.pieces.count) / 4),
        row_factor_(row_scale_ + a_.pieces.count * kRowsOfBlock),
        step_(reinterpret_cast<int32_t*>(row_factor_ + a_.pieces.count * kRowsOfBlock)) {
    step_[0] = 0;
    for (int32_t p = 0; p < a_.pieces.count; ++p) {
      step_[p + 1] = step_[p] + int32_t((a_.pieces.begin[p + 1] - a_.pieces.begin[p] + kStepK - 1) / kStepK);
    }
    copy_scales();
    tiles_begin();
  }
  ~AmxRows() { tiles_end(); }
  AmxRows(const AmxRows&) = delete;
  AmxRows& operator=(const AmxRows&) = delete;

  // `fetches`: the next panel comes after this one.
  void run_panel(int64_t panel, bool fetches) {
    const uint8_t* w = a_.w + panel * Weights::bytes(a_, a_.pieces.k);
    unpack(w);
    fetch_ = w + Weights::bytes(a_, a_.pieces.k);
    fetch_end_ = fetches ? fetch_ + Weights::bytes(a_, a_.pieces.k) : fetch_;
    const int64_t turns = step_[a_.pieces.count] * ((tiles_ + 1) / 2) * 2;
    fetch_lines_ = ((fetch_end_ - fetch_) / 64 + turns - 1) / turns;
    const float* own = group_scales(a_, panel);
    sum_segments(a_.pieces, a_.pieces.k, {work_.acc[0], work_.acc[1], work_.acc[2]}, tiles_ * 16 * kPanel,
                 [&](const Span& s, float* sums) {
                   if (Weights::kOffsets) return run_span<Scales::kOffset>(s, sums, nullptr);
                   own == nullptr ? run_span<Scales::kColumn>(s, sums, nullptr) : run_span<Scales::kGroup>(s, sums, own);
                 });
    for (int64_t i = 0; i < rows_; ++i) {
      const int64_t tile = i / 16 == tiles_ - 1 ? tiles_ - 1 : i / 16;
      const int64_t v = tile * 16 * kPanel + (i - first_row(tile)) * 16;
      out_.store_row(out_.row_begin + i, panel, {work_.acc[0] + v, work_.acc[1] + v, work_.acc[2] + v, 256});
    }
  }

 private:
  struct Work {
    alignas(64) float acc[3][kRowsOfBlock * kPanel];  // [tiles][4][16 rows][16 columns]
    alignas(64) int32_t dots[2][4 * 256];             // of the piece that is multiplied and of that before
  };

  // Sums of a piece, 32 rows x 32 columns or 16 x 32, and what they are scaled by.
  struct Waiting {
    const int32_t* dots = nullptr;  // [row tiles][2][16][16]; null: nothing waits
    float* acc;                     // [row tiles][4 tiles apart][16][16]
    const float *scale, *factor;    // of the rows
    const float *d, *o;             // of the columns
  };

  static int64_t most_steps(int64_t k, int64_t pieces) { return k / kStepK + pieces; }
  static int64_t scales_bytes(int64_t pieces) { return Weights::kOffsets ? pieces * 2 * kPanel * 4 : 0; }

  // The last tile ends with the block's last row: where rows are no multiple of 16 it shares some with the tile before.
  int64_t first_row(int64_t tile) const { return tile == tiles_ - 1 ? rows_ - 16 : 16 * tile; }
  const uint8_t* x(int64_t tile) const { return a_.x + (out_.row_begin + first_row(tile)) * a_.x_row_bytes; }

  // [pieces][tiles][16]
  void copy_scales() {
    for (int64_t t = 0; t < tiles_; ++t) {
      for (int64_t r = 0; r < 16; ++r) {
        const uint8_t *scale = x(t) + r * a_.x_row_bytes + a_.scales_offset, *sum = scale + 4 * int64_t(a_.pieces.count);
        for (int64_t p = 0, to = t * 16 + r; p < a_.pieces.count; ++p, to += tiles_ * 16, scale += 4, sum += 4) {
          row_scale_[to] = float_at(scale);
          if (Weights::kOffsets) row_factor_[to] = offset_factor(scale, sum);
        }
      }
    }
  }

  void unpack(const uint8_t* w) {
    for (int32_t p = 0; p < a_.pieces.count; ++p) {
      const int64_t k = a_.pieces.begin[p + 1] - a_.pieces.begin[p];
      uint8_t* to = weights_ + step_[p] * kStepBytes;
      Weights::unpack(w, k / 4, to, group_scales_ + int64_t(p) * 2 * kPanel);
      for (int64_t q = k / 4; q % 16 != 0; ++q) {
        for (int c = 0; c < 4; ++c) store_i32(to + q / 16 * kStepBytes + c * kTileBytes + q % 16 * 64, set1_i32(0));
      }
      w += Weights::bytes(a_, k);
    }
  }

  template <Scales kScales>
  void run_span(const Span& s, float* sums, const float* own) {
    int64_t t = 0;
    for (; t + 2 <= tiles_; t += 2) run_tiles<2, kScales>(s, t, sums, own);
    if (t < tiles_) run_tiles<1, kScales>(s, t, sums, own);
  }

  // kRows row tiles against the panel.
  template <int kRows, Scales kScales>
  [[gnu::noinline]] void run_tiles(const Span& s, int64_t tile, float* sums, const float* own) {
    const uint8_t *x0 = x(tile), *x1 = kRows == 2 ? x(tile + 1) : nullptr;
    Waiting waiting;
    for (int half = 0; half < 2; ++half) {
      for (int32_t p = s.first_piece; p <= s.last_piece; ++p) {
        const int32_t steps = step_[p + 1] - step_[p];
        const uint8_t* w = weights_ + step_[p] * kStepBytes + half * 2 * kTileBytes;
        const int64_t k = a_.pieces.begin[p];
        int32_t* dots = work_.dots[p & 1];
        tile_clear<0>(), tile_clear<1>();
        if (kRows == 2) tile_clear<2>(), tile_clear<3>();
        if (waiting.dots == nullptr) {
          for (int32_t i = 0; i < steps; ++i)
            step<kRows, kScales, 0>(x0 + k + i * kStepK, x1 + k + i * kStepK, w + i * kStepBytes, waiting, 0);
        } else if (steps == 1) {
          step<kRows, kScales, 2>(x0 + k, x1 + k, w, waiting, 0);
        } else {
          step<kRows, kScales, 1>(x0 + k, x1 + k, w, waiting, 0);
          step<kRows, kScales, 1>(x0 + k + kStepK, x1 + k + kStepK, w + kStepBytes, waiting, kRows);
          for (int32_t i = 2; i < steps; ++i)
            step<kRows, kScales, 0>(x0 + k + i * kStepK, x1 + k + i * kStepK, w + i * kStepBytes, waiting, 0);
        }
        tile_save<0>(dots), tile_save<1>(dots + 256);
        if (kRows == 2) tile_save<2>(dots + 512), tile_save<3>(dots + 768);
        const int64_t rows_at = (p * tiles_ + tile) * 16;
        const float* d = kScales == Scales::kGroup    ? own + int64_t(p) * kPanel
                         : kScales == Scales::kOffset ? group_scales_ + int64_t(p) * 2 * kPanel
                                                      : nullptr;
        waiting = {dots,
                   sums + (tile * 4 + half * 2) * 256,
                   row_scale_ + rows_at,
                   row_factor_ + rows_at,
                   d + half * 32,
                   d + half * 32 + kPanel};
      }
    }
    for (int i = 0; i < 2 * kRows; ++i) scale_rows<kScales, 0, 16>(waiting, i);
  }

  // One step of the products, and kWaiting x kRows of the waiting tiles from `first` on between them.
  template <int kRows, Scales kScales, int kWaiting>
  [[gnu::always_inline]] inline void step(const uint8_t* x0, const uint8_t* x1, const uint8_t* w, const Waiting& waiting,
                                          int first) {
    const int64_t stride = a_.x_row_bytes;
    constexpr int kPart = kWaiting == 0 ? 0 : 8 * kWaiting;
    for (int64_t i = 0; i < fetch_lines_; ++i) prefetch_next();
    tile_load<4>(x0, stride);
    tile_load<6>(w, 64);
    tile_dot<0, 4, 6>();
    scale_rows<kScales, 0, kPart>(waiting, first);
    tile_load<7>(w + kTileBytes, 64);
    tile_dot<1, 4, 7>();
    scale_rows<kScales, kWaiting == 2 ? 0 : 8, kWaiting == 2 ? 16 : 8 + kPart>(waiting, kWaiting == 2 ? first + 1 : first);
    if (kRows == 2) {
      tile_load<5>(x1, stride);
      tile_dot<2, 5, 6>();
      scale_rows<kScales, 0, kPart>(waiting, first + kWaiting);
      tile_dot<3, 5, 7>();
      scale_rows<kScales, kWaiting == 2 ? 0 : 8, kWaiting == 2 ? 16 : 8 + kPart>(waiting,
                                                                                 kWaiting == 2 ? first + 3 : first + 1);
    }
  }

  void prefetch_next() {
    if (fetch_ < fetch_end_) prefetch(fetch_);
    fetch_ += 64;
  }

  // Rows [kBegin, kEnd) of a waiting tile.
  template <Scales kScales, int kBegin, int kEnd>
  [[gnu::always_inline]] static inline void scale_rows(const Waiting& waiting, int tile) {
    if (kBegin == kEnd) return;
    const int32_t* dots = waiting.dots + tile * 256;
    float* acc = waiting.acc + (tile / 2 * 4 + tile % 2) * 256;
    const float *scale = waiting.scale + tile / 2 * 16, *factor = waiting.factor + tile / 2 * 16;
    const f32x16 d = kScales == Scales::kColumn ? zero() : load(waiting.d + tile % 2 * 16);
    const f32x16 o = kScales == Scales::kOffset ? load(waiting.o + tile % 2 * 16) : zero();
#pragma GCC unroll 16
    for (int r = kBegin; r < kEnd; ++r) {
      const f32x16 dot = to_f32(load_i32(dots + r * 16)), sum = load(acc + r * 16);
      if (kScales == Scales::kColumn) {
        store(acc + r * 16, fma(dot, set1(scale[r]), sum));
        continue;
      }
      const f32x16 scaled = fma(mul(dot, set1(scale[r])), d, sum);
      store(acc + r * 16, kScales == Scales::kOffset ? fma(set1(factor[r]), o, scaled) : scaled);
    }
  }

  const Output& out_;
  const LinearQ8& a_;
  const int64_t rows_, tiles_;
  Work& work_;
  uint8_t* const weights_;     // [steps][4 tiles of 16 columns][16 quads][16][4]
  float* const group_scales_;  // int4: [pieces][d, o][64]
  float *const row_scale_, *const row_factor_;
  int32_t* const step_;  // where a piece's steps begin
  const uint8_t *fetch_ = nullptr, *fetch_end_ = nullptr;
  int64_t fetch_lines_ = 0;
};

}  // namespace
}  // namespace taut::TAUT_ISA_NS

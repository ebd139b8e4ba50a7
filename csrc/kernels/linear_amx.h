// The int8 and int4 linears of many rows on AMX: 32 rows x 32 columns at a time, four tiles of sums.
//
// A panel's weights are unpacked once for a block of up to 512 rows, into tiles of signed bytes that lie one after the other; a piece
// whose length is no multiple of 64 ends in zeros, so that what a row holds behind the piece does not count. Two tiles of rows go
// through all pieces against half of the panel's columns, two pieces at a time: what is multiplied of them is scaled right away, and
// sums stay in registers from the first piece to the second. The processor overlaps both by itself; interleaving them by hand gained
// nothing.
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
    return int64_t(sizeof(Work)) + most_steps(k, pieces) * kStepBytes + scales_bytes(pieces) + factor_bytes(pieces) +
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
        row_factor_(group_scales_ + scales_bytes(a_.pieces.count) / 4),
        step_(reinterpret_cast<int32_t*>(row_factor_ + factor_bytes(a_.pieces.count) / 4)) {
    step_[0] = 0;
    for (int32_t p = 0; p < a_.pieces.count; ++p) {
      step_[p + 1] = step_[p] + int32_t((a_.pieces.begin[p + 1] - a_.pieces.begin[p] + kStepK - 1) / kStepK);
    }
    std::memset(work_.zeros, 0, sizeof(work_.zeros));
    if (Weights::kOffsets) copy_factors();
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
    const int64_t turns = (a_.pieces.count + kBatch - 1) / kBatch * 2 * ((tiles_ + 1) / 2);
    fetch_bytes_ = ((fetch_end_ - fetch_) / 64 + turns - 1) / turns * 64;
    const float* own = group_scales(a_, panel);
    if (Weights::kOffsets) return run_rows<Scales::kOffset>(panel, nullptr);
    own == nullptr ? run_rows<Scales::kColumn>(panel, nullptr) : run_rows<Scales::kGroup>(panel, own);
  }

 private:
  static constexpr int32_t kBatch = 2;  // most pieces that are multiplied before they are scaled

  struct Work {
    alignas(64) float acc[4][8 * 256];  // s0 + s1, s2, s3 and an unfinished s1: [row tiles][4][16 rows][16 columns]
    alignas(64) float zeros[6 * 256];
    alignas(64) int32_t dots[kBatch][4 * 256];  // of the batch, half the columns: [row tiles][2][16][16]
  };

  // Pieces of one segment that are multiplied and wait for their scales. Pointers to sums: into arrays like those of Work::acc.
  struct Batch {
    int64_t pieces;
    const float* from;     // sums of the segment's pieces before
    float* to;             // where they go
    const float* plus;     // s0, to be added, or null
    const uint8_t* scale;  // of the first row and piece
    const float* factor;   // int4: likewise
    const float* d;        // of the first column and piece
  };

  static int64_t most_steps(int64_t k, int64_t pieces) { return k / kStepK + pieces; }
  static int64_t scales_bytes(int64_t pieces) { return Weights::kOffsets ? pieces * 2 * kPanel * 4 : 0; }
  static int64_t factor_bytes(int64_t pieces) { return Weights::kOffsets ? pieces * kRowsOfBlock * 4 : 0; }

  // The last tile ends with the block's last row: where rows are no multiple of 16 it shares some with the tile before.
  int64_t first_row(int64_t tile) const { return tile == tiles_ - 1 ? rows_ - 16 : 16 * tile; }
  const uint8_t* x(int64_t tile) const { return a_.x + (out_.row_begin + first_row(tile)) * a_.x_row_bytes; }

  // [tiles][pieces][16]
  void copy_factors() {
    for (int64_t t = 0; t < tiles_; ++t) {
      for (int64_t r = 0; r < 16; ++r) {
        const uint8_t *scale = x(t) + r * a_.x_row_bytes + a_.scales_offset, *sum = scale + 4 * int64_t(a_.pieces.count);
        float* to = row_factor_ + t * a_.pieces.count * 16 + r;
        for (int64_t p = 0; p < a_.pieces.count; ++p, to += 16, scale += 4, sum += 4) *to = offset_factor(scale, sum);
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
  void run_rows(int64_t panel, const float* own) {
    for (int64_t t = 0; t < tiles_; t += 2) {
      t + 1 < tiles_ ? run_tiles<2, kScales>(t, own) : run_tiles<1, kScales>(t, own);
      store_tile(panel, t, 0);
      if (t + 1 < tiles_) store_tile(panel, t + 1, 1);
    }
  }

  void store_tile(int64_t panel, int64_t tile, int at) {
    const int64_t first = first_row(tile);
    for (int64_t row = 16 * tile; row < first + 16; ++row) {
      const float* sums = work_.acc[0] + at * 1024 + (row - first) * 16;
      out_.store_row(out_.row_begin + row, panel, {sums, sums + 2048, sums + 4096, 256});
    }
  }

  // kRows row tiles against the panel.
  template <int kRows, Scales kScales>
  [[gnu::noinline]] void run_tiles(int64_t tile, const float* own) {
    const Pieces& pieces = a_.pieces;
    const uint8_t* const rows = x(tile);
    const int64_t next = kRows == 2 ? x(tile + 1) - rows : 0;
    for (int half = 0; half < 2; ++half) {
      for (int segment = 0; segment < 4; ++segment) {
        const int32_t begin = pieces.segment[segment], end = pieces.segment[segment + 1];
        float* const all = work_.acc[segment < 2 ? 0 : segment - 1];
        if (begin == end && segment != 1 && half == 0) std::memset(all, 0, sizeof(work_.acc[0]));
        float *const whole = all + half * 512, *const sums = segment == 1 ? work_.acc[3] + half * 512 : whole;
        for (int32_t first = begin, last; first < end; first = last) {
          last = first + kBatch < end ? first + kBatch : end;
          for (int32_t p = first; p < last; ++p) multiply<kRows>(rows, next, p, half, work_.dots[p - first]);
          const Batch batch{last - first,
                            first == begin ? work_.zeros : sums,
                            last == end ? whole : sums,
                            last == end && segment == 1 ? whole : nullptr,
                            rows + a_.scales_offset + 4 * int64_t(first),
                            row_factor_ + (tile * pieces.count + first) * 16,
                            kScales == Scales::kGroup    ? own + int64_t(first) * kPanel + half * 32
                            : kScales == Scales::kOffset ? group_scales_ + int64_t(first) * 2 * kPanel + half * 32
                                                         : nullptr};
          for (int64_t part = 0; part < 4 * kRows; ++part) scale<kScales>(batch, part, next);
          prefetch_next();
        }
      }
    }
  }

  // Piece p; the second tile of rows lies `next` bytes behind the first.
  template <int kRows>
  [[gnu::always_inline]] inline void multiply(const uint8_t* rows, int64_t next, int32_t p, int half, int32_t* dots) {
    const int64_t stride = a_.x_row_bytes;
    const uint8_t *w = weights_ + step_[p] * kStepBytes + half * 2 * kTileBytes, *x = rows + a_.pieces.begin[p];
    tile_clear<0>(), tile_clear<1>();
    if (kRows == 2) tile_clear<2>(), tile_clear<3>();
    for (int32_t steps = step_[p + 1] - step_[p]; steps > 0; --steps, w += kStepBytes, x += kStepK) {
      tile_load<4>(x, stride);
      tile_load<6>(w, 64);
      tile_dot<0, 4, 6>();
      tile_load<7>(w + kTileBytes, 64);
      tile_dot<1, 4, 7>();
      if (kRows == 2) {
        tile_load<5>(x + next, stride);
        tile_dot<2, 5, 6>();
        tile_dot<3, 5, 7>();
      }
    }
    tile_save<0>(dots), tile_save<1>(dots + 256);
    if (kRows == 2) tile_save<2>(dots + 512), tile_save<3>(dots + 768);
  }

  void prefetch_next() {
    const uint8_t* end = fetch_ + fetch_bytes_ < fetch_end_ ? fetch_ + fetch_bytes_ : fetch_end_;
    for (; fetch_ < end; fetch_ += 64) prefetch(fetch_);
  }

  // Eight rows of a tile, through all pieces of the batch: part 4 t + 2 c + h has rows 8 h of row tile t, columns 16 c.
  template <Scales kScales>
  [[gnu::always_inline]] inline void scale(const Batch& batch, int64_t part, int64_t next) {
    const int64_t tile = part >> 2, row = (part & 1) * 8, at = part * 128 + tile * 512, stride = a_.x_row_bytes;
    const int32_t* dots = work_.dots[0] + part * 128;
    const uint8_t* scale = batch.scale + row * stride + tile * next;
    const float* factor = batch.factor + tile * a_.pieces.count * 16 + row;
    const float* d = batch.d + (part >> 1 & 1) * 16;
    f32x16 sum[8];
#pragma GCC unroll 8
    for (int r = 0; r < 8; ++r) sum[r] = load(batch.from + at + r * 16);
    for (int64_t p = batch.pieces; p > 0; --p) {
      const f32x16 columns = kScales == Scales::kColumn ? zero() : load(d);
      const f32x16 offsets = kScales == Scales::kOffset ? load(d + kPanel) : zero();
#pragma GCC unroll 8
      for (int r = 0; r < 8; ++r) {
        const f32x16 dot = to_f32(load_i32(dots + r * 16)), rows = set1(float_at(scale + r * stride));
        sum[r] = kScales == Scales::kColumn ? fma(dot, rows, sum[r]) : fma(mul(dot, rows), columns, sum[r]);
        if (kScales == Scales::kOffset) sum[r] = fma(set1(factor[r]), offsets, sum[r]);
      }
      dots += 1024, scale += 4, factor += 16, d += kScales == Scales::kOffset ? 2 * kPanel : kPanel;
    }
    if (batch.plus != nullptr) {
#pragma GCC unroll 8
      for (int r = 0; r < 8; ++r) sum[r] = add(load(batch.plus + at + r * 16), sum[r]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < 8; ++r) store(batch.to + at + r * 16, sum[r]);
  }

  const Output& out_;
  const LinearQ8& a_;
  const int64_t rows_, tiles_;
  Work& work_;
  uint8_t* const weights_;     // [steps][4 tiles of 16 columns][16 quads][16][4]
  float* const group_scales_;  // int4: [pieces][d, o][64]
  float* const row_factor_;    // int4: [tiles][pieces][16]
  int32_t* const step_;        // where a piece's steps begin
  const uint8_t *fetch_ = nullptr, *fetch_end_ = nullptr;
  int64_t fetch_bytes_ = 0;
};

}  // namespace
}  // namespace taut::TAUT_ISA_NS

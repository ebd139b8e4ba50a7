// The loops of the int8 and int4 linears over panels, row tiles and spans of K; an ISA supplies the tiles (linear_q8_<isa>.h,
// linear_q4_<isa>.h).
//
// Rows are cut into balanced tiles of at most kTileRows (never one slow tail), tiles into groups of at most Isa::kGroupTiles. A group
// walks its panel span by span, so that the span's weights come from memory once and stay in L1 for the group's other tiles.
#pragma once
#include <array>

#include "kernels/linear_output.h"
#include "linear_q8.h"
#include "simd/math.h"

namespace taut::TAUT_ISA_NS {
namespace {

constexpr int kTileRows = 6;  // most rows of a tile

// Inputs [begin, end) inside one segment: whole pieces, or a part of one piece.
struct Span {
  int32_t begin, end;
  int32_t first_piece, last_piece;  // inclusive
};

// One tile of rows over one span. Rows are a.x_row_bytes apart; acc and dots have kPanel columns per row.
struct Tile {
  const uint8_t* x;            // row 0
  const uint8_t* w;            // the span's packed weights
  float* acc;                  // sums of the segment
  int32_t* dots;               // carries the dot product where the span holds a part of a piece
  int fetch_begin, fetch_end;  // quarters of a later span that this tile prefetches
  const float* group_scale;    // [pieces][kPanel] of the panel, or null
};

// The part of a span that one piece covers.
struct Part {
  int32_t begin, end;
  const uint8_t* scale;  // of row 0, as sum
  const uint8_t* sum;
  bool starts, ends;         // the piece, here
  const float* group_scale;  // of the panel's columns, or null
};

inline Part part_of(const LinearQ8& a, const Span& s, const Tile& t, int32_t piece) {
  const int32_t begin = a.pieces.begin[piece], end = a.pieces.begin[piece + 1];
  const uint8_t* scale = t.x + a.scales_offset + 4 * int64_t(piece);
  return {begin > s.begin ? begin : s.begin,
          end < s.end ? end : s.end,
          scale,
          scale + 4 * int64_t(a.pieces.count),
          begin >= s.begin,
          end <= s.end,
          t.group_scale == nullptr ? nullptr : t.group_scale + int64_t(piece) * kPanel};
}

// Scales of a panel's groups, or null.
inline const float* group_scales(const LinearQ8& a, int64_t panel) {
  return a.group_scale == nullptr ? nullptr : a.group_scale + panel * a.pieces.count * kPanel;
}

// Int8 weights of a panel, for the driver.
struct Q8Layout {
  // Bytes of a panel's first k inputs.
  static int64_t bytes(const LinearQ8&, int64_t k) { return k * kPanel; }
};

// The longest span from `begin` on: whole pieces of the segment up to max_k inputs, else a part of one piece.
inline Span next_span(const Pieces& pieces, int32_t begin, int32_t piece, int32_t last_piece, int32_t max_k) {
  if (pieces.begin[piece + 1] - begin > max_k) return {begin, begin + max_k, piece, piece};
  Span s{begin, pieces.begin[piece + 1], piece, piece};
  if (begin != pieces.begin[piece]) return s;  // the rest of a piece
  while (s.last_piece < last_piece && pieces.begin[s.last_piece + 2] - begin <= max_k) s.end = pieces.begin[++s.last_piece + 1];
  return s;
}

template <class Isa>
void run_tile(int64_t rows, const LinearQ8& a, const Span& s, const Tile& t) {
  switch (rows) {
    case 1:
      return Isa::template tile<1>(a, s, t);
    case 2:
      return Isa::template tile<2>(a, s, t);
    case 3:
      return Isa::template tile<3>(a, s, t);
    case 4:
      return Isa::template tile<4>(a, s, t);
    case 5:
      return Isa::template tile<5>(a, s, t);
    default:
      return Isa::template tile<6>(a, s, t);
  }
}

// Canonical sums of num_values outputs: run_span(span, sums) adds one span's products to the sums of its segment. Leaves s0 + s1 in
// acc[0], s2 in acc[1] and s3 in acc[2].
template <class RunSpan>
void sum_segments(const Pieces& pieces, int32_t max_k, const std::array<float*, 3>& acc, int64_t num_values, RunSpan run_span) {
  for (int i = 0; i < 4; ++i) {
    float* sums = acc[i == 0 ? 0 : i == 3 ? 2 : 1];
    for (int64_t v = 0; v < num_values; ++v) sums[v] = 0.0f;
    const int32_t last = pieces.segment[i + 1] - 1;
    for (int32_t piece = pieces.segment[i], k = pieces.begin[piece]; piece <= last;) {
      const Span s = next_span(pieces, k, piece, last, max_k);
      run_span(s, sums);
      k = s.end;
      piece = s.last_piece + (s.end == pieces.begin[s.last_piece + 1]);
    }
    if (i == 1) {
      for (int64_t v = 0; v < num_values; ++v) acc[0][v] += acc[1][v];
    }
  }
}

// Up to Isa::kGroupTiles tiles against one panel. Tile t holds rows [row[t], row[t + 1]).
template <class Isa>
struct Group {
  static constexpr int kValues = Isa::kGroupTiles * kTileRows * kPanel;

  const Output& out;
  const LinearQ8& a;
  const bool streams;  // the panel is not in a cache yet
  int tiles = 0;
  int64_t row[Isa::kGroupTiles + 1];
  alignas(64) float acc[3][kValues];
  alignas(64) int32_t dots[kValues];

  Group(const Output& output, bool first_of_panel) : out(output), a(output.args), streams(first_of_panel) {}

  const uint8_t* x(int t) const { return a.x + row[t] * a.x_row_bytes; }

  Tile tile(int t, const uint8_t* w, float* sums, const float* group_scale) {
    const int64_t offset = (row[t] - row[0]) * kPanel;
    const int fetch_begin = streams ? 4 * t / tiles : 0, fetch_end = streams ? 4 * (t + 1) / tiles : 0;
    return {x(t), w, sums + offset, dots + offset, fetch_begin, fetch_end, group_scale};
  }

  void run_span(const Span& s, const uint8_t* panel, float* sums, const float* group_scale) {
    const uint8_t* w = panel + Isa::bytes(a, s.begin);
    for (int t = 0; t < tiles; ++t) run_tile<Isa>(row[t + 1] - row[t], a, s, tile(t, w, sums, group_scale));
  }

  void run_panel(int64_t panel) {
    const uint8_t* w = a.w + panel * Isa::bytes(a, a.pieces.k);
    const int32_t max_k = tiles > 1 ? Isa::kSharedK : Isa::kSingleK;
    sum_segments(a.pieces, max_k, {acc[0], acc[1], acc[2]}, (row[tiles] - row[0]) * kPanel,
                 [&](const Span& s, float* sums) { run_span(s, w, sums, group_scales(a, panel)); });
    for (int64_t r = row[0]; r < row[tiles]; ++r) {
      const int64_t v = (r - row[0]) * kPanel;
      out.store_row(r, panel, {acc[0] + v, acc[1] + v, acc[2] + v, 16});
    }
  }
};

template <class Isa>
void run_rows(const Output& out, int64_t row_end, int64_t panel_begin, int64_t panel_end) {
  const int64_t row_begin = out.row_begin, rows = row_end - row_begin;
  const int64_t tiles = (rows + kTileRows - 1) / kTileRows;
  const int64_t groups = (tiles + Isa::kGroupTiles - 1) / Isa::kGroupTiles;
  for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
    for (int64_t i = 0; i < groups; ++i) {
      const int64_t first = tiles * i / groups, last = tiles * (i + 1) / groups;
      Group<Isa> g(out, i == 0);
      g.tiles = int(last - first);
      for (int64_t t = first; t <= last; ++t) g.row[t - first] = row_begin + rows * t / tiles;
      g.run_panel(panel);
    }
  }
}

// For instruction sets whose tiles serve any number of rows.
struct NoManyRows {
  static constexpr int64_t kLeast = kRowsOfBlock + 1;  // rows from which a class for many rows pays
  static int64_t scratch_bytes(int64_t, int64_t) { return 0; }
  NoManyRows(const Output&, int64_t, void*) {}
  void run_panel(int64_t, bool) {}
};

template <class Many>
int64_t scratch_bytes(int64_t k, int64_t pieces) {
  return kWaitingBytes + Many::scratch_bytes(k, pieces);
}

// The kernel: blocks of rows, each by Many or by Isa's tiles. `scratch`: scratch_bytes<Many>.
template <class Isa, class Many>
void run_blocks(const LinearQ8& a, int64_t row_begin, int64_t row_end, int64_t panel_begin, int64_t panel_end, void* scratch) {
  for (int64_t row = row_begin; row < row_end; row += kRowsOfBlock) {
    const int64_t end = row_end - row < kRowsOfBlock ? row_end : row + kRowsOfBlock;
    const Output out{a, row, static_cast<float*>(scratch)};
    if (end - row < Many::kLeast) {
      run_rows<Isa>(out, end, panel_begin, panel_end);
      continue;
    }
    Many block(out, end, static_cast<uint8_t*>(scratch) + kWaitingBytes);
    for (int64_t panel = panel_begin; panel < panel_end; ++panel) block.run_panel(panel, panel + 1 < panel_end);
  }
}

}  // namespace
}  // namespace taut::TAUT_ISA_NS

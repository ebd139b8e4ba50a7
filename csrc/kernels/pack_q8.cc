// Quantizes and packs int8 weights. See pack_q8.h.
#include "pack_q8.h"

#include "kernels/source_rows.h"

namespace taut::TAUT_ISA_NS {
namespace {

constexpr int64_t kColumns = 64;
constexpr int64_t kBlockRows = 16;  // rows interleaved at a time: one 64-byte line of each k-quad

// q of n inputs of the 16 rows of a block, from input k on.
using Block = int8_t[kBlockRows][kReadAhead];

void store_quads(const PackQ8& p, int64_t row, int64_t k, int64_t n, const Block& q) {
  const int64_t quads = (p.k + 3) / 4;
  uint8_t* lines = p.packed + (row / kColumns * quads + k / 4) * kColumns * 4 + row % kColumns * 4;
  for (int64_t quad = 0; quad < (n + 3) / 4; ++quad, lines += kColumns * 4) {
    for (int64_t r = 0; r < kBlockRows; ++r) {
      uint32_t four;
      __builtin_memcpy(&four, q[r] + quad * 4, 4);
      four ^= 0x80808080u;  // + 128
      __builtin_memcpy(lines + r * 4, &four, 4);
    }
  }
}

void store_inputs(const PackQ8& p, int64_t row, int64_t k, int64_t n, const Block& q) {
  uint8_t* to = p.packed + (row / kColumns * p.k + k) * kColumns + row % kColumns;
  for (int64_t i = 0; i < n; ++i, to += kColumns) {
    for (int64_t r = 0; r < kBlockRows; ++r) to[r] = static_cast<uint8_t>(q[r][i]);
  }
}

// Inputs [begin, end) of rows [row, row + 16), which share a scale a row. Rows from n on have inverse 0.
void pack_block(const PackQ8& p, int64_t row, int64_t begin, int64_t end, const float* inverse) {
  float values[kReadAhead];
  Block q;
  for (int64_t k = begin; k < end; k += kReadAhead) {
    const int64_t n = end - k < kReadAhead ? end - k : kReadAhead;
    for (int64_t r = 0; r < kBlockRows; ++r) {
      const bool is_zero = inverse[r] == 0.0f;
      if (!is_zero) read_source(p, row + r, k, n, values);
      for (int64_t i = 0; i < n; i += 16) {
        store_i8(q[r] + i, is_zero ? set1_i32(0) : round_to_i32(mul(load(values + i), set1(inverse[r]))));
      }
    }
    p.by_input ? store_inputs(p, row, k, n, q) : store_quads(p, row, k, n, q);
  }
}

// The first row from `row` on, of those that hold a NaN or an infinity.
int64_t first_bad_row(const PackQ8& p, int64_t row) {
  while (row_absmax_bits(p, row, 0, p.k) < 0x7f800000) ++row;
  return row;
}

}  // namespace

int64_t pack_q8(const PackQ8& p, int64_t panel_begin, int64_t panel_end) {
  const int64_t span = p.weight_group != 0 ? p.weight_group : p.k, groups = p.k / span;
  for (int64_t block = panel_begin * kColumns; block < panel_end * kColumns; block += kBlockRows) {
    for (int64_t group = 0; group < groups; ++group) {
      float inverse[kBlockRows];
      float* scale = p.scale + (block / kColumns * groups + group) * kColumns + block % kColumns;
      for (int64_t r = 0; r < kBlockRows; ++r) {
        const int32_t bits = block + r < p.n ? row_absmax_bits(p, block + r, group * span, (group + 1) * span) : 0;
        if (bits >= 0x7f800000) return first_bad_row(p, block);
        const Scale s = scale_of(bits);
        scale[r] = s.scale;
        inverse[r] = s.inverse;
      }
      pack_block(p, block, group * span, (group + 1) * span, inverse);
    }
  }
  return -1;
}

}  // namespace taut::TAUT_ISA_NS

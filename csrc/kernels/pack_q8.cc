// Quantizes and packs int8 weights. See pack_q8.h.
#include "pack_q8.h"

#include "kernels/source_rows.h"

namespace taut::TAUT_ISA_NS {
namespace {

constexpr int64_t kColumns = 64;
constexpr int64_t kBlockRows = 16;  // rows interleaved at a time: one 64-byte line of each k-quad

// Rows [row, row + 16) to the 64-byte lines at `lines`, kColumns * 4 bytes apart. Rows from n on hold weight 0.
inline void pack_block(const PackQ8& p, int64_t row, const float* inverse, uint8_t* lines) {
  float values[kReadAhead];
  int8_t q[kBlockRows][kReadAhead];
  for (int64_t k = 0; k < p.k; k += kReadAhead) {
    const int64_t n = p.k - k < kReadAhead ? p.k - k : kReadAhead;
    for (int64_t r = 0; r < kBlockRows; ++r) {
      const bool is_zero = inverse[r] == 0.0f;
      if (!is_zero) read_source(p, row + r, k, n, values);
      for (int64_t i = 0; i < n; i += 16) {
        store_i8(q[r] + i, is_zero ? set1_i32(0) : round_to_i32(mul(load(values + i), set1(inverse[r]))));
      }
    }
    for (int64_t quad = 0; quad < (n + 3) / 4; ++quad, lines += kColumns * 4) {
      for (int64_t r = 0; r < kBlockRows; ++r) {
        uint32_t four;
        __builtin_memcpy(&four, q[r] + quad * 4, 4);
        four ^= 0x80808080u;  // + 128
        __builtin_memcpy(lines + r * 4, &four, 4);
      }
    }
  }
}

}  // namespace

int64_t pack_q8(const PackQ8& p, int64_t panel_begin, int64_t panel_end) {
  const int64_t quads = (p.k + 3) / 4;
  for (int64_t block = panel_begin * kColumns; block < panel_end * kColumns; block += kBlockRows) {
    float inverse[kBlockRows];
    for (int64_t r = 0; r < kBlockRows; ++r) {
      const int32_t bits = block + r < p.n ? row_absmax_bits(p, block + r) : 0;
      if (bits >= 0x7f800000) return block + r;
      const Scale s = scale_of(bits);
      p.scale[block + r] = s.scale;
      inverse[r] = s.inverse;
    }
    pack_block(p, block, inverse, p.packed + block / kColumns * quads * kColumns * 4 + block % kColumns * 4);
  }
  return -1;
}

}  // namespace taut::TAUT_ISA_NS

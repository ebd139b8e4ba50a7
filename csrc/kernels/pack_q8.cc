// Quantizes and packs int8 weights. See pack_q8.h.
#include "pack_q8.h"

#include "kernels/quantize_row.h"

namespace taut::TAUT_ISA_NS {
namespace {

constexpr int64_t kColumns = 64;
constexpr int64_t kBlockRows = 16;  // rows interleaved at a time: one 64-byte line of each k-quad
constexpr int64_t kBlockK = 256;

template <typename T>
inline void widen(const T* from, int64_t n, float* to) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) store(to + i, load(from + i));
  for (; i < n; ++i) to[i] = to_f32(from[i]);
}

// n <= kBlockK values of row `row` from column k on; zeros up to a multiple of 16.
inline void read(const PackQ8& p, int64_t row, int64_t k, int64_t n, float* to) {
  const uint8_t* base = p.w + row * p.row_bytes;
  if (p.source == Source::kF32) {
    __builtin_memcpy(to, base + 4 * k, size_t(4 * n));
  } else {
    const uint8_t* from = base + 2 * k;
    p.source == Source::kBf16 ? widen(reinterpret_cast<const bf16*>(from), n, to)
                              : widen(reinterpret_cast<const f16*>(from), n, to);
  }
  for (int64_t i = n; i % 16 != 0; ++i) to[i] = 0.0f;
}

inline int32_t row_absmax_bits(const PackQ8& p, int64_t row) {
  float values[kBlockK];
  i32x16 largest = set1_i32(0);
  for (int64_t k = 0; k < p.k; k += kBlockK) {
    const int64_t n = p.k - k < kBlockK ? p.k - k : kBlockK;
    read(p, row, k, n, values);
    for (int64_t i = 0; i < n; i += 16) largest = max_i32(largest, abs_bits(load(values + i)));
  }
  return reduce_max_i32(largest);
}

// Rows [row, row + 16) to the 64-byte lines at `lines`, kColumns * 4 bytes apart. Rows from n on hold weight 0.
inline void pack_block(const PackQ8& p, int64_t row, const float* inverse, uint8_t* lines) {
  float values[kBlockK];
  int8_t q[kBlockRows][kBlockK];
  for (int64_t k = 0; k < p.k; k += kBlockK) {
    const int64_t n = p.k - k < kBlockK ? p.k - k : kBlockK;
    for (int64_t r = 0; r < kBlockRows; ++r) {
      const bool is_zero = inverse[r] == 0.0f;
      if (!is_zero) read(p, row + r, k, n, values);
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

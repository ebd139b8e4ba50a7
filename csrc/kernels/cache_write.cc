// Keys and values into the paged cache (engine/kv_cache.py describes the block). Threads may write neighbouring tokens of a block at
// the same time: every store is exactly the token's own bytes.
#include "kernels/quantize_row.h"
#include "kernels/rope_row.h"
#include "kernels/rows.h"

namespace taut::TAUT_ISA_NS {
namespace {

// Sets scale and calls put(d, q) for each of the head's values.
template <typename Put>
TAUT_FN float quantize_head(const float* x, int64_t head_dim, const Put& put) {
  const Scale s = scale_of(absmax_bits(x, head_dim));
  const f32x16 inverse = set1(s.inverse);
  for (int64_t i = 0; i < head_dim; i += 16) {
    const i32x16 q = s.inverse == 0.0f ? set1_i32(0) : round_to_i32(mul(load_n(x + i, head_dim - i), inverse));
    int8_t values[16];
    store_i8(values, q);
    const int64_t n = head_dim - i < 16 ? head_dim - i : 16;
    for (int64_t j = 0; j < n; ++j) {
      put(i + j, values[j]);
    }
  }
  return s.scale;
}

void write_int8(const KvLayer& kv, uint8_t* slot, const float* x, int64_t token, bool is_key) {
  int8_t* data = reinterpret_cast<int8_t*>(slot);
  float scale;
  if (is_key) {  // [d / 4][32][4]
    int8_t* column = data + token * 4;
    scale = quantize_head(x, kv.head_dim, [&](int64_t d, int8_t q) { column[(d / 4) * 128 + d % 4] = q; });
  } else {  // [32 / 4][d][4]
    int8_t* row = data + (token / 4) * kv.head_dim * 4 + token % 4;
    scale = quantize_head(x, kv.head_dim, [&](int64_t d, int8_t q) { row[d * 4] = q; });
  }
  reinterpret_cast<float*>(slot + kv.data_bytes)[token] = scale;
}

void write_f32(const KvLayer& kv, uint8_t* slot, const float* x, int64_t token, bool is_key) {
  float* data = reinterpret_cast<float*>(slot);
  if (is_key) {  // [d][32]
    for (int64_t d = 0; d < kv.head_dim; ++d) {
      data[d * kBlockTokens + token] = x[d];
    }
  } else {  // [32][d]
    for (int64_t d = 0; d < kv.head_dim; ++d) {
      data[token * kv.head_dim + d] = x[d];
    }
  }
}

}  // namespace

void cache_write(const CacheWrite& p, int64_t row_begin, int64_t row_end, float* scratch) {
  const KvLayer& kv = p.kv;
  const auto write = kv.int8 ? write_int8 : write_f32;
  for (int64_t row = row_begin; row < row_end; ++row) {
    const int64_t position = p.positions[row], token = position % kBlockTokens;
    uint8_t* block = kv.base + p.token_block[row];
    for (int64_t head = 0; head < kv.kv_heads; ++head) {
      const float* k = at(p.k, row) + head * kv.head_dim;
      if (p.rope_table != nullptr) {
        rope_head(k, scratch, p.rope_table + position * p.rotary_dim, p.rotary_dim, kv.head_dim);
        k = scratch;
      }
      write(kv, block + head * kv.slot_bytes, k, token, true);
      write(kv, block + (kv.kv_heads + head) * kv.slot_bytes, at(p.v, row) + head * kv.head_dim, token, false);
    }
  }
}

}  // namespace taut::TAUT_ISA_NS

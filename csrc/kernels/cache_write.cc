// Keys and values into the paged cache (engine/kv_cache.py describes the block). Threads may write neighbouring tokens of a block at
// the same time: every store is exactly the token's own bytes.
#include "kernels/quantize_row.h"
#include "kernels/rope_row.h"
#include "kernels/rows.h"
#include "simd/pairs.h"

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

void write_int8(const KvSlot& kind, int64_t head_dim, uint8_t* slot, const float* x, int64_t token, bool is_key) {
  int8_t* data = reinterpret_cast<int8_t*>(slot);
  float scale;
  if (is_key) {  // [d / 4][32][4]
    int8_t* column = data + token * 4;
    scale = quantize_head(x, head_dim, [&](int64_t d, int8_t q) { column[(d / 4) * 128 + d % 4] = q; });
  } else {  // [32 / 4][d][4]
    int8_t* row = data + (token / 4) * head_dim * 4 + token % 4;
    scale = quantize_head(x, head_dim, [&](int64_t d, int8_t q) { row[d * 4] = q; });
  }
  reinterpret_cast<float*>(slot + kind.data_bytes)[token] = scale;
}

// Nearest, ties to even.
void write_bf16(const KvSlot&, int64_t head_dim, uint8_t* slot, const float* x, int64_t token, bool is_key) {
  uint16_t* data = reinterpret_cast<uint16_t*>(slot);
  for (int64_t i = 0; i < head_dim; i += 16) {
    uint16_t narrow[16];
    store_upper16(narrow, as_i32(round_bf16(load_n(x + i, head_dim - i))));
    for (int64_t d = i; d < i + 16 && d < head_dim; ++d) {
      const int64_t place = is_key ? (d / 2 * kBlockTokens + token) * 2 + d % 2   // [d / 2][32][2]
                                   : (token / 2 * head_dim + d) * 2 + token % 2;  // [32 / 2][d][2]
      data[place] = narrow[d - i];
    }
  }
}

struct Range {
  float low, high;
};

// Of n finite numbers.
TAUT_FN Range range_of(const float* x, int64_t n) {
  const f32x16 lowest = set1(-__builtin_inff());
  f32x16 high = lowest, negative = lowest;
  for (int64_t i = 0; i < n; i += 16) {
    const f32x16 value = load_n(x + i, n - i);
    const mask16 own = first_n(n - i < 16 ? n - i : 16);
    high = max(high, select(own, value, lowest));
    negative = max(negative, select(own, neg(value), lowest));
  }
  return {0.0f - reduce_max(negative), reduce_max(high)};
}

// Four bits a value, in groups of 32 with a scale and a minimum of float16 each: value ~ q * scale + minimum. A group that is not finite,
// or beyond float16, becomes NaN.
void write_int4(const KvSlot& kind, int64_t head_dim, uint8_t* slot, const float* x, int64_t token, bool) {
  const int64_t groups = (head_dim + 31) / 32;
  constexpr float kEnd = 65520.0f;  // rounds to infinity
  for (int64_t group = 0; group < groups; ++group) {
    const float* own = x + group * 32;
    const int64_t n = head_dim - group * 32 < 32 ? head_dim - group * 32 : 32;
    uint8_t* data = slot + (token * groups + group) * 16;
    f16* params = reinterpret_cast<f16*>(slot + kind.data_bytes) + group * 2 * kBlockTokens + token;
    f16 scale = {0x7e00}, minimum = {0x7e00};
    float inverse = 0, start = 0;
    if (absmax_bits(own, n) < 0x7f800000) {
      const Range range = range_of(own, n);
      if (range.low > -kEnd && range.low < kEnd) {
        const f16 low = to_f16(range.low);
        const float from = to_f32(low), step = range.high > from ? (range.high - from) / 15.0f : 0.0f;
        if (step < kEnd) {
          scale = to_f16(step), minimum = low, start = from;
          inverse = to_f32(scale) > 0.0f ? 1.0f / to_f32(scale) : 0.0f;
        }
      }
    }
    int8_t q[32] = {};
    for (int64_t i = 0; inverse != 0.0f && i < n; i += 16) {
      const f32x16 scaled = mul(sub(load_n(own + i, n - i), set1(start)), set1(inverse));
      store_i8(q + i, round_to_i32(keep_n(min(set1(15.0f), max(zero(), scaled)), n - i)));
    }
    for (int j = 0; j < 16; ++j) {
      data[j] = static_cast<uint8_t>(q[j] | q[j + 16] << 4);
    }
    params[0] = scale;
    params[kBlockTokens] = minimum;
  }
}

void write_f32(const KvSlot&, int64_t head_dim, uint8_t* slot, const float* x, int64_t token, bool is_key) {
  float* data = reinterpret_cast<float*>(slot);
  if (is_key) {  // [d][32]
    for (int64_t d = 0; d < head_dim; ++d) {
      data[d * kBlockTokens + token] = x[d];
    }
  } else {  // [32][d]
    for (int64_t d = 0; d < head_dim; ++d) {
      data[token * head_dim + d] = x[d];
    }
  }
}

using Writer = void (*)(const KvSlot&, int64_t head_dim, uint8_t* slot, const float* x, int64_t token, bool is_key);
constexpr Writer kWriters[] = {write_f32, write_bf16, write_int8, write_int4};  // by KvType

}  // namespace

void cache_write(const CacheWrite& p, int64_t row_begin, int64_t row_end, float* scratch) {
  const KvLayer& kv = p.kv;
  const Writer write_key = kWriters[static_cast<int>(kv.keys.type)], write_value = kWriters[static_cast<int>(kv.values.type)];
  for (int64_t row = row_begin; row < row_end; ++row) {
    const int64_t position = p.positions[row], token = position % kBlockTokens;
    uint8_t* block = kv.base + p.token_block[row];
    for (int64_t head = 0; head < kv.kv_heads; ++head) {
      const float* k = at(p.k, row) + head * kv.head_dim;
      if (p.rope_table != nullptr) {
        rope_head(k, scratch, p.rope_table + position * p.rotary_dim, p.rotary_dim, kv.head_dim);
        k = scratch;
      }
      const float* v = at(p.v, row) + head * kv.head_dim;
      write_key(kv.keys, kv.head_dim, block + kv.key_offset(head), k, token, true);
      write_value(kv.values, kv.head_dim, block + kv.value_offset(head), v, token, false);
    }
  }
}

}  // namespace taut::TAUT_ISA_NS

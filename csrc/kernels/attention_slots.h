// Slots of the paged cache as attention reads them: where they lie, and their numbers widened into L1 (engine/kv_slots.py says what a slot
// holds). A widened number is exactly the stored one, so every way of reading gives the same bits.
#pragma once
#include "kernels/attention_direct.h"
#include "kernels/attention_tile.h"

namespace taut::TAUT_ISA_NS {

// [a / 4][b][4] int8 -> [a][stride] float, `a` a multiple of 4.
TAUT_FN void unpack_quads(const int8_t* x, int64_t a, int64_t b, int64_t stride, float* y) {
  for (int64_t quad = 0; quad < a / 4; ++quad) {
    const int8_t* source = x + quad * b * 4;
    float* row = y + quad * 4 * stride;
    int64_t i = 0;
    for (; i + 16 <= b; i += 16) {
      const i32x16 v = load_i32(source + i * 4);
      store(row + i, quad_value<0>(v));
      store(row + stride + i, quad_value<1>(v));
      store(row + 2 * stride + i, quad_value<2>(v));
      store(row + 3 * stride + i, quad_value<3>(v));
    }
    for (; i < b; ++i) {
      for (int64_t j = 0; j < 4; ++j) {
        row[j * stride + i] = static_cast<float>(source[i * 4 + j]);
      }
    }
  }
}

// [a / 4][b][4] int8 -> [a / 2][stride] pairs of bf16, in which int8 is exact; `a` a multiple of 4.
TAUT_FN void unpack_quads(const int8_t* x, int64_t a, int64_t b, int64_t stride, int32_t* y) {
  for (int64_t quad = 0; quad < a / 4; ++quad) {
    const int8_t* source = x + quad * b * 4;
    int32_t *row = y + quad * 2 * stride, *next = row + stride;
    int64_t i = 0;
    for (; i + 16 <= b; i += 16) {
      const i32x16 v = load_i32(source + i * 4);
      store_i32(row + i, join_pairs(quad_value<0>(v), quad_value<1>(v)));
      store_i32(next + i, join_pairs(quad_value<2>(v), quad_value<3>(v)));
    }
    for (; i < b; ++i) {
      const i32x16 pair = join_pairs(set1(source[i * 4]), set1(source[i * 4 + 1]));
      const i32x16 other = join_pairs(set1(source[i * 4 + 2]), set1(source[i * 4 + 3]));
      store_n(reinterpret_cast<float*>(row + i), as_f32(pair), 1);
      store_n(reinterpret_cast<float*>(next + i), as_f32(other), 1);
    }
  }
}

// [a][b] float -> [a / 2][stride] pairs, `a` even, whatever lies beyond b up to a multiple of 16 is 0.
TAUT_FN void round_rows(const float* x, int64_t a, int64_t b, int64_t stride, int32_t* y) {
  for (int64_t row = 0; row < a; row += 2, x += 2 * b, y += stride) {
    for (int64_t i = 0; i < b; i += 16) {
      store_i32(y + i, round_pairs(load_n(x + i, b - i), load_n(x + b + i, b - i)));
    }
  }
}

// [a / 2][b] pairs of bf16 -> [a][stride] float, `a` even; whatever lies beyond b up to a multiple of 16 is 0.
TAUT_FN void widen_pairs(const int32_t* x, int64_t a, int64_t b, int64_t stride, float* y) {
  for (int64_t row = 0; row < a; row += 2, x += b, y += 2 * stride) {
    for (int64_t i = 0; i < b; i += 16) {
      const i32x16 pairs = as_i32(load_n(reinterpret_cast<const float*>(x + i), b - i));
      store(y + i, even_of(pairs));
      store(y + stride + i, odd_of(pairs));
    }
  }
}

// Rows of `b` 32-bit numbers, `stride` apart, whatever lies beyond b up to a multiple of 16 is 0.
TAUT_FN void spread_rows(const float* x, int64_t rows, int64_t b, int64_t stride, float* y) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < b; i += 16) {
      store(y + row * stride + i, load_n(x + row * b + i, b - i));
    }
  }
}

// Values of four bits, a tile of 32 tokens: [token][group][16] bytes, byte j holds channels j and j + 16 of a group of 32; then float16
// [group][scale, minimum][token].
struct Nibbles {
  const uint8_t* data;
  const f16* params;
  int64_t groups;

  // 16 channels from `channel` on, of a token whose scales and minima of their group lie at scale and minimum.
  TAUT_MEMBER f32x16 value(int64_t token, int64_t channel, float scale, float minimum) const {
    const i32x16 bytes = load_i8(reinterpret_cast<const int8_t*>(data + (token * groups + channel / 32) * 16));
    const i32x16 q = bit_and(channel % 32 == 0 ? bytes : shift_right_signed<4>(bytes), set1_i32(15));
    return fma(set1(scale), to_f32(q), set1(minimum));
  }
};

// Their [32][stride] floats, or [32 / 2][stride] pairs.
template <bool kBf16>
TAUT_FN void unpack_nibbles(const Nibbles& x, int64_t stride, float* y) {
  for (int64_t channel = 0; channel < stride; channel += 16) {
    float scale[kTileKeys], minimum[kTileKeys];
    for (int64_t t = 0; t < kTileKeys; t += 16) {
      const f16* params = x.params + channel / 32 * 2 * kTileKeys + t;
      store(scale + t, load(params));
      store(minimum + t, load(params + kTileKeys));
    }
    for (int64_t t = 0; t < kTileKeys; t += kBf16 ? 2 : 1) {
      const f32x16 value = x.value(t, channel, scale[t], minimum[t]);
      if (kBf16) {
        const f32x16 next = x.value(t + 1, channel, scale[t + 1], minimum[t + 1]);
        store_i32(pairs_at(y) + t / 2 * stride + channel, round_pairs(value, next));
      } else {
        store(y + t * stride + channel, value);
      }
    }
  }
}

// The slots of one KV head, tile by tile from the first of a chunk.
struct Slots {
  KvSlot slot;
  const uint8_t* base;  // of the head's keys, or values, in block 0
  const int32_t* table;
  int64_t block_bytes;

  TAUT_MEMBER const uint8_t* operator()(int64_t tile) const { return base + table[tile] * block_bytes; }
  TAUT_MEMBER const int8_t* quads(int64_t tile) const { return reinterpret_cast<const int8_t*>((*this)(tile)); }
  TAUT_MEMBER const float* floats(int64_t tile) const { return reinterpret_cast<const float*>((*this)(tile)); }
  TAUT_MEMBER const int32_t* pairs(int64_t tile) const { return reinterpret_cast<const int32_t*>((*this)(tile)); }
  TAUT_MEMBER Nibbles nibbles(int64_t tile, int64_t head_dim) const {
    const uint8_t* data = (*this)(tile);
    return {data, reinterpret_cast<const f16*>(data + slot.data_bytes), (head_dim + 31) / 32};
  }
  // One a token, by which a product is multiplied; null where there are none.
  TAUT_MEMBER const float* scales(int64_t tile) const {
    return slot.type == KvType::kInt8 ? reinterpret_cast<const float*>((*this)(tile) + slot.data_bytes) : nullptr;
  }
  // Numbers that a row of a few takes from where they lie.
  TAUT_MEMBER bool is_direct() const { return slot.type == KvType::kInt8 || slot.type == KvType::kBf16; }
  TAUT_MEMBER void fetch(int64_t tile) const {
    if (slot.type == KvType::kF32) {
      return;
    }
    const uint8_t* start = (*this)(tile);
    for (int64_t i = 0; i < slot.bytes; i += 64) {
      prefetch(start + i);
    }
  }
};

// The tile's keys as s.keys: [head_dim][32] float, or pairs; where they lie or unpacked.
template <bool kBf16>
TAUT_FN void load_keys(const Slots& slots, int64_t tile, AttentionState& s) {
  const int64_t d = s.head_dim;
  if (slots.slot.type == KvType::kInt8) {
    kBf16 ? unpack_quads(slots.quads(tile), d, kTileKeys, kTileKeys, pairs_at(s.keys))
          : unpack_quads(slots.quads(tile), d, kTileKeys, kTileKeys, s.keys);
  } else if (slots.slot.type == KvType::kBf16) {
    if (kBf16) {
      s.keys = const_cast<float*>(slots.floats(tile));
    } else {
      widen_pairs(slots.pairs(tile), d, kTileKeys, kTileKeys, s.keys);
    }
  } else if (kBf16) {
    round_rows(slots.floats(tile), d, kTileKeys, kTileKeys, pairs_at(s.keys));
  } else {
    s.keys = const_cast<float*>(slots.floats(tile));
  }
}

// The tile's values as [32][padded] float, or [32 / 2][padded] pairs: unpacked into `place`, or used where they lie.
template <bool kBf16>
TAUT_FN const float* load_values(const Slots& slots, int64_t tile, const AttentionState& s, float* place) {
  const int64_t d = s.head_dim;
  const bool lies_right = s.padded == d;
  switch (slots.slot.type) {
    case KvType::kInt8:
      kBf16 ? unpack_quads(slots.quads(tile), kTileKeys, d, s.padded, pairs_at(place))
            : unpack_quads(slots.quads(tile), kTileKeys, d, s.padded, place);
      return place;
    case KvType::kInt4:
      unpack_nibbles<kBf16>(slots.nibbles(tile, d), s.padded, place);
      return place;
    case KvType::kBf16:
      if (!kBf16) {
        widen_pairs(slots.pairs(tile), kTileKeys, d, s.padded, place);
        return place;
      }
      if (lies_right) {
        return slots.floats(tile);
      }
      spread_rows(slots.floats(tile), kTileKeys / 2, d, s.padded, place);
      return place;
    case KvType::kF32:
      break;
  }
  if (kBf16) {
    round_rows(slots.floats(tile), kTileKeys, d, s.padded, pairs_at(place));
    return place;
  }
  if (lies_right) {
    return slots.floats(tile);
  }
  spread_rows(slots.floats(tile), kTileKeys, d, s.padded, place);
  return place;
}

}  // namespace taut::TAUT_ISA_NS

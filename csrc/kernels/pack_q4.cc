// Quantizes and packs int4 weights. See pack_q4.h.
#include "pack_q4.h"

#include "kernels/source_rows.h"
#include "linear_q4.h"

namespace taut::TAUT_ISA_NS {
namespace {

constexpr int64_t kColumns = 64, kMostGroup = 128;
constexpr float kOffset = 128.0f, kLevels = 15.0f;

// The power of two at or below a row's largest magnitude, and its inverse; 1 and 0 where that is zero or subnormal.
Scale column_scale(int32_t absmax_bits) {
  constexpr int32_t kLargest = 0x7e800000;  // 2^126: its inverse is normal
  int32_t power = absmax_bits & 0x7f800000;
  if (power == 0) return {1.0f, 0.0f};
  power = power < kLargest ? power : kLargest;
  return {bits_to_f32(power), bits_to_f32(0x7f000000 - power)};
}

struct Group {
  f16 scale, offset;
  uint8_t u[kMostGroup];
};

// `values`: the group divided by its column's scale.
void quantize_group(const float* values, int64_t n, Group& to) {
  f32x16 low = load(values), high = low;
  for (int64_t i = 16; i < n; i += 16) {
    low = min(load(values + i), low);
    high = max(load(values + i), high);
  }
  const float least = -reduce_max(neg(low)), most = reduce_max(high);
  to.scale = to_f16((most - least) / kLevels + 0.0f);  // adding zero makes a negative zero positive
  to.offset = to_f16(least * (-1.0f / kOffset) + 0.0f);
  const float wide = to_f32(to.scale);
  const f32x16 per_level = set1(wide > 0.0f ? 1.0f / wide : 0.0f), shift = set1(to_f32(to.offset) * kOffset);
  for (int64_t i = 0; i < n; i += 16) {
    const f32x16 level = mul(add(load(values + i), shift), per_level);
    const i32x16 rounded = round_to_i32(min(set1(kLevels), max(set1(0.0f), level)));
    store_i8(reinterpret_cast<int8_t*>(to.u) + i, rounded);
  }
}

// One column of a group of a panel.
void store_group(const Group& from, int64_t group, int64_t column, uint8_t* to) {
  for (int64_t octet = 0; octet < group / 8; ++octet) {
    uint32_t low, high;
    __builtin_memcpy(&low, from.u + octet * 8, 4);
    __builtin_memcpy(&high, from.u + octet * 8 + 4, 4);
    low |= high << 4;
    __builtin_memcpy(to + (octet * kColumns + column) * 4, &low, 4);
  }
  f16* scales = reinterpret_cast<f16*>(to + group * 32);
  scales[column] = from.scale;
  scales[kColumns + column] = from.offset;
}

}  // namespace

int64_t pack_q4(const PackQ4& p, int64_t panel_begin, int64_t panel_end) {
  const int64_t group_bytes = q4_group_bytes(p.group), groups = p.k / p.group;
  for (int64_t row = panel_begin * kColumns; row < panel_end * kColumns; ++row) {
    uint8_t* to = p.packed + row / kColumns * groups * group_bytes;
    const int32_t bits = row < p.n ? row_absmax_bits(p, row, 0, p.k) : 0;
    if (bits >= 0x7f800000) return row;
    const Scale column = column_scale(bits);
    p.scale[row] = row < p.n ? column.scale : 0.0f;
    for (int64_t g = 0; g < groups; ++g, to += group_bytes) {
      Group group = {};
      if (row < p.n) {
        float values[kReadAhead];
        read_source(p, row, g * p.group, p.group, values);
        for (int64_t i = 0; i < p.group; i += 16) store(values + i, mul(load(values + i), set1(column.inverse)));
        quantize_group(values, p.group, group);
      }
      store_group(group, p.group, row % kColumns, to);
    }
  }
  return -1;
}

}  // namespace taut::TAUT_ISA_NS

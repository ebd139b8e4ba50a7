// Where the int4 weights of a panel lie, and what every ISA's tiles read beside them.
#pragma once
#include "kernels/linear_q8_driver.h"
#include "linear_q4.h"

namespace taut::TAUT_ISA_NS {
namespace {

// For the driver: spans are whole groups, because none is longer than kSharedK.
struct Q4Layout {
  static constexpr int kGroupTiles = 4;
  static constexpr int kSingleK = 128, kSharedK = 128;
  static int64_t bytes(const LinearQ8& a, int64_t k) {
    const int64_t group = a.pieces.begin[1];
    return k / group * q4_group_bytes(group);
  }
};

inline float float_at(const uint8_t* p) {
  float value;
  __builtin_memcpy(&value, p, 4);
  return value;
}

// scale * float(sums) of one row's piece: what the offsets are multiplied by.
inline float offset_factor(const uint8_t* scale, const uint8_t* sum) {
  int32_t value;
  __builtin_memcpy(&value, sum, 4);
  return float_at(scale) * float(value);
}

}  // namespace
}  // namespace taut::TAUT_ISA_NS

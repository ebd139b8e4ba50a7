// Rows of an embedding: out of a plain table, or gathered out of a head's packed panels (a tied embedding has one copy).
#include "kernels/rows.h"

namespace taut::TAUT_ISA_NS {
namespace {

TAUT_FN float to_f32(float f) { return f; }

template <typename T>
void gather(const Embed& p, int64_t entry, float* y) {
  const T* column = static_cast<const T*>(p.table) + (entry / 64) * p.features * 64 + entry % 64;
  for (int64_t k = 0; k < p.features; ++k) {
    y[k] = to_f32(column[k * 64]);
  }
}

void gather_bf16(const Embed& p, int64_t entry, float* y) {
  const int64_t pairs = (p.features + 1) / 2;
  const bf16* column = static_cast<const bf16*>(p.table) + ((entry / 64) * pairs * 64 + entry % 64) * 2;
  for (int64_t k = 0; k < p.features; ++k) {
    y[k] = to_f32(column[(k / 2) * 128 + k % 2]);
  }
}

void gather_q8(const Embed& p, int64_t entry, float* y) {
  const int64_t quads = (p.features + 3) / 4;
  const uint8_t* column = static_cast<const uint8_t*>(p.table) + ((entry / 64) * quads * 64 + entry % 64) * 4;
  const int64_t group = p.group != 0 ? p.group : p.features;
  const float* scales = p.scale + entry / 64 * (p.features / group) * 64 + entry % 64;
  for (int64_t begin = 0; begin < p.features; begin += group, scales += 64) {
    const float scale = *scales;
    for (int64_t k = begin; k < begin + group; ++k) {
      y[k] = static_cast<float>(static_cast<int32_t>(column[(k / 4) * 256 + k % 4]) - 128) * scale;
    }
  }
}

void gather_i8(const Embed& p, int64_t entry, float* y) {
  const int8_t* column = static_cast<const int8_t*>(p.table) + (entry / 64) * p.features * 64 + entry % 64;
  const float scale = p.scale[entry];
  for (int64_t k = 0; k < p.features; ++k) {
    y[k] = static_cast<float>(column[k * 64]) * scale;
  }
}

}  // namespace

void embed(const Embed& p, int64_t row_begin, int64_t row_end) {
  for (int64_t row = row_begin; row < row_end; ++row) {
    const int64_t entry = p.index[row] + p.offset;
    float* y = at(p.y, row);
    switch (p.kind) {
      case Table::kPlain:
        copy_row(static_cast<const float*>(p.table) + entry * p.features, y, p.features);
        break;
      case Table::kPackedF32:
        gather<float>(p, entry, y);
        break;
      case Table::kPackedF16:
        gather<f16>(p, entry, y);
        break;
      case Table::kPackedBf16:
        gather_bf16(p, entry, y);
        break;
      case Table::kPackedQ8:
        gather_q8(p, entry, y);
        break;
      case Table::kPackedI8:
        gather_i8(p, entry, y);
        break;
    }
  }
}

}  // namespace taut::TAUT_ISA_NS

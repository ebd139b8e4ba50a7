// The AVX-512 int8 and int4 linears, emulated, against the portable one: identical bits for every row count, group and tail.
// Run by tests/native_q8/test_emulated_avx512.py through csrc/tests/emulate_q8.sh; not part of the normal build.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "linear_q4.h"

namespace taut::scalar {
void linear_q8(const LinearQ8&, int64_t, int64_t, int64_t, int64_t, void*);
void linear_q4(const LinearQ8&, int64_t, int64_t, int64_t, int64_t, void*);
}  // namespace taut::scalar
namespace taut::avx512 {
void linear_q8(const LinearQ8&, int64_t, int64_t, int64_t, int64_t, void*);
void linear_q4(const LinearQ8&, int64_t, int64_t, int64_t, int64_t, void*);
}  // namespace taut::avx512

namespace {

uint32_t state = 1;
int random_int(int low, int high) {
  state = state * 1664525u + 1013904223u;
  return low + int((state >> 8) % uint32_t(high - low + 1));
}

struct Buffer {
  explicit Buffer(size_t size) : data(static_cast<uint8_t*>(std::aligned_alloc(64, (size + 63) / 64 * 64))) {
    std::memset(data, 0, size);
  }
  ~Buffer() { std::free(data); }
  uint8_t* data;
};

struct Cuts {
  std::vector<int32_t> begin;
  int32_t segment[5] = {0, 0, 0, 0, 0};
};

Cuts cut(int k, int group) {
  const int unit = group ? group : k % 32 == 0 ? 32 : 4, units = k / unit;
  Cuts c;
  c.begin.push_back(0);
  for (int i = 0, end = 0; i < 4; ++i) {
    const int count = units / 4 + (i < units % 4);
    if (group) {
      for (int u = 0; u < count; ++u) c.begin.push_back(c.begin.back() + group);
    } else if (count) {
      c.begin.push_back((end + count) * unit);
    }
    end += count;
    c.segment[i + 1] = int32_t(c.begin.size()) - 1;
  }
  return c;
}

// extreme: q and w all +-127. grouped: the weights have scales of groups.
bool matches(int rows, int k, int n, int group, bool bias, bool extreme, bool q4 = false, bool grouped = false) {
  const Cuts c = cut(k, group);
  const int pieces = int(c.begin.size()) - 1, panels = (n + 63) / 64, scales_offset = (k + 63) / 64 * 64;
  const int row_bytes = (scales_offset + 8 * pieces + 63) / 64 * 64;
  Buffer x(size_t(rows) * row_bytes), w(size_t(panels) * 64 * k * 2), scale(size_t(panels) * 256 * pieces),
      shift(size_t(panels) * 256);
  Buffer y0(size_t(rows) * n * 4), y1(size_t(rows) * n * 4);
  for (int i = 0; i < panels * 64 * k; ++i) w.data[i] = uint8_t(extreme ? (random_int(0, 1) ? 255 : 1) : random_int(1, 255));
  for (int i = 0; q4 && i < panels * (k / group); ++i) {  // finite float16 scales
    uint8_t* scales = w.data + i * taut::q4_group_bytes(group) + group * 32;
    for (int j = 0; j < 128; ++j) scales[2 * j + 1] &= 0xbb;
  }
  for (int i = 0; i < panels * 64 * pieces; ++i) {
    reinterpret_cast<float*>(scale.data)[i] = grouped || i < n ? 1e-3f * random_int(0, 999) : 0.0f;
    if (i < panels * 64) reinterpret_cast<float*>(shift.data)[i] = 1e-2f * random_int(-999, 999);
  }
  for (int r = 0; r < rows; ++r) {
    uint8_t* row = x.data + size_t(r) * row_bytes;
    float* scales = reinterpret_cast<float*>(row + scales_offset);
    int32_t* sums = reinterpret_cast<int32_t*>(scales + pieces);
    for (int p = 0; p < pieces; ++p) {
      scales[p] = 1e-4f * random_int(0, 9999);
      for (int i = c.begin[p]; i < c.begin[p + 1]; ++i) {
        const int q = extreme ? (random_int(0, 1) ? 127 : -127) : random_int(-127, 127);
        reinterpret_cast<int8_t*>(row)[i] = int8_t(q);
        sums[p] -= 128 * q;
      }
    }
  }
  taut::LinearQ8 a;
  a.x = x.data, a.x_row_bytes = row_bytes, a.scales_offset = scales_offset;
  a.pieces.k = k, a.pieces.count = pieces, a.pieces.begin = c.begin.data();
  std::memcpy(a.pieces.segment, c.segment, sizeof c.segment);
  a.w = w.data, (grouped ? a.group_scale : a.w_scale) = reinterpret_cast<float*>(scale.data),
  a.bias = bias ? reinterpret_cast<float*>(shift.data) : nullptr;
  a.y_row_bytes = n * 4, a.n = n;
  a.y = reinterpret_cast<float*>(y0.data);
  (q4 ? taut::scalar::linear_q4 : taut::scalar::linear_q8)(a, 0, rows, 0, panels, nullptr);
  a.y = reinterpret_cast<float*>(y1.data);
  const int half = rows / 2;  // in two parts: any split gives the same bits
  const auto run = q4 ? taut::avx512::linear_q4 : taut::avx512::linear_q8;
  run(a, half, rows, 0, panels, nullptr);
  run(a, 0, half, 0, panels, nullptr);
  if (std::memcmp(y0.data, y1.data, size_t(rows) * n * 4) == 0) return true;
  std::printf("differs: rows %d k %d n %d group %d bias %d extreme %d q4 %d grouped %d\n", rows, k, n, group, bias, extreme, q4,
              grouped);
  return false;
}

}  // namespace

int main() {
  bool good = true;
  for (int rows : {1, 2, 3, 4, 5, 6, 7, 12, 13, 18, 25}) {
    for (int group : {0, 32, 64}) good &= matches(rows, 576, 65, group, rows % 2, false);
    good &= matches(rows, 384, 66, 128, rows % 2, false);
  }
  for (int rows : {1, 2, 3, 5, 6, 7, 13, 25}) {
    for (int group : {32, 64, 128}) {
      good &= matches(rows, 384, 65, group, rows % 2, rows == 7, true);
      good &= matches(rows, 384, 65, group, rows % 2, rows == 7, false, true);
    }
  }
  for (int k : {4, 8, 12, 100, 1028}) good &= matches(7, k, 33, 0, true, false);
  good &= matches(13, 2048, 64, 128, false, true) && matches(7, 4096, 64, 0, false, true);
  std::puts(good ? "identical" : "NOT identical");
  return good ? 0 : 1;
}

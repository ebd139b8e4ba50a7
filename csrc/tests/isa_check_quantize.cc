// Cases of the quantizer of rows.
#include "tests/isa_check.h"

namespace taut::check {
namespace {

// By a calibrated scale: rows inside its range, at its edge, beyond it.
void static_case(Check& check, int features, Values values, uint64_t seed) {
  Random random(seed);
  const Cuts cuts(features, 0);
  constexpr int64_t kRows = 12;
  Floats x(kRows, features, random, values, 1);
  const float scale = (random.unit() + 1.5f) / 128.0f, offset = random.unit();
  for (int64_t r = 0; r < kRows / 2; ++r) {
    const int most = r % 2 == 0 ? 254 : 256;  // ties, and the largest that may fit
    for (int i = 0; i < features; ++i) {
      x.data()[r * x.row_bytes / 4 + i] = float(random.integer(-most, most)) * 0.5f * scale - offset;
    }
  }
  check.same(text("quantize static features %d values %d", features, int(values)), [&](const KernelTable& table) {
    QuantizedOut out(cuts, kRows);
    QuantizedRows rows = out.args();
    int64_t fallbacks = 0;
    rows.scale = scale, rows.offset = offset, rows.fallbacks = &fallbacks;
    table.quantize({x.in(), rows}, 0, kRows);
    Words words = out.words();
    words.push_back(static_cast<uint32_t>(fallbacks));
    return words;
  });
}

}  // namespace

void check_quantize(Check& check) {
  uint64_t seed = 3000;
  for (const auto& [features, group] : {std::pair{1, 0},
                                        {2, 0},
                                        {15, 0},
                                        {16, 0},
                                        {33, 0},
                                        {50, 0},
                                        {64, 0},
                                        {576, 0},
                                        {32, 32},
                                        {96, 32},
                                        {192, 64},
                                        {576, 64},
                                        {384, 128},
                                        {1536, 128}}) {
    for (const Values values : {Values::kUnit, Values::kWide, Values::kSpecial}) {
      Random random(++seed);
      const Cuts cuts(features, group);
      Floats x(9, features, random, values, 1);
      for (int i = 0; i < features; ++i) {
        x.data()[2 * x.row_bytes / 4 + i] = 0.0f;                                     // all zeros
        x.data()[3 * x.row_bytes / 4 + i] = random.unit() * 0x1p-125f;                // inverse near overflow
        x.data()[4 * x.row_bytes / 4 + i] = float(random.integer(-127, 127)) + 0.5f;  // ties
      }
      x.data()[4 * x.row_bytes / 4] = 127.0f;
      check.same(text("quantize features %d group %d values %d", features, group, int(values)), [&](const KernelTable& table) {
        QuantizedOut out(cuts, 9);
        table.quantize({x.in(), out.args()}, 0, 9);
        return out.words();
      });
    }
  }
  check.end_family("quantize");
  for (const int features : {1, 3, 16, 33, 50, 576, 1536}) {
    for (const Values values : {Values::kUnit, Values::kWide, Values::kSpecial}) {
      static_case(check, features, values, ++seed);
    }
  }
  check.end_family("quantize_static");
}

}  // namespace taut::check

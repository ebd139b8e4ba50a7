// Cases of the weight packers and of lookups in packed tables.
#include "tests/isa_check.h"

namespace taut::check {
namespace {

// A weight for the packers: [n][k] of source.
Bytes weight_source(Random& random, Source source, int n, int k, bool special) {
  const int width = source == Source::kF32 ? 4 : 2;
  Bytes w(static_cast<size_t>(n * k * width));
  for (int i = 0; i < n * k; ++i) {
    const float value = i / k % 7 == 3 ? 0.0f : special ? random.special() : random.unit();
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    // As float16: any pattern; finite ones only but for some cases.
    const uint16_t half = static_cast<uint16_t>(special ? random.bits() : random.bits() & 0xbbff);
    const uint16_t narrow = source == Source::kF16 ? half : static_cast<uint16_t>(bits >> 16);
    std::memcpy(w.data() + i * width, width == 4 ? static_cast<const void*>(&bits) : &narrow, static_cast<size_t>(width));
  }
  return w;
}

// group 0: int8, in groups of weight_group; by_input: as float linears read it.
void pack_case(Check& check, Source source, int n, int k, int group, uint64_t seed, int weight_group = 0,
               bool by_input = false) {
  Random random(seed);
  Bytes w = weight_source(random, source, n, k, seed % 5 == 0);
  const int64_t row_bytes = int64_t{k} * (source == Source::kF32 ? 4 : 2);
  check.same(
      text("pack source %d n %d k %d group %d, %d by input %d", int(source), n, k, group, weight_group, by_input),
      [&](const KernelTable& table) {
        const int64_t panels = (n + 63) / 64, quads = (k + 3) / 4;
        Bytes packed(static_cast<size_t>(group == 0 ? panels * quads * 256 : panels * (k / group) * q4_group_bytes(group)));
        Bytes scale(static_cast<size_t>(panels * 256 * (weight_group == 0 ? 1 : k / weight_group)));
        PackQ4 p;
        p.w = w.data(), p.row_bytes = row_bytes, p.source = source, p.n = n, p.k = k, p.group = group;
        p.weight_group = weight_group, p.by_input = by_input;
        p.packed = packed.data(), p.scale = scale.as<float>();
        Words words;
        for (int64_t panel = 0; panel < panels; ++panel) {
          const int64_t bad = group == 0 ? table.pack_q8(p, panel, panel + 1) : table.pack_q4(p, panel, panel + 1);
          words.push_back(static_cast<uint32_t>(bad));
          if (bad >= 0) {
            return words;  // the panel is left unfinished
          }
        }
        append(words, packed.words());
        append(words, scale.words());
        return words;
      });
}

}  // namespace

void check_pack(Check& check) {
  uint64_t seed = 4000;
  for (const Source source : {Source::kF32, Source::kF16, Source::kBf16}) {
    for (const int k : {1, 3, 4, 17, 64, 250, 255, 256, 257, 576}) {
      for (const int n : {1, 64, 65, 100}) {
        pack_case(check, source, n, k, 0, ++seed);
      }
    }
    for (const auto& [k, group] : {std::pair{32, 32}, {576, 32}, {576, 64}, {384, 128}}) {
      for (const int n : {1, 65, 100}) {
        pack_case(check, source, n, k, group, ++seed);
        pack_case(check, source, n, k, 0, ++seed, group);
      }
    }
    for (const int k : {1, 17, 250, 576}) {
      pack_case(check, source, 100, k, 0, ++seed, 0, true);
    }
  }
  check.end_family("pack");
}

void check_embed(Check& check) {
  uint64_t seed = 5000;
  constexpr int kEntries = 150, kPanels = 3, kRows = 20;
  for (const Table kind :
       {Table::kPlain, Table::kPackedF32, Table::kPackedQ8, Table::kPackedF16, Table::kPackedBf16, Table::kPackedI8}) {
    for (const int features : {1, 4, 15, 16, 30, 64, 77, 576}) {
      const bool is_int8 = kind == Table::kPackedQ8 || kind == Table::kPackedI8;
      Random random(++seed);
      const int64_t quads = (features + 3) / 4;
      Floats table_values(kPanels * 64, quads * 4, random, is_int8 ? Values::kUnit : Values::kSpecial);
      const int64_t group = kind == Table::kPackedQ8 && features % 32 == 0 ? 32 : 0;
      Floats scale(1, kPanels * 64 * (group == 0 ? 1 : features / group), random, Values::kUnit);
      if (is_int8) {
        for (int64_t i = 0; i < kPanels * quads * 256; ++i) {
          table_values.bytes.data()[i] = static_cast<uint8_t>(random.integer(1, 255));
        }
      }
      int32_t index[kRows];
      for (int32_t& i : index) {
        i = random.integer(0, kEntries - 3);
      }
      check.same(text("embed kind %d features %d", int(kind), features), [&](const KernelTable& table) {
        Floats y(kRows, features, 3);
        Embed e;
        e.kind = kind, e.table = table_values.data(), e.scale = scale.data(), e.features = features, e.index = index,
        e.offset = 2, e.group = group;
        e.y = y.out();
        table.embed(e, 0, kRows);
        return y.words();
      });
    }
  }
  check.end_family("embed");
}

}  // namespace taut::check

// Cases of the matrix products.
#include "tests/isa_check.h"

namespace taut::check {
namespace {

constexpr Activation kActivations[] = {Activation::kNone, Activation::kGelu, Activation::kGeluTanh,
                                       Activation::kSilu, Activation::kRelu, Activation::kTanh};

enum class Fill { kRandom, kExtreme, kScalesSpecial };

// int4 weights where `q4`, or int8 ones in groups where `grouped`: group is theirs too.
struct Q8Case {
  int rows, n, k, group;
  Fill fill = Fill::kRandom;
  Activation activation = Activation::kNone;
  bool bias = false, q4 = false;
  bool gated = false, residual = false;  // n: columns of the weight
  int out_group = 0;
  bool grouped = false;

  int columns() const { return gated ? n / 2 : n; }
};

// Weights and activations of a case, before an ISA lays the activations out.
struct Q8Data {
  Q8Data(const Q8Case& c, Random& random)
      : cuts(c.k, c.group),
        panels((c.n + 63) / 64),
        w(static_cast<size_t>(c.q4 ? panels * (c.k / c.group) * q4_group_bytes(c.group) : panels * 64 * cuts.k)),
        w_scale(1, panels * 64 * (c.grouped ? cuts.count() : 1)),
        bias(1, panels * 64, random, Values::kUnit) {
    const bool extreme = c.fill == Fill::kExtreme;
    for (int64_t i = 0; !c.q4 && i < panels * 64 * cuts.k; ++i) {
      w.data()[i] = static_cast<uint8_t>(extreme ? (random.bits() & 1 ? 255 : 1) : random.integer(1, 255));
    }
    for (int64_t group = 0; c.q4 && group < panels * (c.k / c.group); ++group) {
      uint8_t* to = w.data() + group * q4_group_bytes(c.group);
      for (int64_t i = 0; i < c.group * 32; ++i) to[i] = static_cast<uint8_t>(extreme ? 255 : random.integer(0, 255));
      for (int64_t i = 0; i < 128; ++i) {  // finite float16
        const uint16_t bits = static_cast<uint16_t>(random.bits() & 0xbbff);
        std::memcpy(to + c.group * 32 + 2 * i, &bits, 2);
      }
    }
    const int64_t of_panel = 64 * (c.grouped ? cuts.count() : 1);
    for (int64_t i = 0; i < panels * of_panel; ++i) {
      w_scale.data()[i] = i / of_panel * 64 + i % 64 < c.n ? random.unit() * 0.01f : 0.0f;
    }
    for (int r = 0; r < c.rows; ++r) {
      for (int32_t i = 0; i < cuts.k; ++i) {
        q.push_back(static_cast<int8_t>(i >= c.k ? 0 : extreme ? (random.bits() & 1 ? 127 : -127) : random.integer(-127, 127)));
      }
      for (int32_t p = 0; p < cuts.count(); ++p) {
        scales.push_back(c.fill == Fill::kScalesSpecial && r % 2 == 0 ? random.special() : random.unit() + 1.0f);
      }
    }
  }

  Bytes rows_for(int rows) const {
    Bytes x(static_cast<size_t>(rows * cuts.row_bytes()));
    for (int r = 0; r < rows; ++r) {
      uint8_t* row = x.data() + r * cuts.row_bytes();
      float* scale = reinterpret_cast<float*>(row + cuts.scales_offset());
      int32_t* sum = reinterpret_cast<int32_t*>(scale + cuts.count());
      for (int32_t p = 0; p < cuts.count(); ++p) {
        scale[p] = scales[static_cast<size_t>(r * cuts.count() + p)];
        sum[p] = 0;
        for (int32_t i = cuts.begin[static_cast<size_t>(p)]; i < cuts.begin[static_cast<size_t>(p) + 1]; ++i) {
          const int8_t value = q[static_cast<size_t>(r * cuts.k + i)];
          sum[p] -= 128 * value;
          reinterpret_cast<int8_t*>(row)[i] = value;
        }
      }
    }
    return x;
  }

  Cuts cuts;
  int64_t panels;
  Bytes w;
  Floats w_scale, bias;
  std::vector<int8_t> q;      // [rows][k]
  std::vector<float> scales;  // [rows][pieces]
};

// The reference does the work in one call, the others in four parts.
template <typename Fn, typename Args>
void in_parts(bool whole, Fn fn, const Args& args, int64_t rows, int64_t panels, int64_t unit = 1) {
  const int64_t row = whole ? rows : rows / 3, panel = whole ? panels : panels / 2 / unit * unit;
  for (const int64_t part : {0, 1}) {
    const int64_t row_begin = part ? row : 0, row_end = part ? rows : row;
    if (row_begin < row_end) {
      fn(args, row_begin, row_end, 0, panel);
      fn(args, row_begin, row_end, panel, panels);
    }
  }
}

void q8_case(Check& check, const Q8Case& c, uint64_t seed) {
  Random random(seed);
  Q8Data data(c, random);
  const bool splits = seed % 2 == 1;
  Floats residual(c.rows, c.columns(), random, Values::kUnit, 5);
  const Cuts out_cuts(c.columns(), c.out_group);
  check.same(text("linear_q%d%s rows %d n %d k %d group %d fill %d act %d bias %d parts %d gated %d residual %d out %d",
                  c.q4 ? 4 : 8, c.grouped ? "g" : "", c.rows, c.n, c.k, c.group, int(c.fill), int(c.activation), c.bias, splits,
                  c.gated, c.residual, c.out_group),
             [&](const KernelTable& table) {
               const Bytes x = data.rows_for(c.rows);
               Floats y(c.rows, c.columns(), 3);
               QuantizedOut quantized(out_cuts, c.rows);
               LinearQ8 a;
               a.x = x.data(), a.x_row_bytes = data.cuts.row_bytes();
               a.scales_offset = data.cuts.scales_offset(), a.pieces = data.cuts.pieces();
               a.w = data.w.data(), (c.grouped ? a.group_scale : a.w_scale) = data.w_scale.data(),
               a.bias = c.bias ? data.bias.data() : nullptr;
               a.y = y.data(), a.y_row_bytes = y.row_bytes, a.n = c.columns(), a.activation = c.activation;
               a.gated = c.gated, a.out_group = c.out_group;
               if (c.residual) a.residual = residual.data(), a.residual_row_bytes = residual.row_bytes;
               if (c.out_group != 0) {
                 a.quantized = quantized.bytes.data(), a.quantized_row_bytes = out_cuts.row_bytes();
                 a.quantized_scales_offset = out_cuts.scales_offset();
               }
               const auto needs = c.q4 ? table.linear_q4_scratch : table.linear_q8_scratch;
               Bytes scratch(static_cast<size_t>(needs(a.pieces.k, a.pieces.count)) + 1);
               in_parts(
                   check.is_reference(table) || !splits,
                   [&](const LinearQ8& args, int64_t row, int64_t row_end, int64_t panel, int64_t panel_end) {
                     (c.q4 ? table.linear_q4 : table.linear_q8)(args, row, row_end, panel, panel_end, scratch.data());
                   },
                   a, c.rows, data.panels, a.panel_unit());
               Words words = y.words();
               append(words, quantized.words());
               return words;
             });
}

int f32_unit(int k) {
  for (const int unit : {128, 64, 32, 4}) {
    if (k % unit == 0) {
      return unit;
    }
  }
  return 2;
}

void f32_case(Check& check, int rows, int n, int k, Activation activation, bool bias, Values values, uint64_t seed,
              Store store = Store::kF32, bool bf16 = false) {
  Random random(seed);
  const int64_t panels = (n + 63) / 64, pairs = (k + 1) / 2;
  Floats x(rows, k, random, values, 5), w(panels * k, 64, random, values == Values::kSpecial ? Values::kUnit : values);
  Bytes narrow(static_cast<size_t>(panels * pairs * 256));  // finite numbers of 16 bits; int8
  for (int64_t i = 0; store != Store::kF32 && i < panels * pairs * 128; ++i) {
    const bool is_padding = store == Store::kBf16 && k % 2 != 0 && i / 128 % pairs == pairs - 1 && i % 2 != 0;
    const uint16_t mask = is_padding ? 0 : store == Store::kF16 ? 0xbbff : 0xbfff;
    const uint16_t bits = static_cast<uint16_t>(random.bits() & mask);
    std::memcpy(narrow.data() + 2 * i, &bits, 2);
  }
  for (int64_t i = 0; store == Store::kI8 && i < panels * k * 64; ++i) {
    narrow.data()[i] = static_cast<uint8_t>(random.integer(-127, 127));
  }
  Floats shift(1, panels * 64, random, Values::kUnit), scale(1, panels * 64, random, Values::kUnit);
  LinearF32 a;
  const int unit = f32_unit(k);
  for (int i = 0; i < 4; ++i) {
    const int units = (k + unit - 1) / unit, end = static_cast<int>(a.segment[i]) + unit * (units / 4 + (i < units % 4));
    a.segment[i + 1] = end < k ? end : k;
  }
  a.x = x.data(), a.x_row_bytes = x.row_bytes, a.w = store == Store::kF32 ? static_cast<const void*>(w.data()) : narrow.data();
  a.store = store, a.scale = store == Store::kI8 ? scale.data() : nullptr, a.bias = bias ? shift.data() : nullptr, a.n = n;
  a.activation = activation;
  const bool splits = seed % 2 == 1;
  check.same(text("linear_%s rows %d n %d k %d activation %d bias %d values %d parts %d store %d", bf16 ? "bf16" : "f32", rows,
                  n, k, int(activation), bias, int(values), splits, int(store)),
             [&](const KernelTable& table) {
               Floats y(rows, n, 3);
               LinearF32 args = a;
               args.y = y.data(), args.y_row_bytes = y.row_bytes;
               in_parts(check.is_reference(table) || !splits, bf16 ? table.linear_bf16 : table.linear_f32, args, rows, panels);
               return y.words();
             });
}

// Gate, residual and quantized output, in the groups that fit; more rows than a block has.
template <typename Run>
void check_epilogues(const Run& run, bool q4, bool grouped = false) {
  for (const int rows : {1, 2, 6, 7, 13, 31, 200}) {
    for (const int out_group : {0, 32, 64, 128}) {
      Q8Case c{rows, 512, 192, 64};
      c.q4 = q4, c.grouped = grouped, c.out_group = out_group;
      run(c);
      c.gated = true;
      run(c);
      c.gated = false, c.residual = true;
      run(c);
    }
    Q8Case half{rows, 96, 128, 32};  // half a panel at the end
    half.q4 = q4, half.grouped = grouped, half.out_group = 32, half.residual = rows % 2 == 1;
    run(half);
    Q8Case special{rows, 128, 64, 64, Fill::kScalesSpecial};  // rows that are not finite
    special.q4 = q4, special.grouped = grouped, special.out_group = 64, special.gated = rows % 2 == 1;
    run(special);
  }
}

// Weights in groups: the same cases as int4's.
template <typename Run>
void check_groups(const Run& run_case, bool q4) {
  const auto run = [&](int rows, int n, int k, int group, Fill fill = Fill::kRandom) {
    Q8Case c{rows, n, k, group, fill};
    c.q4 = q4, c.grouped = !q4;
    run_case(c);
  };
  for (const int rows : {1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 18, 24, 25, 49}) {
    run(rows, 65, 576, 32);
    run(rows, 65, 576, 64);
    run(rows, 130, 384, 128);
    run(rows, 63, 96, 32, Fill::kExtreme);
    run(rows, 70, 64, 64, Fill::kScalesSpecial);
    run(rows, 17, 128, 128);  // empty segments
  }
  for (const int rows : {1, 2, 7, 30, 200}) {
    run(rows, 192, 1536, 128);
    run(rows, 64, 4096, 128, Fill::kExtreme);  // the largest sums
  }
  check_epilogues(run_case, q4, !q4);
}

}  // namespace

void check_linear_q8(Check& check) {
  uint64_t seed = 1000;
  const auto run = [&](Q8Case c) {
    c.activation = kActivations[seed % 6], c.bias = seed % 4 < 2;
    q8_case(check, c, seed++);
  };
  for (const int rows : {1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 18, 19, 24, 25, 49}) {
    for (const int group : {0, 32, 64}) {
      run({rows, 65, 576, group});
    }
    run({rows, 130, 384, 128});
    run({rows, 63, 96, 32, Fill::kExtreme});
    run({rows, 64, 50, 0});  // K is no multiple of 4
    run({rows, 70, 64, 64, Fill::kScalesSpecial});
  }
  for (const int rows : {1, 2, 7, 30}) {
    for (const int k : {1, 4, 8, 12, 16, 20, 100, 1028}) {  // empty segments, single quads
      for (const int n : {1, 15, 16, 17, 33, 64}) {
        run({rows, n, k, 0});
      }
    }
    run({rows, 192, 1536, 128});
    run({rows, 64, 4096, 0, Fill::kExtreme});  // the largest sums
    run({rows, 3, 17000, 0});                  // pieces longer than a span of any tile
    run({rows, 64, 8192, 32, Fill::kExtreme});
  }
  check_epilogues(run, false);
  check.end_family("linear_q8");
  check_groups(run, false);
  check.end_family("linear_q8g");
}

void check_linear_q4(Check& check) {
  uint64_t seed = 6000;
  check_groups(
      [&](Q8Case c) {
        c.activation = kActivations[seed % 6], c.bias = seed % 4 < 2;
        q8_case(check, c, seed++);
      },
      true);
  check.end_family("linear_q4");
}

void check_linear_f32(Check& check) {
  uint64_t seed = 2000;
  const auto run = [&](int rows, int n, int k, Values values = Values::kUnit) {
    f32_case(check, rows, n, k, kActivations[seed % 6], seed % 4 < 2, values, seed);
    ++seed;
  };
  for (const int rows : {1, 2, 3, 4, 5, 6, 7, 12, 13, 24, 25, 50}) {
    run(rows, 65, 192);
    run(rows, 64, 100);
    run(rows, 17, 67);
    run(rows, 33, 64, Values::kWide);
    run(rows, 20, 36, Values::kSpecial);
  }
  for (const int k : {1, 2, 3, 4, 5, 63, 127, 576}) {
    run(3, 130, k);
  }
  for (const Store store : {Store::kF16, Store::kBf16}) {
    for (const int rows : {1, 2, 5, 6, 7, 13, 25}) {
      f32_case(check, rows, 70, 130, Activation::kNone, true, Values::kUnit, seed++, store);
    }
  }
  f32_case(check, 9, 70, 67, Activation::kNone, true, Values::kUnit, seed++, Store::kBf16);
  for (const int rows : {1, 2, 3, 4, 5, 6, 7, 12, 13, 24, 25, 50}) {
    const Activation activation = kActivations[seed % 6];
    f32_case(check, rows, 70, 130, activation, seed % 4 < 2, Values::kUnit, seed, Store::kI8);
    f32_case(check, rows, 65, 67, Activation::kNone, true, Values::kSpecial, ++seed, Store::kI8);
  }
  check.end_family("linear_f32");
  for (const int rows : {1, 2, 3, 4, 5, 6, 7, 13, 24, 25, 50}) {
    f32_case(check, rows, 70, 130, Activation::kNone, true, Values::kUnit, seed++, Store::kBf16, true);
    f32_case(check, rows, 64, 576, kActivations[seed % 6], false, Values::kWide, seed++, Store::kBf16, true);
    f32_case(check, rows, 17, 67, Activation::kNone, false, Values::kSpecial, seed++, Store::kBf16, true);
  }
  for (const int k : {1, 2, 3, 5, 127, 1536}) {
    f32_case(check, 3, 130, k, Activation::kNone, false, Values::kUnit, seed++, Store::kBf16, true);
  }
  check.end_family("linear_bf16");
}

}  // namespace taut::check

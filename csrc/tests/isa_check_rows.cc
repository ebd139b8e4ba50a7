// Cases of the kernels that work row by row.
#include "tests/isa_check.h"

namespace taut::check {
namespace {

constexpr Activation kActivations[] = {Activation::kNone, Activation::kGelu, Activation::kGeluTanh,
                                       Activation::kSilu, Activation::kRelu, Activation::kTanh};
constexpr Values kValues[] = {Values::kUnit, Values::kWide, Values::kSpecial};
constexpr int kRows = 5;

struct NormCase {
  bool layer;
  int features, width, group;
  bool residual, sum, out, quantized, bias;
  Values values;
};

void norm_case(Check& check, const NormCase& c, uint64_t seed) {
  Random random(seed);
  const Cuts cuts(c.features, c.group);
  Floats x(kRows, c.features, random, c.values, 3), residual(kRows, c.features, random, Values::kUnit, 1);
  Floats gain(1, c.width, random, Values::kUnit), bias(1, c.width, random, Values::kUnit);
  for (int i = 0; i < c.features; ++i) {
    x.data()[2 * x.row_bytes / 4 + i] = 0.0f;  // eps alone under the root
  }
  check.same(text("norm layer %d features %d width %d group %d residual %d sum %d out %d quantized %d bias %d values %d",
                  c.layer, c.features, c.width, c.group, c.residual, c.sum, c.out, c.quantized, c.bias, int(c.values)),
             [&](const KernelTable& table) {
               Floats sum(kRows, c.features, 2), out(kRows, c.features, 5), scratch(2, c.features + 16);
               QuantizedOut quantized(cuts, kRows);
               Norm p;
               p.layer = c.layer, p.x = x.in(), p.gain = gain.data(), p.bias = c.bias ? bias.data() : nullptr;
               p.features = c.features, p.width = c.width, p.eps = 1e-5f;
               int64_t clamped = 0, nonfinite = 0;
               p.clamp = seed % 5 < 2 ? 0.5f : 0.0f, p.clamped = &clamped, p.nonfinite = &nonfinite;
               if (c.residual) p.residual = residual.in();
               if (c.sum) p.sum = sum.out();
               if (c.out) p.out = out.out();
               if (c.quantized) p.quantized = quantized.args();
               table.norm(p, 0, kRows, scratch.data());
               Words words = sum.words();
               append(words, out.words());
               append(words, {static_cast<uint32_t>(clamped), static_cast<uint32_t>(nonfinite)});
               if (c.quantized) append(words, quantized.words());
               return words;
             });
}

}  // namespace

void check_norm(Check& check) {
  uint64_t seed = 6000;
  for (const bool layer : {false, true}) {
    for (const auto& [features, width, group] : {std::tuple{1, 1, 0},
                                                 {8, 8, 0},
                                                 {33, 33, 0},
                                                 {48, 16, 0},
                                                 {192, 64, 64},
                                                 {384, 384, 128},
                                                 {576, 576, 64},
                                                 {100, 100, 0}}) {
      for (int fused = 0; fused < 16; ++fused) {
        const bool residual = fused & 1, sum = fused & 2, out = fused & 4, quantized = fused & 8;
        const Values values = kValues[seed % 3];
        norm_case(check, {layer, features, width, group, residual, sum, out, quantized, layer && seed % 4 != 0, values}, seed);
        ++seed;
      }
    }
  }
  check.end_family("norm");
}

void check_rope(Check& check) {
  uint64_t seed = 7000;
  constexpr int kPositions = 40, kHeads = 3;
  for (const auto& [head_dim, rotary_dim] :
       {std::pair{2, 2}, {16, 16}, {32, 32}, {64, 64}, {80, 32}, {96, 96}, {100, 50}, {128, 128}}) {
    for (const bool in_place : {false, true}) {
      for (const Values values : kValues) {
        Random random(++seed);
        const Floats x(kRows, kHeads * head_dim, random, values, 3);
        Floats turn(kPositions, rotary_dim, random, Values::kUnit);
        int32_t positions[kRows];
        for (int32_t& p : positions) p = random.integer(0, kPositions - 1);
        check.same(text("rope head_dim %d rotary_dim %d in place %d values %d", head_dim, rotary_dim, in_place, int(values)),
                   [&](const KernelTable& table) {
                     Floats source(kRows, kHeads * head_dim, 3), y(kRows, kHeads * head_dim, 3);
                     std::memcpy(source.bytes.data(), x.bytes.data(), x.bytes.size());
                     Rope p;
                     p.x = source.in(), p.y = in_place ? source.out() : y.out(), p.table = turn.data(), p.positions = positions;
                     p.heads = kHeads, p.head_dim = head_dim, p.rotary_dim = rotary_dim;
                     table.rope(p, 0, kRows);
                     return in_place ? source.words() : y.words();
                   });
      }
    }
  }
  check.end_family("rope");
}

void check_elementwise(Check& check) {
  uint64_t seed = 8000;
  for (const Activation activation : kActivations) {
    for (const Binary binary : {Binary::kNone, Binary::kAdd, Binary::kMul}) {
      for (const int features : {1, 15, 16, 100, 1000}) {
        Random random(++seed);
        const Values values = features == 15 ? Values::kUnit : Values::kSpecial;
        Floats x(20, features, random, values, 3), b(20, features, random, values, 1);
        check.same(text("elementwise activation %d binary %d features %d", int(activation), int(binary), features),
                   [&](const KernelTable& table) {
                     Floats y(20, features, 2);
                     Elementwise p;
                     p.x = x.in(), p.b = b.in(), p.y = y.out(), p.features = features;
                     p.activation = activation, p.binary = binary;
                     table.elementwise(p, 0, 20);
                     return y.words();
                   });
      }
    }
  }
  check.end_family("elementwise");
}

void check_swiglu(Check& check) {
  uint64_t seed = 9000;
  for (const auto& [features, group] : {std::pair{1, 0}, {17, 0}, {64, 64}, {96, 32}, {100, 0}, {1536, 128}}) {
    for (const Values values : kValues) {
      for (int fused = 1; fused < 4; ++fused) {
        for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
          Random random(++seed);
          const Cuts cuts(features, group);
          Floats x(kRows, 2 * features, random, values, 3);
          check.same(text("swiglu features %d group %d values %d fused %d activation %d", features, group, int(values), fused,
                          int(activation)),
                     [&](const KernelTable& table) {
                       Floats out(kRows, features, 2), scratch(1, features + 16);
                       QuantizedOut quantized(cuts, kRows);
                       Swiglu p;
                       p.x = x.in(), p.features = features, p.activation = activation;
                       if (fused & 1) p.out = out.out();
                       if (fused & 2) p.quantized = quantized.args();
                       table.swiglu(p, 0, kRows, scratch.data());
                       Words words = out.words();
                       if (fused & 2) append(words, quantized.words());
                       return words;
                     });
        }
      }
    }
  }
  check.end_family("swiglu");
}

void check_pool(Check& check) {
  uint64_t seed = 10000;
  for (const Pool mode : {Pool::kMean, Pool::kCls, Pool::kLast, Pool::kMax}) {
    for (const int features : {1, 16, 31, 384}) {
      for (const int tokens : {1, 2, 13}) {
        for (const Values values : kValues) {
          Random random(++seed);
          Floats x(20, features, random, values, 3);
          check.same(text("pool mode %d features %d tokens %d values %d", int(mode), features, tokens, int(values)),
                     [&](const KernelTable& table) {
                       Floats y(3, features, 2);
                       Elementwise p;
                       p.x = x.in(), p.y = y.out(), p.features = features;
                       table.pool(p, mode, 1, 4, 4 + tokens);
                       return y.words();
                     });
        }
      }
    }
  }
  check.end_family("pool");
}

void check_sharpen(Check& check) {
  uint64_t seed = 11500;
  for (const int vocab : {1, 15, 16, 17, 1000}) {
    for (const Values values : kValues) {
      for (const float temperature : {0.0f, 1e-30f, 0.7f, 1e30f}) {
        Random random(++seed);
        Floats logits(1, vocab, random, values);
        check.same(text("sharpen vocab %d values %d temperature %g", vocab, int(values), double(temperature)),
                   [&](const KernelTable& table) {
                     Floats weights(1, vocab);
                     const int64_t best = table.sharpen(logits.data(), vocab, temperature, weights.data());
                     Words words = best < 0 ? Words() : weights.words();  // of a row with a NaN nobody reads the weights
                     words.push_back(static_cast<uint32_t>(best));
                     return words;
                   });
      }
    }
  }
  check.end_family("sharpen");
}

void check_normalize(Check& check) {
  uint64_t seed = 11000;
  for (const int features : {1, 3, 16, 31, 384, 768}) {
    for (const Values values : kValues) {
      Random random(++seed);
      Floats x(20, features, random, values, 3);
      for (int i = 0; i < features; ++i) {
        x.data()[x.row_bytes / 4 + i] = 0.0f;
        x.data()[2 * x.row_bytes / 4 + i] = random.unit() * 1e-14f;
      }
      check.same(text("normalize features %d values %d", features, int(values)), [&](const KernelTable& table) {
        Floats y(20, features, 2);
        Elementwise p;
        p.x = x.in(), p.y = y.out(), p.features = features;
        table.normalize(p, 0, 20);
        return y.words();
      });
    }
  }
  check.end_family("normalize");
}

// The loops for measuring: their own count, and what the read loop has read.
void check_peak(Check& check) {
  Random random(12000);
  Bytes bytes(8192);
  for (int i = 0; i < 8192; ++i) bytes.data()[i] = static_cast<uint8_t>(random.bits());
  for (const int64_t ahead : {0, 4096}) {
    for (const int64_t size : {256, 4096}) {
      check.same(text("peak_read %d bytes ahead %d", int(size), int(ahead)), [&](const KernelTable& table) {
        const bool counts = table.peak_int8(3) > 0 && table.peak_f32(3) > 0;
        return Words{static_cast<uint32_t>(table.peak_read(bytes.data(), size, ahead)), counts};
      });
    }
  }
  check.end_family("peak");
}

}  // namespace taut::check

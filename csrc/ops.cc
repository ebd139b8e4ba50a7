// The steps that a Program can run: each resolves its arguments once and splits its work over the threads.
#include <cstring>
#include <functional>
#include <stdexcept>

#include "linear_split.h"
#include "observe.h"
#include "program.h"
#include "run_linear.h"
#include "step_args.h"

namespace taut {
namespace {

class LinearF32Op : public Op {
 public:
  explicit LinearF32Op(const StepSpec& s) : x_(input(s, 0)), y_(output(s, 0)) {
    const auto& segment = s.list("segment");
    if (segment.size() != 5) {
      throw std::invalid_argument("step linear has malformed segments");
    }
    std::copy(segment.begin(), segment.end(), args_.segment);
    args_.w = weight<void>(s, 0);
    args_.store = static_cast<Store>(s.i("store"));
    args_.scale = args_.store == Store::kI8 ? weight<float>(s, 2) : nullptr;
    if (args_.store == Store::kI8 && args_.scale == nullptr) {
      throw std::invalid_argument("step linear has int8 weights without scales");
    }
    args_.bias = weight<float>(s, 1);
    args_.n = y_.features;
    args_.activation = static_cast<Activation>(s.i("activation"));
    if (s.i("bf16") != 0) {
      kernel_ = &KernelTable::linear_bf16;
      if (args_.store != Store::kBf16) {
        throw std::invalid_argument("step linear computes in bf16 on weights of another type");
      }
    }
  }
  void run(const Run& run) const override {
    LinearF32 a = args_;
    a.x = run.in(x_).data;
    a.x_row_bytes = x_.row_bytes;
    a.y = run.rows(y_).data;
    a.y_row_bytes = y_.row_bytes;
    const int64_t tile = run.kernels.tile_rows;
    const int64_t panels = (a.n + kPanelColumns - 1) / kPanelColumns;
    const LinearSplit split(run.count[y_.space], panels, tile, 8 * tile, 4, run.pool.active());
    run.pool.run(split.items, run.abort, [&](int64_t item, int) {
      split.at(item, [&](int64_t row, int64_t row_end, int64_t panel, int64_t panel_end) {
        (run.kernels.*kernel_)(a, row, row_end, panel, panel_end);
      });
    });
  }

 private:
  Operand x_, y_;
  LinearF32 args_;
  LinearF32Fn KernelTable::* kernel_ = &KernelTable::linear_f32;
};

// linear_q8 or linear_q4, by `kind`, and what was fused behind it: a residual (the second input), a gate, a quantized output.
class QuantizedLinearOp : public Op {
 public:
  QuantizedLinearOp(const StepSpec& s, const LinearKind& kind)
      : kind_(kind), x_(input(s, 0)), y_(output(s, 0)), layout_(s, x_.features) {
    args_.scales_offset = layout_.rows.scales_offset;
    args_.w = weight<uint8_t>(s, 0);
    set_scales(args_, s, layout_);
    args_.bias = weight<float>(s, 1);
    args_.n = static_cast<int32_t>(y_.features);
    args_.activation = static_cast<Activation>(s.i("activation"));
    args_.gated = s.i("gated") != 0;
    args_.residual_row_bytes = s.i("add") != 0 ? input(s, 1).row_bytes : 0;
    residual_ = s.i("add") != 0 ? input(s, 1) : Operand();
    quantized_ = s.i("out_group") > 0;
    if (quantized_) {
      args_.out_group = static_cast<int32_t>(s.i("out_group"));
      args_.quantized_scales_offset = static_cast<int32_t>(s.i("out_scales_offset"));
    }
    const int32_t group = args_.out_group;
    if ((args_.gated && residual_.features != 0) || (args_.gated && args_.n % args_.panel_columns() != 0) ||
        (quantized_ && ((group != 32 && group != 64 && group != 128) || args_.n % group != 0))) {
      throw std::invalid_argument("step " + s.op + ": what is fused behind it does not fit its columns");
    }
  }
  void run(const Run& run) const override {
    LinearQ8 a = args_;
    a.pieces = layout_.at(nullptr, 0).pieces;
    a.x = run.at(x_);
    a.x_row_bytes = x_.row_bytes;
    a.residual = residual_.features != 0 ? run.in(residual_).data : nullptr;
    if (quantized_) {
      a.quantized = run.at(y_);
      a.quantized_row_bytes = y_.row_bytes;
    } else {
      a.y = run.rows(y_).data;
      a.y_row_bytes = y_.row_bytes;
    }
    run_linear(run.kernels, kind_, run.pool, run.abort, a, run.count[y_.space]);
  }
  int64_t scratch_floats(const KernelTable& kernels) const override {
    return taut::scratch_floats(kernels, kind_, layout_.rows.pieces);
  }

 private:
  const LinearKind& kind_;
  Operand x_, y_, residual_;
  QuantizedLayout layout_;
  LinearQ8 args_;
  bool quantized_ = false;
};

class EmbedOp : public Op {
 public:
  EmbedOp(const StepSpec& s, Limits& limits) : y_(output(s, 0)), index_(static_cast<int>(s.i("index"))) {
    args_.kind = static_cast<Table>(s.i("table"));
    args_.table = weight<void>(s, 0);
    args_.scale = weight<float>(s, 1);
    args_.features = y_.features;
    args_.offset = s.i("offset");
    args_.group = s.i("table_group");
    limits.index_begin[index_] = std::max(limits.index_begin[index_], -args_.offset);
    limits.index_end[index_] = std::min(limits.index_end[index_], s.i("entries") - args_.offset);
  }
  void run(const Run& run) const override {
    Embed a = args_;
    a.index = run.index(index_);
    a.y = run.rows(y_);
    run.for_rows(run.count[kTokens], [&](int64_t begin, int64_t end, float*) { run.kernels.embed(a, begin, end); });
  }

 private:
  Operand y_;
  int index_;
  Embed args_;
};

class QuantizeOp : public Op {
 public:
  explicit QuantizeOp(const StepSpec& s) : x_(input(s, 0)), y_(output(s, 0)), layout_(s, x_.features) {
    layout_.read_static(s);
  }
  void run(const Run& run) const override {
    const Quantize a{run.in(x_), layout_.at(run.at(y_), y_.row_bytes, run.counter(kFallback))};
    run.for_rows(run.count[y_.space], [&](int64_t begin, int64_t end, float*) { run.kernels.quantize(a, begin, end); });
  }

 private:
  Operand x_, y_;
  QuantizedLayout layout_;
};

// Outputs in order: the sum, the normalized rows, the quantized rows; each where the step asks for it.
class NormOp : public Op {
 public:
  explicit NormOp(const StepSpec& s) : spec_(s), x_(input(s, 0)) {
    args_.layer = s.op == "layer_norm";
    args_.gain = weight<float>(s, 0);
    args_.bias = weight<float>(s, 1);
    args_.features = x_.features;
    args_.width = s.i("head_dim") != 0 ? s.i("head_dim") : x_.features;
    args_.eps = s.f("eps");
    args_.clamp = s.f("clamp", 0);
    size_t next = 0;
    sum_ = s.i("store_sum") != 0 ? static_cast<int>(next++) : -1;
    out_ = s.i("store_out") != 0 ? static_cast<int>(next++) : -1;
    quantized_ = s.i("quantized") != 0 ? static_cast<int>(next++) : -1;
    if (next != s.outputs.size() || next == 0 || s.inputs.size() != (s.i("add") != 0 ? 2u : 1u) ||
        x_.features % args_.width != 0) {
      throw std::invalid_argument("step " + s.op + ": inputs or outputs do not match its attributes");
    }
    if (quantized_ >= 0) {
      layout_ = QuantizedLayout(s, x_.features);
      layout_.read_static(s);
    }
  }
  int64_t scratch_floats(const KernelTable&) const override { return 2 * (x_.features + 16); }
  void run(const Run& run) const override {
    Norm a = args_;
    a.x = run.in(x_);
    a.clamped = run.counter(kClamped);
    a.nonfinite = run.counter(kNonfinite);
    if (spec_.inputs.size() == 2) {
      a.residual = run.in(spec_.inputs[1]);
    }
    if (sum_ >= 0) {
      a.sum = run.rows(spec_.outputs[sum_]);
    }
    if (out_ >= 0) {
      a.out = run.rows(spec_.outputs[out_]);
    }
    if (quantized_ >= 0) {
      const Operand& q = spec_.outputs[quantized_];
      a.quantized = layout_.at(run.at(q), q.row_bytes, run.counter(kFallback));
    }
    run.for_rows(run.count[x_.space],
                 [&](int64_t begin, int64_t end, float* scratch) { run.kernels.norm(a, begin, end, scratch); });
  }

 private:
  StepSpec spec_;
  Operand x_;
  QuantizedLayout layout_;
  Norm args_;
  int sum_, out_, quantized_;
};

class ElementwiseOp : public Op {
 public:
  ElementwiseOp(const StepSpec& s, Activation activation, Binary binary) : x_(input(s, 0)), y_(output(s, 0)) {
    b_ = binary == Binary::kNone ? x_ : input(s, 1);
    args_.features = x_.features;
    args_.activation = activation;
    args_.binary = binary;
  }
  void run(const Run& run) const override {
    Elementwise a = args_;
    a.x = run.in(x_);
    a.b = run.in(b_);
    a.y = run.rows(y_);
    run.for_rows(run.count[y_.space], [&](int64_t begin, int64_t end, float*) { run.kernels.elementwise(a, begin, end); });
  }

 private:
  Operand x_, b_, y_;
  Elementwise args_;
};

class SwigluOp : public Op {
 public:
  explicit SwigluOp(const StepSpec& s) : x_(input(s, 0)), y_(output(s, 0)), quantized_(s.i("quantized") != 0) {
    args_.features = x_.features / 2;
    args_.activation = static_cast<Activation>(s.i("activation"));
    if (quantized_) {
      layout_ = QuantizedLayout(s, args_.features);
      layout_.read_static(s);
    }
  }
  int64_t scratch_floats(const KernelTable&) const override { return args_.features + 16; }
  void run(const Run& run) const override {
    Swiglu a = args_;
    a.x = run.in(x_);
    if (quantized_) {
      a.quantized = layout_.at(run.at(y_), y_.row_bytes, run.counter(kFallback));
    } else {
      a.out = run.rows(y_);
    }
    run.for_rows(run.count[y_.space],
                 [&](int64_t begin, int64_t end, float* scratch) { run.kernels.swiglu(a, begin, end, scratch); });
  }

 private:
  Operand x_, y_;
  bool quantized_;
  QuantizedLayout layout_;
  Swiglu args_;
};

class SelectOp : public Op {
 public:
  explicit SelectOp(const StepSpec& s) : x_(input(s, 0)), y_(output(s, 0)) {}
  void run(const Run& run) const override {
    const uint8_t* x = run.at(x_);
    uint8_t* y = run.at(y_);
    for (int64_t r = 0; r < run.count[kRows]; ++r) {
      std::memcpy(y + r * y_.row_bytes, x + run.batch.rows[r] * x_.row_bytes, x_.features * 4);
    }
  }

 private:
  Operand x_, y_;
};

class PoolOp : public Op {
 public:
  explicit PoolOp(const StepSpec& s) : x_(input(s, 0)), y_(output(s, 0)), mode_(static_cast<Pool>(s.i("mode"))) {}
  void run(const Run& run) const override {
    Elementwise a;
    a.x = run.in(x_);
    a.y = run.rows(y_);
    a.features = x_.features;
    run.pool.run(run.count[kSequences], run.abort,
                 [&](int64_t s, int) { run.kernels.pool(a, mode_, s, run.batch.starts[s], run.batch.starts[s + 1]); });
  }

 private:
  Operand x_, y_;
  Pool mode_;
};

class NormalizeOp : public Op {
 public:
  explicit NormalizeOp(const StepSpec& s) : x_(input(s, 0)), y_(output(s, 0)) {}
  void run(const Run& run) const override {
    Elementwise a;
    a.x = run.in(x_);
    a.y = run.rows(y_);
    a.features = x_.features;
    run.for_rows(run.count[y_.space], [&](int64_t begin, int64_t end, float*) { run.kernels.normalize(a, begin, end); });
  }

 private:
  Operand x_, y_;
};

using Maker = std::function<std::unique_ptr<Op>(const StepSpec&, const KvPool&, Limits&)>;

template <typename T>
Maker plain() {
  return [](const StepSpec& s, const KvPool&, Limits&) { return std::make_unique<T>(s); };
}

Maker quantized_linear(const LinearKind& kind) {
  return [&kind](const StepSpec& s, const KvPool&, Limits&) { return std::make_unique<QuantizedLinearOp>(s, kind); };
}

Maker elementwise(Activation activation, Binary binary = Binary::kNone) {
  return [=](const StepSpec& s, const KvPool&, Limits&) { return std::make_unique<ElementwiseOp>(s, activation, binary); };
}

}  // namespace

// attention_ops.cc, qkv_attention.cc
std::unique_ptr<Op> make_attention_op(const StepSpec& step, const KvPool& kv, Limits& limits);
std::unique_ptr<Op> make_qkv_attention(const StepSpec& step);

std::unique_ptr<Op> make_op(const StepSpec& step, const KvPool& kv, Limits& limits) {
  static const std::map<std::string, Maker> makers = {
      {"embed", [](const StepSpec& s, const KvPool&, Limits& l) { return std::make_unique<EmbedOp>(s, l); }},
      {"linear", plain<LinearF32Op>()},
      {"linear_q8", quantized_linear(kLinearQ8)},
      {"linear_q4", quantized_linear(kLinearQ4)},
      {"qkv_attention", [](const StepSpec& s, const KvPool&, Limits&) { return make_qkv_attention(s); }},
      {"quantize", plain<QuantizeOp>()},
      {"rms_norm", plain<NormOp>()},
      {"layer_norm", plain<NormOp>()},
      {"silu", elementwise(Activation::kSilu)},
      {"gelu", elementwise(Activation::kGelu)},
      {"gelu_tanh", elementwise(Activation::kGeluTanh)},
      {"relu", elementwise(Activation::kRelu)},
      {"tanh", elementwise(Activation::kTanh)},
      {"add", elementwise(Activation::kNone, Binary::kAdd)},
      {"mul", elementwise(Activation::kNone, Binary::kMul)},
      {"swiglu", plain<SwigluOp>()},
      {"select", plain<SelectOp>()},
      {"pool", plain<PoolOp>()},
      {"normalize", plain<NormalizeOp>()},
      {"observe", [](const StepSpec& s, const KvPool&, Limits&) { return make_observe(s); }},
  };
  const auto found = makers.find(step.op);
  return found != makers.end() ? found->second(step, kv, limits) : make_attention_op(step, kv, limits);
}

}  // namespace taut

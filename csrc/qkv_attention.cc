// An encoder's attention from quantized rows: queries, keys and values of a sequence and a few heads are computed into a thread's scratch,
// which stays in its caches, and attended to there. Weights hold `interleave` columns of q, k and v in turn: a group of heads is a run
// of whole panels. The arithmetic is that of the quantized linear and of attention_full.
#include <algorithm>
#include <stdexcept>

#include "program.h"
#include "run_linear.h"
#include "step_args.h"

namespace taut {
namespace {

constexpr int64_t kQueryRows = 128;                 // of a call of attention, for which keys and values are laid out once
constexpr int64_t kScoreFloats = kQueryRows * 512;  // of a call
constexpr int64_t kLeastBusy = 85;                  // percent of the threads' time that whole groups must fill

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t round_up(int64_t a, int64_t b) { return divide_up(a, b) * b; }

class QkvAttentionOp : public Op {
 public:
  explicit QkvAttentionOp(const StepSpec& s)
      : kind_(s.i("bits") == 8 ? kLinearQ8 : kLinearQ4),
        x_(input(s, 0)),
        o_(output(s, 0)),
        layout_(s, x_.features),
        width_(s.i("interleave")) {
    const int64_t head_dim = s.i("head_dim"), k = layout_.rows.pieces.k, keys = s.i("softmax_keys");
    if (head_dim <= 0 || width_ <= 0 || width_ % 64 != 0 || width_ % head_dim != 0 || o_.features % width_ != 0 ||
        o_.features != s.i("heads") * head_dim || s.i("kv_heads") != s.i("heads") || keys < 0 || keys % kBlockTokens != 0) {
      throw std::invalid_argument("step qkv_attention: heads, their width and the output do not fit each other");
    }
    linear_.scales_offset = layout_.rows.scales_offset;
    linear_.x_row_bytes = x_.row_bytes;
    linear_.w = weight<uint8_t>(s, 0);
    linear_.bias = weight<float>(s, 1);
    set_scales(linear_, s, layout_);
    const int64_t group = s.i("group");
    panel_bytes_ = s.i("bits") == 8 ? 64 * k : k / group * q4_group_bytes(group);
    attention_.chunk_tiles = keys == 0 ? INT32_MAX : keys / kBlockTokens;
    attention_.heads = attention_.kv_heads = static_cast<int32_t>(width_ / head_dim);
    attention_.head_dim = static_cast<int32_t>(head_dim);
    attention_.scale = s.f("scale");
    attention_.limit = s.f("score_limit", 0);
    attention_.products = products_of(s);
  }

  void run(const Run& run) const override {
    int64_t longest = 0;
    for (int64_t s = 0; s < run.batch.num_sequences; ++s) longest = std::max(longest, length(run, s));
    const int64_t kernel = kernel_floats(run.kernels, longest), items = run.batch.num_sequences * groups();
    const int64_t threads = run.pool.active(), busy = 100 * items / (divide_up(items, threads) * threads);
    if (busy < kLeastBusy) return run_in_two(run, longest);
    run.pool.reserve_scratch(kernel + longest * 3 * width_);
    run.pool.run(items, run.abort, [&](int64_t item, int thread) {
      float* scratch = run.pool.scratch(thread);
      run_group(run, item / groups(), item % groups(), scratch, scratch + kernel);
    });
  }

 private:
  int64_t groups() const { return o_.features / width_; }
  static int64_t length(const Run& run, int64_t sequence) {
    return run.batch.starts[sequence + 1] - run.batch.starts[sequence];
  }

  // Query rows of a call over so many tokens, and the scratch of both kernels, which never run at once.
  int64_t query_rows(int64_t tokens) const {
    const int64_t keys = kBlockTokens * std::min(divide_up(tokens, kBlockTokens), attention_.chunk_tiles);
    return std::max<int64_t>(1, std::min(kQueryRows, kScoreFloats / keys));
  }
  int64_t kernel_floats(const KernelTable& kernels, int64_t tokens) const {
    const int64_t tiles = std::min(divide_up(tokens, kBlockTokens), attention_.chunk_tiles);
    const int64_t attention =
        kernels.attention_scratch(attention_.head_dim, kQueryRows, 0) + std::max(kScoreFloats, tiles * kBlockTokens);
    return round_up(std::max(attention, taut::scratch_floats(kernels, kind_, layout_.rows.pieces)), 16);
  }

  // The linear over a sequence's rows and the columns of `count` groups of heads from `group` on, into y.
  LinearQ8 linear(const Run& run, int64_t sequence, int64_t group, int64_t count, float* y) const {
    LinearQ8 a = linear_;
    a.pieces = layout_.at(nullptr, 0).pieces;
    a.x = run.at(x_) + run.batch.starts[sequence] * x_.row_bytes;
    a.w += group * (3 * width_ / 64) * panel_bytes_;
    if (a.w_scale != nullptr) a.w_scale += group * 3 * width_;
    if (a.group_scale != nullptr) a.group_scale += group * 3 * width_ * a.pieces.count;
    if (a.bias != nullptr) a.bias += group * 3 * width_;
    a.n = static_cast<int32_t>(count * 3 * width_);
    a.y = y, a.y_row_bytes = a.n * 4;
    return a;
  }

  // Attention of a group's heads over rows of q, k and v, `row_bytes` apart.
  AttentionFull attention(const Run& run, int64_t sequence, int64_t group, float* q, int64_t row_bytes) const {
    AttentionFull a = attention_;
    a.q = {q, row_bytes}, a.k = {q + width_, row_bytes}, a.v = {q + 2 * width_, row_bytes};
    const Rows<float> o = run.rows(o_);
    a.beyond = run.counter(kScores);
    a.o = {o.data + run.batch.starts[sequence] * (o.row_bytes / 4) + group * width_, o.row_bytes};
    return a;
  }

  void run_group(const Run& run, int64_t sequence, int64_t group, float* scratch, float* qkv) const {
    const int64_t tokens = length(run, sequence);
    const LinearQ8 a = linear(run, sequence, group, 1, qkv);
    const int64_t block = round_up(divide_up(tokens, divide_up(tokens, kBlockRows)), run.kernels.tile_rows);
    for (int64_t row = 0; row < tokens; row += block) {
      (run.kernels.*kind_.run)(a, row, std::min(row + block, tokens), 0, a.panels(), scratch);
    }
    const AttentionFull b = attention(run, sequence, group, qkv, a.y_row_bytes);
    const int64_t even = divide_up(tokens, divide_up(tokens, query_rows(tokens)));
    for (int64_t head = 0; head < b.heads; ++head) {
      for (int64_t t = 0; t < tokens; t += even) {
        run.kernels.attention_full(b, 0, tokens, head, t, std::min(t + even, tokens), scratch);
      }
    }
  }

  // Where whole groups would leave threads without work: a sequence after the other, its linear and its attention on all threads.
  void run_in_two(const Run& run, int64_t longest) const {
    const int64_t row_floats = groups() * 3 * width_;
    if (longest * row_floats > buffer_floats_) {
      buffer_floats_ = longest * row_floats;
      buffer_.reset(new float[static_cast<size_t>(buffer_floats_)]);
    }
    run.pool.reserve_scratch(kernel_floats(run.kernels, longest));
    for (int64_t s = 0; s < run.batch.num_sequences; ++s) {
      const int64_t tokens = length(run, s), even = divide_up(tokens, divide_up(tokens, query_rows(tokens)));
      run_linear(run.kernels, kind_, run.pool, run.abort, linear(run, s, 0, groups(), buffer_.get()), tokens);
      const int64_t calls = divide_up(tokens, even), heads = attention_.heads;
      run.pool.run(calls * groups() * heads, run.abort, [&](int64_t item, int thread) {
        const int64_t head = item / calls, group = head / heads, t = item % calls * even;
        const AttentionFull a = attention(run, s, group, buffer_.get() + group * 3 * width_, row_floats * 4);
        run.kernels.attention_full(a, 0, tokens, head % heads, t, std::min(t + even, tokens), run.pool.scratch(thread));
      });
    }
  }

  const LinearKind& kind_;
  Operand x_, o_;
  QuantizedLayout layout_;
  int64_t width_, panel_bytes_ = 0;
  LinearQ8 linear_;
  AttentionFull attention_;
  mutable std::unique_ptr<float[]> buffer_;  // of run_in_two; a program runs one batch at a time
  mutable int64_t buffer_floats_ = 0;
};

}  // namespace

std::unique_ptr<Op> make_qkv_attention(const StepSpec& step) { return std::make_unique<QkvAttentionOp>(step); }

}  // namespace taut

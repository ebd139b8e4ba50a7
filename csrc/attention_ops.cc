// The steps around attention: rotary embedding, cache writes, causal and bidirectional attention.
#include <algorithm>
#include <stdexcept>

#include "program.h"

namespace taut {
namespace {

void need(bool condition, const StepSpec& step, const char* what) {
  if (!condition) {
    throw std::invalid_argument("step " + step.op + ": " + what);
  }
}

KvLayer layer_of(const KvPool& kv, int64_t layer) {
  KvLayer l;
  l.base = kv.base + layer * 2 * kv.kv_heads * kv.slot_bytes;
  l.slot_bytes = kv.slot_bytes;
  l.data_bytes = kv.data_bytes;
  l.kv_heads = kv.kv_heads;
  l.head_dim = kv.head_dim;
  l.int8 = kv.int8;
  return l;
}

// Rotation of the operand `x` of a step with a table.
Rope rope_of(const StepSpec& s, const Operand& x, Limits& limits) {
  Rope r;
  r.table = reinterpret_cast<const float*>(s.weights.at(0));
  r.head_dim = static_cast<int32_t>(s.i("head_dim"));
  r.rotary_dim = static_cast<int32_t>(s.i("rotary_dim"));
  need(r.head_dim > 0 && x.features % r.head_dim == 0, s, "features are not whole heads");
  need(r.rotary_dim > 0 && r.rotary_dim % 2 == 0 && r.rotary_dim <= r.head_dim, s, "rotary_dim does not fit head_dim");
  r.heads = static_cast<int32_t>(x.features / r.head_dim);
  limits.index_end[1] = std::min(limits.index_end[1], s.i("entries"));
  return r;
}

class RopeOp : public Op {
 public:
  RopeOp(const StepSpec& s, Limits& limits) : x_(s.inputs.at(0)), y_(s.outputs.at(0)), args_(rope_of(s, x_, limits)) {}
  void run(const Run& run) const override {
    Rope a = args_;
    a.x = run.in(x_);
    a.y = run.rows(y_);
    a.positions = run.batch.positions;
    run.for_rows(run.count[kTokens], [&](int64_t begin, int64_t end, float*) { run.kernels.rope(a, begin, end); });
  }

 private:
  Operand x_, y_;
  Rope args_;
};

// cache_write (k, v), or rope_cache (q, k, v -> q turned): one pass over the tokens.
class CacheOp : public Op {
 public:
  CacheOp(const StepSpec& s, const KvPool& kv, Limits& limits) : turns_(s.op == "rope_cache") {
    const size_t first = turns_ ? 1 : 0;
    k_ = s.inputs.at(first);
    v_ = s.inputs.at(first + 1);
    const int64_t layer = s.i("layer");
    need(kv.base != nullptr, s, "the program has no KV pool");
    need(layer >= 0 && layer < kv.layers && s.i("head_dim") == kv.head_dim, s, "the KV pool has another geometry");
    need(k_.features == v_.features && k_.features == int64_t{kv.kv_heads} * kv.head_dim, s,
         "keys or values have another width");
    args_.kv = layer_of(kv, layer);
    if (turns_) {
      q_ = s.inputs[0];
      out_ = s.outputs.at(0);
      rope_ = rope_of(s, q_, limits);
      args_.rope_table = rope_.table;
      args_.rotary_dim = rope_.rotary_dim;
    }
    limits.needs_kv = true;
  }
  int64_t scratch_floats(const KernelTable&) const override { return args_.kv.head_dim + 16; }
  void run(const Run& run) const override {
    CacheWrite a = args_;
    a.k = run.in(k_);
    a.v = run.in(v_);
    a.positions = run.batch.positions;
    a.token_block = run.token_block.data();
    Rope r = rope_;
    if (turns_) {
      r.x = run.in(q_);
      r.y = run.rows(out_);
      r.positions = run.batch.positions;
    }
    run.for_rows(run.count[kTokens], [&](int64_t begin, int64_t end, float* scratch) {
      if (turns_) {
        run.kernels.rope(r, begin, end);
      }
      run.kernels.cache_write(a, begin, end, scratch);
    });
  }

 private:
  bool turns_;
  Operand q_, k_, v_, out_;
  Rope rope_;
  CacheWrite args_;
};

// Sequences cut into tiles of at most `rows` query rows.
void cut_queries(const Run& run, int64_t rows, int64_t group) {
  const int64_t limit = std::max<int64_t>(1, rows / group);
  run.tiles.clear();
  for (int64_t s = 0; s < run.batch.num_sequences; ++s) {
    const int32_t begin = run.batch.starts[s], end = run.batch.starts[s + 1];
    const int64_t tiles = (end - begin + limit - 1) / limit, even = (end - begin + tiles - 1) / tiles;
    for (int64_t t = begin; t < end; t += even) {
      run.tiles.push_back(
          {static_cast<int32_t>(s), static_cast<int32_t>(t), static_cast<int32_t>(std::min<int64_t>(t + even, end))});
    }
  }
}

class AttentionOp : public Op {
 public:
  AttentionOp(const StepSpec& s, const KvPool& kv, Limits& limits) : q_(s.inputs.at(0)), o_(s.outputs.at(0)) {
    const int64_t layer = s.i("layer");
    need(kv.base != nullptr, s, "the program has no KV pool");
    need(layer >= 0 && layer < kv.layers && s.i("head_dim") == kv.head_dim && s.i("kv_heads") == kv.kv_heads, s,
         "the KV pool has another geometry");
    args_.kv = layer_of(kv, layer);
    args_.block_bytes = kv.block_bytes;
    args_.heads = static_cast<int32_t>(s.i("heads"));
    args_.scale = s.f("scale");
    need(args_.heads % kv.kv_heads == 0 && q_.features == int64_t{args_.heads} * kv.head_dim, s, "queries have another width");
    limits.needs_kv = true;
  }
  int64_t scratch_floats(const KernelTable& kernels) const override {
    return kernels.attention_scratch(args_.kv.head_dim, args_.heads / args_.kv.kv_heads);
  }
  void run(const Run& run) const override {
    Attention a = args_;
    a.q = run.in(q_);
    a.o = run.rows(o_);
    a.positions = run.batch.positions;
    cut_queries(run, run.kernels.attention_rows, a.heads / a.kv.kv_heads);
    const int64_t tiles = static_cast<int64_t>(run.tiles.size());
    // The last tiles of a sequence see most keys: they start first.
    run.pool.run(tiles * a.kv.kv_heads, run.abort, [&](int64_t item, int thread) {
      const QueryTile& t = run.tiles[tiles - 1 - item / a.kv.kv_heads];
      run.kernels.attention(a, run.batch.tables + t.sequence * run.batch.table_width, item % a.kv.kv_heads, t.token_begin,
                            t.token_end, run.pool.scratch(thread));
    });
  }

 private:
  Operand q_, o_;
  Attention args_;
};

class AttentionFullOp : public Op {
 public:
  explicit AttentionFullOp(const StepSpec& s)
      : q_(s.inputs.at(0)), k_(s.inputs.at(1)), v_(s.inputs.at(2)), o_(s.outputs.at(0)) {
    args_.heads = static_cast<int32_t>(s.i("heads"));
    args_.kv_heads = static_cast<int32_t>(s.i("kv_heads"));
    args_.head_dim = static_cast<int32_t>(s.i("head_dim"));
    args_.scale = s.f("scale");
    need(args_.kv_heads > 0 && args_.heads % args_.kv_heads == 0, s, "query heads do not share key heads evenly");
    need(q_.features == int64_t{args_.heads} * args_.head_dim && k_.features == int64_t{args_.kv_heads} * args_.head_dim &&
             v_.features == k_.features,
         s, "queries, keys or values have another width");
  }
  int64_t scratch_floats(const KernelTable& kernels) const override {
    return kernels.attention_scratch(args_.head_dim, args_.heads / args_.kv_heads);
  }
  void run(const Run& run) const override {
    AttentionFull a = args_;
    a.q = run.in(q_);
    a.k = run.in(k_);
    a.v = run.in(v_);
    a.o = run.rows(o_);
    cut_queries(run, run.kernels.attention_rows, a.heads / a.kv_heads);
    run.pool.run(static_cast<int64_t>(run.tiles.size()) * a.kv_heads, run.abort, [&](int64_t item, int thread) {
      const QueryTile& t = run.tiles[item / a.kv_heads];
      run.kernels.attention_full(a, run.batch.starts[t.sequence], run.batch.starts[t.sequence + 1], item % a.kv_heads,
                                 t.token_begin, t.token_end, run.pool.scratch(thread));
    });
  }

 private:
  Operand q_, k_, v_, o_;
  AttentionFull args_;
};

}  // namespace

std::unique_ptr<Op> make_attention_op(const StepSpec& step, const KvPool& kv, Limits& limits) {
  if (step.op == "rope") {
    return std::make_unique<RopeOp>(step, limits);
  }
  if (step.op == "rope_cache" || step.op == "cache_write") {
    return std::make_unique<CacheOp>(step, kv, limits);
  }
  if (step.op == "attention") {
    return std::make_unique<AttentionOp>(step, kv, limits);
  }
  if (step.op == "attention_full") {
    return std::make_unique<AttentionFullOp>(step);
  }
  throw std::invalid_argument("no native kernel runs the step " + step.op);
}

}  // namespace taut

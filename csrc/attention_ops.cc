// The steps around attention: rotary embedding, cache writes, causal and bidirectional attention.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <stdexcept>

#include "program.h"
#include "step_args.h"

namespace taut {
namespace {

void need(bool condition, const StepSpec& step, const char* what) {
  if (!condition) {
    throw std::invalid_argument("step " + step.op + ": " + what);
  }
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
    need(layer >= 0 && layer < kv.layers && s.i("head_dim") == kv.first.head_dim, s, "the KV pool has another geometry");
    need(k_.features == v_.features && k_.features == int64_t{kv.first.kv_heads} * kv.first.head_dim, s,
         "keys or values have another width");
    args_.kv = kv.layer(layer);
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

constexpr int64_t kQueryRows = 128;  // of a call, but for larger head groups: keys and values are unpacked once for all of them
constexpr int64_t kScoreFloats = kQueryRows * 512;  // scores of a call: they stay in a core's own cache
constexpr int64_t kPlannedTiles = 256;              // of a softmax over all keys; a longer context makes the scratch grow
constexpr int64_t kCounterFloats = 16;
constexpr int64_t kPartialFloats = 1 << 20;  // of all split calls of a step
constexpr int64_t kLeastSplitTiles = 2;      // of a chunk: joining costs about what a few keys cost
constexpr int64_t kItemsPerThread = 8;       // work that is finer than this is not split

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Tiles that softmax is taken over at once.
int64_t chunk_tiles_of(const StepSpec& s) {
  const int64_t keys = s.i("softmax_keys");
  need(keys >= 0 && keys % kBlockTokens == 0, s, "softmax_keys is not a multiple of 32 (0: all keys)");
  return keys == 0 ? INT32_MAX : keys / kBlockTokens;
}

// Query rows of a call whose rows see up to `tiles` tiles at once: whole tokens, at least one.
int64_t rows_of(int64_t group, int64_t tiles) {
  const int64_t rows = std::min(kQueryRows, kScoreFloats / (tiles * kBlockTokens));
  return std::max<int64_t>(1, rows / group) * group;
}

// Scratch of a call of rows_of(group, t) rows, for every t up to `tiles`.
int64_t scratch_of(const KernelTable& kernels, int64_t head_dim, int64_t group, int64_t tiles) {
  const int64_t keys = tiles * kBlockTokens;
  return kernels.attention_scratch(head_dim, std::max(kQueryRows, group), 0) + std::max(kScoreFloats, group * keys);
}

// A sequence of `length` tokens in all, cut into calls of about equal numbers of queries.
void cut_queries(const Run& run, int64_t sequence, int64_t length, int64_t group, int64_t chunk_tiles) {
  const int64_t limit = rows_of(group, std::min(divide_up(length, kBlockTokens), chunk_tiles)) / group;
  const int64_t begin = run.batch.starts[sequence], end = run.batch.starts[sequence + 1];
  const int64_t even = divide_up(end - begin, divide_up(end - begin, limit));
  for (int64_t t = begin; t < end; t += even) {
    run.tiles.push_back(
        {static_cast<int32_t>(sequence), static_cast<int32_t>(t), static_cast<int32_t>(std::min(t + even, end))});
  }
}

class AttentionOp : public Op {
 public:
  AttentionOp(const StepSpec& s, const KvPool& kv, Limits& limits) : q_(s.inputs.at(0)), o_(s.outputs.at(0)) {
    const int64_t layer = s.i("layer");
    need(kv.base != nullptr, s, "the program has no KV pool");
    const KvLayer& pool = kv.first;
    need(layer >= 0 && layer < kv.layers && s.i("head_dim") == pool.head_dim && s.i("kv_heads") == pool.kv_heads, s,
         "the KV pool has another geometry");
    args_.kv = kv.layer(layer);
    args_.block_bytes = kv.block_bytes;
    args_.heads = static_cast<int32_t>(s.i("heads"));
    args_.scale = s.f("scale");
    args_.chunk_tiles = chunk_tiles_of(s);
    args_.bf16 = s.i("bf16") != 0;
    args_.limit = s.f("score_limit", 0);
    need(args_.heads % pool.kv_heads == 0 && q_.features == int64_t{args_.heads} * pool.head_dim, s,
         "queries have another width");
    group_ = args_.heads / pool.kv_heads;
    limits.needs_kv = true;
  }
  int64_t scratch_floats(const KernelTable& kernels) const override {
    return scratch_of(kernels, args_.kv.head_dim, group_, std::min(args_.chunk_tiles, kPlannedTiles));
  }
  int64_t shared_floats() const override { return kPartialFloats; }

  void run(const Run& run) const override {
    Attention a = args_;
    a.q = run.in(q_);
    a.o = run.rows(o_);
    a.positions = run.batch.positions;
    a.beyond = run.counter(kScores);
    int64_t longest = 0;
    run.tiles.clear();
    for (int64_t s = 0; s < run.batch.num_sequences; ++s) {
      cut_queries(run, s, run.batch.context[s], group_, a.chunk_tiles);
      longest = std::max<int64_t>(longest, run.batch.context[s]);
    }
    const int64_t tiles = std::min(divide_up(longest, kBlockTokens), a.chunk_tiles);
    run.pool.reserve_scratch(scratch_of(run.kernels, a.kv.head_dim, group_, tiles));
    split_long(run);
    const int64_t heads = a.kv.kv_heads, count = static_cast<int64_t>(run.tiles.size());
    // The last tiles of a sequence see most keys: they start first.
    run.pool.run(count * heads, run.abort, [&](int64_t item, int thread) {
      const QueryTile& t = run.tiles[count - 1 - item / heads];
      const AttentionWork w{run.batch.tables + t.sequence * run.batch.table_width, item % heads, t.token_begin, t.token_end};
      float* scratch = run.pool.scratch(thread);
      if (t.split) {
        attend_split(run, a, w, t, scratch);
      } else {
        run.kernels.attention(a, w, scratch);
      }
    });
  }

 private:
  int64_t keys_of(const Run& run, const QueryTile& t) const { return run.batch.positions[t.token_end - 1] + int64_t{1}; }
  int64_t rows_in(const QueryTile& t) const { return (t.token_end - t.token_begin) * group_; }
  int64_t partial_floats(const Run& run, const QueryTile& t) const {
    return run.kernels.attention_partial(args_.kv.head_dim, rows_in(t));
  }
  // Shared scratch of one KV head of a split call: the number of chunks that are done, then their sums.
  int64_t unit_floats(const Run& run, const QueryTile& t) const { return kCounterFloats + t.chunks * partial_floats(run, t); }

  // Whoever ends the last chunk joins all of them, in their order.
  void attend_split(const Run& run, const Attention& a, const AttentionWork& w, const QueryTile& t, float* scratch) const {
    float* unit = run.shared + t.partial + w.kv_head * unit_floats(run, t);
    float* partials = unit + kCounterFloats;
    run.kernels.attention_chunk(a, w, t.chunk, partials + t.chunk * partial_floats(run, t), scratch);
    if (std::atomic_ref(*reinterpret_cast<int32_t*>(unit)).fetch_add(1, std::memory_order_acq_rel) == t.chunks - 1) {
      run.kernels.attention_join(a, w, partials);
    }
  }

  // Replaces the tiles that would keep a thread busy alone by one for each of their chunks, as far as the partial sums have room.
  // The bits are the same either way.
  void split_long(const Run& run) const {
    if (run.pool.size() == 1 || args_.chunk_tiles < kLeastSplitTiles) {
      return;
    }
    int64_t total = 0, used = 0;
    for (const QueryTile& t : run.tiles) {
      total += rows_in(t) * keys_of(run, t) * args_.kv.kv_heads;
    }
    const int64_t large = total / (kItemsPerThread * run.pool.size());
    const size_t whole = run.tiles.size();
    for (size_t i = 0; i < whole; ++i) {
      QueryTile t = run.tiles[i];
      t.chunks = static_cast<int32_t>(divide_up(divide_up(keys_of(run, t), kBlockTokens), args_.chunk_tiles));
      const int64_t floats = args_.kv.kv_heads * unit_floats(run, t);
      if (t.chunks == 1 || rows_in(t) * keys_of(run, t) <= large || used + floats > kPartialFloats) {
        continue;
      }
      t.split = true;
      t.partial = used;
      for (int64_t head = 0; head < args_.kv.kv_heads; ++head, used += unit_floats(run, t)) {
        *reinterpret_cast<int32_t*>(run.shared + used) = 0;
      }
      run.tiles[i] = t;
      for (t.chunk = 1; t.chunk < t.chunks; ++t.chunk) {
        run.tiles.push_back(t);
      }
    }
  }

  Operand q_, o_;
  Attention args_;
  int64_t group_ = 1;
};

class AttentionFullOp : public Op {
 public:
  explicit AttentionFullOp(const StepSpec& s)
      : q_(s.inputs.at(0)), k_(s.inputs.at(1)), v_(s.inputs.at(2)), o_(s.outputs.at(0)) {
    args_.heads = static_cast<int32_t>(s.i("heads"));
    args_.kv_heads = static_cast<int32_t>(s.i("kv_heads"));
    args_.head_dim = static_cast<int32_t>(s.i("head_dim"));
    args_.scale = s.f("scale");
    args_.chunk_tiles = chunk_tiles_of(s);
    args_.products = products_of(s);
    args_.limit = s.f("score_limit", 0);
    need(args_.kv_heads > 0 && args_.heads % args_.kv_heads == 0, s, "query heads do not share key heads evenly");
    need(q_.features == int64_t{args_.heads} * args_.head_dim && k_.features == int64_t{args_.kv_heads} * args_.head_dim &&
             v_.features == k_.features,
         s, "queries, keys or values have another width");
  }
  int64_t scratch_floats(const KernelTable& kernels) const override {
    return scratch_of(kernels, args_.head_dim, args_.heads / args_.kv_heads, std::min(args_.chunk_tiles, kPlannedTiles));
  }
  void run(const Run& run) const override {
    AttentionFull a = args_;
    a.q = run.in(q_);
    a.k = run.in(k_);
    a.v = run.in(v_);
    a.o = run.rows(o_);
    a.beyond = run.counter(kScores);
    const int64_t group = a.heads / a.kv_heads;
    int64_t longest = 0;
    run.tiles.clear();
    for (int64_t s = 0; s < run.batch.num_sequences; ++s) {
      const int64_t length = run.batch.starts[s + 1] - run.batch.starts[s];
      cut_queries(run, s, length, group, a.chunk_tiles);
      longest = std::max(longest, length);
    }
    const int64_t tiles = std::min(divide_up(longest, kBlockTokens), a.chunk_tiles);
    run.pool.reserve_scratch(scratch_of(run.kernels, a.head_dim, group, tiles));
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

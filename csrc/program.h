// Runs a lowered Plan: every step's addresses and sizes resolved once, then one call per batch.
//
// Checks happen at build (add) and at the start of a run; kernels check nothing. Knows no Python.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels.h"
#include "threads.h"

namespace taut {

enum Space : int32_t { kTokens = 0, kRows = 1, kSequences = 2 };

// Columns of a buffer: row r lies at base[space] + offset * count[space] + r * row_bytes + column_bytes (plan/plan.py).
struct Operand {
  Space space = kTokens;
  int64_t offset = 0, row_bytes = 0, column_bytes = 0, features = 0;
};

// A step as Python lowers it. Looking up an absent attribute is an error.
struct StepSpec {
  std::string op;
  std::vector<Operand> inputs, outputs;
  std::vector<uint64_t> weights;  // addresses, 0 for an absent one
  std::map<std::string, int64_t> ints;
  std::map<std::string, double> floats;
  std::map<std::string, std::vector<int32_t>> lists;

  int64_t i(const std::string& name) const;
  float f(const std::string& name) const;
  const std::vector<int32_t>& list(const std::string& name) const;
};

// engine/batch.py's arrays.
struct Batch {
  const int32_t *ids = nullptr, *positions = nullptr, *starts = nullptr, *context = nullptr, *tables = nullptr, *rows = nullptr,
                *types = nullptr;
  int64_t num_tokens = 0, num_sequences = 0, num_rows = 0, table_width = 0;
};

struct KvPool {
  uint8_t* base = nullptr;
  int64_t num_blocks = 0, block_bytes = 0, slot_bytes = 0, data_bytes = 0;
  int32_t layers = 0, kv_heads = 0, head_dim = 0;
  bool int8 = true;
};

// Queries [token_begin, token_end) of a sequence. Split: one of the `chunks` chunks of keys, whose partial sums go to `partial`.
struct QueryTile {
  int32_t sequence, token_begin, token_end;
  int32_t chunks = 1, chunk = 0;
  bool split = false;
  int64_t partial = 0;  // floats into the shared scratch, for KV head 0
};

// What a step sees while it runs.
struct Run {
  const Batch& batch;
  const KernelTable& kernels;
  ThreadPool& pool;
  const KvPool& kv;
  const volatile int32_t* abort;
  uint8_t* base[3];
  int64_t count[3];
  std::vector<int64_t>& token_block;  // byte offset of each token's block in the pool
  std::vector<QueryTile>& tiles;
  float* shared;  // scratch that all threads see

  uint8_t* at(const Operand& o) const { return base[o.space] + o.offset * count[o.space] + o.column_bytes; }
  Rows<float> rows(const Operand& o) const { return {reinterpret_cast<float*>(at(o)), o.row_bytes}; }
  Rows<const float> in(const Operand& o) const { return {reinterpret_cast<const float*>(at(o)), o.row_bytes}; }
  const int32_t* index(int which) const { return which == 0 ? batch.ids : which == 1 ? batch.positions : batch.types; }

  // Rows [0, count) in a few parts per thread.
  template <typename Body>
  void for_rows(int64_t rows, const Body& body) const {
    const int64_t parts = 4 * static_cast<int64_t>(pool.active()), size = rows / parts + (rows % parts != 0);
    pool.run(size == 0 ? 0 : (rows + size - 1) / size, abort, [&](int64_t item, int thread) {
      const int64_t begin = item * size;
      body(begin, begin + size < rows ? begin + size : rows, pool.scratch(thread));
    });
  }
};

class Op {
 public:
  virtual ~Op() = default;
  virtual void run(const Run& run) const = 0;
  virtual int64_t scratch_floats(const KernelTable&) const { return 0; }  // of each thread
  virtual int64_t shared_floats() const { return 0; }                     // of all threads together
  virtual int64_t fallback_rows() const { return 0; }  // that its static quantizer did not fit, of all runs so far
};

// What a batch must respect, gathered from the steps.
struct Limits {
  int64_t index_end[3] = {INT32_MAX, INT32_MAX, INT32_MAX};  // exclusive, of ids, positions and types
  int64_t index_begin[3] = {0, 0, 0};
  bool needs_kv = false;
};

// Throws std::invalid_argument for an unknown op or attribute.
std::unique_ptr<Op> make_op(const StepSpec& step, const KvPool& kv, Limits& limits);

class Program {
 public:
  // space_bytes: arena bytes per token, logit row and sequence.
  Program(const KernelTable& kernels, std::shared_ptr<ThreadPool> pool, const std::vector<int64_t>& space_bytes,
          const KvPool& kv);
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  void add(const StepSpec& step);
  int64_t size() const { return static_cast<int64_t>(ops_.size()); }
  int64_t arena_bytes(const Batch& batch) const;
  // Of each step. Only between runs.
  std::vector<int64_t> fallback_rows() const;

  // Runs steps [first, last). False: *abort became non-zero before the end. Throws std::invalid_argument for a batch that the steps
  // cannot run. Concurrent calls take turns.
  bool run(const Batch& batch, uint8_t* arena, int64_t arena_size, int64_t first, int64_t last, const volatile int32_t* abort);

 private:
  void check(const Batch& batch, int64_t arena_size, int64_t first, int64_t last) const;
  void check_kv(const Batch& batch) const;

  const KernelTable& kernels_;
  std::shared_ptr<ThreadPool> pool_;
  int64_t space_bytes_[3];
  KvPool kv_;
  std::vector<std::unique_ptr<Op>> ops_;
  Limits limits_;
  int64_t scratch_floats_ = 16;
  int64_t shared_floats_ = 0;
  std::unique_ptr<float[]> shared_;
  std::vector<int64_t> token_block_;
  std::vector<QueryTile> tiles_;
};

}  // namespace taut

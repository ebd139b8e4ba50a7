#include "program.h"

#include <algorithm>
#include <stdexcept>

namespace taut {
namespace {

template <typename Map>
const typename Map::mapped_type& find(const StepSpec& step, const Map& map, const std::string& name) {
  const auto found = map.find(name);
  if (found == map.end()) {
    throw std::invalid_argument("step " + step.op + " lacks the attribute " + name);
  }
  return found->second;
}

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument("batch: " + what); }

const char* const kIndexNames[3] = {"ids", "positions", "types"};

}  // namespace

int64_t StepSpec::i(const std::string& name) const { return find(*this, ints, name); }
float StepSpec::f(const std::string& name) const { return static_cast<float>(find(*this, floats, name)); }
const std::vector<int32_t>& StepSpec::list(const std::string& name) const { return find(*this, lists, name); }

Program::Program(const KernelTable& kernels, std::shared_ptr<ThreadPool> pool, const std::vector<int64_t>& space_bytes,
                 const KvPool& kv)
    : kernels_(kernels), pool_(std::move(pool)), kv_(kv) {
  if (space_bytes.size() != 3) {
    throw std::invalid_argument("space_bytes: one number each for tokens, rows and sequences");
  }
  std::copy(space_bytes.begin(), space_bytes.end(), space_bytes_);
}

void Program::add(const StepSpec& step) {
  ops_.push_back(make_op(step, kv_, limits_));
  scratch_floats_ = std::max(scratch_floats_, ops_.back()->scratch_floats(kernels_));
  if (const int64_t shared = ops_.back()->shared_floats(); shared > shared_floats_) {
    shared_.reset(new float[static_cast<size_t>(shared)]);  // not initialized: the system commits what is used
    shared_floats_ = shared;
  }
}

int64_t Program::arena_bytes(const Batch& batch) const {
  return batch.num_tokens * space_bytes_[0] + batch.num_rows * space_bytes_[1] + batch.num_sequences * space_bytes_[2];
}

std::vector<int64_t> Program::fallback_rows() const {
  std::vector<int64_t> rows;
  for (const auto& op : ops_) rows.push_back(op->fallback_rows());
  return rows;
}

void Program::check(const Batch& batch, int64_t arena_size, int64_t first, int64_t last) const {
  if (first < 0 || last > size() || first > last) {
    refuse("steps [" + std::to_string(first) + ", " + std::to_string(last) + ") of " + std::to_string(size()));
  }
  if (arena_bytes(batch) > arena_size) {
    refuse("needs " + std::to_string(arena_bytes(batch)) + " bytes of arena, has " + std::to_string(arena_size));
  }
  if (batch.starts[0] != 0 || batch.starts[batch.num_sequences] != batch.num_tokens) {
    refuse("starts must run from 0 to the number of tokens");
  }
  for (int64_t s = 0; s < batch.num_sequences; ++s) {
    if (batch.starts[s] >= batch.starts[s + 1]) {
      refuse("sequence " + std::to_string(s) + " has no tokens");
    }
  }
  const int32_t* index[3] = {batch.ids, batch.positions, batch.types};
  for (int which = 0; which < 3; ++which) {
    for (int64_t t = 0; t < batch.num_tokens; ++t) {
      if (index[which][t] < limits_.index_begin[which] || index[which][t] >= limits_.index_end[which]) {
        refuse(std::string(kIndexNames[which]) + "[" + std::to_string(t) + "] = " + std::to_string(index[which][t]) +
               " is outside the model's [" + std::to_string(limits_.index_begin[which]) + ", " +
               std::to_string(limits_.index_end[which]) + ")");
      }
    }
  }
  for (int64_t r = 0; r < batch.num_rows; ++r) {
    if (batch.rows[r] < 0 || batch.rows[r] >= batch.num_tokens) {
      refuse("rows[" + std::to_string(r) + "] = " + std::to_string(batch.rows[r]) + " is not a token");
    }
  }
  if (limits_.needs_kv) {
    check_kv(batch);
  }
}

void Program::check_kv(const Batch& batch) const {
  if (kv_.base == nullptr) {
    refuse("the plan reads a KV cache and has none");
  }
  for (int64_t s = 0; s < batch.num_sequences; ++s) {
    for (int64_t t = batch.starts[s]; t + 1 < batch.starts[s + 1]; ++t) {
      if (batch.positions[t + 1] != batch.positions[t] + 1) {
        refuse("positions of sequence " + std::to_string(s) + " are not consecutive");
      }
    }
    const int64_t context = static_cast<int64_t>(batch.positions[batch.starts[s + 1] - 1]) + 1;
    if (batch.positions[batch.starts[s]] < 0 || context != batch.context[s]) {
      refuse("context of sequence " + std::to_string(s) + " is not its last position + 1");
    }
    const int64_t blocks = (context + kBlockTokens - 1) / kBlockTokens;
    if (blocks > batch.table_width) {
      refuse("the block table of sequence " + std::to_string(s) + " is too short for " + std::to_string(context) + " tokens");
    }
    for (int64_t b = 0; b < blocks; ++b) {
      const int32_t block = batch.tables[s * batch.table_width + b];
      if (block < 0 || block >= kv_.num_blocks) {
        refuse("block " + std::to_string(block) + " of sequence " + std::to_string(s) + " is not in the pool");
      }
    }
  }
}

bool Program::run(const Batch& batch, uint8_t* arena, int64_t arena_size, int64_t first, int64_t last,
                  const volatile int32_t* abort) {
  check(batch, arena_size, first, last);
  const std::lock_guard lock(pool_->running);
  pool_->reserve_scratch(scratch_floats_);
  if (limits_.needs_kv) {
    token_block_.resize(std::max<size_t>(token_block_.size(), batch.num_tokens));
    for (int64_t s = 0; s < batch.num_sequences; ++s) {
      for (int64_t t = batch.starts[s]; t < batch.starts[s + 1]; ++t) {
        token_block_[t] = batch.tables[s * batch.table_width + batch.positions[t] / kBlockTokens] * kv_.block_bytes;
      }
    }
  }
  uint8_t* const rows = arena + batch.num_tokens * space_bytes_[0];
  const Run step{batch,
                 kernels_,
                 *pool_,
                 kv_,
                 abort,
                 {arena, rows, rows + batch.num_rows * space_bytes_[1]},
                 {batch.num_tokens, batch.num_rows, batch.num_sequences},
                 token_block_,
                 tiles_,
                 shared_.get()};
  for (int64_t i = first; i < last; ++i) {
    if (abort != nullptr && *abort != 0) {
      return false;
    }
    ops_[i]->run(step);
  }
  return abort == nullptr || *abort == 0;
}

}  // namespace taut

// Choosing the next token of every row of logits, as engine/sampler.py has it, on all threads.
#pragma once
#include <cstdint>

#include "kernels.h"
#include "threads.h"

namespace taut {

// How one row is sampled. temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 are off; `drawn` is uniform in [0, 1).
struct RowChoice {
  double temperature = 0;
  int64_t top_k = 0;
  double top_p = 1, min_p = 0, drawn = 0;
};

// Token ids of `rows` rows of `vocab` logits, row_bytes apart; -1 where a logit is not finite. The ids do not depend on threads or ISA.
void sample_rows(const KernelTable& kernels, ThreadPool& pool, const float* logits, int64_t row_bytes, int64_t rows,
                 int64_t vocab, const RowChoice* choices, int32_t* ids);

}  // namespace taut

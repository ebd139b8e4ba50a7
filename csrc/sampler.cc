#include "sampler.h"

#include <algorithm>
#include <cstring>

namespace taut {
namespace {

// Weights lie in [0, 1], so the upper half of their bits sorts them into buckets.
constexpr int kBuckets = (0x3f800000 >> 16) + 1;

int bucket_of(float weight) {
  uint32_t bits;
  std::memcpy(&bits, &weight, 4);
  return static_cast<int>(bits >> 16);
}

// Which ids of a row may be drawn, in a thread's memory. Heavier ones come first; of equals, lower ids.
class Candidates {
 public:
  static int64_t scratch_floats(int64_t vocab) { return 3 * vocab + 3 * kBuckets; }

  Candidates(float* scratch, int64_t vocab)
      : weights(scratch + 2 * kBuckets),
        mass_(reinterpret_cast<double*>(scratch)),
        ids_(reinterpret_cast<int32_t*>(weights + vocab)),
        edge_(ids_ + vocab),
        counts_(edge_ + vocab),
        kept_(vocab) {}

  void start() {
    for (int64_t i = 0; i < kept_; ++i) ids_[i] = static_cast<int32_t>(i);
  }

  double total() const {
    double sum = 0;
    for (int64_t i = 0; i < kept_; ++i) sum += weights[ids_[i]];
    return sum;
  }

  // Keeps an id while holds(how many are heavier, their mass), which once false stays so.
  template <typename Holds>
  void keep_while(const Holds& holds) {
    fill_buckets();
    int64_t count = 0;
    double heavier = 0;
    int bucket = kBuckets - 1;  // in the end the one in which it ceases to hold
    for (; bucket >= 0 && holds(count + counts_[bucket], heavier + mass_[bucket]); --bucket) {
      count += counts_[bucket];
      heavier += mass_[bucket];
    }
    if (bucket < 0) return;
    int64_t size = 0, taken = 0;
    for (int64_t i = 0; i < kept_; ++i) {
      if (bucket_of(weights[ids_[i]]) == bucket) edge_[size++] = ids_[i];
    }
    std::sort(edge_, edge_ + size,
              [&](int32_t a, int32_t b) { return weights[a] != weights[b] ? weights[a] > weights[b] : a < b; });
    for (; taken < size && holds(count, heavier); ++count) heavier += weights[edge_[taken++]];
    drop_below(bucket, taken);
  }

  void keep_at_least(double weight) {
    kept_ = std::remove_if(ids_, ids_ + kept_, [&](int32_t id) { return weights[id] < weight; }) - ids_;
  }

  // The id where the mass, summed in the order of ids, passes `share` of the total.
  int32_t draw(double share) const {
    const double target = share * total();
    double sum = 0;
    for (int64_t i = 0; i < kept_; ++i) {
      sum += weights[ids_[i]];
      if (sum > target) return ids_[i];
    }
    return ids_[kept_ - 1];
  }

  float* const weights;

 private:
  void fill_buckets() {
    std::fill_n(counts_, kBuckets, 0);
    std::fill_n(mass_, kBuckets, 0.0);
    for (int64_t i = 0; i < kept_; ++i) {
      const float w = weights[ids_[i]];
      ++counts_[bucket_of(w)];
      mass_[bucket_of(w)] += w;
    }
  }

  // Of `bucket` only the first `taken` of edge_ stay, of those below it none.
  void drop_below(int bucket, int64_t taken) {
    std::sort(edge_, edge_ + taken);
    int64_t to = 0, next = 0;
    for (int64_t i = 0; i < kept_; ++i) {
      const int b = bucket_of(weights[ids_[i]]);
      const bool stays = b == bucket && next < taken && ids_[i] == edge_[next];
      next += stays;
      if (b > bucket || stays) ids_[to++] = ids_[i];
    }
    kept_ = to;
  }

  double* mass_;
  int32_t *ids_, *edge_, *counts_;
  int64_t kept_;
};

int32_t sample_row(const KernelTable& kernels, const float* logits, int64_t vocab, const RowChoice& row, float* scratch) {
  Candidates candidates(scratch, vocab);
  const float temperature = row.temperature > 0 ? static_cast<float>(std::clamp(row.temperature, 1e-30, 1e30)) : 0.0f;
  const int64_t best = kernels.sharpen(logits, vocab, temperature, candidates.weights);
  if (best < 0 || temperature == 0.0f) return static_cast<int32_t>(best);
  candidates.start();
  if (row.top_k > 0 && row.top_k < vocab) {
    candidates.keep_while([&](int64_t count, double) { return count < row.top_k; });
  }
  if (row.top_p < 1) {
    const double most = row.top_p * candidates.total();
    candidates.keep_while([&](int64_t count, double heavier) { return count == 0 || heavier < most; });
  }
  if (row.min_p > 0) candidates.keep_at_least(row.min_p);  // the heaviest, which is always kept, weighs 1
  return candidates.draw(row.drawn);
}

}  // namespace

void sample_rows(const KernelTable& kernels, ThreadPool& pool, const float* logits, int64_t row_bytes, int64_t rows,
                 int64_t vocab, const RowChoice* choices, int32_t* ids) {
  pool.reserve_scratch(Candidates::scratch_floats(vocab));
  pool.run(rows, nullptr, [&](int64_t row, int thread) {
    const float* of_row = reinterpret_cast<const float*>(reinterpret_cast<const uint8_t*>(logits) + row * row_bytes);
    ids[row] = sample_row(kernels, of_row, vocab, choices[row], pool.scratch(thread));
  });
}

}  // namespace taut

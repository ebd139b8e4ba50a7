#include "observe.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "step_args.h"

namespace taut {
namespace {

constexpr int kShift = 18;                              // statistics.py: SHIFT
constexpr int64_t kBins = int64_t{1} << (32 - kShift);  // of one class
constexpr int64_t kStripe = 64;                         // channels that one thread takes: 256 bytes of every row
enum Class : int { kRest = 0, kSinks = 1 };             // of rows
struct Range {
  float low = std::numeric_limits<float>::infinity(), high = -std::numeric_limits<float>::infinity();
};

// The arrays of one Statistics. Threads take channels, and every channel's rows in order: so sums have the same bits however many
// threads there are and however the rows came in batches. Arithmetic is the same on every ISA: a square of float32 is exact in float64.
class ObserveOp : public Op {
 public:
  explicit ObserveOp(const StepSpec& s)
      : x_(input(s, 0)), sinks_(s.i("sinks")), most_windows_(s.i("windows")), most_picks_(s.i("samples")) {
    if (s.weights.size() != 6 || std::count(s.weights.begin(), s.weights.end(), 0) != 0 || x_.space == kSequences) {
      throw std::invalid_argument("step observe needs a value of tokens or rows, and six arrays");
    }
    histogram_ = array<int64_t>(s, 0);
    absmax_ = array<float>(s, 1);
    squares_ = array<double>(s, 2);
    samples_ = array<float>(s, 3);
    ranges_ = array<Range>(s, 4);
    picks_ = array<int32_t>(s, 5);
  }

  int64_t scratch_floats(const KernelTable&) const override { return 2 * kBins; }

  void run(const Run& run) const override {
    const Batch& batch = run.batch;
    const int64_t rows = run.count[x_.space], windows = batch.num_sequences;
    if (rows != batch.num_tokens) {
      throw std::invalid_argument("batch: every token's row must be wanted where a step observes rows");
    }
    if (windows > most_windows_) {
      throw std::invalid_argument("batch: at most " + std::to_string(most_windows_) + " sequences can be observed together");
    }
    for (int thread = 0; thread < run.pool.size(); ++thread) {
      std::memset(run.pool.scratch(thread), 0, 2 * kBins * sizeof(uint32_t));
    }
    const int64_t stripes = (x_.features + kStripe - 1) / kStripe;
    std::vector<Range> ranges(stripes * windows * 2);
    run.pool.run(stripes, run.abort, [&](int64_t stripe, int thread) {
      auto* counts = reinterpret_cast<uint32_t*>(run.pool.scratch(thread));
      for (int64_t w = 0; w < windows; ++w) {
        observe(run, stripe, batch.starts[w], batch.starts[w + 1], counts, &ranges[(stripe * windows + w) * 2]);
      }
    });
    for (int thread = 0; thread < run.pool.size(); ++thread) {
      const auto* counts = reinterpret_cast<const uint32_t*>(run.pool.scratch(thread));
      for (int64_t bin = 0; bin < 2 * kBins; ++bin) {
        histogram_[bin] += counts[bin];
      }
    }
    for (int64_t i = 0; i < windows * 2; ++i) {
      Range all;
      for (int64_t stripe = 0; stripe < stripes; ++stripe) {
        const Range& part = ranges[stripe * windows * 2 + i];
        all = {std::min(all.low, part.low), std::max(all.high, part.high)};
      }
      ranges_[i] = all;
    }
    keep_samples(run, rows);
  }

 private:
  template <typename T>
  static T* array(const StepSpec& s, size_t index) {
    return const_cast<T*>(weight<T>(s, index));
  }

  // Rows [begin, end) of one sequence, channels of one stripe.
  void observe(const Run& run, int64_t stripe, int64_t begin, int64_t end, uint32_t* counts, Range* ranges) const {
    const int64_t first = stripe * kStripe, width = std::min(kStripe, x_.features - first);
    const int64_t sinks = std::clamp<int64_t>(sinks_ - run.batch.positions[begin], 0, end - begin);
    const uint8_t* x = run.at(x_) + first * 4;
    const int64_t bounds[3] = {begin, begin + sinks, end};
    for (const int part : {0, 1}) {
      const Class kind = part == 0 ? kSinks : kRest;
      if (bounds[part] < bounds[part + 1]) {
        ranges[kind] = sweep(x, bounds[part], bounds[part + 1], width, counts + kind * kBins,
                             absmax_ + kind * x_.features + first, squares_ + kind * x_.features + first);
      }
    }
  }

  Range sweep(const uint8_t* x, int64_t begin, int64_t end, int64_t width, uint32_t* counts, float* absmax,
              double* squares) const {
    double sums[kStripe] = {};
    float most[kStripe] = {}, low[kStripe], high[kStripe], values[kStripe] = {};
    std::copy(squares, squares + width, sums);
    std::copy(absmax, absmax + width, most);
    std::fill(low, low + kStripe, std::numeric_limits<float>::infinity());
    std::fill(high, high + kStripe, -std::numeric_limits<float>::infinity());
    for (int64_t row = begin; row < end; ++row) {
      std::memcpy(values, x + row * x_.row_bytes, width * sizeof(float));
      for (int64_t c = 0; c < kStripe; ++c) {
        const float v = values[c] + 0.0f;  // -0 becomes 0
        const float magnitude = std::fabs(v);
        values[c] = v;
        most[c] = magnitude > most[c] ? magnitude : most[c];
        low[c] = v < low[c] ? v : low[c];
        high[c] = v > high[c] ? v : high[c];
      }
      for (int64_t c = 0; c < kStripe; ++c) {  // apart: loops of one width become vectors
        sums[c] += static_cast<double>(values[c]) * static_cast<double>(values[c]);
      }
      for (int64_t c = 0; c < width; ++c) {
        uint32_t bits;
        std::memcpy(&bits, values + c, sizeof bits);
        ++counts[bits >> kShift];
      }
    }
    std::copy(sums, sums + width, squares);
    std::copy(most, most + width, absmax);
    Range range;
    for (int64_t c = 0; c < width; ++c) {
      range = {std::min(range.low, low[c]), std::max(range.high, high[c])};
    }
    return range;
  }

  void keep_samples(const Run& run, int64_t rows) const {
    for (int64_t i = 0; i < std::min<int64_t>(picks_[0], most_picks_); ++i) {
      const int64_t row = picks_[1 + 2 * i], slot = picks_[2 + 2 * i];
      if (row >= 0 && row < rows && slot >= 0 && slot < most_picks_) {
        std::memcpy(samples_ + slot * x_.features, run.at(x_) + row * x_.row_bytes, x_.features * sizeof(float));
      }
    }
  }

  Operand x_;
  int64_t sinks_, most_windows_, most_picks_;
  int64_t* histogram_;    // (2, kBins)
  float* absmax_;         // (2, features)
  double* squares_;       // (2, features)
  float* samples_;        // (samples, features)
  Range* ranges_;         // (windows, 2), of this batch alone
  const int32_t* picks_;  // their number, then row and slot of each
};

}  // namespace

std::unique_ptr<Op> make_observe(const StepSpec& step) { return std::make_unique<ObserveOp>(step); }

}  // namespace taut

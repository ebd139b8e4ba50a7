#include "limit_probe.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace taut {
namespace {

using Clock = std::chrono::steady_clock;

bool has_bf16() {
#if defined(__x86_64__)
  uint32_t a, b, c, d;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1) != 0;
#else
  return false;
#endif
}

// Seconds from the first thread's start of body(thread) to the last one's end; all begin together.
template <typename Body>
double together(int num_threads, const Body& body) {
  std::atomic<int> waiting{num_threads};
  std::vector<Clock::time_point> begin(static_cast<size_t>(num_threads)), end(begin);
  const auto run = [&](int thread) {
    waiting.fetch_sub(1);
    while (waiting.load() > 0) {
      std::this_thread::yield();
    }
    begin[static_cast<size_t>(thread)] = Clock::now();
    body(thread);
    end[static_cast<size_t>(thread)] = Clock::now();
  };
  std::vector<std::thread> threads;
  for (int t = 1; t < num_threads; ++t) {
    threads.emplace_back(run, t);
  }
  run(0);
  for (std::thread& t : threads) {
    t.join();
  }
  return std::chrono::duration<double>(*std::max_element(end.begin(), end.end()) -
                                       *std::min_element(begin.begin(), begin.end()))
      .count();
}

// Largest amount / seconds of repeated runs; at least two.
template <typename Run>
double best_rate(double seconds, const Run& run) {
  double best = 0, spent = 0;
  for (int i = 0; i < 2 || spent < seconds; ++i) {
    double amount = 0;
    const double took = run(amount);
    best = std::max(best, amount / took);
    spent += took;
  }
  return best;
}

}  // namespace

LimitProbe::LimitProbe(const KernelTable& kernels, int num_threads)
    : kernels_(kernels), num_threads_(std::max(1, num_threads)) {}

double LimitProbe::operations(Rate rate, double seconds) const {
  if (rate == Rate::kBf16 && !has_bf16()) {
    return 0;
  }
  const PeakFn peak = rate == Rate::kInt8 ? kernels_.peak_int8 : rate == Rate::kF32 ? kernels_.peak_f32 : kernels_.peak_bf16;
  if (peak(1) == 0) {
    return 0;
  }
  // Runs of about 2 ms: long beside starting together, short beside what disturbs a shared machine.
  int64_t rounds = 1000;
  for (double took = 0; took < 1e-3; rounds *= 2) {
    took = together(1, [&](int) { peak(rounds * 2); });
  }
  return best_rate(seconds, [&](double& operations) {
    std::atomic<int64_t> macs{0};
    const double took = together(num_threads_, [&](int) { macs.fetch_add(peak(rounds)); });
    operations = 2.0 * static_cast<double>(macs.load());
    return took;
  });
}

double LimitProbe::read(double seconds) {
  if (buffer_ == nullptr) {
    buffer_ = std::make_unique<Memory>(static_cast<size_t>(kReadBytes) + (size_t{2} << 20));
    std::memset(buffer_->data(), 1, buffer_->size());
  }
  const int64_t share = kReadBytes / num_threads_ / 256 * 256;
  int64_t ahead = 0;
  std::atomic<int32_t> digest{0};
  return best_rate(seconds, [&](double& bytes) {
    const double took = together(num_threads_, [&](int thread) {
      digest.fetch_xor(kernels_.peak_read(buffer_->data() + thread * share, share, ahead));
    });
    ahead = ahead == 0 ? 4096 : 0;  // processors differ in what helps
    bytes = static_cast<double>(share) * num_threads_;
    return took;
  });
}

}  // namespace taut

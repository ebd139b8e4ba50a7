// The machine's ceilings, measured: multiply-add rates in registers and read bandwidth, on any number of threads.
#pragma once
#include <cstdint>
#include <memory>

#include "kernels.h"
#include "memory.h"

namespace taut {

enum class Rate : int32_t { kInt8 = 0, kF32 = 1, kBf16 = 2 };

class LimitProbe {
 public:
  // Threads are started per measurement: a probe costs nothing between two.
  LimitProbe(const KernelTable& kernels, int num_threads);

  // Best of short runs over about `seconds`, operations (2 per multiply-add) per second of all threads; 0 where the ISA has no such
  // instruction.
  double operations(Rate rate, double seconds) const;
  // Best of runs over about `seconds` through kReadBytes in huge pages, bytes per second of all threads.
  double read(double seconds);

  static constexpr int64_t kReadBytes = int64_t{320} << 20;  // beyond any cache that one model shares with its neighbours

 private:
  const KernelTable& kernels_;
  const int num_threads_;
  std::unique_ptr<Memory> buffer_;
};

}  // namespace taut

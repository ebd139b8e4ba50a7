#include "threads.h"

#include <chrono>
#include <cstdlib>
#include <new>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace taut {
namespace {

constexpr uint64_t kOpen = 1u << 15, kInside = kOpen - 1, kJob = 1u << 16;
constexpr auto kSpin = std::chrono::microseconds(50);  // longer than the gap between two steps of a program

inline void pause() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

// Default rounding and no flushing to zero, whatever libraries set in this thread; restored on leaving.
class FloatMode {
 public:
#if defined(__x86_64__)
  FloatMode() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
  ~FloatMode() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#endif
};

}  // namespace

void ThreadPool::Free::operator()(float* p) const { std::free(p); }

ThreadPool::ThreadPool(int num_threads) {
  scratch_.resize(num_threads);
  for (int thread = 1; thread < num_threads; ++thread) {
    workers_.emplace_back([this, thread] { work(thread); });
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(sleep_mutex_);
    stopping_.store(true);
  }
  wake_.notify_all();
  for (auto& worker : workers_) {
    worker.join();
  }
}

void ThreadPool::reserve_scratch(int64_t floats) {
  if (floats <= scratch_floats_) {
    return;
  }
  const size_t bytes = (static_cast<size_t>(floats) * 4 + 4095) / 4096 * 4096;
  for (auto& scratch : scratch_) {
    scratch.reset(static_cast<float*>(std::aligned_alloc(4096, bytes)));
    if (!scratch) {
      scratch_floats_ = 0;
      throw std::bad_alloc();
    }
  }
  scratch_floats_ = floats;
}

bool ThreadPool::run_job(int64_t count, const volatile int32_t* abort, Call call, const void* body) {
  const FloatMode mode;
  call_ = call;
  body_ = body;
  count_ = count;
  abort_ = abort;
  next_.store(0, std::memory_order_relaxed);
  const bool shared = count > 1 && !workers_.empty();
  if (shared) {
    gate_.store((gate_.load(std::memory_order_relaxed) / kJob + 1) * kJob | kOpen);
    if (sleepers_.load() > 0) {
      {
        std::lock_guard lock(sleep_mutex_);
      }
      wake_.notify_all();
    }
  }
  claim(0);
  if (shared) {
    gate_.fetch_and(~kOpen);
    // A worker inside is computing its last item; if it was descheduled, spinning would keep its core from it.
    for (int spins = 0; (gate_.load(std::memory_order_acquire) & kInside) != 0; ++spins) {
      spins < 4000 ? pause() : std::this_thread::yield();
    }
  }
  if (error_) {
    std::rethrow_exception(std::exchange(error_, nullptr));
  }
  return next_.load(std::memory_order_relaxed) >= count;
}

void ThreadPool::claim(int thread) {
  while (abort_ == nullptr || *abort_ == 0) {
    const int64_t item = next_.fetch_add(1, std::memory_order_relaxed);
    if (item >= count_) {
      return;
    }
    try {
      call_(body_, item, thread);
    } catch (...) {
      std::lock_guard lock(error_mutex_);
      if (!error_) {
        error_ = std::current_exception();
      }
      next_.store(count_, std::memory_order_relaxed);
      return;
    }
  }
}

void ThreadPool::work(int thread) {
  const FloatMode mode;
  uint64_t seen = 0;
  while (!stopping_.load(std::memory_order_relaxed)) {
    uint64_t gate = gate_.load(std::memory_order_acquire);
    if (gate / kJob == seen || (gate & kOpen) == 0) {
      sleep_until_open(seen);
      continue;
    }
    if (gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acquire)) {
      seen = gate / kJob;
      claim(thread);
      gate_.fetch_sub(1, std::memory_order_release);
    }
  }
}

void ThreadPool::sleep_until_open(uint64_t seen) {
  const auto is_due = [&] {
    const uint64_t gate = gate_.load();
    return stopping_.load() || (gate / kJob != seen && (gate & kOpen) != 0);
  };
  const auto until = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 32; ++i) {
      if (is_due()) {
        return;
      }
      pause();
    }
  } while (std::chrono::steady_clock::now() < until);
  std::unique_lock lock(sleep_mutex_);
  sleepers_.fetch_add(1);
  wake_.wait(lock, is_due);
  sleepers_.fetch_sub(1);
}

}  // namespace taut

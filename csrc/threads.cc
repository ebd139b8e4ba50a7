#include "threads.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
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
constexpr auto kSpin = std::chrono::microseconds(50);     // longer than the gap between two steps of a program
constexpr auto kYield = std::chrono::microseconds(2000);  // then the caller gives up its core
constexpr int kPauses = 32;                               // between two looks at the clock

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

// CPUs that this process may run on; a number that crowds nobody where the system does not say.
int usable_cpus() {
  cpu_set_t cpus;
  return sched_getaffinity(getpid(), sizeof cpus, &cpus) == 0 ? CPU_COUNT(&cpus) : CPU_SETSIZE;
}

// Looks at `is_done` until it holds or `longest` has passed; returns what it saw last.
template <typename IsDone>
bool spin_until(const IsDone& is_done, std::chrono::microseconds longest) {
  const auto until = std::chrono::steady_clock::now() + longest;
  do {
    for (int i = 0; i < kPauses; ++i) {
      if (is_done()) {
        return true;
      }
      pause();
    }
  } while (std::chrono::steady_clock::now() < until);
  return is_done();
}

}  // namespace

void ThreadPool::Free::operator()(float* p) const { std::free(p); }

ThreadPool::ThreadPool(int num_threads)
    : crowded_(num_threads > usable_cpus()), active_(num_threads), system_ids_(std::max(num_threads - 1, 0)) {
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
  unpark_.notify_all();
  for (auto& worker : workers_) {
    worker.join();
  }
}

void ThreadPool::set_active(int threads) {
  const std::lock_guard job(running);
  const std::lock_guard lock(sleep_mutex_);
  active_.store(std::clamp(threads, 1, size()));
  crowded_.store(active_.load() > usable_cpus());
  wake_.notify_all();  // those that are no longer wanted go to park
  unpark_.notify_all();
}

bool ThreadPool::set_nice(int value) {
  while (started_.load() < size() - 1) {
    std::this_thread::yield();
  }
  return std::ranges::all_of(system_ids_, [&](const auto& id) { return setpriority(PRIO_PROCESS, id.load(), value) == 0; });
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
  const bool shared = count > 1 && active() > 1;
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
    wait_for_workers();
  }
  if (error_) {
    std::rethrow_exception(std::exchange(error_, nullptr));
  }
  return next_.load(std::memory_order_relaxed) >= count;
}

// A worker inside is computing its last item; if it was descheduled, it may need this core. Giving it up at once pays only when the
// pool itself crowds the cores: else another program takes it for a whole time slice.
void ThreadPool::wait_for_workers() {
  const auto is_done = [&] { return (gate_.load() & kInside) == 0; };
  if (spin_until(is_done, crowded_.load(std::memory_order_relaxed) ? std::chrono::microseconds(0) : kSpin)) {
    return;
  }
  const auto until = std::chrono::steady_clock::now() + kYield;
  while (!crowded_.load(std::memory_order_relaxed) && std::chrono::steady_clock::now() < until) {
    std::this_thread::yield();
    if (is_done()) {
      return;
    }
  }
  std::unique_lock lock(sleep_mutex_);
  caller_sleeps_.store(true);
  done_.wait(lock, is_done);
  caller_sleeps_.store(false);
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
  system_ids_[thread - 1].store(static_cast<int>(syscall(SYS_gettid)));
  started_.fetch_add(1);
  uint64_t seen = 0;
  while (!stopping_.load(std::memory_order_relaxed)) {
    uint64_t gate = gate_.load(std::memory_order_acquire);
    if (thread >= active()) {
      park(thread);
    } else if (gate / kJob == seen || (gate & kOpen) == 0) {
      sleep_until_open(thread, seen);
    } else if (gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acquire)) {
      seen = gate / kJob;
      claim(thread);
      if (((gate_.fetch_sub(1) - 1) & kInside) == 0 && caller_sleeps_.load()) {
        {
          std::lock_guard lock(sleep_mutex_);
        }
        done_.notify_one();
      }
    }
  }
}

void ThreadPool::park(int thread) {
  std::unique_lock lock(sleep_mutex_);
  unpark_.wait(lock, [&] { return stopping_.load() || thread < active(); });
}

void ThreadPool::sleep_until_open(int thread, uint64_t seen) {
  const auto is_due = [&] {
    const uint64_t gate = gate_.load();
    return stopping_.load() || thread >= active() || (gate / kJob != seen && (gate & kOpen) != 0);
  };
  if (spin_until(is_due, crowded_.load(std::memory_order_relaxed) ? std::chrono::microseconds(0) : kSpin)) {
    return;
  }
  std::unique_lock lock(sleep_mutex_);
  sleepers_.fetch_add(1);
  wake_.wait(lock, is_due);
  sleepers_.fetch_sub(1);
}

}  // namespace taut

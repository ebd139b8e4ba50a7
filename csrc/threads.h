// Persistent compute threads. One pool per process; the calling thread takes part.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace taut {

// Items [0, count) of a job are claimed one by one, so an uneven or descheduled thread costs at most one item. The caller waits only
// for workers that are inside an item: one that never woke up is not waited for, so oversubscribed cores do not stall a job. Who waits
// spins for a moment and then sleeps: a core left idle lets the system move a descheduled worker there. With more threads than CPUs
// nobody spins. Results never depend on how many threads take part.
class ThreadPool {
 public:
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }
  // Threads that take part, the caller among them: all, until set_active says otherwise. Plan items for this many.
  int active() const { return active_.load(std::memory_order_relaxed); }
  // From the next job on `threads` take part, at least 1 and at most size(); the others sleep. Waits for a job that runs.
  void set_active(int threads);
  // The workers' nice value from now on (the caller's is its own business); false when the system refuses one of them.
  bool set_nice(int value);

  // Calls body(item, thread) for every item; thread is in [0, size()). Stops claiming once *abort is not 0; returns false if it did
  // before every item was claimed. The first exception of any thread is rethrown here. One job at a time: callers hold `running`.
  template <typename Body>
  bool run(int64_t count, const volatile int32_t* abort, const Body& body) {
    return run_job(
        count, abort, [](const void* b, int64_t item, int thread) { (*static_cast<const Body*>(b))(item, thread); }, &body);
  }

  // At least `floats` of scratch for every thread, 64-byte aligned. Only while holding `running`.
  void reserve_scratch(int64_t floats);
  float* scratch(int thread) const { return scratch_[thread].get(); }

  std::mutex running;  // held by whoever runs jobs

 private:
  using Call = void (*)(const void* body, int64_t item, int thread);
  struct Free {
    void operator()(float* p) const;
  };

  bool run_job(int64_t count, const volatile int32_t* abort, Call call, const void* body);
  void work(int thread);
  void claim(int thread);
  void wait_for_workers();
  void park(int thread);
  void sleep_until_open(int thread, uint64_t seen);

  std::vector<std::thread> workers_;
  std::vector<std::unique_ptr<float, Free>> scratch_;
  int64_t scratch_floats_ = 0;

  // The job. Written by the caller while it is closed and nobody is inside.
  Call call_ = nullptr;
  const void* body_ = nullptr;
  int64_t count_ = 0;
  const volatile int32_t* abort_ = nullptr;
  std::exception_ptr error_;
  std::mutex error_mutex_;

  // gate_: job number << 16 | open << 15 | workers inside.
  alignas(64) std::atomic<uint64_t> gate_{0};
  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<int> sleepers_{0};
  std::atomic<bool> stopping_{false}, crowded_{false}, caller_sleeps_{false};  // crowded_: more threads than CPUs
  std::atomic<int> active_, started_{0};
  std::vector<std::atomic<int>> system_ids_;  // of the workers
  std::mutex sleep_mutex_;
  std::condition_variable wake_, unpark_, done_;
};

}  // namespace taut

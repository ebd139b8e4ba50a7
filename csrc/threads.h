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
// for workers that are inside an item: one that never woke up is not waited for, so oversubscribed cores do not stall a job.
class ThreadPool {
 public:
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

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
  void sleep_until_open(uint64_t seen);

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
  std::atomic<bool> stopping_{false};
  std::mutex sleep_mutex_;
  std::condition_variable wake_;
};

}  // namespace taut

#include "pool.hpp"

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

#ifndef _WIN32
#include <pthread.h>
#endif

namespace qpsbgd {
namespace {

// A loop that threads share: each takes the next index until none is left.
struct Job {
  std::int64_t count;
  Body body;
  void* context;
  const Watch& watch;
  int wanted;        // helpers that may still join
  int helping = 0;   // helpers at work
  std::atomic<std::int64_t> next{0};
  std::exception_ptr error{};
  std::mutex error_lock{};

  void work(Watch& seen) {
    try {
      for (std::int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) body(context, i, seen);
    } catch (...) {
      next.store(count, std::memory_order_relaxed);
      const std::lock_guard guard(error_lock);
      if (!error) error = std::current_exception();
    }
  }
};

class Pool {
 public:
  void run(Job& job, Watch& watch) {
    const int helpers = job.wanted;  // counted down by those who join
    {
      const std::lock_guard guard(lock_);
      try {
        for (; size_ < helpers; ++size_) std::thread([this] { serve(); }).detach();
      } catch (const std::system_error&) {
        // No more threads can be had: those that are there do the work.
      }
      jobs_.push_back(&job);
    }
    for (int helper = 0; helper < helpers; ++helper) work_to_do_.notify_one();
    job.work(watch);
    std::unique_lock guard(lock_);
    for (auto place = jobs_.begin(); place != jobs_.end(); ++place) {
      if (*place == &job) {
        jobs_.erase(place);
        break;
      }
    }
    helper_left_.wait(guard, [&job] { return job.helping == 0; });
  }

 private:
  [[noreturn]] void serve() {
    std::unique_lock guard(lock_);
    for (;;) {
      work_to_do_.wait(guard, [this] { return !jobs_.empty(); });
      Job& job = *jobs_.front();
      ++job.helping;
      if (--job.wanted == 0) jobs_.pop_front();
      guard.unlock();
      Watch watch = job.watch.of_helper();
      job.work(watch);
      guard.lock();
      if (--job.helping == 0) helper_left_.notify_all();
    }
  }

  std::mutex lock_;
  std::condition_variable work_to_do_, helper_left_;
  std::deque<Job*> jobs_;
  int size_ = 0;
};

// Never destroyed: its threads sleep until the process ends. A fork has none of them and gets a pool of its own.
std::atomic<Pool*> pool{nullptr};

Pool& the_pool() {
  static std::once_flag once;
  std::call_once(once, [] {
#ifndef _WIN32
    pthread_atfork(nullptr, nullptr, [] { pool.store(nullptr); });
#endif
  });
  Pool* found = pool.load();
  if (!found) {
    Pool* made = new Pool;
    if (pool.compare_exchange_strong(found, made)) return *made;
    delete made;
  }
  return *found;
}

}  // namespace

void run_on_threads(std::int64_t count, int threads, Watch& watch, Body body, void* context) {
  const std::int64_t helpers = (count < threads ? count : threads) - 1;
  Job job{count, body, context, watch, static_cast<int>(helpers)};
  the_pool().run(job, watch);
  if (job.error) std::rethrow_exception(job.error);
}

}  // namespace qpsbgd

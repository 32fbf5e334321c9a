// Whether a kernel should go on: a flag that Python sets when the time is up, and Ctrl-C.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace qpsbgd {

// Whether the interpreter is ending: kernels on threads that nobody waits for then stop, too.
inline std::atomic<bool> leaving{false};

class Watch {
 public:
  // `flag` may be null. `poll` looks for signals and tells whether to stop; null in helping threads, which must not.
  Watch(const std::uint8_t* flag, std::atomic<bool>& interrupted, bool (*poll)())
      : flag_(flag), interrupted_(interrupted), poll_(poll) {}

  // The same flag, seen from another thread.
  Watch of_helper() const { return Watch(flag_, interrupted_, nullptr); }

  // Cheap enough for every flip.
  bool stopped() {
    if ((flag_ && __atomic_load_n(flag_, __ATOMIC_RELAXED)) || leaving.load(std::memory_order_relaxed)) return true;
    if (poll_ && --calls_left_ == 0) look();
    return interrupted_.load(std::memory_order_relaxed);
  }

 private:
  static constexpr int CALLS = 128;                      // between looks at the clock, each as long as ten calls
  static constexpr std::chrono::milliseconds PAUSE{20};  // between looks for signals, which take the GIL

  void look() {
    calls_left_ = CALLS;
    const auto now = std::chrono::steady_clock::now();
    if (now < next_) return;
    next_ = now + PAUSE;
    if (poll_()) interrupted_.store(true, std::memory_order_relaxed);
  }

  const std::uint8_t* flag_;
  std::atomic<bool>& interrupted_;
  bool (*poll_)();
  int calls_left_ = CALLS;
  std::chrono::steady_clock::time_point next_ = std::chrono::steady_clock::now() + PAUSE;
};

}  // namespace qpsbgd

// A pool of threads that sleep while they wait; it survives fork.
#pragma once

#include <cstdint>

#include "watch.hpp"

namespace qpsbgd {

// One index of a loop, seen through `watch`.
using Body = void (*)(void* context, std::int64_t index, Watch& watch);

void run_on_threads(std::int64_t count, int threads, Watch& watch, Body body, void* context);

// body(i, watch) for every i below `count`, on up to `threads` threads with the calling one; what it throws is thrown
// here. Several threads may be inside at once.
template <class F>
void parallel(std::int64_t count, int threads, Watch& watch, F&& body) {
  if (threads <= 1 || count <= 1) {
    for (std::int64_t i = 0; i < count; ++i) body(i, watch);
    return;
  }
  run_on_threads(
      count, threads, watch,
      [](void* context, std::int64_t i, Watch& seen) { (*static_cast<F*>(context))(i, seen); }, &body);
}

}  // namespace qpsbgd

// Fetches what a thread reads next into its second-level cache while the thread computes with something else.
#pragma once

#include <omp.h>

#include "bf16_instructions.h"

namespace triptych {

constexpr int64_t kCacheLine = 64;  // bytes
constexpr int kPairsPerStep = 4;    // pairs of inputs (linear_panel.h) that a product takes between two steps of a prefetch

// Lines of memory that are fetched in steps, spread evenly over a computation: a core waits for 16 lines or so at a time, and a burst
// of more would stall it.
class Prefetch {
 public:
  // Streams that are fetched side by side. The hardware prefetcher of a Sapphire Rapids runs some 20 lines ahead in each stream that it
  // sees: with four streams a core reads 16 GB/s from memory, with one 5. A Zen 5 reaches its full rate with one stream, and with
  // four is a tenth slower.
#if defined(TRIPTYCH_BF16_TILES)
  static constexpr int kStreams = 4;
#else
  static constexpr int kStreams = 1;
#endif

  Prefetch() = default;
  // A stretch of memory, of which each stream is a part.
  Prefetch(const void* memory, int64_t bytes, int64_t steps)
      : line_((const char*)memory), lines_left_((bytes + kStreams * kCacheLine - 1) / (kStreams * kCacheLine)),
        lines_per_step_((lines_left_ + steps - 1) / std::max<int64_t>(steps, 1)), stream_bytes_(lines_left_ * kCacheLine) {}

  void step() {
    for (int64_t i = std::min(lines_per_step_, lines_left_); i > 0; i--, lines_left_--, line_ += kCacheLine) {
#pragma GCC unroll 4
      for (int64_t j = 0; j < kStreams; j++) __builtin_prefetch(line_ + j * stream_bytes_, 0, 2);
    }
  }

 private:
  const char* line_ = nullptr;  // of the first stream
  int64_t lines_left_ = 0, lines_per_step_ = 0, stream_bytes_ = 0;  // of each stream
};

// Calls compute(item, next) for all items, shared out among the threads of the parallel region that this is called in; nobody waits at
// its end. next: what the thread goes on with, or the same item.
template <class Compute>
inline void share_items(int64_t num_items, const Compute& compute) {
  // Dynamic, because other processes on the cores take their share of one thread or the other.
  constexpr int64_t kItemsPerThread = 4;
  if (num_items < kItemsPerThread * omp_get_num_threads()) {  // who takes the next one early could keep another from it
#pragma omp for schedule(dynamic, 1) nowait
    for (int64_t i = 0; i < num_items; i++) compute(i, i);
    return;
  }
  int64_t taken = -1;
#pragma omp for schedule(dynamic, 1) nowait
  for (int64_t i = 0; i < num_items; i++) {
    if (taken >= 0) compute(taken, i);
    taken = i;
  }
  if (taken >= 0) compute(taken, taken);
}

}  // namespace triptych

// Prefetches what a thread reads next into its L2 cache, while the thread computes something else.
#pragma once

#include <omp.h>

#include "bf16_instructions.h"

namespace triptych {

constexpr int64_t kCacheLine = 64;  // bytes
constexpr int kPairsPerStep = 4;    // pairs of inputs (linear_panel.h) that a product computes between two steps of a prefetch

// Whether a core reads one stream at its full rate only if it is asked for lines far ahead: so products of one row with quantised weights
// take 0.67 to 0.85 of the time on an Emerald Rapids. A Zen reads far ahead by itself.
#if defined(__x86_64__)
inline const bool kAsksAhead = (__builtin_cpu_init(), __builtin_cpu_is("intel"));
#else
constexpr bool kAsksAhead = false;
#endif

// Cache lines that are prefetched in steps, spread evenly over a computation: a core can wait for about 16 lines at a time, and a
// burst of more would stall it.
class Prefetch {
 public:
  // Number of streams that are prefetched in parallel. The hardware prefetcher of a Sapphire Rapids runs about 20 lines ahead in
  // each stream that it detects: a core reads 16 GB/s from memory with four streams, 5 GB/s with one. A Zen 5 reaches its full rate
  // with one stream; with four it is a tenth slower.
#if defined(TRIPTYCH_BF16_TILES)
  static constexpr int kStreams = 4;
#else
  static constexpr int kStreams = 1;
#endif

  Prefetch() = default;
  // Prefetches a range of memory; each stream is a part of it.
  Prefetch(const void* memory, int64_t bytes, int64_t steps)
      : line_((const char*)memory), lines_left_((bytes + kStreams * kCacheLine - 1) / (kStreams * kCacheLine)),
        lines_per_step_((lines_left_ + steps - 1) / std::max<int64_t>(steps, 1)), stream_bytes_(lines_left_ * kCacheLine) {}

  // For a computation that reads each byte once, in order: it prefetches what it reads a moment later.
  static Prefetch ahead() {
    Prefetch prefetch;
    prefetch.asks_ahead_ = kAsksAhead;
    return prefetch;
  }
  // The computation reads these bytes now.
  void reads(const void* from, int64_t bytes) const {
    constexpr int64_t kAhead = 4096;
    if (!asks_ahead_) return;
    for (int64_t at = 0; at < bytes; at += kCacheLine) __builtin_prefetch((const char*)from + kAhead + at, 0, 2);
  }

  void step() {
    for (int64_t i = std::min(lines_per_step_, lines_left_); i > 0; i--, lines_left_--, line_ += kCacheLine) {
#pragma GCC unroll 4
      for (int64_t j = 0; j < kStreams; j++) __builtin_prefetch(line_ + j * stream_bytes_, 0, 2);
    }
  }

 private:
  bool asks_ahead_ = false;
  const char* line_ = nullptr;  // of the first stream
  int64_t lines_left_ = 0, lines_per_step_ = 0, stream_bytes_ = 0;  // of each stream
};

// Calls compute(item, next) for all items, distributed over the threads of the enclosing parallel region, without a barrier at the
// end. next: the item that the thread computes next, or the same item.
template <class Compute>
inline void share_items(int64_t num_items, const Compute& compute) {
  // Dynamic, because other processes on the cores slow down some of the threads.
  constexpr int64_t kItemsPerThread = 4;
  if (num_items < kItemsPerThread * omp_get_num_threads()) {  // taking the next item early could keep it from an idle thread
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

// A product of fewer rows takes as long as reading the weights from memory.
constexpr int64_t kFewRows = 4;

// Calls multiply(panel, next panel or the same, first row, rows) for each panel and each block of rows, distributed over the
// threads.
template <class Multiply>
void share_panels(int64_t num_panels, int64_t rows, int64_t row_block, const Multiply& multiply) {
  share_items(num_panels * ((rows + row_block - 1) / row_block), [&](int64_t item, int64_t next) {
    const int64_t row = item / num_panels * row_block;
    multiply(item % num_panels, next % num_panels, row, std::min(row_block, rows - row));
  });
}

}  // namespace triptych

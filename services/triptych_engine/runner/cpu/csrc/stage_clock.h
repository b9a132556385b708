// Where the time inside of a kernel goes, for benchmarks: without a place to write to, nothing is measured.
#pragma once

#include <chrono>
#include <cstdint>

namespace triptych {

enum Stage { kLinearStage, kAttentionStage, kOtherStage };

// Nanoseconds of each stage, as the first thread of a team sees them: to be marked behind barriers, so that the waiting for the
// others is part of the stage. One per thread.
class StageClock {
 public:
  explicit StageClock(int64_t* ns) : ns_(ns), since_(ns ? now() : 0) {}

  // The time since the last mark went into this stage.
  void mark(Stage stage) {
    if (!ns_) return;
#pragma omp master
    {
      const int64_t t = now();
      ns_[stage] += t - since_;
      since_ = t;
    }
  }

 private:
  static int64_t now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

  int64_t* ns_;
  int64_t since_;
};

}  // namespace triptych

// Measures the time of the stages of a kernel, for benchmarks. Without an address for the results, nothing is measured.
#pragma once

#include <chrono>
#include <cstdint>

namespace triptych {

enum Stage { kLinearStage, kAttentionStage, kOtherStage, kEmbeddingStage, kHeadStage, kStages };

// Nanoseconds of each stage, as measured by the first thread of a team. What is recurrent in the place of an attention counts as one.
// `mark` must be called after barriers, so that waiting for other threads is part of the stage; the embedding, which has none, leaves
// the wait to the first norm. One clock per thread.
class StageClock {
 public:
  explicit StageClock(int64_t* ns) : ns_(ns), since_(ns ? now() : 0) {}

  // Adds the time since the last mark to this stage.
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

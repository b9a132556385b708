// What sampling parameters change in a row of logits.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

extern "C" {

// Token ids beyond the vocabulary are left out.
struct Edits {
  int64_t* penalized;  // [num_penalized] the distinct tokens of prompt and output
  int32_t* counts;     // [num_penalized] how often each is in the output
  const int64_t* biased;      // [num_biased]
  const float* biases;        // [num_biased]
  const int64_t* banned;      // [num_banned]
  const int64_t* banned_too;  // [num_banned_too]
  int64_t num_penalized, num_biased, num_banned, num_banned_too;
  float repetition, frequency, presence, unused;
};
}

namespace triptych {

// Edits a row of logits, until `undo`. A thread's scratch memory, too.
class EditedRow {
 public:
  void apply(const Edits& e, float* logits, int64_t size) {
    logits_ = logits, size_ = size;
    old_.clear();
    for (int64_t i = 0; i < e.num_penalized; i++) {
      edit(e.penalized[i], [&](float x) {
        const float repeated = x > 0 ? x / e.repetition : x * e.repetition;
        return repeated - e.frequency * e.counts[i] - (e.counts[i] > 0 ? e.presence : 0.0f);
      });
    }
    for (int64_t i = 0; i < e.num_biased; i++) edit(e.biased[i], [&](float x) { return x + e.biases[i]; });
    const auto ban = [](float) { return -std::numeric_limits<float>::infinity(); };
    for (int64_t i = 0; i < e.num_banned; i++) edit(e.banned[i], ban);
    for (int64_t i = 0; i < e.num_banned_too; i++) edit(e.banned_too[i], ban);
  }

  void undo() {  // backwards, because a token may have been edited more than once
    for (size_t i = old_.size(); i-- > 0;) logits_[old_[i].token] = old_[i].logit;
    old_.clear();
  }

 private:
  struct Old {
    int64_t token;
    float logit;
  };
  float* logits_;
  int64_t size_;
  std::vector<Old> old_;

  template <class F>
  void edit(int64_t token, const F& changed) {
    if (token < 0 || token >= size_) return;
    old_.push_back({token, logits_[token]});
    logits_[token] = changed(logits_[token]);
  }
};

}  // namespace triptych

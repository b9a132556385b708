// The likeliest tokens of a row of logits.
#pragma once

#include <limits>
#include <memory>
#include <utility>

#include "vector.h"

namespace triptych {

constexpr int64_t kBlock = 32 * kLanes;  // weights that are summed in float32; blocks are summed in double
// With more candidates, only those of some buckets are sorted.
constexpr int64_t kMostSorted = 128;
// A bucket holds weights with the same exponent and the same first bits of the mantissa; the last one also all smaller weights.
constexpr int kBucketShift = 19, kBuckets = 1024;

struct Candidate {
  float weight;
  int32_t token;
  bool operator<(const Candidate& other) const {  // the likeliest first, then the smallest token id
    return weight > other.weight || (weight == other.weight && token < other.token);
  }
};

inline float largest_of(const float* x, int64_t size) {
  vf top = splat(-std::numeric_limits<float>::infinity());
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    const vf v = load(x + i);
    top = v > top ? v : top;
  }
  float largest = max_of(top);
  for (; i < size; i++) largest = std::max(largest, x[i]);
  return largest;
}

// e^(x * scale) for x <= 0; 0 for what is too small.
inline vf weight_of(vf x, float scale) {
  const vf scaled = x * scale;
  return scaled < -87.0f ? vf{} : exp_nonpositive(scaled);
}

// Which lanes are at least `least`, as bits.
inline uint32_t lanes_from(vf v, float least) {
  const vi wanted = v >= least;
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)wanted, (__m512i)wanted);
#else
  uint32_t mask = 0;
  for (int lane = 0; lane < kLanes; lane++) mask |= uint32_t(wanted[lane] & 1) << lane;
  return mask;
#endif
}

// Candidates in descending order of weight, of which only the buckets that are read are sorted.
class Descending {
 public:
  Descending(Candidate* candidates, int32_t* bucket_of, int64_t n) : candidates_(candidates), n_(n) {
    if (n <= kMostSorted) {
      std::sort(candidates, candidates + n);
      return;
    }
    sums_.reset(new double[kBuckets]()), starts_.reset(new int64_t[kBuckets + 1]());
    sorted_.reset(new Candidate[n]), is_sorted_.reset(new bool[kBuckets]());
    for (int64_t i = 0; i < n; i++) {
      bucket_of[i] = bucket(candidates[i].weight);
      sums_[bucket_of[i]] += candidates[i].weight;
      starts_[bucket_of[i] + 1]++;
    }
    for (int b = 0; b < kBuckets; b++) starts_[b + 1] += starts_[b];
    std::unique_ptr<int64_t[]> next(new int64_t[kBuckets]);
    std::copy(starts_.get(), starts_.get() + kBuckets, next.get());
    for (int64_t i = 0; i < n; i++) sorted_[next[bucket_of[i]]++] = candidates[i];
    candidates_ = sorted_.get();
  }

  // Calls until(candidate, rank, mass before it) in order; skip(candidates, mass before and after them, number of them) may answer
  // that none of a bucket's candidates ends the search. Returns the rank at which `until` is true, and the mass before it.
  template <class Skip, class Until>
  std::pair<int64_t, double> find(const Skip& skip, const Until& until) {
    double before = 0;
    if (!sums_) {
      for (int64_t i = 0; i < n_; i++) {
        if (until(candidates_[i], i, before)) return {i, before};
        before += candidates_[i].weight;
      }
      return {n_, before};
    }
    for (int b = 0; b < kBuckets; b++) {
      const int64_t start = starts_[b], end = starts_[b + 1];
      if (start == end) continue;
      if (skip(candidates_ + start, end, before + sums_[b])) {
        before += sums_[b];
        continue;
      }
      if (!is_sorted_[b]) std::sort(candidates_ + start, candidates_ + end), is_sorted_[b] = true;
      double within = before;
      for (int64_t i = start; i < end; i++) {
        if (until(candidates_[i], i, within)) return {i, within};
        within += candidates_[i].weight;
      }
      before += sums_[b];
    }
    return {n_, before};
  }
  int64_t token(int64_t rank) const { return candidates_[rank].token; }

 private:
  static int bucket(float weight) {
    uint32_t bits;
    std::memcpy(&bits, &weight, 4);
    return int(std::min<uint32_t>((0x3f800000u - bits) >> kBucketShift, kBuckets - 1));
  }
  Candidate* candidates_;
  int64_t n_;
  std::unique_ptr<double[]> sums_;
  std::unique_ptr<int64_t[]> starts_;
  std::unique_ptr<Candidate[]> sorted_;
  std::unique_ptr<bool[]> is_sorted_;
};

}  // namespace triptych

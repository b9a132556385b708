// The likeliest tokens of a row of logits.
#pragma once

#include <limits>
#include <memory>
#include <utility>

#include "vector.h"

namespace triptych {

constexpr int64_t kBlock = 32 * kLanes;  // weights that are summed in float32; blocks are summed in double

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

// Which lanes are set, as bits.
inline uint32_t bits_of(vi wanted) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)wanted, (__m512i)wanted);
#else
  uint32_t mask = 0;
  for (int lane = 0; lane < kLanes; lane++) mask |= uint32_t(wanted[lane] & 1) << lane;
  return mask;
#endif
}
// Which lanes are at least `least`, as bits.
inline uint32_t lanes_from(vf v, float least) { return bits_of(v >= least); }

}  // namespace triptych

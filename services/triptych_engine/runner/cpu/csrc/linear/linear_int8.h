// Products of 8-bit integers, see linear_int8.cpp.
#pragma once

#include "linear/linear.h"

namespace triptych {

// Number of inputs that share a scale. A sum over a group stays below 2^23, so it is exact in fp32, too.
constexpr int64_t kGroup = 64;

inline int64_t num_groups(int64_t in_features) { return (in_features + kGroup - 1) / kGroup; }
inline int64_t num_quads(int64_t in_features) { return (in_features + 3) / 4; }

// A format as described in linear.h. Its functions are compiled in a separate file, without contraction of products and sums into
// one rounding, so that all instruction sets give the same numbers.
struct Int8Format : NoGates {
  static constexpr bool kRounds = false;
  // Four inputs in a word, then the scale of each group, then the start value of the sum over each group.
  static int64_t num_prepared_words(int64_t in_features) { return num_quads(in_features) + 2 * num_groups(in_features); }
  static void prepare_row(const float* row, int64_t in_features, uint32_t* prepared);
  static void linear_shared(const float* x, int64_t x_stride, const uint32_t* prepared, const PackedWeight& w, float* out,
                            int64_t rows);
};

}  // namespace triptych

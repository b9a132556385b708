// Inputs of products with quantised weights: integers of 8 bits with a scale for each 32, of which one has 16 bits.
//
// Like linear_quant.cpp, it is compiled without contraction of products and sums.
#pragma once

#include "linear/quant_instructions.h"

namespace triptych {

// A row of inputs that is prepared for products, in groups of 32: an input is an integer times the group's scale. The input with the
// largest magnitude has 16 bits, the others 8. So a few large inputs, which are common, leave the others their precision.
constexpr uint32_t kPlaceSize = 16;  // bytes of an entry in a format's table of places

struct PreparedGroup {  // a cache line
  int8_t values[kQuantGroup];  // zero for the largest
  float scale;
  float sum;              // of all inputs
  int32_t minus_sum, minus_first;  // minus the sum of all values, and of the first half's
  uint32_t place;                  // of the largest, times kPlaceSize
  int32_t largest, largest_of[2];  // its value; the same if it is in this half, else 0
};

// All values, for weights of more than 5 bits if !kDotsBytes: first and third of each quad, then second and fourth.
struct PreparedPairs {
  int16_t values[kQuantGroup];
};

struct PreparedRow {
  static constexpr int64_t kGroupWords = sizeof(PreparedGroup) / 4, kPairsWords = kDotsBytes ? 0 : sizeof(PreparedPairs) / 4;

  static int64_t num_words(int64_t in_features) { return num_quant_groups(in_features) * (kGroupWords + kPairsWords); }
  static PreparedGroup* groups(uint32_t* row) { return (PreparedGroup*)row; }
  static PreparedPairs* pairs(uint32_t* row, int64_t in_features) {
    return (PreparedPairs*)(row + num_quant_groups(in_features) * kGroupWords);
  }
};

namespace {

constexpr float kMost = 127, kMostOfLargest = 32767;  // the ranges are symmetric
constexpr float kTiniest = 1e-30;  // groups without a larger value count as zero: for smaller x, 32767 / x may not be finite
constexpr uint32_t kInfinity = 0x7f800000, kMagnitude = 0x7fffffff;  // bits of floats; magnitudes have the same order as their bits
constexpr uint32_t kPlaceBits = kQuantGroup - 1;  // of a magnitude's bits, in which an input's place tells equal ones apart

inline float float_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

// The scale of a group, from the bits of its two largest magnitudes. NaN if a magnitude is not finite, and 0 if all values count as zero.
inline float scale_of(uint32_t largest, uint32_t second) {
  if (largest >= kInfinity) return __builtin_nanf("");
  const float x = float_of(largest & ~kPlaceBits);
  return x < kTiniest ? 0 : std::max(float_of(second & ~kPlaceBits) * (1 / kMost), x * (1 / kMostOfLargest));
}

// A group whose values are all zero, or of which one is not finite.
inline void nothing_in_group(PreparedGroup& group, PreparedPairs* pairs) {
  const float scale = group.scale;
  group = {};
  group.sum = group.scale = scale;
  if (pairs) std::memset(pairs, 0, sizeof *pairs);
}

// sums: of the values of each half but the largest.
inline void put_largest(PreparedGroup& group, uint32_t place, int32_t value, int32_t first_sum, int32_t second_sum) {
  const bool is_second = place >= kQuantGroup / 2;
  group.place = place * kPlaceSize, group.largest = value;
  group.largest_of[0] = is_second ? 0 : value, group.largest_of[1] = is_second ? value : 0;
  group.minus_first = -(first_sum + group.largest_of[0]);
  group.minus_sum = -(first_sum + second_sum + value);
  group.sum = group.scale * -float(group.minus_sum);
}

#if defined(__AVX2__)

// The largest number, in all lanes.
inline __m256i largest_of_all(const __m256i (&x)[4]) {
  __m256i most = _mm256_max_epi32(_mm256_max_epi32(x[0], x[1]), _mm256_max_epi32(x[2], x[3]));
  most = _mm256_max_epi32(most, _mm256_permute2x128_si256(most, most, 1));
  most = _mm256_max_epi32(most, _mm256_shuffle_epi32(most, 0x4e));
  return _mm256_max_epi32(most, _mm256_shuffle_epi32(most, 0xb1));
}
inline uint32_t first_word(__m256i x) { return uint32_t(_mm_cvtsi128_si32(_mm256_castsi256_si128(x))); }

// Quantises a group, and writes its pairs if `pairs` is not null.
inline void quantise_group(const float* x, PreparedGroup& group, PreparedPairs* pairs) {
  __m256 values[4];
  __m256i magnitudes[4], others[4], is_largest[4];
  for (int s = 0; s < 4; s++) {
    values[s] = _mm256_loadu_ps(x + 8 * s);
    const __m256i bits = _mm256_and_si256(_mm256_castps_si256(values[s]), _mm256_set1_epi32(int(kMagnitude & ~kPlaceBits)));
    magnitudes[s] = _mm256_or_si256(bits, _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(8 * s)));
  }
  const __m256i most = largest_of_all(magnitudes);
  for (int s = 0; s < 4; s++) {
    is_largest[s] = _mm256_cmpeq_epi32(magnitudes[s], most);
    others[s] = _mm256_andnot_si256(is_largest[s], magnitudes[s]);
  }
  const uint32_t largest = first_word(most), place = largest & kPlaceBits;
  group.scale = scale_of(largest, first_word(largest_of_all(others)));
  if (!(group.scale > 0)) return nothing_in_group(group, pairs);
  const float inverse = 1 / group.scale;
  __m256i rounded[4], rest[4];
  for (int s = 0; s < 4; s++) {
    rounded[s] = _mm256_cvtps_epi32(_mm256_mul_ps(values[s], _mm256_set1_ps(inverse)));
    rest[s] = _mm256_andnot_si256(is_largest[s], rounded[s]);
  }
  const __m256i mixed = _mm256_packs_epi16(_mm256_packs_epi32(rest[0], rest[1]), _mm256_packs_epi32(rest[2], rest[3]));
  const __m256i bytes = _mm256_permutevar8x32_epi32(mixed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  _mm256_storeu_si256((__m256i*)group.values, bytes);
  const __m256i sums = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes), _mm256_set1_epi16(1));
  const __m256i half = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0x4e));
  const __m256i whole = _mm256_add_epi32(half, _mm256_shuffle_epi32(half, 0xb1));
  put_largest(group, place, _mm_cvtss_si32(_mm_set_ss(x[place] * inverse)), _mm256_extract_epi32(whole, 0),
              _mm256_extract_epi32(whole, 4));
  if (!pairs) return;
  const __m256i order = _mm256_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15, 0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
  for (int i = 0; i < 2; i++) {
    const __m256i some = _mm256_permute4x64_epi64(_mm256_packs_epi32(rounded[2 * i], rounded[2 * i + 1]), 0xd8);
    _mm256_storeu_si256((__m256i*)pairs->values + i, _mm256_shuffle_epi8(some, order));
  }
}

#else

// Rounds to the nearest integer, ties to even: the addition of 1.5 * 2^23 leaves it in the low bits of the mantissa. |x| < 2^22.
inline int32_t round(float x) {
  int32_t bits;
  x += 12582912.0f;
  std::memcpy(&bits, &x, 4);
  return bits - 0x4b400000;
}

static_assert(kDotsBytes, "the function below writes no pairs");

// Quantises a group. This is the definition; instruction sets above do the same in fewer steps.
inline void quantise_group(const float* x, PreparedGroup& group, PreparedPairs* pairs) {
  uint32_t largest = 0, second = 0;
  for (uint32_t i = 0; i < kQuantGroup; i++) {
    uint32_t bits;
    std::memcpy(&bits, x + i, 4);
    const uint32_t magnitude = (bits & kMagnitude & ~kPlaceBits) | i;
    second = std::max(second, std::min(largest, magnitude));
    largest = std::max(largest, magnitude);
  }
  group.scale = scale_of(largest, second);
  if (!(group.scale > 0)) return nothing_in_group(group, pairs);
  const float inverse = 1 / group.scale;
  const uint32_t place = largest & kPlaceBits;
  int32_t sums[2] = {};
  for (uint32_t i = 0; i < kQuantGroup; i++) {
    const int32_t value = i == place ? 0 : round(x[i] * inverse);
    group.values[i] = int8_t(value);
    sums[i / (kQuantGroup / 2)] += value;
  }
  put_largest(group, place, round(x[place] * inverse), sums[0], sums[1]);
}

#endif

}  // namespace
}  // namespace triptych

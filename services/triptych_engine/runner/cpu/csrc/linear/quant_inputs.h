// Inputs of products with quantised weights: 8 bits, with a scale for each 32 and a factor for each 8 of them.
//
// Like linear_quant.cpp, it is compiled without contraction of products and sums.
#pragma once

#include "linear/quant_instructions.h"

namespace triptych {

// A row of inputs that is prepared for products. Inputs have 8 bits. A group of 32 has a scale, and each subgroup of 8 a factor: an
// input is value * factor * scale. So a few large inputs, which are common, leave the others their precision, and sums over a whole
// group are still integers.
constexpr int64_t kSubgroup = 8, kSubgroups = kQuantGroup / kSubgroup;
constexpr int kLargestFactor = 64;

struct PreparedGroup {  // a cache line
  int8_t values[kQuantGroup];
  uint32_t factors[kSubgroups];  // each in both halves of the word if !kDotsBytes
  float scale;
  float sums[2];  // of each half's inputs
  float unused;
};

// The same inputs times their factors, for weights of 8 bits if !kDotsBytes: first and third of each quad, then second and fourth.
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

constexpr float kLargest = 127;    // of a quantised input; -128 is not used, so the range is symmetric
constexpr float kTiniest = 1e-30;  // groups without a larger value count as zero: for smaller x, 127 / x may not be finite
constexpr uint32_t kInfinity = 0x7f800000, kMagnitude = 0x7fffffff;  // bits of floats; magnitudes have the same order as their bits

inline float float_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

// The scale of a group: of its subgroup with the largest magnitudes, divided by the largest factor. NaN if a magnitude is not finite, and
// 0 if all values count as zero.
inline float scale_of(uint32_t largest) {
  if (largest >= kInfinity) return __builtin_nanf("");
  const float x = float_of(largest);
  return x < kTiniest ? 0 : x / (kLargest * kLargestFactor);
}

// A group whose values are all zero, or of which one is not finite.
inline void nothing_in_group(PreparedGroup& group, PreparedPairs* pairs) {
  std::memset(group.values, 0, sizeof group.values);
  std::memset(group.factors, 0, sizeof group.factors);
  group.sums[0] = group.sums[1] = group.scale;
  if (pairs) std::memset(pairs, 0, sizeof *pairs);
}

#if defined(__AVX2__)

// Largest magnitudes of four vectors, as bits.
inline __m128i largest_of_each(const __m256i (&x)[4]) {
  const __m256i first = _mm256_max_epi32(_mm256_permute2x128_si256(x[0], x[1], 0x20), _mm256_permute2x128_si256(x[0], x[1], 0x31));
  const __m256i second = _mm256_max_epi32(_mm256_permute2x128_si256(x[2], x[3], 0x20), _mm256_permute2x128_si256(x[2], x[3], 0x31));
  // Lanes of 128 bits: two numbers of x[0] or x[1], two of x[2] or x[3].
  const __m256i pairs = _mm256_max_epi32(_mm256_unpacklo_epi64(first, second), _mm256_unpackhi_epi64(first, second));
  const __m256i each = _mm256_max_epi32(pairs, _mm256_shuffle_epi32(pairs, 0xb1));
  const __m128i low = _mm256_castsi256_si128(each), high = _mm256_extracti128_si256(each, 1);  // 0 0 2 2, 1 1 3 3
  return _mm_blend_epi32(low, high, 0b1010);
}

// Quantises a group, and writes its pairs if `pairs` is not null.
inline void quantise_group(const float* x, PreparedGroup& group, PreparedPairs* pairs) {
  __m256 values[4];
  __m256i magnitudes[4];
  for (int s = 0; s < 4; s++) {
    values[s] = _mm256_loadu_ps(x + 8 * s);
    magnitudes[s] = _mm256_and_si256(_mm256_castps_si256(values[s]), _mm256_set1_epi32(int(kMagnitude)));
  }
  const __m128i largest = largest_of_each(magnitudes);
  const __m128i more = _mm_max_epi32(largest, _mm_shuffle_epi32(largest, 0x4e));
  const uint32_t most = uint32_t(_mm_cvtsi128_si32(_mm_max_epi32(more, _mm_shuffle_epi32(more, 0xb1))));
  group.scale = scale_of(most);
  if (!(group.scale > 0)) return nothing_in_group(group, pairs);
  const __m128 per_factor = _mm_set1_ps(1 / (group.scale * kLargest));
  const __m128i factors = _mm_min_epi32(_mm_set1_epi32(kLargestFactor),
                                        _mm_add_epi32(_mm_cvttps_epi32(_mm_mul_ps(_mm_castsi128_ps(largest), per_factor)), _mm_set1_epi32(1)));
  alignas(16) float inverses[4];
  _mm_store_ps(inverses, _mm_div_ps(_mm_set1_ps(1), _mm_mul_ps(_mm_set1_ps(group.scale), _mm_cvtepi32_ps(factors))));
  const __m128i in_halves = _mm_or_si128(factors, _mm_slli_epi32(factors, 16));
  _mm_storeu_si128((__m128i*)group.factors, kDotsBytes ? factors : in_halves);
  __m256i rounded[4];
  for (int s = 0; s < 4; s++) rounded[s] = _mm256_cvtps_epi32(_mm256_mul_ps(values[s], _mm256_set1_ps(inverses[s])));
  const __m256i mixed = _mm256_packs_epi16(_mm256_packs_epi32(rounded[0], rounded[1]), _mm256_packs_epi32(rounded[2], rounded[3]));
  const __m256i bytes = _mm256_permutevar8x32_epi32(mixed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  _mm256_storeu_si256((__m256i*)group.values, bytes);
  // Each word of `bytes` is a quad; a subgroup has two.
  const __m256i factor_of_quad = _mm256_permutevar8x32_epi32(_mm256_castsi128_si256(in_halves), _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3));
  const __m256i sums = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes), factor_of_quad);
  const __m256i half = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0x4e));
  const __m256i whole = _mm256_add_epi32(half, _mm256_shuffle_epi32(half, 0xb1));
  group.sums[0] = group.scale * float(_mm256_extract_epi32(whole, 0));
  group.sums[1] = group.scale * float(_mm256_extract_epi32(whole, 4));
  if (!pairs) return;
  const __m256i order = _mm256_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15, 0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
  for (int i = 0; i < 2; i++) {
    const __m256i some = _mm256_cvtepi8_epi16(i ? _mm256_extracti128_si256(bytes, 1) : _mm256_castsi256_si128(bytes));
    const __m256i factor = _mm256_permutevar8x32_epi32(_mm256_castsi128_si256(in_halves),
                                                       i ? _mm256_setr_epi32(2, 2, 2, 2, 3, 3, 3, 3) : _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1));
    _mm256_storeu_si256((__m256i*)pairs->values + i, _mm256_shuffle_epi8(_mm256_mullo_epi16(some, factor), order));
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

// Bits of the largest magnitude of a subgroup; those of a NaN are larger than all others.
inline uint32_t largest_bits(const float* x) {
  uint32_t most = 0;
  for (int64_t i = 0; i < kSubgroup; i++) {
    uint32_t bits;
    std::memcpy(&bits, x + i, 4);
    most = std::max(most, bits & kMagnitude);
  }
  return most;
}

// Quantises a group. This is the definition; instruction sets above do the same in fewer steps.
inline void quantise_group(const float* x, PreparedGroup& group, PreparedPairs* pairs) {
  uint32_t largest[kSubgroups], most = 0;
  for (int64_t s = 0; s < kSubgroups; s++) most = std::max(most, largest[s] = largest_bits(x + s * kSubgroup));
  group.scale = scale_of(most);
  if (!(group.scale > 0)) return nothing_in_group(group, pairs);
  int32_t sums[2] = {};
  const float per_factor = 1 / (group.scale * kLargest);
  for (int64_t s = 0; s < kSubgroups; s++) {
    const int32_t factor = std::min(kLargestFactor, int32_t(float_of(largest[s]) * per_factor) + 1);
    const float inverse = 1 / (group.scale * float(factor));
    int32_t sum = 0;
    for (int64_t i = 0; i < kSubgroup; i++) {
      const int32_t value = round(x[s * kSubgroup + i] * inverse);
      group.values[s * kSubgroup + i] = int8_t(value);
      sum += value;
    }
    group.factors[s] = uint32_t(factor);
    sums[s / (kSubgroups / 2)] += sum * factor;
  }
  for (int half = 0; half < 2; half++) group.sums[half] = group.scale * float(sums[half]);
}

#endif

}  // namespace
}  // namespace triptych

// Sums of products of a group's quantised weights, of 16 outputs, with inputs of 8 bits: exact on every instruction set.
#pragma once

#include <utility>

#include "linear/quant_layout.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace triptych {

// A word of each of 16 outputs: kRegisters vectors.
#if defined(__AVX512BW__)
typedef __m512i ri;
inline ri load_words(const uint32_t* p) { return _mm512_loadu_si512(p); }
inline ri splat_word(uint32_t x) { return _mm512_set1_epi32(int(x)); }
inline ri add_halves(ri a, ri b) { return _mm512_add_epi16(a, b); }
inline ri multiply_bytes(ri w, ri x) { return _mm512_maddubs_epi16(w, x); }
inline ri multiply_halves(ri a, ri b) { return _mm512_madd_epi16(a, b); }
#elif defined(__AVX2__)
typedef __m256i ri;
inline ri load_words(const uint32_t* p) { return _mm256_loadu_si256((const __m256i*)p); }
inline ri splat_word(uint32_t x) { return _mm256_set1_epi32(int(x)); }
inline ri add_halves(ri a, ri b) { return _mm256_add_epi16(a, b); }
inline ri multiply_bytes(ri w, ri x) { return _mm256_maddubs_epi16(w, x); }
inline ri multiply_halves(ri a, ri b) { return _mm256_madd_epi16(a, b); }
#else
typedef ru ri;
inline ri load_words(const uint32_t* p) {
  ri x;
  std::memcpy(&x, p, sizeof x);
  return x;
}
inline ri splat_word(uint32_t x) { return x - ri{}; }
#endif

template <int kBy>
inline ri shift_left(ri x) { return (ri)((ru)x << kBy); }
template <int kBy>
inline ri shift_right(ri x) { return (ri)((ru)x >> kBy); }
inline ri and_of(ri a, ri b) { return (ri)((ru)a & (ru)b); }
inline ri or_of(ri a, ri b) { return (ri)((ru)a | (ru)b); }
inline ri add_words(ri a, ri b) { return (ri)((ru)a + (ru)b); }

#if defined(__AVX512BW__)
inline ri multiply_words(ri a, ri b) { return _mm512_mullo_epi32(a, b); }
#else
inline ri multiply_words(ri a, ri b) { return (ri)((ru)a * (ru)b); }
#endif

// The instruction that multiplies four unsigned bytes with four signed ones, and adds all four to a word.
#if defined(__AVX512VNNI__)
#define TRIPTYCH_DOT_BYTES(sum, w, x) _mm512_dpbusd_epi32(sum, w, x)
#elif defined(__AVXVNNI__)
#define TRIPTYCH_DOT_BYTES(sum, w, x) _mm256_dpbusd_avx_epi32(sum, w, x)
#elif !defined(__AVX2__)
inline ri dot_bytes(ri sum, ri w, ri x) {
  typedef decltype(rf{} < rf{}) Integers;
  Integers result = (Integers)sum;
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) result += (Integers)(w << (24 - 8 * i) >> 24) * ((Integers)(x << (24 - 8 * i)) >> 24);
  return (ri)result;
}
#define TRIPTYCH_DOT_BYTES(sum, w, x) dot_bytes(sum, w, x)
#endif

// Without it, two products are added to 16 bits, which hold such sums of two quads of weights of up to 6 bits. Weights of 8 bits are
// multiplied as 16 bits.
#if defined(TRIPTYCH_DOT_BYTES)
constexpr bool kDotsBytes = true;
#else
constexpr bool kDotsBytes = false;
#endif

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

// Weights of quad k of a group as bytes, from the group's words (of one register). k is a constant after unrolling.
template <class Format, int k>
inline ri quad_of(const uint32_t* words) {
  if constexpr (Format::kBits == 8) return load_words(words + k * kQuantPanel);
  const ri low_words = load_words(words + k / 2 * kQuantPanel), low_mask = splat_word(0x0f0f0f0f);
  const ri low = and_of(k % 2 ? shift_right<4>(low_words) : low_words, low_mask);
  if constexpr (Format::kBits == 4) return low;
  if constexpr (Format::kBits == 5) {  // bit k of each byte
    const ri high = load_words(words + Format::kLowWords * kQuantPanel);
    const ri there = k <= 4 ? shift_left<k <= 4 ? 4 - k : 0>(high) : shift_right<k <= 4 ? 0 : k - 4>(high);
    return or_of(low, and_of(there, splat_word(0x10101010)));
  }
  constexpr int j = k % 4;  // bits 2j and 2j + 1 of each byte
  const ri high = load_words(words + (Format::kLowWords + k / 4) * kQuantPanel);
  const ri there = j <= 2 ? shift_left<j <= 2 ? 4 - 2 * j : 0>(high) : shift_right<2>(high);
  return or_of(low, and_of(there, splat_word(0x30303030)));
}

// The sums of R rows over one part of a group: the whole group, or one half of it.
template <class Format, int R, int kPart>
struct PartSums {
  static constexpr int kQuads = kGroupQuads / Format::kParts, kFirst = kPart * kQuads;

  ri sum[R][kRegisters];

  // x: the group in the first prepared row, and its pairs; x_words apart from row to row.
  inline void compute(const uint32_t* x, const uint32_t* pairs, int64_t x_words, const uint32_t* words) {
#if !defined(TRIPTYCH_DOT_BYTES)
    if constexpr (Format::kBits == 8) return multiply_pairs(pairs, x_words, words);
#endif
    subgroups(x, x_words, words, std::make_integer_sequence<int, kQuads / 2>());
  }

 private:
  template <int... i>
  inline void subgroups(const uint32_t* x, int64_t x_words, const uint32_t* words, std::integer_sequence<int, i...>) {
    (subgroup<kFirst / 2 + i, i == 0>(x, x_words, words), ...);
  }

  // Two quads.
  template <int s, bool kStarts>
  inline void subgroup(const uint32_t* x, int64_t x_words, const uint32_t* words) {
    ri first[kRegisters], second[kRegisters];
#pragma GCC unroll 4
    for (int i = 0; i < kRegisters; i++) {
      first[i] = quad_of<Format, 2 * s>(words + i * kRegisterLanes);
      second[i] = quad_of<Format, 2 * s + 1>(words + i * kRegisterLanes);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      const uint32_t* row = x + r * x_words;
      const ri low = splat_word(row[2 * s]), high = splat_word(row[2 * s + 1]), factor = splat_word(row[kGroupQuads + s]);
#pragma GCC unroll 4
      for (int i = 0; i < kRegisters; i++) {
#if defined(TRIPTYCH_DOT_BYTES)
        const ri dot = multiply_words(TRIPTYCH_DOT_BYTES(TRIPTYCH_DOT_BYTES(ri{}, first[i], low), second[i], high), factor);
#else
        const ri dot = multiply_halves(add_halves(multiply_bytes(first[i], low), multiply_bytes(second[i], high)), factor);
#endif
        sum[r][i] = kStarts ? dot : add_words(sum[r][i], dot);
      }
    }
  }

#if !defined(TRIPTYCH_DOT_BYTES)
  inline void multiply_pairs(const uint32_t* pairs, int64_t x_words, const uint32_t* words) {
    const ri even_mask = splat_word(0x00ff00ff);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
      for (int i = 0; i < kRegisters; i++) sum[r][i] = ri{};
#pragma GCC unroll 2
    for (int k = kFirst; k < kFirst + kQuads; k++) {
      ri even[kRegisters], odd[kRegisters];
#pragma GCC unroll 4
      for (int i = 0; i < kRegisters; i++) {
        const ri all = load_words(words + k * kQuantPanel + i * kRegisterLanes);
        even[i] = and_of(all, even_mask), odd[i] = and_of(shift_right<8>(all), even_mask);
      }
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) {
        const ri first = splat_word(pairs[r * x_words + 2 * k]), second = splat_word(pairs[r * x_words + 2 * k + 1]);
#pragma GCC unroll 4
        for (int i = 0; i < kRegisters; i++) {
          sum[r][i] = add_words(sum[r][i], add_words(multiply_halves(even[i], first), multiply_halves(odd[i], second)));
        }
      }
    }
  }
#endif
};

}  // namespace triptych

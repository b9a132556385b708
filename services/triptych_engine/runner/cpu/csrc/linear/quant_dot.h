// Sums of products of a group's quantised weights, of 16 outputs, with inputs of 8 bits: exact on every instruction set.
#pragma once

#include <utility>

#include "linear/quant_inputs.h"

namespace triptych {

// Weights of quad k of a group as bytes, from the group's words (of one register). k is a constant after unrolling.
template <class Format, int k>
inline ri quad_of(const uint32_t* words) {
  if constexpr (Format::kBits == 8) return load_words(words + k * kQuantPanel);
  const ri low_words = load_words(words + k / 2 * kQuantPanel), low_mask = splat_word(0x0f0f0f0f);
  const ri low = and_of(k % 2 ? shift_right<4>(low_words) : low_words, low_mask);
  if constexpr (Format::kHasTable) return look_up(kTableValues, low);
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
  // Eight products of weights of up to 5 bits (also of a table, which has 24 at most) with inputs are at most 31 * 127 * 8 = 31496,
  // which 16 bits hold.
  static constexpr bool kFits = Format::kBits <= 5;

  ri sum[R][kRegisters];

  // x: the group in the first prepared row, and its pairs; x_words apart from row to row.
  inline void compute(const uint32_t* x, const uint32_t* pairs, int64_t x_words, const uint32_t* words) {
#if !defined(TRIPTYCH_DOT_BYTES)
    if constexpr (Format::kBits == 8) return quads(pairs, x_words, words, std::make_integer_sequence<int, kQuads>());
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
        const ri start = kStarts ? ri{} : sum[r][i];
#if defined(TRIPTYCH_DOT_BYTES)
        const ri dot = TRIPTYCH_DOT_BYTES(TRIPTYCH_DOT_BYTES(ri{}, first[i], low), second[i], high);
        sum[r][i] = add_product<kFits>(start, dot, factor);
#else
        const ri halves = add_halves(multiply_bytes(first[i], low), multiply_bytes(second[i], high));
        sum[r][i] = add_words(start, multiply_halves(halves, factor));
#endif
        settle(sum[r][i]);
      }
    }
  }

#if !defined(TRIPTYCH_DOT_BYTES)
  template <int... k>
  inline void quads(const uint32_t* pairs, int64_t x_words, const uint32_t* words, std::integer_sequence<int, k...>) {
    (quad<kFirst + k, k == 0>(pairs, x_words, words), ...);
  }

  // One quad, of weights and inputs of 16 bits.
  template <int k, bool kStarts>
  inline void quad(const uint32_t* pairs, int64_t x_words, const uint32_t* words) {
    const ri even_mask = splat_word(0x00ff00ff);
    ri even[kRegisters], odd[kRegisters];
#pragma GCC unroll 4
    for (int i = 0; i < kRegisters; i++) {
      const ri all = load_words(words + k * kQuantPanel + i * kRegisterLanes);
      even[i] = and_of(all, even_mask), odd[i] = and_of(shift_right<8>(all), even_mask);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      const uint32_t* row = pairs + r * x_words;
      const ri first = splat_word(row[2 * k]), second = splat_word(row[2 * k + 1]);
#pragma GCC unroll 4
      for (int i = 0; i < kRegisters; i++) {
        const ri products = add_words(multiply_halves(even[i], first), multiply_halves(odd[i], second));
        sum[r][i] = kStarts ? products : add_words(sum[r][i], products);
        settle(sum[r][i]);
      }
    }
  }
#endif
};

}  // namespace triptych

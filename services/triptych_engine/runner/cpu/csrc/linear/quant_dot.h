// Sums of products of a group's quantised weights, of 16 outputs, with quantised inputs: exact on every instruction set.
#pragma once

#include <type_traits>
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

// Where the value of one input is in a group's words: from bit low_shift of the words low_bytes after the first on, and its bits beyond
// four from bit high_shift of those high_bytes after it.
struct ValuePlace {
  int32_t low_bytes, low_shift, high_bytes, high_shift;
};
static_assert(sizeof(ValuePlace) == kPlaceSize);

template <class Format>
struct ValuePlaces {
  ValuePlace of[kQuantGroup];

  constexpr ValuePlaces() : of() {
    for (int n = 0; n < kQuantGroup; n++) {
      const int k = n / 4, b = n % 4, panel = kQuantPanel * 4, high = Format::kLowWords;
      if (Format::kBits == 8) of[n] = {k * panel, 8 * b, 0, 0};
      else if (Format::kBits == 6) of[n] = {k / 2 * panel, 8 * b + 4 * (k % 2), (high + k / 4) * panel, 8 * b + 2 * (k % 4)};
      else of[n] = {k / 2 * panel, 8 * b + 4 * (k % 2), high * panel, 8 * b + k};
    }
  }
};
template <class Format>
constexpr ValuePlaces<Format> kValuePlaces;

inline ri shifted(const uint32_t* words, int32_t bytes, int32_t by) {
  return shift_right_by(load_words((const uint32_t*)((const char*)words + bytes)), by);
}

// The value of the input with the largest magnitude, of the outputs of one register.
template <class Format>
inline ri value_of_largest(const uint32_t* words, const PreparedGroup& input) {
  const ValuePlace& place = *(const ValuePlace*)((const char*)kValuePlaces<Format>.of + input.place);
  const ri low = and_of(shifted(words, place.low_bytes, place.low_shift), splat_word(Format::kBits == 8 ? 0xff : 0xf));
  if constexpr (Format::kHasTable) return and_of(look_up(kTableValues, low), splat_word(0xff));
  if constexpr (Format::kBits == 4 || Format::kBits == 8) return low;
  const ri high = and_of(shifted(words, place.high_bytes, place.high_shift), splat_word(Format::kBits == 6 ? 3 : 1));
  return or_of(low, shift_left<4>(high));
}

// The products of R rows of inputs with a group of weights.
//
// Of formats whose minimum is an offset, the sums are of values minus this offset.
template <class Format, int R>
struct GroupProducts {
  static constexpr int kParts = Format::kParts, kPartQuads = kGroupQuads / kParts;
  static constexpr bool kHasOffset = Format::kMinimum == Minimum::kOffset;
  // Quads whose products a sum of 16 bits holds, if !kDotsBytes: products of two are at most 2 * 127 times the largest value.
  static constexpr int kHeld = Format::kBits == 4 && !Format::kHasTable ? 8 : 4;
  static_assert(kHeld <= kPartQuads || Format::kBits > 5, "both parts would be in one sum");

  const uint32_t *x, *pairs;  // the group in the first prepared row, and its pairs
  int64_t x_words;            // apart from row to row
  const uint32_t* words;      // of the weights
  ri sum[kParts][R][kRegisters], halves[R][kRegisters];

  // The sums are not set yet.
  inline GroupProducts(const uint32_t* x, const uint32_t* pairs, int64_t x_words, const uint32_t* words)
      : x(x), pairs(pairs), x_words(x_words), words(words) {}

  // Calls finish(part, row, words of 16 outputs) for each part of the group (integral constants), and each row.
  template <class Finish>
  [[gnu::always_inline]] inline void compute(const Finish& finish) {
#if !defined(TRIPTYCH_DOT_BYTES)
    if constexpr (Format::kBits > 5) return wide_quads<0>(finish);
#endif
    quads<0>(finish);
  }

 private:
  static constexpr auto kRows = std::make_integer_sequence<int, R>();

  // Quads k, k + 1 and more.
  template <int k, class Finish>
  [[gnu::always_inline]] inline void quads(const Finish& finish) {
    ri first[kRegisters], second[kRegisters];
    each_register([&](auto i) TRIPTYCH_INLINE {
      first[i] = quad_of<Format, k>(words + i * kRegisterLanes);
      second[i] = quad_of<Format, k + 1>(words + i * kRegisterLanes);
    });
    each_row<k>(first, second, finish, kRows);
    if constexpr (k + 2 < kGroupQuads) quads<k + 2>(finish);
  }
  template <int k, class Finish, int... r>
  [[gnu::always_inline]] inline void each_row(const ri (&first)[kRegisters], const ri (&second)[kRegisters], const Finish& finish,
                                              std::integer_sequence<int, r...>) {
    (row<k, r>(first, second, finish), ...);
  }
  template <int k, int r, class Finish>
  [[gnu::always_inline]] inline void row(const ri (&first)[kRegisters], const ri (&second)[kRegisters], const Finish& finish) {
    constexpr int part = k / kPartQuads;
    const uint32_t* at = x + r * x_words + k;
    if constexpr (k % kPartQuads == 0) {
      const ri offset = offset_of(*(const PreparedGroup*)(x + r * x_words), part);
      each_register([&](auto i) TRIPTYCH_INLINE { sum[part][r][i] = offset; });
    }
#if defined(TRIPTYCH_DOT_BYTES)
    const ri low = splat_word(at[0]), high = splat_word(at[1]);
    each_register([&](auto i) TRIPTYCH_INLINE {
      ri& own = sum[part][r][i];
      own = TRIPTYCH_DOT_BYTES(TRIPTYCH_DOT_BYTES(own, first[i], low), second[i], high);
      settle(own);
    });
#else
    if constexpr (k % kHeld == 0) each_register([&](auto i) TRIPTYCH_INLINE { halves[r][i] = ri{}; });
    add_byte_products(at, first, second, halves[r]);
    if constexpr (k % kHeld == kHeld - 2) {
      each_register([&](auto i) TRIPTYCH_INLINE {
        sum[part][r][i] = add_words(sum[part][r][i], multiply_halves(halves[r][i], splat_word(0x00010001)));
      });
    }
#endif
    if constexpr (k + 2 == kGroupQuads) {
      add_largest(r);
      finish(std::integral_constant<int, 0>(), std::integral_constant<int, r>(), sum[0][r]);
      if constexpr (kParts > 1) finish(std::integral_constant<int, 1>(), std::integral_constant<int, r>(), sum[kParts - 1][r]);
    }
  }

  // The products with the largest input of the group. They come last: memory is read fastest in order, and this reads any of the words.
  [[gnu::always_inline]] inline void add_largest(int r) {
    const PreparedGroup& input = *(const PreparedGroup*)(x + r * x_words);
    each_register([&](auto i) TRIPTYCH_INLINE {
      const ri value = value_of_largest<Format>(words + i * kRegisterLanes, input);
      sum[0][r][i] = add_product(sum[0][r][i], value, splat_word(uint32_t(kParts == 1 ? input.largest : input.largest_of[0])));
      if constexpr (kParts > 1) sum[1][r][i] = add_product(sum[1][r][i], value, splat_word(uint32_t(input.largest_of[1])));
    });
  }
  [[gnu::always_inline]] static inline ri offset_of(const PreparedGroup& input, int part) {
    if constexpr (!kHasOffset) return ri{};
    const ri first = splat_word(uint32_t(input.minus_first)), all = splat_word(uint32_t(input.minus_sum));
    return shift_left<Format::kBits - 1>(kParts == 1 ? all : part == 0 ? first : (ri)((ru)all - (ru)first));
  }

#if !defined(TRIPTYCH_DOT_BYTES)
  // Quad k and more, of weights and inputs of 16 bits. Pairs have the largest input, too.
  template <int k, class Finish>
  [[gnu::always_inline]] inline void wide_quads(const Finish& finish) {
    constexpr uint32_t offset = kHasOffset ? 0x00010001 << (Format::kBits - 1) : 0;
    ri even[kRegisters], odd[kRegisters];
    each_register([&](auto i) TRIPTYCH_INLINE {
      const ri all = quad_of<Format, k>(words + i * kRegisterLanes), mask = splat_word(0x00ff00ff);
      even[i] = subtract_halves(and_of(all, mask), splat_word(offset));
      odd[i] = subtract_halves(and_of(shift_right<8>(all), mask), splat_word(offset));
    });
    each_wide_row<k>(even, odd, finish, kRows);
    if constexpr (k + 1 < kGroupQuads) wide_quads<k + 1>(finish);
  }
  template <int k, class Finish, int... r>
  [[gnu::always_inline]] inline void each_wide_row(const ri (&even)[kRegisters], const ri (&odd)[kRegisters], const Finish& finish,
                                                   std::integer_sequence<int, r...>) {
    (wide_row<k, r>(even, odd, finish), ...);
  }
  template <int k, int r, class Finish>
  [[gnu::always_inline]] inline void wide_row(const ri (&even)[kRegisters], const ri (&odd)[kRegisters], const Finish& finish) {
    constexpr int part = k / kPartQuads;
    const uint32_t* at = pairs + r * x_words;
    const ri first = splat_word(at[2 * k]), second = splat_word(at[2 * k + 1]);
    each_register([&](auto i) TRIPTYCH_INLINE {
      ri& own = sum[part][r][i];
      const ri products = add_words(multiply_halves(even[i], first), multiply_halves(odd[i], second));
      own = k % kPartQuads == 0 ? products : add_words(own, products);
      settle(own);
    });
    if constexpr ((k + 1) % kPartQuads == 0) finish(std::integral_constant<int, part>(), std::integral_constant<int, r>(), sum[part][r]);
  }
#endif
};

}  // namespace triptych

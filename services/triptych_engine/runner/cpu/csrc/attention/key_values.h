// Values that are in the keys, as in latent attention (MLA): in a block, keys are transposed, and products need values by slots. So the
// values of a key tile are transposed once for all rows, some components at a time.
#pragma once

#include "attention/attention_tile.h"

namespace triptych {

// Words of two vectors, alternately, of their first or their second halves.
template <bool kSecond>
inline vu interleaved(vu a, vu b) {
#if defined(__clang__) || __GNUC__ >= 12
  if constexpr (kSecond) return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  else return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
#else
  if constexpr (kSecond) return __builtin_shuffle(a, b, vu{8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31});
  else return __builtin_shuffle(a, b, vu{0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23});
#endif
}

// The even or the odd words of two vectors.
template <bool kOdd>
inline vu every_second(vu a, vu b) {
#if defined(__clang__) || __GNUC__ >= 12
  if constexpr (kOdd) return __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  else return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
#else
  if constexpr (kOdd) return __builtin_shuffle(a, b, vu{1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31});
  else return __builtin_shuffle(a, b, vu{0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30});
#endif
}

// Transposes 16 x 16 words: each round makes the highest bit of a row's number the lowest bit of a column's.
inline void transpose(vu (&rows)[kLanes]) {
  for (int round = 0; round < 4; round++) {
    vu next[kLanes];
#pragma GCC unroll 8
    for (int i = 0; i < kLanes / 2; i++) {
      next[2 * i] = interleaved<false>(rows[i], rows[i + kLanes / 2]);
      next[2 * i + 1] = interleaved<true>(rows[i], rows[i + kLanes / 2]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; i++) rows[i] = next[i];
  }
}

// The components c to c + 16 of the values of 16 slots, widened: row j of `to`, stride numbers apart, is slot j's.
template <class T>
inline void values_of_keys(const T* keys, int64_t c, int block_size, float* to, int64_t stride) {
  vu rows[kLanes];
  for (int d = 0; d < kLanes; d += kPerWord<T>) {
    vf parts[kPerWord<T>];
    load_keys(keys, c + d, block_size, parts);
    for (int p = 0; p < kPerWord<T>; p++) rows[d + p] = (vu)parts[p];
  }
  transpose(rows);
  for (int j = 0; j < kLanes; j++) store(to + j * stride, (vf)rows[j]);
}

#if defined(TRIPTYCH_BF16_DOT)

// The low halves of all words, then the high ones.
inline vu halves_apart(vu words) {
#if defined(__AVX512F__)
  const auto order = _mm512_set_epi16(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1, 30, 28, 26, 24, 22, 20, 18, 16, 14, 12,
                                      10, 8, 6, 4, 2, 0);
  return (vu)_mm512_permutexvar_epi16(order, (__m512i)words);
#else  // in tests, which emulate the instructions
  uint16_t from[2 * kLanes], to[2 * kLanes];
  std::memcpy(from, &words, sizeof from);
  for (int i = 0; i < 2 * kLanes; i++) to[i] = from[i % kLanes * 2 + i / kLanes];
  return load((const uint32_t*)to);
#endif
}

// The same in bfloat16: row j of `to`, stride words apart, is that of slots 2 j and 2 j + 1, whose numbers are paired. `valid` of the 16
// slots hold numbers; for the others, zeros are written.
inline void value_pairs_of_keys(const bf16* keys, int64_t c, int block_size, int valid, uint32_t* to, int64_t stride) {
  constexpr int kPairs = kLanes / 2;
  vu rows[kPairs];  // words 0 to 7: pairs of slots of a component, 8 to 15: of the next one
#pragma GCC unroll 8
  for (int i = 0; i < kPairs; i++) rows[i] = halves_apart(load((const uint32_t*)keys + (c / 2 + i) * block_size));
#pragma GCC unroll 3
  for (int round = 0; round < 3; round++) {  // each makes the lowest bit of a column's number the highest bit of a row's
    vu next[kPairs];
#pragma GCC unroll 4
    for (int i = 0; i < kPairs / 2; i++) {
      next[i] = every_second<false>(rows[2 * i], rows[2 * i + 1]);
      next[i + kPairs / 2] = every_second<true>(rows[2 * i], rows[2 * i + 1]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < kPairs; i++) rows[i] = next[i];
  }
#pragma GCC unroll 8
  for (int j = 0; j < kPairs; j++) {
    const int held = valid - 2 * j;
    const vu row = held >= 2 ? rows[j] : held == 1 ? rows[j] & 0xffffu : vu{};
    std::memcpy(to + j * stride, &row, sizeof row);
  }
}

#endif

}  // namespace triptych

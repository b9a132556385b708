// Quantised weights widened to bfloat16, in pairs of inputs as bfloat16 instructions read them.
//
// Like linear_quant.cpp, it is compiled without contraction of products and sums.
#pragma once

#include <utility>

#include "bf16_instructions.h"
#include "linear/quant_bytes.h"
#include "linear/quant_dot.h"

#if defined(TRIPTYCH_BF16_DOT)

namespace triptych {
namespace {

// (x & mask) | more.
inline ri masked_or(ri x, uint32_t mask, ri more) {
#if defined(__AVX512F__)
  return _mm512_ternarylogic_epi32(x, splat_word(mask), more, 0xea);
#else
  return or_of(and_of(x, splat_word(mask)), more);
#endif
}

template <int kBy>
inline ri shift(ri x) {
  if constexpr (kBy < 0) return shift_right<-kBy>(x);
  else return shift_left<kBy>(x);
}

// Numbers are cut to bfloat16, not rounded, which takes half of the instructions. Cut off is half of 2^-7 on average, of numbers from 1
// to 2; scales are larger by as much. So errors are as large as those of rounding, and their mean is next to zero.
constexpr float kCut = 1 + 0.6875f / 256;

inline void store_pairs(const rf (&low)[kRegisters], const rf (&high)[kRegisters], uint32_t* to) {
#pragma GCC unroll 4
  for (int i = 0; i < kRegisters; i++) {
    const ri words = masked_or((ri)high[i], 0xffff0000u, shift_right<16>((ri)low[i]));
    std::memcpy(to + i * kRegisterLanes, &words, sizeof words);
  }
}

// A value becomes bits of a mantissa, from one of these places on: so no integer is converted, and hardly one is shifted. With bits from
// place p on, the number is 1 + value * 2^(p - 23). In fp32, the scale's multiple that this adds leaves an error of up to 2^-9 of a step
// between two values: also of a weight that is zero.
constexpr int kPlaces = 3, kFirstPlace = 8;  // 8, 12, 16

struct Mantissas {
  rf scale[kPlaces][kRegisters], minimum[kPlaces][kRegisters];

  explicit inline Mantissas(const ScaleAndMinimum& weights) {
#pragma GCC unroll 4
    for (int n = 0; n < kPlaces; n++)
#pragma GCC unroll 4
      for (int i = 0; i < kRegisters; i++) {
        scale[n][i] = weights.scale[i] * (kCut * float(1 << (23 - kFirstPlace - 4 * n)));
        minimum[n][i] = weights.minimum[i] * kCut - scale[n][i];
      }
  }
  template <int kPlace>
  inline rf weight(ri bits, int i) const {
    constexpr int n = (kPlace - kFirstPlace) / 4;
    return fma((rf)bits, scale[n][i], minimum[n][i]);
  }
};

// Whether quads are bytes in registers; else words have the low four bits of two quads.
template <class Format>
constexpr bool kHasBytes = Format::kBits == 8 || Format::kHasTable;

// The weights of 16 outputs for byte b of quad k of a group, from one register of the word that has its low four bits, or all eight.
template <class Format, int k, int b>
inline rf weight_of(ri x, const uint32_t* high, const Mantissas& mantissas, int i) {
  const ri one = splat_word(0x3f800000);
  if constexpr (kHasBytes<Format>) {
    return mantissas.weight<8>(masked_or(shift<8 - 8 * b>(x), 0xff00, one), i);
  } else {
    constexpr int kFrom = 8 * b + 4 * (k % 2), kBy = kFrom < 8 ? 12 : kFrom < 20 ? 0 : -12, kPlace = kFrom + kBy;
    ri bits = masked_or(shift<kBy>(x), 0xfu << kPlace, one);
    if constexpr (Format::kBits == 5) {
      bits = masked_or(shift<kPlace + 4 - 8 * b - k>(load_words(high)), 1u << (kPlace + 4), bits);
    } else if constexpr (Format::kBits == 6) {
      bits = masked_or(shift<kPlace + 4 - 8 * b - 2 * (k % 4)>(load_words(high + k / 4 * kQuantPanel)), 3u << (kPlace + 4), bits);
    }
    return mantissas.weight<kPlace>(bits, i);
  }
}

// A quad's weights in pairs of inputs, `stride` words from one pair to the next.
template <class Format, int k>
inline void quad_in_pairs(const ri (&x)[kRegisters], const uint32_t* group, const Mantissas& mantissas, uint32_t* pairs, int64_t stride) {
  rf wide[4][kRegisters];
#pragma GCC unroll 4
  for (int i = 0; i < kRegisters; i++) {
    const uint32_t* high = group + Format::kLowWords * kQuantPanel + i * kRegisterLanes;
    wide[0][i] = weight_of<Format, k, 0>(x[i], high, mantissas, i), wide[1][i] = weight_of<Format, k, 1>(x[i], high, mantissas, i);
    wide[2][i] = weight_of<Format, k, 2>(x[i], high, mantissas, i), wide[3][i] = weight_of<Format, k, 3>(x[i], high, mantissas, i);
  }
  store_pairs(wide[0], wide[1], pairs + 2 * k * stride);
  store_pairs(wide[2], wide[3], pairs + (2 * k + 1) * stride);
}

// Two quads, which share a word if their values have less than eight bits.
template <class Format, int k>
inline void two_quads_in_pairs(const uint32_t* group, const Mantissas& mantissas, uint32_t* pairs, int64_t stride) {
  ri x[kRegisters];
#pragma GCC unroll 4
  for (int i = 0; i < kRegisters; i++) {
    if constexpr (kHasBytes<Format>) x[i] = quad_of<Format, k>(group + i * kRegisterLanes);
    else x[i] = load_words(group + k / 2 * kQuantPanel + i * kRegisterLanes);
  }
  quad_in_pairs<Format, k>(x, group, mantissas, pairs, stride);
#pragma GCC unroll 4
  for (int i = 0; kHasBytes<Format> && i < kRegisters; i++) x[i] = quad_of<Format, k + 1>(group + i * kRegisterLanes);
  quad_in_pairs<Format, k + 1>(x, group, mantissas, pairs, stride);
}

template <class Format, int kPart, int... i>
inline void part_in_pairs(const uint32_t* group, const ScaleAndMinimum& header, uint32_t* pairs, int64_t stride,
                          std::integer_sequence<int, i...>) {
  ScaleAndMinimum own;
  const Mantissas mantissas(scales_at<Format>(header, group, kPart, own));
  (two_quads_in_pairs<Format, 2 * (kPart * int(sizeof...(i)) + i)>(group, mantissas, pairs, stride), ...);
}

// The weights of 16 outputs for two inputs, as `widen_floats` makes them.
inline void widen_two_floats(const uint8_t* values, const rf (&scale)[kRegisters], rf (&low)[kRegisters], rf (&high)[kRegisters]) {
#if defined(__AVX512BW__)
  const __m512i wide = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i*)values));
  const __m512i magnitude = _mm512_and_si512(_mm512_slli_epi16(wide, 7), _mm512_set1_epi16(0x3f80));
  const __m512i halves = _mm512_ternarylogic_epi32(_mm512_slli_epi16(wide, 8), _mm512_set1_epi16(int16_t(0x8000)), magnitude, 0xea);
  low[0] = (rf)_mm512_cvtph_ps(_mm512_castsi512_si256(halves)) * scale[0];
  high[0] = (rf)_mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1)) * scale[0];
#else
  widen_floats(values, scale, low);
  widen_floats(values + kQuantPanel, scale, high);
#endif
}

template <class Format>
inline void group_in_pairs(const uint32_t* panel, int64_t g, uint32_t* pairs, int64_t stride) {
  if constexpr (Format::kIsFloat) {
    const ByteGroup<Format> group(panel, g);
    const uint8_t* values = (const uint8_t*)group.words;
    rf scale[kRegisters], low[kRegisters], high[kRegisters];
    for (int i = 0; i < kRegisters; i++) scale[i] = group.header.scale[i] * kCut;
#pragma GCC unroll 4
    for (int64_t n = 0; n < kQuantGroup; n += 2) {
      widen_two_floats(values + n * kQuantPanel, scale, low, high);
      store_pairs(low, high, pairs + n / 2 * stride);
    }
  } else {
    const uint32_t* block = panel + g / Format::kGroups * Format::kBlockWords;
    const uint32_t* group = block + Format::kHeaderWords + g % Format::kGroups * Format::kGroupWords;
    ScaleAndMinimum header;
    read_header<Format>(block, header);
    constexpr auto halves = std::make_integer_sequence<int, kGroupQuads / 2 / Format::kParts>();
    part_in_pairs<Format, 0>(group, header, pairs, stride, halves);
    if constexpr (Format::kParts == 2) part_in_pairs<Format, 1>(group, header, pairs, stride, halves);
  }
}

}  // namespace
}  // namespace triptych

#endif

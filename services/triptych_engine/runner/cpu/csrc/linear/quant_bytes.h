// Weights of 8 bits as fp32: integers, and floats (e4m3: a sign, 4 bits of exponent, 3 of mantissa, no infinities). Inputs of products
// with floats are not rounded.
//
// Like linear_quant.cpp, it is compiled without contraction of products and sums.
#pragma once

#include "linear/quant_scales.h"
#include "prefetch.h"
#include "sums.h"

namespace triptych {
namespace {

// The floats of 16 outputs for one input. As fp16, e4m3 has the same bits in other places, and 2^-8 of its value: the difference of
// the exponents' biases. Its subnormal numbers are those of fp16, too.
[[gnu::always_inline]] inline void widen_floats(const uint8_t* values, const rf (&scale)[kRegisters], rf (&weight)[kRegisters]) {
#if defined(__AVX2__)
  const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)values));  // bit 14 is the sign, too
  const __m256i halves = _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16(int16_t(0xbf80)));
#if defined(__AVX512F__)
  weight[0] = (rf)_mm512_cvtph_ps(halves);
#else
  weight[0] = (rf)_mm256_cvtph_ps(_mm256_castsi256_si128(halves));
  weight[1] = (rf)_mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
#endif
#else
  uint16_t halves[kQuantPanel];
  for (int i = 0; i < kQuantPanel; i++) halves[i] = uint16_t((values[i] & 0x7f) << 7 | (values[i] & 0x80) << 8);
  for (int i = 0; i < kRegisters; i++) weight[i] = halves_at((const uint32_t*)halves, i);
#endif
#pragma GCC unroll 4
  for (int i = 0; i < kRegisters; i++) weight[i] *= scale[i];
}

// A group of inputs in a panel.
template <class Format>
struct ByteGroup {
  static_assert(Format::kBits == 8 && Format::kScales == 0);
  const uint32_t* words;
  ScaleAndMinimum header;  // floats have no minimum

  inline ByteGroup(const uint32_t* panel, int64_t g) {
    const uint32_t* block = panel + g / Format::kGroups * Format::kBlockWords;
    words = block + Format::kHeaderWords + g % Format::kGroups * Format::kGroupWords;
    if constexpr (Format::kIsFloat) {
#pragma GCC unroll 4
      for (int i = 0; i < kRegisters; i++) header.scale[i] = load_floats((const float*)block + i * kRegisterLanes);
    } else {
      read_header<Format>(block, header);
    }
  }
  // The weights of 16 outputs for byte b of quad k.
  template <int b>
  [[gnu::always_inline]] inline void widen(int64_t k, rf (&weight)[kRegisters]) const {
    if constexpr (Format::kIsFloat) return widen_floats((const uint8_t*)words + (4 * k + b) * kQuantPanel, header.scale, weight);
#pragma GCC unroll 4
    for (int i = 0; i < kRegisters; i++) {
      const ri quad = load_words(words + k * kQuantPanel + i * kRegisterLanes);
      const rs value = (rs)and_of(shift_right<8 * b>(quad), splat_word(0xff));
      weight[i] = to_floats(value) * header.scale[i] + header.minimum[i];
    }
  }
};

// R rows of inputs in fp32 times one panel of floats. The same sums in the same order as exact_tile's, without storing the widened weights.
template <class Format, int R>
[[gnu::noinline]] void float_tile(const float* x, int64_t x_stride, int64_t in, const QuantPanel& panel, const float* bias, Prefetch& next,
                                  float* out, int64_t out_stride) {
  Sums<R, kRegisters> sums;
  sums.begin(bias, 0);
  for (int64_t g = 0; g < num_quant_groups(in); g++) {
    if (R >= kFewRows) next.step();
    const ByteGroup<Format> group(panel.data, g);
    const uint8_t* values = (const uint8_t*)group.words;
    const int64_t begin = g * kQuantGroup, end = std::min(begin + kQuantGroup, in);
    for (int64_t n = begin; n < end; n++, values += kQuantPanel) {
      rf weight[kRegisters];
      widen_floats(values, group.header.scale, weight);
      sums.add_input(x + n, x_stride, weight);
    }
  }
  sums.end(out, out_stride, panel.columns);
}

}  // namespace
}  // namespace triptych

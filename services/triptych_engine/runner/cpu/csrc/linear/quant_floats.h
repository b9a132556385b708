// Weights that are floats of 8 bits (e4m3: a sign, 4 bits of exponent, 3 of mantissa, no infinities). Inputs of their products are not
// rounded.
//
// Like linear_quant.cpp, it is compiled without contraction of products and sums.
#pragma once

#include "linear/quant_sums.h"

namespace triptych {
namespace {

// The weights of 16 outputs for one input. As fp16, e4m3 has the same bits in other places, and 2^-8 of its value: the difference of
// the exponents' biases. Its subnormal numbers are those of fp16, too.
inline void widen_floats(const uint8_t* values, const rf (&scale)[kRegisters], rf (&weight)[kRegisters]) {
#if defined(__AVX2__)
  const __m256i wide = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i*)values));
  const __m256i magnitude = _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16(0x3f80));
  const __m256i halves = _mm256_or_si256(magnitude, _mm256_slli_epi16(_mm256_srli_epi16(wide, 7), 15));
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

// The values of a group of inputs in a panel, and the scales of its block.
template <class Format>
inline const uint8_t* floats_at(const uint32_t* panel, int64_t g, rf (&scale)[kRegisters]) {
  const uint32_t* block = panel + g / Format::kGroups * Format::kBlockWords;
#pragma GCC unroll 4
  for (int i = 0; i < kRegisters; i++) scale[i] = load_floats((const float*)block + i * kRegisterLanes);
  return (const uint8_t*)(block + Format::kHeaderWords + g % Format::kGroups * Format::kGroupWords);
}

// R rows of inputs in fp32 times one panel. The same sums in the same order as exact_tile's, without storing the widened weights.
template <class Format, int R>
inline void float_tile(const float* x, int64_t x_stride, int64_t in, const QuantPanel& panel, const float* bias, float* out,
                       int64_t out_stride) {
  Sums<R> sums;
  sums.begin();
  if (bias) sums.add(bias);
  for (int64_t g = 0; g < num_quant_groups(in); g++) {
    rf scale[kRegisters];
    const uint8_t* values = floats_at<Format>(panel.data, g, scale);
    const int64_t begin = g * kQuantGroup, size = std::min(kQuantGroup, in - begin);
    for (int64_t n = 0; n < size; n++) {
      rf weight[kRegisters];
      widen_floats(values + n * kQuantPanel, scale, weight);
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) {
        const rf input = splat<rf>(x[r * x_stride + begin + n]);
#pragma GCC unroll 4
        for (int i = 0; i < kRegisters; i++) sums.of[r][i] = fma(input, weight[i], sums.of[r][i]);
      }
    }
  }
  sums.end(panel, out, out_stride);
}

}  // namespace
}  // namespace triptych

// Products of inputs that are not rounded with quantised weights, as fp32.
//
// Like linear_quant.cpp, it is compiled without contraction of products and sums.
#pragma once

#include "linear/quant_floats.h"

namespace triptych {
namespace {

// The weights of a panel's outputs for one group of inputs, as fp32.
template <class Format>
inline void widen_group(const uint32_t* panel, int64_t g, float (*wide)[kQuantPanel]) {
  if constexpr (Format::kIsFloat) {
    rf scale[kRegisters], weight[kRegisters];
    const uint8_t* values = floats_at<Format>(panel, g, scale);
    for (int64_t n = 0; n < kQuantGroup; n++) {
      widen_floats(values + n * kQuantPanel, scale, weight);
      std::memcpy(wide[n], weight, sizeof weight);
    }
    return;
  }
  const uint32_t* block = panel + g / Format::kGroups * Format::kBlockWords;
  const uint32_t* group = block + Format::kHeaderWords + g % Format::kGroups * Format::kGroupWords;
  ScaleAndMinimum header;
  read_header<Format>(block, header);
  constexpr int kSize = kQuantGroup / Format::kParts;
  for (int part = 0; part < Format::kParts; part++) {
    ScaleAndMinimum own;
    const ScaleAndMinimum& weights = scales_at<Format>(header, group, part, own);
    for (int64_t n = part * kSize; n < (part + 1) * kSize; n++) {
      int32_t q[kQuantPanel];
      const vu values = values_at<Format>(group, int(n / 4), int(n % 4));
      std::memcpy(q, &values, sizeof q);
      for (int i = 0; Format::kHasTable && i < kRegisters; i++) {
        const ri entries = and_of(look_up(kTableValues, load_words((const uint32_t*)q + i * kRegisterLanes)), splat_word(0xff));
        std::memcpy(q + i * kRegisterLanes, &entries, sizeof entries);
      }
      for (int i = 0; i < kRegisters; i++) {
        rs some;
        std::memcpy(&some, q + i * kRegisterLanes, sizeof some);
        const rf weight = to_floats(some) * weights.scale[i] + weights.minimum[i];
        std::memcpy(wide[n] + i * kRegisterLanes, &weight, sizeof weight);
      }
    }
  }
}

// sums += R rows of some inputs, in fp32, times their weights. sums: [R][kQuantPanel].
template <int R>
inline void add_exact(const float* x, int64_t x_stride, int64_t size, const float (*wide)[kQuantPanel], float* sums) {
  Sums<R> some;
  std::memcpy(some.of, sums, sizeof some.of);
  for (int64_t n = 0; n < size; n++) {
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
      for (int i = 0; i < kRegisters; i++) {
        some.of[r][i] = fma(splat<rf>(x[r * x_stride + n]), load_floats(wide[n] + i * kRegisterLanes), some.of[r][i]);
      }
  }
  std::memcpy(sums, some.of, sizeof some.of);
}

// The same for any number of rows, R at a time, and those that are left.
template <int R>
inline void add_exact_rows(const float* x, int64_t x_stride, int64_t rows, int64_t size, const float (*wide)[kQuantPanel], float* sums) {
  for (; rows >= R; rows -= R, x += R * x_stride, sums += R * kQuantPanel) add_exact<R>(x, x_stride, size, wide, sums);
  if constexpr (R > 1) {
    if (rows) add_exact_rows<R - 1>(x, x_stride, rows, size, wide, sums);
  }
}

// Rows of inputs in fp32 times one panel. The weights of some groups are widened once for all rows: 48 kB of the L2 cache. Fewer would fit
// in the L1 cache, but sums are loaded and stored again for each part.
constexpr int64_t kExactRows = 96, kExactGroups = 24;

template <class Format>
void exact_tile(const float* x, int64_t x_stride, int64_t rows, int64_t in, const QuantPanel& panel, const float* bias, float* out,
                int64_t out_stride) {
  alignas(64) float sums[kExactRows][kQuantPanel], wide[kExactGroups * kQuantGroup][kQuantPanel];
  for (int64_t r = 0; r < rows; r++) {
    if (bias) std::memcpy(sums[r], bias, sizeof sums[r]);
    else std::memset(sums[r], 0, sizeof sums[r]);
  }
  for (int64_t first = 0; first < num_quant_groups(in); first += kExactGroups) {
    const int64_t groups = std::min(kExactGroups, num_quant_groups(in) - first);
    for (int64_t g = 0; g < groups; g++) widen_group<Format>(panel.data, first + g, wide + g * kQuantGroup);
    const int64_t begin = first * kQuantGroup, size = std::min(groups * kQuantGroup, in - begin);
    add_exact_rows<kFloatRows>(x + begin, x_stride, rows, size, wide, sums[0]);
  }
  for (int64_t r = 0; r < rows; r++) std::memcpy(out + r * out_stride, sums[r], panel.columns * sizeof(float));
}

// At most R rows in fp32 times one panel of floats, which are widened in registers.
template <class Format, int R>
inline void few_float_rows(const float* x, int64_t x_stride, int64_t rows, int64_t in, const QuantPanel& panel, const float* bias,
                           float* out, int64_t out_stride) {
  if (rows == R) return float_tile<Format, R>(x, x_stride, in, panel, bias, out, out_stride);
  if constexpr (R > 1) few_float_rows<Format, R - 1>(x, x_stride, rows, in, panel, bias, out, out_stride);
}

// Any number of rows. The weights of many are widened into memory, once for all of them.
template <class Format>
inline void float_tiles(const float* x, int64_t x_stride, int64_t rows, int64_t in, const QuantPanel& panel, const float* bias, float* out,
                        int64_t out_stride) {
  for (; rows > kFloatRows; rows -= kExactRows, x += kExactRows * x_stride, out += kExactRows * out_stride) {
    exact_tile<Format>(x, x_stride, std::min(kExactRows, rows), in, panel, bias, out, out_stride);
  }
  few_float_rows<Format, kFloatRows>(x, x_stride, rows, in, panel, bias, out, out_stride);
}

// Writes the weights of one output, of all inputs, as fp32.
template <class Format>
void unpack_output(const uint32_t* panel, int64_t lane, int64_t in, float* out) {
  for (int64_t g = 0; g < num_quant_groups(in); g++) {
    float wide[kQuantGroup][kQuantPanel];
    widen_group<Format>(panel, g, wide);
    for (int64_t n = 0; n < std::min(kQuantGroup, in - g * kQuantGroup); n++) out[g * kQuantGroup + n] = wide[n][lane];
  }
}

}  // namespace
}  // namespace triptych

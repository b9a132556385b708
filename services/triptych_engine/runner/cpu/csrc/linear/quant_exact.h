// Products of inputs that are not rounded with quantised weights, as fp32.
//
// Like linear_quant.cpp, it is compiled without contraction of products and sums.
#pragma once

#include "linear/quant_bytes.h"

namespace triptych {
namespace {

// Rows that share a pass over widened weights: their sums, these and an input fit in the registers.
#if defined(__AVX512F__)
constexpr int kFloatRows = 12;
#else
constexpr int kFloatRows = 6;
#endif

// The weights of a panel's outputs for one group of inputs, as fp32.
template <class Format>
inline void widen_group(const uint32_t* panel, int64_t g, float (*wide)[kQuantPanel]) {
  if constexpr (Format::kBits == 8) {
    rf weight[kRegisters];
    const ByteGroup<Format> group(panel, g);
    for (int64_t k = 0; k < kGroupQuads; k++, wide += 4) {
      group.template widen<0>(k, weight), std::memcpy(wide[0], weight, sizeof weight);
      group.template widen<1>(k, weight), std::memcpy(wide[1], weight, sizeof weight);
      group.template widen<2>(k, weight), std::memcpy(wide[2], weight, sizeof weight);
      group.template widen<3>(k, weight), std::memcpy(wide[3], weight, sizeof weight);
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
[[gnu::noinline]] void add_exact(const float* x, int64_t x_stride, int64_t size, const float (*wide)[kQuantPanel], float* sums) {
  Sums<R, kRegisters> some;
  some.begin(sums, kQuantPanel);
  for (int64_t n = 0; n < size; n++) {
    rf weight[kRegisters];
    load_row(wide[n], weight);
    some.add_input(x + n, x_stride, weight);
  }
  some.end(sums, kQuantPanel);
}

// Rows of inputs in fp32 times one panel. The weights of some groups are widened once for all rows: 48 kB of the L2 cache. Fewer would fit
// in the L1 cache, but sums are loaded and stored again for each part.
constexpr int64_t kExactRows = 96, kExactGroups = 24;

template <class Format>
void exact_tile(const float* x, int64_t x_stride, int64_t rows, int64_t in, const QuantPanel& panel, const float* bias, Prefetch& next,
                float* out, int64_t out_stride) {
  alignas(64) float sums[kExactRows][kQuantPanel], wide[kExactGroups * kQuantGroup][kQuantPanel];
  for (int64_t r = 0; r < rows; r++) {
    if (bias) std::memcpy(sums[r], bias, sizeof sums[r]);
    else std::memset(sums[r], 0, sizeof sums[r]);
  }
  for (int64_t first = 0; first < num_quant_groups(in); first += kExactGroups) {
    const int64_t groups = std::min(kExactGroups, num_quant_groups(in) - first);
    for (int64_t g = 0; g < groups; g++) {
      next.step();
      widen_group<Format>(panel.data, first + g, wide + g * kQuantGroup);
    }
    const int64_t begin = first * kQuantGroup, size = std::min(groups * kQuantGroup, in - begin);
    share_rows<kFloatRows>(rows, [&](auto R, int64_t r) { add_exact<R>(x + r * x_stride + begin, x_stride, size, wide, sums[r]); });
  }
  for (int64_t r = 0; r < rows; r++) std::memcpy(out + r * out_stride, sums[r], panel.columns * sizeof(float));
}

// Rows of floats that are widened in registers, at most. With AVX2, weights of more rows than two are better widened into memory, once for all of them.
#if defined(__AVX2__) && !defined(__AVX512F__)
constexpr int kFewFloatRows = 2;
#else
constexpr int kFewFloatRows = kFloatRows;
#endif

// Any number of rows.
template <class Format>
inline void float_tiles(const float* x, int64_t x_stride, int64_t rows, int64_t in, const QuantPanel& panel, const float* bias,
                        Prefetch& next, float* out, int64_t out_stride) {
  for (; rows > kFewFloatRows; rows -= kExactRows, x += kExactRows * x_stride, out += kExactRows * out_stride) {
    exact_tile<Format>(x, x_stride, std::min(kExactRows, rows), in, panel, bias, next, out, out_stride);
  }
  if (rows <= 0) return;
  with_rows<kFewFloatRows>(rows, [&](auto R) { float_tile<Format, R>(x, x_stride, in, panel, bias, next, out, out_stride); });
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

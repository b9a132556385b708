// Products with bfloat16 weights in float32 arithmetic. Every CPU can compute them. On every CPU they are best for few rows,
// because these take as long as reading the weights.
#pragma once

#include "linear/linear_panel.h"

namespace triptych {

#if defined(__AVX512F__)
constexpr int kWidenRows = 12;  // 24 accumulators, four weights and a factor in 32 registers
constexpr int kWidenAtOnce = 2;
#elif defined(__AVX2__)
constexpr int kWidenRows = 3;  // 12 accumulators, two weights and a factor in 16
constexpr int kWidenAtOnce = 1;
#elif defined(__aarch64__)
constexpr int kWidenRows = 3;  // 24 accumulators in 32
constexpr int kWidenAtOnce = 1;
#else
constexpr int kWidenRows = 1;  // 8 accumulators in 16
constexpr int kWidenAtOnce = 1;
#endif
constexpr int kPanelRegisters = kPanel / kRegisterLanes;

// R rows of x, in fp32, times one panel.
template <int R>
inline void widen_tile(const float* x, int64_t x_stride, const Panel& panel, Prefetch& next, float* out, int64_t out_stride) {
  rf sum[R][kPanelRegisters];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) {
#pragma GCC unroll 16
    for (int v = 0; v < kPanelRegisters; v++) {
      if (panel.bias) std::memcpy(&sum[r][v], panel.bias + v * kRegisterLanes, sizeof(rf));
      else sum[r][v] = rf{};
    }
  }
  int64_t d = 0;
  for (; d + 1 < panel.in; d += 2) {
    if (Prefetch::kStreams > 1 && d % (2 * kPairsPerStep) == 0) next.step();
#pragma GCC unroll 16
    for (int v = 0; v < kPanelRegisters; v += kWidenAtOnce) {
      rf first[kWidenAtOnce], second[kWidenAtOnce];
#pragma GCC unroll 16
      for (int i = 0; i < kWidenAtOnce; i++) {
        ru pair;
        std::memcpy(&pair, panel.weight + d / 2 * kPanel + (v + i) * kRegisterLanes, sizeof pair);
        first[i] = (rf)(pair << 16), second[i] = (rf)(pair & 0xffff0000u);
      }
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) {
#pragma GCC unroll 16
        for (int i = 0; i < kWidenAtOnce; i++) sum[r][v + i] += x[r * x_stride + d] * first[i];
      }
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) {
#pragma GCC unroll 16
        for (int i = 0; i < kWidenAtOnce; i++) sum[r][v + i] += x[r * x_stride + d + 1] * second[i];
      }
    }
  }
  if (d < panel.in) {  // the last input, if their number is odd
#pragma GCC unroll 16
    for (int v = 0; v < kPanelRegisters; v++) {
      ru pair;
      std::memcpy(&pair, panel.weight + d / 2 * kPanel + v * kRegisterLanes, sizeof pair);
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) sum[r][v] += x[r * x_stride + d] * (rf)(pair << 16);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) {
    float row[kPanel];
    std::memcpy(row, sum[r], sizeof row);
    store_columns(row, panel, out + r * out_stride);
  }
}

template <int R>
inline void widen_tiles(const float* x, int64_t x_stride, int64_t rows, const Panel& panel, Prefetch& next, float* out,
                        int64_t out_stride) {
  for (; rows >= R; rows -= R, x += R * x_stride, out += R * out_stride) widen_tile<R>(x, x_stride, panel, next, out, out_stride);
  if constexpr (R > 1) {
    if (rows) widen_tiles<R - 1>(x, x_stride, rows, panel, next, out, out_stride);
  }
}

// Number of inputs whose weights are widened at once for all rows: 96 kB of the L2 cache. Fewer would fit in the L1 cache, but sums
// are loaded and stored again for each part.
constexpr int64_t kWideInputs = 768;
// Smallest number of rows for which that is faster: with AVX-512 it saves a sixteenth of the time at 64 rows, an eighth at 96 and
// more; not measured elsewhere.
constexpr int64_t kWidenOnceRows = 4 * kWidenRows;

// out = sums + R rows of n inputs times their weights. x: [R, n], weight: [n, kPanel], sums: [R, kPanel] or null for zeros, and may be
// out: [R, kPanel].
template <int R>
inline void wide_tile(const float* x, int64_t x_stride, const float* weight, int64_t n, const float* sums, int64_t sums_stride,
                      float* out, int64_t out_stride) {
  rf sum[R][kPanelRegisters];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) {
#pragma GCC unroll 16
    for (int v = 0; v < kPanelRegisters; v++) {
      if (sums) std::memcpy(&sum[r][v], sums + r * sums_stride + v * kRegisterLanes, sizeof(rf));
      else sum[r][v] = rf{};
    }
  }
  for (int64_t d = 0; d < n; d++) {
#pragma GCC unroll 16
    for (int v = 0; v < kPanelRegisters; v += kWidenAtOnce) {
      rf factors[kWidenAtOnce];
      std::memcpy(factors, weight + d * kPanel + v * kRegisterLanes, sizeof factors);
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) {
#pragma GCC unroll 16
        for (int i = 0; i < kWidenAtOnce; i++) sum[r][v + i] += x[r * x_stride + d] * factors[i];
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) std::memcpy(out + r * out_stride, sum[r], sizeof sum[r]);
}

template <int R>
inline void wide_tiles(const float* x, int64_t x_stride, int64_t rows, const float* weight, int64_t n, const float* sums,
                       int64_t sums_stride, float* out, int64_t out_stride) {
  for (; rows >= R; rows -= R, x += R * x_stride, sums += sums ? R * sums_stride : 0, out += R * out_stride) {
    wide_tile<R>(x, x_stride, weight, n, sums, sums_stride, out, out_stride);
  }
  if constexpr (R > 1) {
    if (rows) wide_tiles<R - 1>(x, x_stride, rows, weight, n, sums, sums_stride, out, out_stride);
  }
}

// Like widen_tiles, for many rows and a panel without padding: weights are widened once, not for each tile.
inline void widen_once(const float* x, int64_t x_stride, int64_t rows, const Panel& panel, float* out, int64_t out_stride) {
  alignas(64) float wide[kWideInputs * kPanel];
  for (int64_t begin = 0; begin < panel.in; begin += kWideInputs) {
    const int64_t n = std::min(kWideInputs, panel.in - begin);
    for (int64_t d = 0; d < n; d += 2) {  // weights are padded to an even number of inputs
      for (int64_t v = 0; v < kPanel; v += kLanes) {
        const vu pair = load(panel.weight + (begin + d) / 2 * kPanel + v);
        store(wide + d * kPanel + v, (vf)(pair << 16));
        store(wide + (d + 1) * kPanel + v, (vf)(pair & 0xffff0000u));
      }
    }
    const float* sums = begin ? out : panel.bias;
    wide_tiles<kWidenRows>(x + begin, x_stride, rows, wide, n, sums, begin ? out_stride : 0, out, out_stride);
  }
}

}  // namespace triptych

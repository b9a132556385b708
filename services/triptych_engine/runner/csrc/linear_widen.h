// Products with bfloat16 weights in float32 arithmetic: any CPU can, and it is what few rows want anywhere, since these cost the time
// in which the weights are read.
#pragma once

#include "linear_panel.h"

namespace triptych {

// Vectors of one register: what stays in registers must be told apart from what does not, vector by vector.
#if defined(__AVX512F__)
constexpr int kRegisterLanes = 16;
constexpr int kWidenRows = 12;  // 24 accumulators, four weights and a factor in 32 registers
constexpr int kWidenAtOnce = 2;
#elif defined(__AVX2__)
constexpr int kRegisterLanes = 8;
constexpr int kWidenRows = 3;  // 12 accumulators, two weights and a factor in 16
constexpr int kWidenAtOnce = 1;
#elif defined(__aarch64__)
constexpr int kRegisterLanes = 4;
constexpr int kWidenRows = 3;  // 24 accumulators in 32
constexpr int kWidenAtOnce = 1;
#else
constexpr int kRegisterLanes = 4;
constexpr int kWidenRows = 1;  // 8 accumulators in 16
constexpr int kWidenAtOnce = 1;
#endif
constexpr int kPanelRegisters = kPanel / kRegisterLanes;

typedef float rf __attribute__((vector_size(kRegisterLanes * 4)));
typedef uint32_t ru __attribute__((vector_size(kRegisterLanes * 4)));

// R rows of x, in fp32, times one panel.
template <int R>
inline void widen_tile(const float* x, int64_t x_stride, const Panel& panel, float* out, int64_t out_stride) {
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
  if (d < panel.in) {  // the last of an odd number
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
inline void widen_tiles(const float* x, int64_t x_stride, int64_t rows, const Panel& panel, float* out, int64_t out_stride) {
  for (; rows >= R; rows -= R, x += R * x_stride, out += R * out_stride) widen_tile<R>(x, x_stride, panel, out, out_stride);
  if constexpr (R > 1) {
    if (rows) widen_tiles<R - 1>(x, x_stride, rows, panel, out, out_stride);
  }
}

}  // namespace triptych

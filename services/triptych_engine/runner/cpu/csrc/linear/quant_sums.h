// Sums of products with quantised weights.
//
// Like linear_quant.cpp, it is compiled without contraction of products and sums.
#pragma once

#include "linear/quant_scales.h"

namespace triptych {
namespace {

// Rows that share a pass over a panel. Their sums, two weights and an input fit in the registers.
#if defined(__AVX512F__)
constexpr int kQuantRows = 8;
#else
constexpr int kQuantRows = 4;
#endif

// The same for products in fp32, which need fewer registers beside the sums.
#if defined(__AVX512F__)
constexpr int kFloatRows = 12;
#else
constexpr int kFloatRows = 6;
#endif

// The sums of R rows and a panel's outputs.
template <int R>
struct Sums {
  rf of[R][kRegisters];

  inline void begin() {
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
      for (int i = 0; i < kRegisters; i++) of[r][i] = rf{};
  }
  inline void add(const float* bias) {
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
      for (int i = 0; i < kRegisters; i++) of[r][i] += load_floats(bias + i * kRegisterLanes);
  }
  inline void end(const QuantPanel& panel, float* out, int64_t out_stride) const {
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      if (panel.columns == kQuantPanel) std::memcpy(out + r * out_stride, of[r], sizeof of[r]);
      else std::memcpy(out + r * out_stride, of[r], panel.columns * sizeof(float));
    }
  }
};

}  // namespace
}  // namespace triptych

// Linear layers whose weights are bfloat16 and whose arithmetic is float32, for CPUs that multiply no bfloat16 themselves: half the
// memory traffic of float32 weights, which is what a few rows cost, and the full rate of float32 products for many.

#include "linear.h"

using namespace triptych;

extern "C" {

// Outputs per panel of a packed weight.
int32_t triptych_linear_panel() { return int32_t(kPanel); }

// packed: [ceil(out / panel), in, panel / 2] words, see above; missing outputs are zero. weight: [out, in] bf16, dense.
void triptych_linear_pack(const uint16_t* weight, uint32_t* packed, int64_t out_features, int64_t in_features) {
  const int64_t num_panels = (out_features + kPanel - 1) / kPanel;
#pragma omp parallel for schedule(static)
  for (int64_t p = 0; p < num_panels; p++) {
    for (int64_t d = 0; d < in_features; d++) {
      for (int64_t j = 0; j < kLanes; j++) {
        const int64_t low = p * kPanel + j, high = low + kLanes;
        const uint32_t first = low < out_features ? weight[low * in_features + d] : 0;
        const uint32_t second = high < out_features ? weight[high * in_features + d] : 0;
        packed[(p * in_features + d) * kLanes + j] = first | second << 16;
      }
    }
  }
}

// out = x weight^T + bias. x: [rows, in], rows x_stride apart; out: [rows, out], dense; bias: [panels * panel] or null. fp32.
void triptych_linear(const float* x, int64_t x_stride, const uint32_t* packed, const float* bias, float* out, int64_t rows,
                     int64_t out_features, int64_t in_features) {
  const PackedWeight w{packed, bias, in_features, out_features};
#pragma omp parallel
  linear_shared(x, x_stride, w, out, rows);
}
}

// Linear layers whose weights are bfloat16 and whose arithmetic is float32, for CPUs that multiply no bfloat16 themselves: half the
// memory traffic of float32 weights, which is what a few rows cost, and the full rate of float32 products for many.

#include "vector.h"

namespace {

using namespace triptych;

// Outputs of a panel are two vectors of which each 32-bit word of the packed weight holds one bfloat16: the low half belongs to the
// first vector, the high half to the second. Widening a pair is one shift and one mask.
constexpr int64_t kPanel = 2 * kLanes;
#if defined(__AVX512F__)
constexpr int kRows = 12;  // 24 accumulators, two weights and a factor in 32 registers
#elif defined(__AVX2__)
constexpr int kRows = 3;  // a vector is two registers of 16
#else
constexpr int kRows = 3;
#endif
// Rows that go through all panels of a thread before the next ones: their inputs stay in the second-level cache.
constexpr int64_t kRowBlock = 8 * kRows;

struct Panel {
  const uint32_t* weight;  // [in, kLanes]
  const float* bias;       // [kPanel] or null
  int64_t in, columns;     // columns: outputs of this panel that exist
};

template <int R>
void tile(const float* x, int64_t x_stride, const Panel& panel, float* out, int64_t out_stride) {
  vf low[R], high[R];
  for (int r = 0; r < R; r++) low[r] = high[r] = vf{};
  for (int64_t d = 0; d < panel.in; d++) {
    vu pair;
    std::memcpy(&pair, panel.weight + d * kLanes, sizeof pair);
    const vf first = (vf)(pair << 16), second = (vf)(pair & 0xffff0000u);
#pragma GCC unroll 12
    for (int r = 0; r < R; r++) {
      const vf factor = splat(x[r * x_stride + d]);
      low[r] += factor * first;
      high[r] += factor * second;
    }
  }
  for (int r = 0; r < R; r++) {
    float* to = out + r * out_stride;
    if (panel.bias) {
      low[r] += load(panel.bias);
      high[r] += load(panel.bias + kLanes);
    }
    if (panel.columns == kPanel) {
      store(to, low[r]);
      store(to + kLanes, high[r]);
    } else {
      float both[kPanel];
      store(both, low[r]);
      store(both + kLanes, high[r]);
      std::memcpy(to, both, panel.columns * sizeof(float));
    }
  }
}

template <int R>
void tiles(const float* x, int64_t x_stride, int64_t rows, const Panel& panel, float* out, int64_t out_stride) {
  for (; rows >= R; rows -= R, x += R * x_stride, out += R * out_stride) tile<R>(x, x_stride, panel, out, out_stride);
  if constexpr (R > 1) {
    if (rows) tiles<R - 1>(x, x_stride, rows, panel, out, out_stride);
  }
}

}  // namespace

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
  const int64_t num_panels = (out_features + kPanel - 1) / kPanel;
#pragma omp parallel
  for (int64_t row = 0; row < rows; row += kRowBlock) {
    const int64_t num_rows = std::min(kRowBlock, rows - row);
    // Dynamic, because other processes on the cores take their share of one thread or the other.
#pragma omp for schedule(dynamic, 2) nowait
    for (int64_t p = 0; p < num_panels; p++) {
      const Panel panel{packed + p * in_features * kLanes, bias ? bias + p * kPanel : nullptr, in_features,
                        std::min(kPanel, out_features - p * kPanel)};
      tiles<kRows>(x + row * x_stride, x_stride, num_rows, panel, out + row * out_features + p * kPanel, out_features);
    }
  }
}
}

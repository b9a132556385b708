// Products with weights that are bfloat16 and arithmetic that is float32, see linear.cpp.
//
// This is one format of weights; the decoder layer takes any. A format is a struct with
// - num_prepared_words(in_features): 32-bit words that a row of input takes in the form in which products read it; 0 where that is
//   the row itself;
// - prepare_row(row, in_features, prepared): brings a row, fp32, into that form; called once per row, by any thread;
// - linear_shared(x, x_stride, prepared, weight, out, rows): the product, shared out among the threads of the parallel region that
//   it is called in; nobody waits at its end. x: [rows, in], fp32, x_stride apart; prepared: [rows, num_prepared_words]; out:
//   [rows, out], fp32, dense.
#pragma once

#include "vector.h"

namespace triptych {

// Outputs of a panel are two vectors of which each 32-bit word of the packed weight holds one bfloat16: the low half belongs to the
// first vector, the high half to the second. Widening a pair is one shift and one mask.
constexpr int64_t kPanel = 2 * kLanes;
#if defined(__AVX512F__)
constexpr int kLinearRows = 12;  // 24 accumulators, two weights and a factor in 32 registers
#elif defined(__AVX2__)
constexpr int kLinearRows = 3;  // a vector is two registers of 16
#else
constexpr int kLinearRows = 3;
#endif
// Rows that go through all panels of a thread before the next ones: their inputs stay in the second-level cache.
constexpr int64_t kRowBlock = 8 * kLinearRows;

struct Panel {
  const uint32_t* weight;  // [in, kLanes]
  const float* bias;       // [kPanel] or null
  int64_t in, columns;     // columns: outputs of this panel that exist
};

template <int R>
inline void tile(const float* x, int64_t x_stride, const Panel& panel, float* out, int64_t out_stride) {
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
inline void tiles(const float* x, int64_t x_stride, int64_t rows, const Panel& panel, float* out, int64_t out_stride) {
  for (; rows >= R; rows -= R, x += R * x_stride, out += R * out_stride) tile<R>(x, x_stride, panel, out, out_stride);
  if constexpr (R > 1) {
    if (rows) tiles<R - 1>(x, x_stride, rows, panel, out, out_stride);
  }
}

// A weight as its format lays it out, here [ceil(out / kPanel), in, kPanel / 2] words, and a bias, padded to whole panels, or null.
struct PackedWeight {
  const uint32_t* weight;
  const float* bias;
  int64_t in_features, out_features;
};

inline void linear_shared(const float* x, int64_t x_stride, const PackedWeight& w, float* out, int64_t rows) {
  const int64_t num_panels = (w.out_features + kPanel - 1) / kPanel;
  for (int64_t row = 0; row < rows; row += kRowBlock) {
    const int64_t num_rows = std::min(kRowBlock, rows - row);
    // Dynamic, because other processes on the cores take their share of one thread or the other.
#pragma omp for schedule(dynamic, 2) nowait
    for (int64_t p = 0; p < num_panels; p++) {
      const Panel panel{w.weight + p * w.in_features * kLanes, w.bias ? w.bias + p * kPanel : nullptr, w.in_features,
                        std::min(kPanel, w.out_features - p * kPanel)};
      tiles<kLinearRows>(x + row * x_stride, x_stride, num_rows, panel, out + row * w.out_features + p * kPanel, w.out_features);
    }
  }
}

// bfloat16 weights; rows are read as they are.
struct WideningFormat {
  static int64_t num_prepared_words(int64_t) { return 0; }
  static void prepare_row(const float*, int64_t, uint32_t*) {}
  static void linear_shared(const float* x, int64_t x_stride, const uint32_t*, const PackedWeight& w, float* out, int64_t rows) {
    triptych::linear_shared(x, x_stride, w, out, rows);
  }
};

}  // namespace triptych

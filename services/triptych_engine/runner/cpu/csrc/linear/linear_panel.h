// The layout of packed bfloat16 weights.
#pragma once

#include "prefetch.h"
#include "vector.h"

namespace triptych {

// Outputs of a panel. A 32-bit word of a packed weight holds an output's weights for two consecutive inputs, the first in its low
// half. bfloat16 instructions need this layout, and widening the two weights takes only a shift and a mask.
#if defined(__AVX512F__) || defined(TRIPTYCH_BF16_DOT)
constexpr int64_t kPanel = 2 * kLanes;
#else
constexpr int64_t kPanel = kLanes;
#endif
// Inputs are padded with zeros to a multiple of this: a tile of such instructions.
constexpr int64_t kInputs = 32;

inline int64_t padded_inputs(int64_t in_features) { return (in_features + kInputs - 1) / kInputs * kInputs; }

struct Panel {
  const uint32_t* weight;  // [padded_inputs(in) / 2, kPanel]
  const float* bias;       // [kPanel] or null
  int64_t in, columns;     // columns: outputs of this panel that exist
};

// Writes a row of a panel's outputs, without padding.
inline void store_columns(const float* row, const Panel& panel, float* out) {
  if (panel.columns == kPanel) {
    std::memcpy(out, row, sizeof(float) * kPanel);
  } else {
    std::memcpy(out, row, sizeof(float) * panel.columns);
  }
}

// A packed weight, [ceil(out / kPanel), padded_inputs(in) / 2, kPanel] words, and a bias, [panels * kPanel] or null.
struct PackedWeight {
  const uint32_t* weight;
  const float* bias;
  int64_t in_features, out_features;
  int64_t num_quant_panels = 0;  // if `weight` is a table of panels of quantised weights, see quant_layout.h
  int64_t num_float_panels = 0;  // of them, those whose values are floats of 8 bits

  int64_t num_panels() const { return (out_features + kPanel - 1) / kPanel; }
  int64_t panel_words() const { return padded_inputs(in_features) / 2 * kPanel; }
  Panel panel(int64_t p) const {
    return {weight + p * panel_words(), bias ? bias + p * kPanel : nullptr, in_features,
            std::min(kPanel, out_features - p * kPanel)};
  }
  // Prefetches panel p in `steps` steps.
  Prefetch prefetch(int64_t p, int64_t steps) const { return Prefetch(weight + p * panel_words(), panel_words() * 4, steps); }
};

}  // namespace triptych

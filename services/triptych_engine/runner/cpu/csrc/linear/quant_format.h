// The formats of quantised weights, with the kinds of checkpoint that they hold.
#pragma once

#include "linear/quant_layout.h"

namespace triptych {

// Calls visit(QuantFormat<...>{}) with the format of this index. Python knows them by the same indices (runner/quantization/formats.py).
template <class Visit>
inline auto with_quant_format(int32_t format, const Visit& visit) {
  switch (format) {
    case 0: return visit(QuantFormat<4, 32, Minimum::kOffset>{});    // GGUF Q4_0
    case 1: return visit(QuantFormat<4, 32, Minimum::kHalf>{});      // Q4_1
    case 2: return visit(QuantFormat<5, 32, Minimum::kOffset>{});    // Q5_0
    case 3: return visit(QuantFormat<5, 32, Minimum::kHalf>{});      // Q5_1
    case 4: return visit(QuantFormat<8, 32, Minimum::kOffset>{});    // Q8_0, and int8 made while loading
    case 5: return visit(QuantFormat<4, 256, Minimum::kHalf, 1>{});  // Q4_K
    case 6: return visit(QuantFormat<5, 256, Minimum::kHalf, 1>{});  // Q5_K
    case 7: return visit(QuantFormat<6, 256, Minimum::kOffset, 2>{});  // Q6_K
    case 8: return visit(QuantFormat<4, 128, Minimum::kZero>{});     // GPTQ, AWQ and compressed-tensors: groups of 128 or more
    case 9: return visit(QuantFormat<4, 32, Minimum::kZero>{});      // smaller groups
    case 10: return visit(QuantFormat<8, 128, Minimum::kNone>{});    // FP8
    default: return visit(QuantFormat<4, 32, Minimum::kTable>{});    // MXFP4
  }
}
}  // namespace triptych

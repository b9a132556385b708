// Products with quantised weights, see linear_quant.cpp.
#pragma once

#include "bf16_instructions.h"
#include "linear/linear.h"

namespace triptych {

// A format as described in linear.h. The weight of a product is a table of panels (quant_layout.h), which may differ in their format:
// a prepared row suits all of them. Its functions are compiled in a separate file, without contraction of products and sums into one
// rounding, so that all instruction sets give the same numbers.
struct MixedQuantFormat {
  static constexpr bool kRounds = false;
  static int64_t num_prepared_words(int64_t in_features);
  static void prepare_row(const float* row, int64_t in_features, uint32_t* prepared, int64_t step_rows);
  static void linear_shared(const float* x, int64_t x_stride, const uint32_t* prepared, const PackedWeight& w, float* out,
                            int64_t rows, int64_t step_rows);
  static bool gates(const PackedWeight& w, const PackedWeight& next, int64_t step_rows);
  static void gated_shared(const uint32_t* prepared, const PackedWeight& w, uint32_t* gated, int64_t rows, int64_t step_rows);
};

// The same weights, multiplied as fast as the CPU can, so that a row's result depends on the number of the step's rows. On CPUs with
// bfloat16 tiles, many rows are rounded to bfloat16 and multiplied with tiles (quant_tiles.h); with floats of 8 bits all rows are.
// On CPUs that have only bfloat16 vectors, many rows are rounded for floats of 8 bits. On both, attention over a bfloat16 cache rounds
// as well. On other CPUs it is MixedQuantFormat.
struct FastQuantFormat {
#if defined(TRIPTYCH_BF16_DOT)
  static constexpr bool kRounds = true;
#else
  static constexpr bool kRounds = false;
#endif
  static int64_t num_prepared_words(int64_t in_features) { return MixedQuantFormat::num_prepared_words(in_features); }
  static void prepare_row(const float* row, int64_t in_features, uint32_t* prepared, int64_t step_rows);
  static void linear_shared(const float* x, int64_t x_stride, const uint32_t* prepared, const PackedWeight& w, float* out,
                            int64_t rows, int64_t step_rows);
  static bool gates(const PackedWeight& w, const PackedWeight& next, int64_t step_rows);
  static void gated_shared(const uint32_t* prepared, const PackedWeight& w, uint32_t* gated, int64_t rows, int64_t step_rows);
};

}  // namespace triptych

// Weights of some outputs of a table of panels, in any order, as fp32: out: [count, in]. No panel but the last may be padded.
extern "C" void triptych_quant_unpack(const void* panels, const int64_t* outputs, int64_t count, int64_t in_features, float* out);

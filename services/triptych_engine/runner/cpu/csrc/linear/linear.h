// Products with bfloat16 weights, see linear.cpp.
//
// The decoder layer supports any format of weights. A format is a struct with
// - num_prepared_words(in_features): 32-bit words of an input row in the form that products read; 0 if products read the row
//   itself;
// - prepare_row(row, in_features, prepared, step_rows): converts a row, fp32, to the form for products in a step of so many rows; called
//   once per row, by any thread;
// - linear_shared(x, x_stride, prepared, weight, out, rows, step_rows): the product, distributed over the threads of the enclosing parallel
//   region, without a barrier at its end. x: [rows, in], fp32, x_stride apart; prepared: [rows, num_prepared_words]; out:
//   [rows, out], fp32, dense. Rows of `prepared` may be read up to a multiple of 16;
// - gates(weight, next, step_rows): whether it supports `gated_shared` for this weight, which has gate and up concatenated. If so, products
//   with this weight and with the next one read only `prepared`;
// - gated_shared(prepared, weight, gated, rows, step_rows): silu(gate) * up, prepared for the next product, distributed in the same way.
//   gated: [rows, num_prepared_words(out / 2)];
// - kRounds: whether it may round inputs to bfloat16.
// The result of a row must depend neither on `rows` nor, except with FastQuantFormat, on `step_rows`. The last layer multiplies only some
// of a step's rows, and the result must be what it is with all of them. To the head, the wanted rows are all.
#pragma once

#include "linear/linear_panel.h"

namespace triptych {

// For formats that leave the activation to the decoder layer.
struct NoGates {
  static bool gates(const PackedWeight&, const PackedWeight&, int64_t) { return false; }
  static void gated_shared(const uint32_t*, const PackedWeight&, uint32_t*, int64_t, int64_t) {}
};

// bfloat16 weights; inputs are rounded to bfloat16 if the CPU has bfloat16 instructions.
struct Bf16Format {
  static constexpr bool kRounds = true;
  static int64_t num_prepared_words(int64_t in_features);
  static void prepare_row(const float* row, int64_t in_features, uint32_t* prepared, int64_t step_rows);
  static void linear_shared(const float* x, int64_t x_stride, const uint32_t* prepared, const PackedWeight& w, float* out,
                            int64_t rows, int64_t step_rows);
  static bool gates(const PackedWeight& w, const PackedWeight& next, int64_t step_rows);
  static void gated_shared(const uint32_t* prepared, const PackedWeight& w, uint32_t* gated, int64_t rows, int64_t step_rows);
};

// bfloat16 weights; inputs are not rounded: for float32 models.
struct WideFormat : NoGates {
  static constexpr bool kRounds = false;
  static int64_t num_prepared_words(int64_t) { return 0; }
  static void prepare_row(const float*, int64_t, uint32_t*, int64_t) {}
  static void linear_shared(const float* x, int64_t x_stride, const uint32_t* prepared, const PackedWeight& w, float* out,
                            int64_t rows, int64_t step_rows);
};

}  // namespace triptych

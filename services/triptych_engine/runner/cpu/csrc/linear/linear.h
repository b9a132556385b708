// Products with weights that are bfloat16, see linear.cpp.
//
// This is one format of weights; the decoder layer takes any. A format is a struct with
// - num_prepared_words(in_features): 32-bit words that a row of input takes in the form in which products read it; 0 where that is
//   the row itself;
// - prepare_row(row, in_features, prepared): brings a row, fp32, into that form; called once per row, by any thread;
// - linear_shared(x, x_stride, prepared, weight, out, rows): the product, shared out among the threads of the parallel region that
//   it is called in; nobody waits at its end. x: [rows, in], fp32, x_stride apart; prepared: [rows, num_prepared_words]; out:
//   [rows, out], fp32, dense. Rows of `prepared` may be read up to a multiple of 16;
// - gates(weight, rows): whether it can compute what follows for a weight with gate and up side by side. All that products of these
//   rows read is `prepared` then;
// - gated_shared(prepared, weight, gated, rows): silu(gate) * up, prepared for the next product, shared out in the same way. gated:
//   [rows, num_prepared_words(out / 2)];
// - kRounds: whether it may round inputs to bfloat16.
#pragma once

#include "linear/linear_panel.h"

namespace triptych {

// Of formats that leave the activation to the decoder layer.
struct NoGates {
  static bool gates(const PackedWeight&, int64_t) { return false; }
  static void gated_shared(const uint32_t*, const PackedWeight&, uint32_t*, int64_t) {}
};

// bfloat16 weights, and inputs rounded to it where the CPU is faster so.
struct Bf16Format {
  static constexpr bool kRounds = true;
  static int64_t num_prepared_words(int64_t in_features);
  static void prepare_row(const float* row, int64_t in_features, uint32_t* prepared);
  static void linear_shared(const float* x, int64_t x_stride, const uint32_t* prepared, const PackedWeight& w, float* out,
                            int64_t rows);
  static bool gates(const PackedWeight& w, int64_t rows);
  static void gated_shared(const uint32_t* prepared, const PackedWeight& w, uint32_t* gated, int64_t rows);
};

// The same weights, and inputs as they are: for float32 models.
struct WideFormat : NoGates {
  static constexpr bool kRounds = false;
  static int64_t num_prepared_words(int64_t) { return 0; }
  static void prepare_row(const float*, int64_t, uint32_t*) {}
  static void linear_shared(const float* x, int64_t x_stride, const uint32_t* prepared, const PackedWeight& w, float* out,
                            int64_t rows);
};

}  // namespace triptych

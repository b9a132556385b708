// Linear layers with bfloat16 weights. CPUs without bfloat16 instructions compute in float32. This takes half the memory traffic of
// float32 weights, which is the limit for few rows, and has the full rate of float32 products for many rows.
//
// The result of a row does not depend on the number of rows: each output is summed in the order of the inputs, by the same
// instructions.

#include "linear/linear.h"

#include "elementwise.h"
#include "linear/linear_bf16.h"
#include "linear/linear_widen.h"

namespace triptych {

// Rows that are multiplied by all panels of a thread before the next rows, so that their inputs stay in the L2 cache: 96 rows of
// 1536 inputs are 590 kB in fp32; so are 512 rows of 576 inputs in bfloat16.
constexpr int64_t kWideRowBlock = 96;
[[maybe_unused]] constexpr int64_t kRoundedRowBlock = 512;

void Bf16Format::linear_shared(const float* x, int64_t x_stride, const uint32_t* prepared, const PackedWeight& w, float* out,
                               int64_t rows, [[maybe_unused]] int64_t step_rows) {
#if defined(TRIPTYCH_BF16_DOT)
  const int64_t pairs = num_pairs(w.in_features);
  if (Prefetch::kStreams == 1 && rows < kFewRows) {  // as in WideFormat::linear_shared
    Prefetch none;
#pragma omp for schedule(dynamic, 2) nowait
    for (int64_t p = 0; p < w.num_panels(); p++) {
      multiply_panel(prepared, pairs, rows, w.panel(p), none, out + p * kPanel, w.out_features);
    }
    return;
  }
  const TileScope tiles;
  share_panels(w.num_panels(), rows, kRoundedRowBlock, [&](int64_t p, int64_t next, int64_t row, int64_t num_rows) {
    Prefetch prefetch = next == p ? Prefetch() : w.prefetch(next, num_steps(num_rows, pairs));
    multiply_panel(prepared + row * pairs, pairs, num_rows, w.panel(p), prefetch, out + row * w.out_features + p * kPanel,
                   w.out_features);
  });
#else
  WideFormat::linear_shared(x, x_stride, prepared, w, out, rows, step_rows);
#endif
}

#if defined(TRIPTYCH_BF16_DOT)

int64_t Bf16Format::num_prepared_words(int64_t in_features) { return num_pairs(in_features); }
void Bf16Format::prepare_row(const float* row, int64_t in_features, uint32_t* prepared, int64_t) { round_row(row, in_features, prepared); }

bool Bf16Format::gates(const PackedWeight& w, const PackedWeight&, int64_t) { return w.out_features % (2 * kPanel) == 0; }

void Bf16Format::gated_shared(const uint32_t* prepared, const PackedWeight& w, uint32_t* gated, int64_t rows, int64_t) {
  const int64_t pairs = num_pairs(w.in_features), gated_pairs = num_pairs(w.out_features / 2), num_panels = w.num_panels() / 2;
  constexpr int64_t kMostRows = 32;
  const int64_t row_step = rows_per_pass();
  const TileScope tiles;
  share_panels(num_panels, rows, kRoundedRowBlock, [&](int64_t p, int64_t next, int64_t first, int64_t num_rows) {
    const int64_t steps = (num_rows + row_step - 1) / row_step * num_steps(1, pairs);
    Prefetch next_gate = next == p ? Prefetch() : w.prefetch(next, steps);
    Prefetch next_up = next == p ? Prefetch() : w.prefetch(num_panels + next, steps);
    for (int64_t row = first; row < first + num_rows; row += row_step) {
      const int64_t some = std::min(row_step, first + num_rows - row);
      alignas(64) float gate[kMostRows][kPanel], up[kMostRows][kPanel];
      multiply_panel(prepared + row * pairs, pairs, some, w.panel(p), next_gate, gate[0], kPanel);
      multiply_panel(prepared + row * pairs, pairs, some, w.panel(num_panels + p), next_up, up[0], kPanel);
      for (int64_t r = 0; r < some; r++) {
        silu_mul_row(gate[r], up[r], (bf16*)(gated + (row + r) * gated_pairs) + p * kPanel, kPanel);
      }
    }
  });
}

#else
int64_t Bf16Format::num_prepared_words(int64_t) { return 0; }
void Bf16Format::prepare_row(const float*, int64_t, uint32_t*, int64_t) {}
bool Bf16Format::gates(const PackedWeight&, const PackedWeight&, int64_t) { return false; }
void Bf16Format::gated_shared(const uint32_t*, const PackedWeight&, uint32_t*, int64_t, int64_t) {}
#endif

void WideFormat::linear_shared(const float* x, int64_t x_stride, const uint32_t*, const PackedWeight& w, float* out, int64_t rows,
                               int64_t) {
  const auto multiply = [&](int64_t p, Prefetch& next, int64_t row, int64_t num_rows) {
    const Panel panel = w.panel(p);
    const float* inputs = x + row * x_stride;
    float* to = out + row * w.out_features + p * kPanel;
    if (num_rows >= kWidenOnceRows && panel.columns == kPanel) {
      widen_once(inputs, x_stride, num_rows, panel, next, to, w.out_features);
    } else {
      widen_tiles(inputs, x_stride, num_rows, panel, next, to, w.out_features);
    }
  };
  // Where a core reads one stream at its full rate, the next panel is read while many rows are multiplied, and the hardware prefetcher is
  // best for few rows; where it needs several streams, the next panel is read while few rows are.
  if ((Prefetch::kStreams == 1) == (rows >= kFewRows)) {
    share_panels(w.num_panels(), rows, kWideRowBlock, [&](int64_t p, int64_t next, int64_t row, int64_t num_rows) {
      Prefetch prefetch = next == p ? Prefetch() : w.prefetch(next, num_pairs(w.in_features) / kPairsPerStep);
      multiply(p, prefetch, row, num_rows);
    });
    return;
  }
  Prefetch none;
  if (kPanel == kLanes && rows < kFewRows) {
#pragma omp for schedule(dynamic, 1) nowait
    for (int64_t p = 0; p < w.num_panels(); p += 2) {
      if (p + 1 == w.num_panels()) multiply(p, none, 0, rows);
      else with_rows<kFewRows - 1>(rows, [&](auto R) {
        widen_pair<R>(x, x_stride, w.panel(p), w.panel(p + 1), out + p * kPanel, w.out_features);
      });
    }
    return;
  }
  for (int64_t row = 0; row < rows; row += kWideRowBlock) {
#pragma omp for schedule(dynamic, 2) nowait
    for (int64_t p = 0; p < w.num_panels(); p++) multiply(p, none, row, std::min(kWideRowBlock, rows - row));
  }
}

}  // namespace triptych

using namespace triptych;

extern "C" {

// Outputs per panel of a packed weight; and the number to a multiple of which its inputs are padded.
int32_t triptych_linear_panel() { return int32_t(kPanel); }
int32_t triptych_linear_inputs() { return int32_t(kInputs); }

// How products of many rows are computed: 0 in float32, 1 with bfloat16 vector instructions, 2 with bfloat16 tile instructions.
int32_t triptych_linear_method() {
#if defined(TRIPTYCH_BF16_TILES)
  if (tiles_permitted()) return 2;
#endif
#if defined(TRIPTYCH_BF16_DOT)
  return 1;
#else
  return 0;
#endif
}

// packed: [ceil(out / panel), padded_inputs / 2, panel] words, see linear_panel.h; padding is zero. weight: [out, in] bf16,
// dense.
void triptych_linear_pack(const uint16_t* weight, uint32_t* packed, int64_t out_features, int64_t in_features) {
  const int64_t num_panels = (out_features + kPanel - 1) / kPanel, pairs = num_pairs(in_features);
#pragma omp parallel for schedule(static)
  for (int64_t p = 0; p < num_panels; p++) {
    uint32_t* panel = packed + p * pairs * kPanel;
    std::memset(panel, 0, pairs * kPanel * 4);
    for (int64_t j = 0; j < std::min(kPanel, out_features - p * kPanel); j++) {
      const uint16_t* row = weight + (p * kPanel + j) * in_features;
      for (int64_t d = 0; d < in_features; d++) panel[d / 2 * kPanel + j] |= uint32_t(row[d]) << (d % 2 * 16);
    }
  }
}

// Words of workspace per row of a product. The workspace must have a multiple of 16 rows.
int64_t triptych_linear_row_words(int64_t in_features) { return Bf16Format::num_prepared_words(in_features); }

// out = x weight^T + bias. x: [rows, in], rows x_stride apart; out: [rows, out], dense; bias: [panels * panel] or null; workspace:
// [rows, row_words] words. fp32.
void triptych_linear(const float* x, int64_t x_stride, const uint32_t* packed, const float* bias, float* out, uint32_t* workspace,
                     int64_t rows, int64_t out_features, int64_t in_features) {
  const PackedWeight w{packed, bias, in_features, out_features};
#pragma omp parallel
  {
    if (Bf16Format::num_prepared_words(in_features) > 0) {
#pragma omp for schedule(static)
      for (int64_t r = 0; r < rows; r++) {
        Bf16Format::prepare_row(x + r * x_stride, in_features, workspace + r * Bf16Format::num_prepared_words(in_features), rows);
      }
    }
    Bf16Format::linear_shared(x, x_stride, workspace, w, out, rows, rows);
  }
}

// The same without rounding of x, and without a workspace.
void triptych_linear_wide(const float* x, int64_t x_stride, const uint32_t* packed, const float* bias, float* out, int64_t rows,
                          int64_t out_features, int64_t in_features) {
  const PackedWeight w{packed, bias, in_features, out_features};
#pragma omp parallel
  WideFormat::linear_shared(x, x_stride, nullptr, w, out, rows, rows);
}
}

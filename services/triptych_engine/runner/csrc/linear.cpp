// Linear layers whose weights are bfloat16. CPUs that multiply no bfloat16 themselves compute in float32: half the memory traffic of
// float32 weights, which is what a few rows cost, and the full rate of float32 products for many. Others do so for few rows alone.

#include "linear.h"

#include "linear_bf16.h"
#include "linear_widen.h"

namespace triptych {

// Which way is taken at how many rows. Few rows cost the time in which the weights are read from memory, so widening them, with
// inputs in fp32, costs nothing and is more exact: with 3 rows it takes 64 bytes of weights in some 4 cycles, a core's share of the
// memory's rate is a quarter of that. With more, the rate of products counts. Tiles are worth it from half a tile on: by vectors 8
// rows would take 8 bytes per cycle.
[[maybe_unused]] constexpr int64_t kFirstDotRows = 4, kFirstTileRows = 8;

// Rows that go through all panels of a thread before the next ones, so that their inputs stay in the second-level cache: 96 of 1536
// inputs are 590 kB in fp32.
constexpr int64_t kRowBlock = 96;

// multiply(panel, out, first row, rows) for each panel and block of rows, shared out among the threads.
template <class Multiply>
void share_panels(const PackedWeight& w, float* out, int64_t rows, const Multiply& multiply) {
  const int64_t num_panels = w.num_panels();
  for (int64_t row = 0; row < rows; row += kRowBlock) {
    const int64_t num_rows = std::min(kRowBlock, rows - row);
    // Dynamic, because other processes on the cores take their share of one thread or the other.
#pragma omp for schedule(dynamic, 2) nowait
    for (int64_t p = 0; p < num_panels; p++) multiply(w.panel(p), out + row * w.out_features + p * kPanel, row, num_rows);
  }
}

#if defined(TRIPTYCH_BF16_DOT)
int64_t Bf16Format::num_prepared_words(int64_t in_features) { return num_pairs(in_features); }
void Bf16Format::prepare_row(const float* row, int64_t in_features, uint32_t* prepared) { narrow_row(row, in_features, prepared); }
#else
int64_t Bf16Format::num_prepared_words(int64_t) { return 0; }
void Bf16Format::prepare_row(const float*, int64_t, uint32_t*) {}
#endif

void Bf16Format::linear_shared(const float* x, int64_t x_stride, const uint32_t* prepared, const PackedWeight& w, float* out,
                               int64_t rows) {
  [[maybe_unused]] const int64_t pairs = num_pairs(w.in_features);
#if defined(TRIPTYCH_BF16_TILES)
  if (rows >= kFirstTileRows && tiles_permitted()) {
    begin_tiles();
    share_panels(w, out, rows, [&](const Panel& panel, float* to, int64_t row, int64_t num_rows) {
      tile_panel(prepared + row * pairs, pairs, num_rows, panel, to, w.out_features);
    });
    end_tiles();
    return;
  }
#endif
#if defined(TRIPTYCH_BF16_DOT)
  if (rows >= kFirstDotRows) {
    share_panels(w, out, rows, [&](const Panel& panel, float* to, int64_t row, int64_t num_rows) {
      dot_tiles<kDotRows>(prepared + row * pairs, pairs, num_rows, panel, to, w.out_features);
    });
    return;
  }
#endif
  WideFormat::linear_shared(x, x_stride, prepared, w, out, rows);
}

void WideFormat::linear_shared(const float* x, int64_t x_stride, const uint32_t*, const PackedWeight& w, float* out, int64_t rows) {
  share_panels(w, out, rows, [&](const Panel& panel, float* to, int64_t row, int64_t num_rows) {
    if (num_rows >= kWidenOnceRows && panel.columns == kPanel) {
      widen_once(x + row * x_stride, x_stride, num_rows, panel, to, w.out_features);
    } else {
      widen_tiles<kWidenRows>(x + row * x_stride, x_stride, num_rows, panel, to, w.out_features);
    }
  });
}

}  // namespace triptych

using namespace triptych;

extern "C" {

// Outputs per panel of a packed weight, and inputs to a multiple of which it is filled up.
int32_t triptych_linear_panel() { return int32_t(kPanel); }
int32_t triptych_linear_inputs() { return int32_t(kInputs); }

// How products of many rows are computed: 0 in float32, 1 by vector instructions for bfloat16, 2 by those for tiles.
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

// packed: [ceil(out / panel), padded_inputs / 2, panel] words, see linear_panel.h; what is missing is zero. weight: [out, in] bf16,
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

// Words of workspace per row of a product, of which there are a multiple of 16.
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
        Bf16Format::prepare_row(x + r * x_stride, in_features, workspace + r * Bf16Format::num_prepared_words(in_features));
      }
    }
    Bf16Format::linear_shared(x, x_stride, workspace, w, out, rows);
  }
}

// The same without rounding of x, and without a workspace.
void triptych_linear_wide(const float* x, int64_t x_stride, const uint32_t* packed, const float* bias, float* out, int64_t rows,
                          int64_t out_features, int64_t in_features) {
  const PackedWeight w{packed, bias, in_features, out_features};
#pragma omp parallel
  WideFormat::linear_shared(x, x_stride, nullptr, w, out, rows);
}
}

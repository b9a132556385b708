// Products of the heads of an attention with bfloat16 weights: each head has a weight of its own, as latent attention (MLA) has them for
// queries and results. In float32 arithmetic, or with bfloat16 instructions, as the products of linear layers (linear.cpp).

#include "linear/linear_bf16.h"
#include "linear/linear_widen.h"

namespace triptych {
namespace {

constexpr int64_t kRowBlock = 96;  // rows that are multiplied by a panel at once

// Mirrored in kernel_args.py. Strides in elements.
struct HeadsArgs {
  const float* x;          // [rows, heads, in], the last dimension dense; all heads have the same inputs if x_stride_head is 0
  const uint32_t* weight;  // [heads, panels, padded_inputs / 2, panel] words, see linear_panel.h
  float* out;              // [rows, heads, out], the last dimension dense
  uint32_t* workspace;     // [heads, or 1 for the same inputs, rows rounded up to 16, row_words] words
  int64_t x_stride_row, x_stride_head, out_stride_row, out_stride_head;
  int64_t rows, heads, out_features, in_features;
  int32_t is_wide;  // whether inputs are never rounded
};

void multiply(const HeadsArgs& a, bool rounds) {
  const int64_t head_panels = (a.out_features + kPanel - 1) / kPanel, pairs = padded_inputs(a.in_features) / 2;
  [[maybe_unused]] const int64_t rows = (a.rows + kLanes - 1) / kLanes * kLanes;
  const PackedWeight all{a.weight, nullptr, a.in_features, a.heads * head_panels * kPanel};
#if defined(TRIPTYCH_BF16_DOT)
  if (rounds) {
#pragma omp for schedule(static)
    for (int64_t i = 0; i < (a.x_stride_head ? a.heads : 1) * a.rows; i++) {
      const int64_t h = i / a.rows, r = i % a.rows;
      round_row(a.x + r * a.x_stride_row + h * a.x_stride_head, a.in_features, a.workspace + (h * rows + r) * pairs);
    }
  }
  const TileScope tiles;
#endif
  share_panels(a.heads * head_panels, a.rows, kRowBlock, [&](int64_t p, int64_t next, int64_t row, int64_t num_rows) {
    const int64_t h = p / head_panels, first = p % head_panels * kPanel;
    Panel panel = all.panel(p);
    panel.columns = std::min(kPanel, a.out_features - first);
    Prefetch prefetch = next == p ? Prefetch() : all.prefetch(next, pairs / kPairsPerStep);
    float* to = a.out + row * a.out_stride_row + h * a.out_stride_head + first;
#if defined(TRIPTYCH_BF16_DOT)
    if (rounds) {
      const uint32_t* x = a.workspace + ((a.x_stride_head ? h : 0) * rows + row) * pairs;
      return multiply_panel(x, pairs, num_rows, panel, prefetch, to, a.out_stride_row);
    }
#endif
    const float* x = a.x + row * a.x_stride_row + h * a.x_stride_head;
    if (num_rows >= kWidenOnceRows && panel.columns == kPanel) {
      widen_once(x, a.x_stride_row, num_rows, panel, prefetch, to, a.out_stride_row);
    } else {
      widen_tiles(x, a.x_stride_row, num_rows, panel, prefetch, to, a.out_stride_row);
    }
  });
}

}  // namespace
}  // namespace triptych

using namespace triptych;

extern "C" {

int64_t triptych_heads_args_size() { return sizeof(HeadsArgs); }

// out[r, h] = weight[h] x[r, h] for all heads; fp32.
void triptych_linear_heads(const HeadsArgs* args) {
#pragma omp parallel
  multiply(*args, !args->is_wide);
}
}

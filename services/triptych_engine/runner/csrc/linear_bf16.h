// Products of bfloat16 by instructions of the CPU's own, for those that have them: twice the rate of fp32 by vectors, many times by
// tiles. Inputs are rounded to bfloat16, sums are fp32.
#pragma once

#include "bf16_instructions.h"
#include "linear_panel.h"

namespace triptych {

// A row of inputs as pairs, filled up with zeros to whole tiles.
inline int64_t num_pairs(int64_t in_features) { return padded_inputs(in_features) / 2; }

inline void narrow_row(const float* row, int64_t in_features, uint32_t* pairs) {
  bf16* to = (bf16*)pairs;
  int64_t d = 0;
  for (; d + kLanes <= in_features; d += kLanes) store(to + d, load(row + d));
  for (; d < in_features; d++) convert(row[d], to[d]);
  for (; d < padded_inputs(in_features); d++) to[d] = {0};
}

#if defined(TRIPTYCH_BF16_DOT)

constexpr int kDotRows = 12;  // 24 accumulators, two weights and a factor in 32 registers

// R rows times one panel. x: [R, pairs] words.
template <int R>
inline void dot_tile(const uint32_t* x, int64_t pairs, const Panel& panel, float* out, int64_t out_stride) {
  vf low[R], high[R];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) {
    low[r] = panel.bias ? load(panel.bias) : vf{};
    high[r] = panel.bias ? load(panel.bias + kLanes) : vf{};
  }
  for (int64_t d = 0; d < pairs; d++) {
    const vu low_weight = load(panel.weight + d * kPanel), high_weight = load(panel.weight + d * kPanel + kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      const vu factor = vu{} + x[r * pairs + d];
      low[r] = dot_pairs(low[r], factor, low_weight);
      high[r] = dot_pairs(high[r], factor, high_weight);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) {
    float both[kPanel];
    store(both, low[r]);
    store(both + kLanes, high[r]);
    store_columns(both, panel, out + r * out_stride);
  }
}

template <int R>
inline void dot_tiles(const uint32_t* x, int64_t pairs, int64_t rows, const Panel& panel, float* out, int64_t out_stride) {
  for (; rows >= R; rows -= R, x += R * pairs, out += R * out_stride) dot_tile<R>(x, pairs, panel, out, out_stride);
  if constexpr (R > 1) {
    if (rows) dot_tiles<R - 1>(x, pairs, rows, panel, out, out_stride);
  }
}

#endif

#if defined(TRIPTYCH_BF16_TILES)

// At most 32 rows times one panel, between begin_tiles and end_tiles; kBoth: more than 16. x: [16 or 32, pairs] words, of which the
// rows beyond are read, whatever they are.
template <bool kBoth>
inline void tile_rows(const uint32_t* x, int64_t pairs, int64_t rows, const Panel& panel, float* out, int64_t out_stride) {
  // Tiles 0 and 1: sums of the first 16 rows; 2 and 3: of the others; 4 and 5: their inputs; 6 and 7: weights.
  if (panel.bias) {  // a stride of nothing: the same row 16 times
    TRIPTYCH_TILE_LOAD(0, panel.bias, 0);
    TRIPTYCH_TILE_LOAD(1, panel.bias + kLanes, 0);
    if (kBoth) {
      TRIPTYCH_TILE_LOAD(2, panel.bias, 0);
      TRIPTYCH_TILE_LOAD(3, panel.bias + kLanes, 0);
    }
  } else {
    TRIPTYCH_TILE_ZERO(0);
    TRIPTYCH_TILE_ZERO(1);
    if (kBoth) {
      TRIPTYCH_TILE_ZERO(2);
      TRIPTYCH_TILE_ZERO(3);
    }
  }
  for (int64_t d = 0; d < pairs; d += kTile) {
    TRIPTYCH_TILE_LOAD(6, panel.weight + d * kPanel, kPanel * 4);
    TRIPTYCH_TILE_LOAD(4, x + d, pairs * 4);
    TRIPTYCH_TILE_DOT(0, 4, 6);
    TRIPTYCH_TILE_LOAD(7, panel.weight + d * kPanel + kLanes, kPanel * 4);
    TRIPTYCH_TILE_DOT(1, 4, 7);
    if (kBoth) {
      TRIPTYCH_TILE_LOAD(5, x + kTile * pairs + d, pairs * 4);
      TRIPTYCH_TILE_DOT(2, 5, 6);
      TRIPTYCH_TILE_DOT(3, 5, 7);
    }
  }
  const bool whole = panel.columns == kPanel && rows == (kBoth ? 2 : 1) * kTile;
  alignas(64) float apart[2 * kTile][kPanel];
  float* to = whole ? out : apart[0];
  const int64_t stride = (whole ? out_stride : kPanel) * 4;
  TRIPTYCH_TILE_STORE(0, to, stride);
  TRIPTYCH_TILE_STORE(1, to + kLanes, stride);
  if (kBoth) {
    TRIPTYCH_TILE_STORE(2, (char*)to + kTile * stride, stride);
    TRIPTYCH_TILE_STORE(3, (char*)(to + kLanes) + kTile * stride, stride);
  }
  if (whole) return;
  for (int64_t r = 0; r < rows; r++) store_columns(apart[r], panel, out + r * out_stride);
}

inline void tile_panel(const uint32_t* x, int64_t pairs, int64_t rows, const Panel& panel, float* out, int64_t out_stride) {
  for (; rows > kTile; rows -= 2 * kTile, x += 2 * kTile * pairs, out += 2 * kTile * out_stride) {
    tile_rows<true>(x, pairs, std::min(rows, 2 * kTile), panel, out, out_stride);
  }
  if (rows > 0) tile_rows<false>(x, pairs, rows, panel, out, out_stride);
}

#endif

}  // namespace triptych

// Products with the CPU's bfloat16 instructions, if it has them: twice the rate of float32 with vectors (AVX512_BF16), many times
// that rate with tiles (AMX). Inputs are rounded to bfloat16, sums are float32.
//
// Both kinds of instructions take two consecutive inputs, a pair, at once: one 32-bit word of a row of inputs, and one of each
// output's weights. The layout of the weights is the same for linear layers (linear_panel.h) and for attention, whose KV cache is
// also stored in pairs (kv_cache.h).
#pragma once

#include "bf16_instructions.h"
#include "linear/linear_panel.h"

namespace triptych {

// A row of inputs in pairs, padded with zeros to whole tiles.
inline int64_t num_pairs(int64_t in_features) { return padded_inputs(in_features) / 2; }

inline void round_row(const float* row, int64_t in_features, uint32_t* pairs) {
  bf16* to = (bf16*)pairs;
  int64_t d = 0;
  for (; d + kLanes <= in_features; d += kLanes) store(to + d, load(row + d));
  for (; d < padded_inputs(in_features); d += kLanes) {
    float some[kLanes] = {};
    std::copy(row + std::min(d, in_features), row + std::min(d + kLanes, in_features), some);
    store(to + d, load(some));
  }
}

// Weights of 32 outputs for pairs of inputs: the words of the first 16 outputs, and the other 16. Pairs are `stride` words apart.
struct Columns {
  const uint32_t *low, *high;
  int64_t stride;
};

inline Columns columns_of(const Panel& panel) { return {panel.weight, panel.weight + kLanes, kPanel}; }

#if defined(TRIPTYCH_BF16_DOT)

constexpr int kDotRows = 12;      // their 24 sums, two weights and an input fit in 32 registers

// Sums of R rows and 32 outputs, in vector registers.
template <int R>
struct DotSums {
  static constexpr bool kIsTile = false;
  static constexpr int64_t kRows = R;
  vf low[R], high[R];

  // from: 32 numbers for each row, `stride` apart; with a stride of 0, all rows get the same numbers. Null means zeros.
  void begin(const float* from, int64_t stride) {
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      low[r] = from ? load(from + r * stride) : vf{};
      high[r] = from ? load(from + r * stride + kLanes) : vf{};
    }
  }
  // Adds the products of inputs x, [R, pairs] words, rows x_stride apart.
  template <class Next>
  void add(const uint32_t* x, int64_t x_stride, int64_t pairs, const Columns& columns, Next& next) {
    const uint32_t *low_weights = columns.low, *high_weights = columns.high;
    for (int64_t d = 0; d < pairs; d++, low_weights += columns.stride, high_weights += columns.stride) {
      if (d % kPairsPerStep == 0) next.step();
      const vu low_weight = load(low_weights), high_weight = load(high_weights);
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) {
        const vu input = vu{} + x[r * x_stride + d];
        low[r] = dot_pairs(low[r], input, low_weight);
        high[r] = dot_pairs(high[r], input, high_weight);
      }
    }
  }
  void end(float* out, int64_t stride) const {
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      store(out + r * stride, low[r]);
      store(out + r * stride + kLanes, high[r]);
    }
  }
};

#endif

#if defined(TRIPTYCH_BF16_TILES)

// The same in tile registers, which hold 16 rows of 64 bytes each. 0 and 1: sums of 16 rows and 32 outputs; 2 and 3: of the next 16
// rows, if there are two blocks of rows; 4 and 5: inputs of these rows, 16 pairs of each; 6 and 7: weights of 16 pairs.
template <bool kTwo>
struct TileSums {
  static constexpr bool kIsTile = true;
  static constexpr int64_t kRows = (kTwo ? 2 : 1) * kTile;

  void begin(const float* from, int64_t stride) {
    __asm__ volatile("" ::: "memory");  // as in begin_tiles: rows and weights may have been written since
    if (from) {
      TRIPTYCH_TILE_LOAD(0, from, stride * 4);
      TRIPTYCH_TILE_LOAD(1, from + kLanes, stride * 4);
      if (kTwo) {
        TRIPTYCH_TILE_LOAD(2, from + kTile * stride, stride * 4);
        TRIPTYCH_TILE_LOAD(3, from + kTile * stride + kLanes, stride * 4);
      }
    } else {
      TRIPTYCH_TILE_ZERO(0);
      TRIPTYCH_TILE_ZERO(1);
      if (kTwo) {
        TRIPTYCH_TILE_ZERO(2);
        TRIPTYCH_TILE_ZERO(3);
      }
    }
  }
  // pairs: a multiple of 16, not 0. Each tile is loaded while the products before its own are computed.
  template <class Next>
  void add(const uint32_t* x, int64_t x_stride, int64_t pairs, const Columns& columns, Next& next) {
    TRIPTYCH_TILE_LOAD(4, x, x_stride * 4);
    TRIPTYCH_TILE_LOAD(6, columns.low, columns.stride * 4);
    for (int64_t d = 0;; d += kTile) {
      const bool is_last = d + kTile >= pairs;
      const uint32_t *then = x + d + kTile, *low = columns.low + (d + kTile) * columns.stride;
      next.step();
      TRIPTYCH_TILE_LOAD(7, columns.high + d * columns.stride, columns.stride * 4);
      TRIPTYCH_TILE_DOT(0, 4, 6);
      next.step();
      if (kTwo) TRIPTYCH_TILE_LOAD(5, x + kTile * x_stride + d, x_stride * 4);
      TRIPTYCH_TILE_DOT(1, 4, 7);
      next.step();
      if (!is_last) TRIPTYCH_TILE_LOAD(4, then, x_stride * 4);
      if (kTwo) TRIPTYCH_TILE_DOT(2, 5, 6);
      if (!is_last) TRIPTYCH_TILE_LOAD(6, low, columns.stride * 4);
      next.step();
      if (kTwo) TRIPTYCH_TILE_DOT(3, 5, 7);
      if (is_last) break;
    }
  }
  void end(float* out, int64_t stride) const {
    TRIPTYCH_TILE_STORE(0, out, stride * 4);
    TRIPTYCH_TILE_STORE(1, out + kLanes, stride * 4);
    if (kTwo) {
      TRIPTYCH_TILE_STORE(2, out + kTile * stride, stride * 4);
      TRIPTYCH_TILE_STORE(3, out + kTile * stride + kLanes, stride * 4);
    }
  }
};

#endif

#if defined(TRIPTYCH_BF16_DOT)

// Whether products are computed with tiles; otherwise with vectors.
inline bool uses_tiles() {
#if defined(TRIPTYCH_BF16_TILES)
  return tiles_permitted();
#else
  return false;
#endif
}

// A thread creates one before it computes products.
class TileScope {
 public:
  TileScope() {
#if defined(TRIPTYCH_BF16_TILES)
    if (uses_tiles()) begin_tiles();
#endif
  }
  ~TileScope() {
#if defined(TRIPTYCH_BF16_TILES)
    if (uses_tiles()) end_tiles();
#endif
  }
  TileScope(const TileScope&) = delete;
};

// Rows that share a pass over the weights.
inline int64_t rows_per_pass() { return uses_tiles() ? 2 * kTile : kDotRows; }

// Number of prefetch steps in a product of `rows` rows and `pairs` pairs of inputs.
inline int64_t num_steps(int64_t rows, int64_t pairs) {
  return (rows + rows_per_pass() - 1) / rows_per_pass() * ((pairs + kPairsPerStep - 1) / kPairsPerStep);
}

template <int R, class Compute>
inline void compute_dot_rows(int64_t rows, int64_t first, const Compute& compute) {
  if constexpr (R > 1) {
    if (rows < R) return compute_dot_rows<R - 1>(rows, first, compute);
  }
  compute(DotSums<R>(), first);
}

// Calls compute(sums, first row) for each pass. A pass has the sums of kRows rows. Tiles may go beyond the last row, up to a
// multiple of 16: those rows must be readable and writable. Passes of vectors have nearly equal numbers of rows, to make good use
// of registers.
template <class Compute>
inline void for_rows(int64_t rows, const Compute& compute) {
#if defined(TRIPTYCH_BF16_TILES)
  if (uses_tiles()) {
    int64_t row = 0;
    for (; rows - row > kTile; row += 2 * kTile) compute(TileSums<true>(), row);
    if (row < rows) compute(TileSums<false>(), row);
    return;
  }
#endif
  const int64_t passes = (rows + kDotRows - 1) / kDotRows;
  for (int64_t i = 0; i < passes; i++) {
    const int64_t first = rows * i / passes, last = rows * (i + 1) / passes;
    compute_dot_rows<kDotRows>(last - first, first, compute);
  }
}

// out = inputs times the weights of a panel. x: [rows, pairs] words; out: rows out_stride apart.
inline void multiply_panel(const uint32_t* x, int64_t pairs, int64_t rows, const Panel& panel, Prefetch& next, float* out,
                           int64_t out_stride) {
  for_rows(rows, [&](auto sums, int64_t row) {
    sums.begin(panel.bias, 0);
    sums.add(x + row * pairs, pairs, pairs, columns_of(panel), next);
    const int64_t left = rows - row;
    if (panel.columns == kPanel && left >= sums.kRows) {
      sums.end(out + row * out_stride, out_stride);
      return;
    }
    alignas(64) float apart[sums.kRows][kPanel];
    sums.end(apart[0], kPanel);
    for (int64_t r = 0; r < std::min(left, sums.kRows); r++) store_columns(apart[r], panel, out + (row + r) * out_stride);
  });
}

#endif

}  // namespace triptych

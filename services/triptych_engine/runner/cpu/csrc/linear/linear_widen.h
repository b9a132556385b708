// Products with bfloat16 weights in float32 arithmetic. Every CPU can compute them. On every CPU they are best for few rows,
// because these take as long as reading the weights.
#pragma once

#include <utility>

#include "linear/linear_panel.h"

namespace triptych {

// Rows of a tile, whose sums fit in the registers beside a panel's weights and an input.
#if defined(__AVX512F__)
constexpr int kWidenRows = 12;  // 24 sums in 32 registers
#elif defined(__AVX2__)
constexpr int kWidenRows = 6;  // 12 in 16
#elif defined(__aarch64__)
constexpr int kWidenRows = 6;  // 24 in 32
#else
constexpr int kWidenRows = 2;  // 8 in 16
#endif
constexpr int kPanelRegisters = kPanel / kRegisterLanes;

// sum += x * weight.
[[gnu::always_inline]] inline void add_product(const float& x, const rf (&weight)[kPanelRegisters], rf (&sum)[kPanelRegisters]) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  if constexpr (kPanelRegisters == 2) return add_two_products(x, weight, sum);
#endif
#pragma GCC unroll 16
  for (int v = 0; v < kPanelRegisters; v++) sum[v] += x * weight[v];
}

// sum += an input of each row times a panel's weights. r: 0, 1, ...; as constants, because GCC keeps arrays that loops index in memory.
template <int... r>
[[gnu::always_inline]] inline void add_input(const float* x, int64_t x_stride, const rf (&weight)[kPanelRegisters],
                                             rf (&sum)[sizeof...(r)][kPanelRegisters], std::integer_sequence<int, r...>) {
  (add_product(x[r * x_stride], weight, sum[r]), ...);
}

// The weights of a panel's outputs for two inputs, the first in the low halves of the words.
template <bool kSecond>
[[gnu::always_inline]] inline void widen(const uint32_t* pairs, rf (&weight)[kPanelRegisters]) {
#pragma GCC unroll 16
  for (int v = 0; v < kPanelRegisters; v++) {
    ru pair;
    std::memcpy(&pair, pairs + v * kRegisterLanes, sizeof pair);
    weight[v] = (rf)(kSecond ? pair & 0xffff0000u : pair << 16);
  }
}

[[gnu::always_inline]] inline void begin_row(const float* from, rf (&sum)[kPanelRegisters]) {
#pragma GCC unroll 16
  for (int v = 0; v < kPanelRegisters; v++) {
    if (from) std::memcpy(&sum[v], from + v * kRegisterLanes, sizeof(rf));
    else sum[v] = rf{};
  }
}

[[gnu::always_inline]] inline void end_row(const rf (&sum)[kPanelRegisters], float* out) {
#pragma GCC unroll 16
  for (int v = 0; v < kPanelRegisters; v++) std::memcpy(out + v * kRegisterLanes, &sum[v], sizeof(rf));
}

[[gnu::always_inline]] inline void end_row(const rf (&sum)[kPanelRegisters], const Panel& panel, float* out) {
  float row[kPanel];
  end_row(sum, row);
  store_columns(row, panel, out);
}

// Some rows of x, in fp32, times one panel. Not inlined: GCC would keep sums in memory around the prefetch.
template <int... r>
[[gnu::noinline]] void widen_tile(const float* x, int64_t x_stride, const Panel& panel, Prefetch& next, float* out, int64_t out_stride,
                                  std::integer_sequence<int, r...> rows) {
  rf sum[sizeof...(r)][kPanelRegisters], weight[kPanelRegisters];
  (begin_row(panel.bias, sum[r]), ...);
  const uint32_t* pairs = panel.weight;
  int64_t d = 0;
  while (d + 1 < panel.in) {
    if (Prefetch::kStreams > 1 || sizeof...(r) >= kFewRows) next.step();
    for (const int64_t end = std::min(d + 2 * kPairsPerStep, panel.in - 1); d < end; d += 2, pairs += kPanel) {
      widen<false>(pairs, weight);
      add_input(x + d, x_stride, weight, sum, rows);
      widen<true>(pairs, weight);
      add_input(x + d + 1, x_stride, weight, sum, rows);
    }
  }
  if (d < panel.in) {  // the last input, if their number is odd
    widen<false>(pairs, weight);
    add_input(x + d, x_stride, weight, sum, rows);
  }
  (end_row(sum[r], panel, out + r * out_stride), ...);
}

// The same with two adjacent panels, for few rows: sums of one panel would wait for each other.
template <int... r>
[[gnu::noinline]] void widen_pair(const float* x, int64_t x_stride, const Panel& panel, const Panel& other, float* out, int64_t out_stride,
                                  std::integer_sequence<int, r...> rows) {
  rf sum[sizeof...(r)][kPanelRegisters], more[sizeof...(r)][kPanelRegisters], weight[kPanelRegisters];
  (begin_row(panel.bias, sum[r]), ...);
  (begin_row(other.bias, more[r]), ...);
  const uint32_t *pairs = panel.weight, *other_pairs = other.weight;
  int64_t d = 0;
  for (; d + 1 < panel.in; d += 2, pairs += kPanel, other_pairs += kPanel) {
    widen<false>(pairs, weight);
    add_input(x + d, x_stride, weight, sum, rows);
    widen<false>(other_pairs, weight);
    add_input(x + d, x_stride, weight, more, rows);
    widen<true>(pairs, weight);
    add_input(x + d + 1, x_stride, weight, sum, rows);
    widen<true>(other_pairs, weight);
    add_input(x + d + 1, x_stride, weight, more, rows);
  }
  if (d < panel.in) {  // the last input, if their number is odd
    widen<false>(pairs, weight);
    add_input(x + d, x_stride, weight, sum, rows);
    widen<false>(other_pairs, weight);
    add_input(x + d, x_stride, weight, more, rows);
  }
  (end_row(sum[r], panel, out + r * out_stride), ...);
  (end_row(more[r], other, out + kPanel + r * out_stride), ...);
}

// At most R rows.
template <int R>
inline void widen_pairs(const float* x, int64_t x_stride, int64_t rows, const Panel& panel, const Panel& other, float* out,
                        int64_t out_stride) {
  if (rows == R) return widen_pair(x, x_stride, panel, other, out, out_stride, std::make_integer_sequence<int, R>());
  if constexpr (R > 1) widen_pairs<R - 1>(x, x_stride, rows, panel, other, out, out_stride);
}

// At most R rows.
template <int R>
inline void widen_rows(const float* x, int64_t x_stride, int64_t rows, const Panel& panel, Prefetch& next, float* out,
                       int64_t out_stride) {
  if (rows == R) return widen_tile(x, x_stride, panel, next, out, out_stride, std::make_integer_sequence<int, R>());
  if constexpr (R > 1) widen_rows<R - 1>(x, x_stride, rows, panel, next, out, out_stride);
}

// Any number of rows.
inline void widen_tiles(const float* x, int64_t x_stride, int64_t rows, const Panel& panel, Prefetch& next, float* out,
                        int64_t out_stride) {
  while (rows) {
    const int64_t some = tile_rows(rows, kWidenRows);
    widen_rows<kWidenRows>(x, x_stride, some, panel, next, out, out_stride);
    rows -= some, x += some * x_stride, out += some * out_stride;
  }
}

// Number of inputs whose weights are widened at once for all rows: 96 kB of the L2 cache with AVX-512. Fewer would fit in the L1
// cache, but sums are loaded and stored again for each part.
constexpr int64_t kWideInputs = 768;
// Smallest number of rows for which that is faster.
#if defined(__AVX2__) && !defined(__AVX512F__)
constexpr int64_t kWidenOnceRows = INT64_MAX;  // on a Zen 3, other units widen than those that multiply
#else
constexpr int64_t kWidenOnceRows = 48;  // with AVX-512 it saves a sixteenth of the time at 64 rows, an eighth at 96 and more
#endif

// out = sums + rows of n inputs times their weights. x: [rows, n], weight: [n, kPanel], sums: [rows, kPanel] or null for zeros, and may be
// out: [rows, kPanel].
template <int... r>
inline void wide_tile(const float* x, int64_t x_stride, const float* weight, int64_t n, const float* sums, int64_t sums_stride,
                      float* out, int64_t out_stride, std::integer_sequence<int, r...> rows) {
  rf sum[sizeof...(r)][kPanelRegisters];
  (begin_row(sums ? sums + r * sums_stride : nullptr, sum[r]), ...);
  for (int64_t d = 0; d < n; d++) {
    rf factors[kPanelRegisters];
    std::memcpy(factors, weight + d * kPanel, sizeof factors);
    add_input(x + d, x_stride, factors, sum, rows);
  }
  (end_row(sum[r], out + r * out_stride), ...);
}

template <int R>
inline void wide_tiles(const float* x, int64_t x_stride, int64_t rows, const float* weight, int64_t n, const float* sums,
                       int64_t sums_stride, float* out, int64_t out_stride) {
  for (; rows >= R; rows -= R, x += R * x_stride, sums += sums ? R * sums_stride : 0, out += R * out_stride) {
    wide_tile(x, x_stride, weight, n, sums, sums_stride, out, out_stride, std::make_integer_sequence<int, R>());
  }
  if constexpr (R > 1) {
    if (rows) wide_tiles<R - 1>(x, x_stride, rows, weight, n, sums, sums_stride, out, out_stride);
  }
}

// Like widen_tiles, for many rows and a panel without padding: weights are widened once, not for each tile.
inline void widen_once(const float* x, int64_t x_stride, int64_t rows, const Panel& panel, Prefetch& next, float* out,
                       int64_t out_stride) {
  alignas(64) float wide[kWideInputs * kPanel];
  for (int64_t begin = 0; begin < panel.in; begin += kWideInputs) {
    const int64_t n = std::min(kWideInputs, panel.in - begin);
    for (int64_t d = 0; d < n; d += 2) {  // weights are padded to an even number of inputs
      if (d % (2 * kPairsPerStep) == 0) next.step();
      for (int64_t v = 0; v < kPanel; v += kLanes) {
        const vu pair = load(panel.weight + (begin + d) / 2 * kPanel + v);
        store(wide + d * kPanel + v, (vf)(pair << 16));
        store(wide + (d + 1) * kPanel + v, (vf)(pair & 0xffff0000u));
      }
    }
    const float* sums = begin ? out : panel.bias;
    wide_tiles<kWidenRows>(x + begin, x_stride, rows, wide, n, sums, begin ? out_stride : 0, out, out_stride);
  }
}

}  // namespace triptych

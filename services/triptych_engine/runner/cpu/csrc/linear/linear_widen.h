// Products with bfloat16 weights in float32 arithmetic. Every CPU can compute them. On every CPU they are best for few rows,
// because these take as long as reading the weights.
#pragma once

#include "linear/linear_panel.h"
#include "sums.h"

namespace triptych {

// Rows of a tile, whose sums fit in the registers beside a panel's weights and an input.
#if defined(__AVX512F__)
constexpr int kWidenRows = 12;  // 24 sums in 32 registers
#elif defined(__AVX2__)
constexpr int kWidenRows = 6;  // 12 in 16
#else
constexpr int kWidenRows = 6;  // 24 in 32
#endif
constexpr int kPanelRegisters = kPanel / kRegisterLanes;

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

// R rows of x, in fp32, times one panel. Not inlined: GCC would keep sums in memory around the prefetch.
template <int R>
[[gnu::noinline]] void widen_tile(const float* x, int64_t x_stride, const Panel& panel, Prefetch& next, float* out, int64_t out_stride) {
  Sums<R, kPanelRegisters> sums;
  sums.begin(panel.bias, 0);
  rf weight[kPanelRegisters];
  const uint32_t* pairs = panel.weight;
  int64_t d = 0;
  while (d + 1 < panel.in) {
    if (Prefetch::kStreams > 1 || R >= kFewRows) next.step();
    for (const int64_t end = std::min(d + 2 * kPairsPerStep, panel.in - 1); d < end; d += 2, pairs += kPanel) {
      widen<false>(pairs, weight);
      sums.add_input(x + d, x_stride, weight);
      widen<true>(pairs, weight);
      sums.add_input(x + d + 1, x_stride, weight);
    }
  }
  if (d < panel.in) {  // the last input, if their number is odd
    widen<false>(pairs, weight);
    sums.add_input(x + d, x_stride, weight);
  }
  sums.end(out, out_stride, panel.columns);
}

// The same with two adjacent panels, for few rows: sums of one panel would wait for each other.
template <int R>
[[gnu::noinline]] void widen_pair(const float* x, int64_t x_stride, const Panel& panel, const Panel& other, float* out,
                                  int64_t out_stride) {
  Sums<R, kPanelRegisters> sums, more;
  sums.begin(panel.bias, 0);
  more.begin(other.bias, 0);
  rf weight[kPanelRegisters];
  const uint32_t *pairs = panel.weight, *other_pairs = other.weight;
  int64_t d = 0;
  for (; d + 1 < panel.in; d += 2, pairs += kPanel, other_pairs += kPanel) {
    widen<false>(pairs, weight);
    sums.add_input(x + d, x_stride, weight);
    widen<false>(other_pairs, weight);
    more.add_input(x + d, x_stride, weight);
    widen<true>(pairs, weight);
    sums.add_input(x + d + 1, x_stride, weight);
    widen<true>(other_pairs, weight);
    more.add_input(x + d + 1, x_stride, weight);
  }
  if (d < panel.in) {  // the last input, if their number is odd
    widen<false>(pairs, weight);
    sums.add_input(x + d, x_stride, weight);
    widen<false>(other_pairs, weight);
    more.add_input(x + d, x_stride, weight);
  }
  sums.end(out, out_stride, panel.columns);
  more.end(out + kPanel, out_stride, other.columns);
}

// Any number of rows.
inline void widen_tiles(const float* x, int64_t x_stride, int64_t rows, const Panel& panel, Prefetch& next, float* out,
                        int64_t out_stride) {
  share_rows<kWidenRows>(rows, [&](auto R, int64_t r) { widen_tile<R>(x + r * x_stride, x_stride, panel, next, out + r * out_stride, out_stride); });
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
template <int R>
inline void wide_tile(const float* x, int64_t x_stride, const float* weight, int64_t n, const float* sums, int64_t sums_stride,
                      float* out, int64_t out_stride) {
  Sums<R, kPanelRegisters> tile;
  tile.begin(sums, sums_stride);
  for (int64_t d = 0; d < n; d++) {
    rf factors[kPanelRegisters];
    load_row(weight + d * kPanel, factors);
    tile.add_input(x + d, x_stride, factors);
  }
  tile.end(out, out_stride);
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
    share_rows<kWidenRows>(rows, [&](auto R, int64_t r) {
      float* to = out + r * out_stride;
      wide_tile<R>(x + r * x_stride + begin, x_stride, wide, n, begin ? to : panel.bias, begin ? out_stride : 0, to, out_stride);
    });
  }
}

}  // namespace triptych

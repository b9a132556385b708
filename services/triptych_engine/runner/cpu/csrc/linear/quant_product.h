// Products of prepared rows (quant_inputs.h) with quantised weights, panel by panel.
//
// Like linear_quant.cpp, it is compiled without contraction of products and sums.
#pragma once

#include <utility>

#include "elementwise.h"
#include "linear/quant_dot.h"
#include "linear/quant_exact.h"
#include "linear/quant_format.h"

namespace triptych {
namespace {

// Rows that share a pass over a panel. With AVX-512 their sums, two weights and an input fit in the registers.
constexpr int kQuantRows = 8;

// Rows that are multiplied by all panels of a thread before the next rows: their inputs stay in the L2 cache.
constexpr int64_t kQuantRowBlock = kExactRows;

// x: R prepared rows.
template <class Format, int R>
[[gnu::always_inline]] inline void add_group(const uint32_t* x, int64_t x_words, int64_t in, int64_t g, const uint32_t* group, const ScaleAndMinimum& header,
                      Sums<R, kRegisters>& sums) {
  ScaleAndMinimum own[Format::kParts];
  const ScaleAndMinimum* weights[] = {&scales_at<Format>(header, group, 0, own[0]),
                                      Format::kParts > 1 ? &scales_at<Format>(header, group, 1, own[Format::kParts - 1]) : nullptr};
  const uint32_t* inputs = x + g * PreparedRow::kGroupWords;
  const uint32_t* pairs = x + num_quant_groups(in) * PreparedRow::kGroupWords + g * PreparedRow::kPairsWords;
  rf first_part[R][kRegisters];
  GroupProducts<Format, R>(inputs, pairs, x_words, group).compute([&](auto part, auto r, const ri (&products)[kRegisters]) TRIPTYCH_INLINE {
    const PreparedGroup& input = *(const PreparedGroup*)(inputs + r * x_words);
    each_register([&](auto i) TRIPTYCH_INLINE {
      const rf number = to_floats((rs)products[i]), scale = weights[part]->scale[i];
      const rf scaled = part == 0 ? number * scale : fma(number, scale, first_part[r][i]);
      if constexpr (part + 1 < Format::kParts) {
        first_part[r][i] = scaled;
      } else {
        rf& to = sums.of[r][i];
        to = fma(scaled, splat<rf>(input.scale), to);
        if constexpr (Format::kMinimum != Minimum::kOffset) to = fma(splat<rf>(input.sum), weights[part]->minimum[i], to);
      }
    });
  });
}

// R rows of prepared inputs times one panel. In one function with others, GCC would no longer inline all that it should.
template <class Format, int R>
[[gnu::noinline]] void quant_tile(const uint32_t* x, int64_t x_words, int64_t in, const QuantPanel& panel, const float* bias, Prefetch& next,
                       float* out, int64_t out_stride) {
  Sums<R, kRegisters> sums;
  sums.begin(nullptr, 0);
  const int64_t groups = num_quant_groups(in);
  for (int64_t begin = 0; begin < groups; begin += Format::kGroups) {
    const uint32_t* block = panel.data + begin / Format::kGroups * Format::kBlockWords;
    ScaleAndMinimum header;
    read_header<Format>(block, header);
    const int64_t end = std::min(begin + Format::kGroups, groups);
    for (int64_t g = begin; g < end; g++) {
      const uint32_t* group = block + Format::kHeaderWords + (g - begin) * Format::kGroupWords;
      if (R >= kFewRows) next.step();
      else next.reads(group, Format::kGroupWords * 4);
      add_group<Format, R>(x, x_words, in, g, group, header, sums);
    }
  }
  if (bias) sums.add(bias);
  sums.end(out, out_stride, panel.columns);
}

template <class Format, int R>
inline void quant_tiles(const uint32_t* x, int64_t x_words, int64_t rows, int64_t in, const QuantPanel& panel, const float* bias,
                        Prefetch& next, float* out, int64_t out_stride) {
  for (; rows >= R; rows -= R, x += R * x_words, out += R * out_stride) {
    quant_tile<Format, R>(x, x_words, in, panel, bias, next, out, out_stride);
  }
  if constexpr (R > 1) {
    if (rows) quant_tiles<Format, R / 2>(x, x_words, rows, in, panel, bias, next, out, out_stride);
  }
}

// A product, panel by panel.
struct PanelProduct {
  const float* x;
  int64_t x_stride;
  const uint32_t* prepared;
  const PackedWeight& w;

  const QuantPanel& panel(int64_t p) const { return ((const QuantPanel*)w.weight)[p]; }
  // Reads panel p while something else is computed.
  Prefetch prefetch(int64_t p) const {
    const int64_t bytes = with_quant_format(panel(p).format, [&](auto format) { return decltype(format)::panel_words(w.in_features) * 4; });
    return Prefetch(panel(p).data, bytes, num_quant_groups(w.in_features));
  }
  // out: of the first of the rows, where the panel's outputs begin.
  void multiply(int64_t p, Prefetch& next, int64_t row, int64_t rows, float* out, int64_t out_stride) const {
    const int64_t words = PreparedRow::num_words(w.in_features);
    const float* bias = w.bias ? w.bias + p * kQuantPanel : nullptr;
    with_quant_format(panel(p).format, [&](auto format) {
      using Format = decltype(format);
      if constexpr (Format::kIsFloat) {
        float_tiles<Format>(x + row * x_stride, x_stride, rows, w.in_features, panel(p), bias, next, out, out_stride);
      } else {
        quant_tiles<Format, kQuantRows>(prepared + row * words, words, rows, w.in_features, panel(p), bias, next, out, out_stride);
      }
    });
  }
};

void panels_shared(const PanelProduct& product, float* out, int64_t rows) {
  const PackedWeight& w = product.w;
  const auto multiply = [&](int64_t p, Prefetch& next, int64_t row, int64_t num_rows) {
    product.multiply(p, next, row, num_rows, out + row * w.out_features + product.panel(p).first, w.out_features);
  };
  if (rows < kFewRows) {  // at least four adjacent panels at a time: reading is fastest in long runs
    Prefetch ahead = Prefetch::ahead();
#pragma omp for schedule(guided, 4) nowait
    for (int64_t p = 0; p < w.num_quant_panels; p++) multiply(p, ahead, 0, rows);
    return;
  }
  share_panels(w.num_quant_panels, rows, kQuantRowBlock, [&](int64_t p, int64_t next, int64_t row, int64_t num_rows) {
    Prefetch prefetch = next == p ? Prefetch() : product.prefetch(next);
    multiply(p, prefetch, row, num_rows);
  });
}

// silu(gate) * up, prepared. A group's gates and ups are computed by one thread, in whose caches they stay.
void gated_panels_shared(const PanelProduct& product, uint32_t* gated, int64_t rows) {
  constexpr int64_t kPanels = kQuantGroup / kQuantPanel;  // with a group's gates; as many have its ups
  const int64_t inner = product.w.out_features / 2, num_groups = num_quant_groups(inner), words = PreparedRow::num_words(inner);
  const auto panel = [&](int64_t g, int64_t i) { return (i / kPanels * num_groups + g) * kPanels + i % kPanels; };
  const auto compute = [&](int64_t g, int64_t row, int64_t num_rows, const auto& prefetch_beside) {
    alignas(64) float gates_and_ups[2][kQuantRowBlock][kQuantGroup];
    for (int64_t i = 0; i < 2 * kPanels; i++) {
      Prefetch next = prefetch_beside(i);
      product.multiply(panel(g, i), next, row, num_rows, &gates_and_ups[i / kPanels][0][i % kPanels * kQuantPanel], kQuantGroup);
    }
    for (int64_t r = 0; r < num_rows; r++) {
      float* gate = gates_and_ups[0][r];
      silu_mul_row(gate, gates_and_ups[1][r], gate, kQuantGroup);
      uint32_t* to = gated + (row + r) * words;
      quantise_group(gate, PreparedRow::groups(to)[g], kDotsBytes ? nullptr : PreparedRow::pairs(to, inner) + g);
    }
  };
  if (rows < kFewRows) {
#pragma omp for schedule(guided, 2) nowait
    for (int64_t g = 0; g < num_groups; g++) compute(g, 0, rows, [](int64_t) { return Prefetch::ahead(); });
    return;
  }
  share_panels(num_groups, rows, kQuantRowBlock, [&](int64_t g, int64_t next, int64_t row, int64_t num_rows) {
    compute(g, row, num_rows, [&](int64_t i) {
      if (i + 1 < 2 * kPanels) return product.prefetch(panel(g, i + 1));
      return next == g ? Prefetch() : product.prefetch(panel(next, 0));
    });
  });
}

}  // namespace
}  // namespace triptych

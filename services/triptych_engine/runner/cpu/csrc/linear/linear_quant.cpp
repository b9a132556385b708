// Linear layers with quantised weights. Inputs are quantised dynamically (quant_inputs.h). So few rows take as long as reading
// the weights, which are a half to a quarter of bfloat16's bytes, and many rows use integer instructions, where FastQuantFormat does not
// know a faster way.
//
// All formats but one have unsigned weights: value * scale + minimum. The part of a stored minimum in a result is minimum times the sum of
// a group's inputs, which is known when the inputs are quantised; an offset is subtracted from the values. Floats of 8 bits are multiplied
// with the inputs as they are.
//
// This file is compiled without contraction of products and sums, except for explicit `fma`. Integers are exact. So all instruction
// sets give the same bits with MixedQuantFormat.

#include "linear/linear_quant.h"

#include <utility>

#include "linear/quant_dot.h"
#include "linear/quant_exact.h"
#include "linear/quant_format.h"
#include "linear/quant_tiles.h"

namespace triptych {
namespace {

// Rows that share a pass over a panel. With AVX-512 their sums, two weights and an input fit in the registers.
constexpr int kQuantRows = 8;

// Rows that are multiplied by all panels of a thread before the next rows: their inputs stay in the L2 cache.
constexpr int64_t kQuantRowBlock = kExactRows;

#if defined(TRIPTYCH_BF16_DOT)
// The same for products with weights widened to bfloat16: 1 MB. Vectors multiply so slowly that 4 MB, of the last-level cache, come in time.
inline int64_t tile_row_block(int64_t in_features) {
  return std::clamp<int64_t>((uses_tiles() ? 1 << 19 : 1 << 21) / in_features / 64 * 64, 64, 512);
}
// Smallest number of rows that are multiplied with tiles: with so few, widening takes longer than vectors do with 8 rows, and as long as with 11.
constexpr int64_t kTileRows = 10;
// The same of floats of 8 bits on CPUs without tiles. With tiles it is always: widening takes longest, also of one row.
constexpr int64_t kFloatPairRows = 12;
#endif

// Whether so many rows are multiplied with tiles, where they may.
inline bool tiles_rows([[maybe_unused]] int64_t rows) {
#if defined(TRIPTYCH_BF16_TILES)
  return rows >= kTileRows && uses_tiles();
#else
  return false;
#endif
}

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

template <class Format>
void linear(const float* x, int64_t x_stride, const PackedWeight& w, float* out, uint32_t* workspace, int64_t rows) {
#pragma omp parallel
  {
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
      Format::prepare_row(x + r * x_stride, w.in_features, workspace + r * Format::num_prepared_words(w.in_features), rows);
    }
    Format::linear_shared(x, x_stride, workspace, w, out, rows, rows);
  }
}

#if defined(TRIPTYCH_BF16_DOT)
bool has_only_floats(const PackedWeight& w) {
  const QuantPanel* panels = (const QuantPanel*)w.weight;
  return std::all_of(panels, panels + w.num_quant_panels, [](const QuantPanel& panel) {
    return with_quant_format(panel.format, [](auto format) { return decltype(format)::kIsFloat; });
  });
}

// Each thread rounds all rows.
void rounded_shared(const float* x, int64_t x_stride, const PackedWeight& w, float* out, int64_t rows) {
  const TileScope tiles;
  static thread_local std::vector<uint32_t> rounded;
  const int64_t words = num_pairs(w.in_features), block = tile_row_block(w.in_features);
  const size_t size_words = TilesOf::padded_rows(std::min(block, rows)) * words;
  if (rounded.size() < size_words) rounded.resize(size_words);
  for (int64_t row = 0; row < rows; row += block) {
    const int64_t size = std::min(block, rows - row);
    for (int64_t r = 0; r < size; r++) round_row(x + (row + r) * x_stride, w.in_features, rounded.data() + r * words);
    tiles_shared(rounded.data(), words, w, out + row * w.out_features, size);
  }
}
#endif

int64_t bytes_of(const QuantPanel& panel, int64_t in_features) {
  return with_quant_format(panel.format, [&](auto format) { return decltype(format)::panel_words(in_features) * 4; });
}

void panels_shared(const float* x, int64_t x_stride, const uint32_t* prepared, const PackedWeight& w, float* out, int64_t rows) {
  const QuantPanel* panels = (const QuantPanel*)w.weight;
  const int64_t words = MixedQuantFormat::num_prepared_words(w.in_features);
  const auto multiply = [&](int64_t p, Prefetch& next, int64_t row, int64_t num_rows) {
    const QuantPanel& panel = panels[p];
    const float* bias = w.bias ? w.bias + p * kQuantPanel : nullptr;
    float* first = out + row * w.out_features + panel.first;
    with_quant_format(panel.format, [&](auto format) {
      using Format = decltype(format);
      if constexpr (Format::kIsFloat) {
        float_tiles<Format>(x + row * x_stride, x_stride, num_rows, w.in_features, panel, bias, next, first, w.out_features);
      } else {
        quant_tiles<Format, kQuantRows>(prepared + row * words, words, num_rows, w.in_features, panel, bias, next, first, w.out_features);
      }
    });
  };
  if (rows < kFewRows) {  // at least four adjacent panels at a time: reading is fastest in long runs
    Prefetch ahead = Prefetch::ahead();
#pragma omp for schedule(guided, 4) nowait
    for (int64_t p = 0; p < w.num_quant_panels; p++) multiply(p, ahead, 0, rows);
    return;
  }
  share_panels(w.num_quant_panels, rows, kQuantRowBlock, [&](int64_t p, int64_t next, int64_t row, int64_t num_rows) {
    Prefetch prefetch;
    if (next != p) prefetch = Prefetch(panels[next].data, bytes_of(panels[next], w.in_features), num_quant_groups(w.in_features));
    multiply(p, prefetch, row, num_rows);
  });
}

}  // namespace

int64_t MixedQuantFormat::num_prepared_words(int64_t in_features) { return PreparedRow::num_words(in_features); }

void MixedQuantFormat::prepare_row(const float* row, int64_t in_features, uint32_t* prepared, int64_t) {
  PreparedGroup* groups = PreparedRow::groups(prepared);
  PreparedPairs* pairs = PreparedRow::pairs(prepared, in_features);
  for (int64_t g = 0; g < num_quant_groups(in_features); g++) {
    const int64_t begin = g * kQuantGroup, size = std::min(kQuantGroup, in_features - begin);
    float padded[kQuantGroup] = {};
    if (size < kQuantGroup) std::memcpy(padded, row + begin, size * sizeof(float));
    quantise_group(size < kQuantGroup ? padded : row + begin, groups[g], kDotsBytes ? nullptr : pairs + g);
  }
}

void MixedQuantFormat::linear_shared(const float* x, int64_t x_stride, const uint32_t* prepared, const PackedWeight& w, float* out,
                                     int64_t rows, int64_t) {
  panels_shared(x, x_stride, prepared, w, out, rows);
}

void FastQuantFormat::prepare_row(const float* row, int64_t in_features, uint32_t* prepared, int64_t step_rows) {
#if defined(TRIPTYCH_BF16_TILES)
  if (tiles_rows(step_rows)) return round_row(row, in_features, prepared);  // as long as the other form
#endif
  MixedQuantFormat::prepare_row(row, in_features, prepared, step_rows);
}

void FastQuantFormat::linear_shared(const float* x, int64_t x_stride, const uint32_t* prepared, const PackedWeight& w, float* out,
                                    int64_t rows, int64_t step_rows) {
#if defined(TRIPTYCH_BF16_DOT)
  if (!tiles_rows(step_rows) && (uses_tiles() || step_rows >= kFloatPairRows) && has_only_floats(w)) {
    return rounded_shared(x, x_stride, w, out, rows);
  }
#endif
  if (!tiles_rows(step_rows)) return panels_shared(x, x_stride, prepared, w, out, rows);
#if defined(TRIPTYCH_BF16_TILES)
  static_assert(PreparedRow::kGroupWords == kQuantGroup / 2, "a prepared row has room for bfloat16 inputs");
  const TileScope tiles;
  const int64_t words = num_prepared_words(w.in_features);
  const int64_t block = tile_row_block(w.in_features);
  for (int64_t row = 0; row < rows; row += block) {
    tiles_shared(prepared + row * words, words, w, out + row * w.out_features, std::min(block, rows - row));
  }
#endif
}

bool FastQuantFormat::gates(const PackedWeight& w, int64_t step_rows) {
  return tiles_rows(step_rows) && w.num_quant_panels * kQuantPanel == w.out_features && w.out_features % (2 * kPanel) == 0;
}

void FastQuantFormat::gated_shared([[maybe_unused]] const uint32_t* prepared, [[maybe_unused]] const PackedWeight& w,
                                    [[maybe_unused]] uint32_t* gated, [[maybe_unused]] int64_t rows) {
#if defined(TRIPTYCH_BF16_TILES)
  const TileScope tiles;
  const int64_t words = num_prepared_words(w.in_features), gated_words = num_prepared_words(w.out_features / 2);
  const int64_t block = tile_row_block(w.in_features);
  for (int64_t row = 0; row < rows; row += block) {
    gated_tiles_shared(prepared + row * words, words, w, gated + row * gated_words, gated_words, std::min(block, rows - row));
  }
#endif
}

}  // namespace triptych

using namespace triptych;

extern "C" {

// 32-bit words of a prepared row.
int64_t triptych_quant_row_words(int64_t in_features) { return MixedQuantFormat::num_prepared_words(in_features); }

// Whether triptych_linear_quant_fast computes otherwise than triptych_linear_quant.
int32_t triptych_quant_has_fast() {
#if defined(TRIPTYCH_BF16_DOT)
  return true;
#else
  return false;
#endif
}

// out = x weight^T + bias in fp32: x is not quantised, and needs no workspace. Arguments as of triptych_linear_quant.
void triptych_linear_quant_exact(const float* x, int64_t x_stride, const void* panels, int64_t num_panels, const float* bias, float* out,
                                 int64_t rows, int64_t out_features, int64_t in_features) {
#pragma omp parallel for schedule(dynamic, 4)
  for (int64_t p = 0; p < num_panels; p++) {
    const QuantPanel& panel = ((const QuantPanel*)panels)[p];
    Prefetch none;
    with_quant_format(panel.format, [&](auto f) {
      for (int64_t r = 0; r < rows; r += kExactRows) {
        exact_tile<decltype(f)>(x + r * x_stride, x_stride, std::min(kExactRows, rows - r), in_features, panel,
                                bias ? bias + p * kQuantPanel : nullptr, none, out + r * out_features + panel.first, out_features);
      }
    });
  }
}

// out = x weight^T + bias. x: [rows, in], rows x_stride apart; panels: a table of them; out: [rows, out], dense; bias: [panels * panel]
// or null; workspace: [rows, row_words] words. A row with a value that is not finite has no finite output.
void triptych_linear_quant(const float* x, int64_t x_stride, const void* panels, int64_t num_panels, const float* bias, float* out,
                           uint32_t* workspace, int64_t rows, int64_t out_features, int64_t in_features) {
  linear<MixedQuantFormat>(x, x_stride, {(const uint32_t*)panels, bias, in_features, out_features, num_panels}, out, workspace, rows);
}

// The same as FastQuantFormat computes it.
void triptych_linear_quant_fast(const float* x, int64_t x_stride, const void* panels, int64_t num_panels, const float* bias, float* out,
                                uint32_t* workspace, int64_t rows, int64_t out_features, int64_t in_features) {
  linear<FastQuantFormat>(x, x_stride, {(const uint32_t*)panels, bias, in_features, out_features, num_panels}, out, workspace, rows);
}
}

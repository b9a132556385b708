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

#include "linear/quant_product.h"
#include "linear/quant_tiles.h"

namespace triptych {
namespace {

#if defined(TRIPTYCH_BF16_DOT)
// Rows that are multiplied by all panels of a thread, widened to bfloat16, before the next rows: 1 MB. Vectors multiply so slowly that 4 MB, of the last-level cache, come in time.
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

PackedWeight weight_of(const void* panels, int64_t num_panels, const float* bias, int64_t in_features, int64_t out_features) {
  const QuantPanel* all = (const QuantPanel*)panels;
  const int64_t num_floats = std::count_if(all, all + num_panels, [](const QuantPanel& panel) {
    return with_quant_format(panel.format, [](auto format) { return decltype(format)::kIsFloat; });
  });
  return {(const uint32_t*)panels, bias, in_features, out_features, num_panels, num_floats};
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
  panels_shared({x, x_stride, prepared, w}, out, rows);
}

// Only where all threads get some groups. Floats read inputs that are not prepared.
bool MixedQuantFormat::gates(const PackedWeight& w, const PackedWeight& next, int64_t) {
  constexpr int64_t kGroupsPerThread = 4;
  return w.num_quant_panels * kQuantPanel == w.out_features && w.out_features % (2 * kQuantGroup) == 0 && !w.num_float_panels &&
         !next.num_float_panels && next.in_features >= kGroupsPerThread * kQuantGroup * omp_get_num_threads();
}

void MixedQuantFormat::gated_shared(const uint32_t* prepared, const PackedWeight& w, uint32_t* gated, int64_t rows, int64_t) {
  gated_panels_shared({nullptr, 0, prepared, w}, gated, rows);
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
  if (!tiles_rows(step_rows) && (uses_tiles() || step_rows >= kFloatPairRows) && w.num_float_panels == w.num_quant_panels) {
    return rounded_shared(x, x_stride, w, out, rows);
  }
#endif
  if (!tiles_rows(step_rows)) return panels_shared({x, x_stride, prepared, w}, out, rows);
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

bool FastQuantFormat::gates(const PackedWeight& w, const PackedWeight& next, int64_t step_rows) {
  if (!tiles_rows(step_rows)) return MixedQuantFormat::gates(w, next, step_rows);
  return w.num_quant_panels * kQuantPanel == w.out_features && w.out_features % (2 * kPanel) == 0;
}

void FastQuantFormat::gated_shared(const uint32_t* prepared, const PackedWeight& w, uint32_t* gated, int64_t rows, int64_t step_rows) {
  if (!tiles_rows(step_rows)) return MixedQuantFormat::gated_shared(prepared, w, gated, rows, step_rows);
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
  linear<MixedQuantFormat>(x, x_stride, weight_of(panels, num_panels, bias, in_features, out_features), out, workspace, rows);
}

// The same as FastQuantFormat computes it.
void triptych_linear_quant_fast(const float* x, int64_t x_stride, const void* panels, int64_t num_panels, const float* bias, float* out,
                                uint32_t* workspace, int64_t rows, int64_t out_features, int64_t in_features) {
  linear<FastQuantFormat>(x, x_stride, weight_of(panels, num_panels, bias, in_features, out_features), out, workspace, rows);
}
}

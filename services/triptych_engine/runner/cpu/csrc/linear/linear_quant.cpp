// Linear layers with quantised weights. Inputs are quantised to 8 bits dynamically (quant_inputs.h). So few rows take as long as reading
// the weights, which are a half to a quarter of bfloat16's bytes, and many rows use integer instructions.
//
// All formats but one have unsigned weights: value * scale + minimum. The minimums' part of a result is minimum times the sum of a
// group's inputs, which is known when the inputs are quantised. Floats of 8 bits are multiplied with the inputs as they are.
//
// This file is compiled without contraction of products and sums, except for explicit `fma`. Integers are exact. So all instruction
// sets give the same bits.

#include "linear/linear_quant.h"

#include <utility>

#include "linear/quant_dot.h"
#include "linear/quant_exact.h"
#include "linear/quant_format.h"
#include "linear/quant_tiles.h"

namespace triptych {
namespace {

// Rows that are multiplied by all panels of a thread before the next rows: their inputs stay in the L2 cache.
constexpr int64_t kQuantRowBlock = 64;

#if defined(TRIPTYCH_BF16_TILES)
// The same for products with tiles: 1 MB.
inline int64_t tile_row_block(int64_t in_features) { return std::clamp<int64_t>((1 << 19) / in_features / 64 * 64, 64, 512); }
// Smallest number of rows that are multiplied with tiles.
constexpr int64_t kTileRows = 8;
#endif

// Whether so many rows are multiplied with tiles, where they may.
inline bool tiles_rows([[maybe_unused]] int64_t rows) {
#if defined(TRIPTYCH_BF16_TILES)
  return rows >= kTileRows && uses_tiles();
#else
  return false;
#endif
}

template <class Format, int R, int kPart>
inline void add_part(const uint32_t* x, int64_t x_words, int64_t in, int64_t g, const uint32_t* group, const ScaleAndMinimum& header,
                     Sums<R>& sums) {
  PartSums<Format, R, kPart> part;
  part.compute(x + g * PreparedRow::kGroupWords, x + num_quant_groups(in) * PreparedRow::kGroupWords + g * PreparedRow::kPairsWords,
               x_words, group);
  ScaleAndMinimum own;
  const ScaleAndMinimum& weights = scales_at<Format>(header, group, kPart, own);
  const PreparedGroup* inputs = (const PreparedGroup*)x + g;
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) {
    const PreparedGroup& input = *(const PreparedGroup*)((const uint32_t*)inputs + r * x_words);
    const rf scale = splat<rf>(input.scale), sum = splat<rf>(Format::kParts == 1 ? input.sums[0] + input.sums[1] : input.sums[kPart]);
#pragma GCC unroll 4
    for (int i = 0; i < kRegisters; i++) {
      const rf products = to_floats((rs)part.sum[r][i]) * scale;
      sums.of[r][i] = fma(sum, weights.minimum[i], fma(products, weights.scale[i], sums.of[r][i]));
    }
  }
  if constexpr (kPart + 1 < Format::kParts) add_part<Format, R, kPart + 1>(x, x_words, in, g, group, header, sums);
}

// R rows of prepared inputs times one panel.
template <class Format, int R>
inline void quant_tile(const uint32_t* x, int64_t x_words, int64_t in, const QuantPanel& panel, const float* bias, float* out,
                       int64_t out_stride) {
  Sums<R> sums;
  sums.begin();
  const int64_t groups = num_quant_groups(in);
  for (int64_t begin = 0; begin < groups; begin += Format::kGroups) {
    const uint32_t* block = panel.data + begin / Format::kGroups * Format::kBlockWords;
    ScaleAndMinimum header;
    read_header<Format>(block, header);
    const int64_t end = std::min(begin + Format::kGroups, groups);
    for (int64_t g = begin; g < end; g++) {
      add_part<Format, R, 0>(x, x_words, in, g, block + Format::kHeaderWords + (g - begin) * Format::kGroupWords, header, sums);
    }
  }
  if (bias) sums.add(bias);
  sums.end(panel, out, out_stride);
}

template <class Format, int R>
inline void quant_tiles(const uint32_t* x, int64_t x_words, int64_t rows, int64_t in, const QuantPanel& panel, const float* bias,
                        float* out, int64_t out_stride) {
  for (; rows >= R; rows -= R, x += R * x_words, out += R * out_stride) {
    quant_tile<Format, R>(x, x_words, in, panel, bias, out, out_stride);
  }
  if constexpr (R > 1) {
    if (rows) quant_tiles<Format, R / 2>(x, x_words, rows, in, panel, bias, out, out_stride);
  }
}

// What `triptych_quant_pack` takes: see there.
struct Unpacked {
  const uint8_t* values;
  const void *scales, *minimums;
  const uint8_t *part_scales, *part_minimums;
};

template <class Format>
void linear(const float* x, int64_t x_stride, const PackedWeight& w, float* out, uint32_t* workspace, int64_t rows) {
#pragma omp parallel
  {
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
      Format::prepare_row(x + r * x_stride, w.in_features, workspace + r * Format::num_prepared_words(w.in_features), rows);
    }
    Format::linear_shared(x, x_stride, workspace, w, out, rows);
  }
}

[[maybe_unused]] bool has_only_floats(const PackedWeight& w) {
  const QuantPanel* panels = (const QuantPanel*)w.weight;
  return std::all_of(panels, panels + w.num_quant_panels, [](const QuantPanel& panel) {
    return with_quant_format(panel.format, [](auto format) { return decltype(format)::kIsFloat; });
  });
}

// Packs the weights of one output into its lane of a zeroed panel.
template <class Format>
void pack_output(const Unpacked& given, int64_t row, int64_t in, uint32_t* panel, int64_t lane) {
  const int64_t blocks = (in + Format::kBlock - 1) / Format::kBlock, groups = num_quant_groups(in);
  for (int64_t b = 0; b < blocks; b++) {
    uint32_t* block = panel + b * Format::kBlockWords;
    if constexpr (Format::kIsFloat) ((float*)block)[lane] = ((const float*)given.scales)[row * blocks + b] * 256;  // see quant_floats.h
    else ((uint16_t*)block)[lane] = ((const uint16_t*)given.scales)[row * blocks + b];
    if constexpr (Format::kMinimum == Minimum::kHalf) {
      ((uint16_t*)(block + kQuantPanel / 2))[lane] = ((const uint16_t*)given.minimums)[row * blocks + b];
    } else if constexpr (Format::kMinimum == Minimum::kZero) {
      ((uint8_t*)(block + kQuantPanel / 2))[lane] = ((const uint8_t*)given.minimums)[row * blocks + b];
    }
  }
  for (int64_t g = 0; g < groups; g++) {
    uint32_t* group = panel + g / Format::kGroups * Format::kBlockWords + Format::kHeaderWords + g % Format::kGroups * Format::kGroupWords;
    for (int64_t i = g * kQuantGroup; i < std::min(in, (g + 1) * kQuantGroup); i++) {
      const uint8_t value = given.values[row * in + i];
      if constexpr (Format::kIsFloat) ((uint8_t*)group)[i % kQuantGroup * kQuantPanel + lane] = value;
      else put_value<Format>(group + lane, int(i % kQuantGroup / 4), int(i % 4), value);
    }
    uint8_t* scales = (uint8_t*)(group + Format::kQuadWords);
    for (int64_t p = 0; p < Format::kScales; p++) {
      scales[p * kQuantPanel + lane] = given.part_scales[(row * groups + g) * Format::kScales + p];
      if constexpr (Format::kHasMinimums) {
        scales[(Format::kScales + p) * kQuantPanel + lane] = given.part_minimums[(row * groups + g) * Format::kScales + p];
      }
    }
  }
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
                                     int64_t rows) {
  const QuantPanel* panels = (const QuantPanel*)w.weight;
  const int64_t words = num_prepared_words(w.in_features);
  for (int64_t row = 0; row < rows; row += kQuantRowBlock) {
    const int64_t num_rows = std::min(kQuantRowBlock, rows - row);
    // Four adjacent panels at a time: reading is fastest in long runs.
#pragma omp for schedule(dynamic, 4) nowait
    for (int64_t p = 0; p < w.num_quant_panels; p++) {
      const QuantPanel& panel = panels[p];
      with_quant_format(panel.format, [&](auto format) {
        using Format = decltype(format);
        const float* bias = w.bias ? w.bias + p * kQuantPanel : nullptr;
        float* first = out + row * w.out_features + panel.first;
        if constexpr (Format::kIsFloat) {
          float_tiles<Format>(x + row * x_stride, x_stride, num_rows, w.in_features, panel, bias, first, w.out_features);
        } else {
          quant_tiles<Format, kQuantRows>(prepared + row * words, words, num_rows, w.in_features, panel, bias, first, w.out_features);
        }
      });
    }
  }
}

void TiledQuantFormat::prepare_row(const float* row, int64_t in_features, uint32_t* prepared, int64_t rows) {
#if defined(TRIPTYCH_BF16_TILES)
  if (tiles_rows(rows)) return round_row(row, in_features, prepared);  // as long as the other form
#endif
  MixedQuantFormat::prepare_row(row, in_features, prepared, rows);
}

void TiledQuantFormat::linear_shared(const float* x, int64_t x_stride, const uint32_t* prepared, const PackedWeight& w, float* out,
                                     int64_t rows) {
#if defined(TRIPTYCH_BF16_TILES)
  if (!tiles_rows(rows) && uses_tiles() && has_only_floats(w)) {  // widening them is what takes longest, also of one row
    const TileScope tiles;
    static thread_local std::vector<uint32_t> rounded;
    const int64_t words = num_pairs(w.in_features);
    rounded.resize(kTile * words);
    for (int64_t r = 0; r < rows; r++) round_row(x + r * x_stride, w.in_features, rounded.data() + r * words);
    return tiles_shared(rounded.data(), words, w, out, rows);
  }
#endif
  if (!tiles_rows(rows)) return MixedQuantFormat::linear_shared(x, x_stride, prepared, w, out, rows);
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

bool TiledQuantFormat::gates(const PackedWeight& w, int64_t rows) {
  return tiles_rows(rows) && w.num_quant_panels * kQuantPanel == w.out_features && w.out_features % (2 * kPanel) == 0;
}

void TiledQuantFormat::gated_shared([[maybe_unused]] const uint32_t* prepared, [[maybe_unused]] const PackedWeight& w,
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

// Outputs of a panel; 32-bit words of a panel in a format; of a prepared row.
int32_t triptych_quant_panel() { return int32_t(kQuantPanel); }
int64_t triptych_quant_panel_words(int32_t format, int64_t in_features) {
  return with_quant_format(format, [&](auto f) { return decltype(f)::panel_words(in_features); });
}
int64_t triptych_quant_row_words(int64_t in_features) { return MixedQuantFormat::num_prepared_words(in_features); }

// Packs rows of a weight: out_features of them, the last panel padded with zeros. values: [out, in], one byte each; scales: [out,
// blocks] fp16, of floats fp32; minimums: [out, blocks], fp16 or bytes or null; part_scales, part_minimums: [out, groups, scales of a group] bytes, or
// null; all dense. packed: [ceil(out / panel), panel_words].
void triptych_quant_pack(int32_t format, const uint8_t* values, const void* scales, const void* minimums,
                         const uint8_t* part_scales, const uint8_t* part_minimums, uint32_t* packed, int64_t out_features,
                         int64_t in_features) {
  const Unpacked given{values, scales, minimums, part_scales, part_minimums};
  with_quant_format(format, [&](auto f) {
    using Format = decltype(f);
    const int64_t num_panels = (out_features + kQuantPanel - 1) / kQuantPanel, words = Format::panel_words(in_features);
#pragma omp parallel for schedule(static)
    for (int64_t p = 0; p < num_panels; p++) {
      std::memset(packed + p * words, 0, words * 4);
      for (int64_t row = p * kQuantPanel; row < std::min(out_features, (p + 1) * kQuantPanel); row++) {
        pack_output<Format>(given, row, in_features, packed + p * words, row % kQuantPanel);
      }
    }
  });
}

// Weights of some outputs of a table of panels, in any order, as fp32: out: [count, in]. No panel but the last may be padded.
void triptych_quant_unpack(const void* panels, const int64_t* outputs, int64_t count, int64_t in_features, float* out) {
#pragma omp parallel for schedule(static) if (count > 16)
  for (int64_t i = 0; i < count; i++) {
    const QuantPanel& panel = ((const QuantPanel*)panels)[outputs[i] / kQuantPanel];
    with_quant_format(panel.format, [&](auto f) {
      unpack_output<decltype(f)>(panel.data, outputs[i] % kQuantPanel, in_features, out + i * in_features);
    });
  }
}

// out = x weight^T + bias in fp32: x is not quantised, and needs no workspace. Arguments as of triptych_linear_quant.
void triptych_linear_quant_exact(const float* x, int64_t x_stride, const void* panels, int64_t num_panels, const float* bias, float* out,
                                 int64_t rows, int64_t out_features, int64_t in_features) {
#pragma omp parallel for schedule(dynamic, 4)
  for (int64_t p = 0; p < num_panels; p++) {
    const QuantPanel& panel = ((const QuantPanel*)panels)[p];
    with_quant_format(panel.format, [&](auto f) {
      for (int64_t r = 0; r < rows; r += kExactRows) {
        exact_tile<decltype(f)>(x + r * x_stride, x_stride, std::min(kExactRows, rows - r), in_features, panel,
                                bias ? bias + p * kQuantPanel : nullptr, out + r * out_features + panel.first, out_features);
      }
    });
  }
}

// out = x weight^T + bias. x: [rows, in], rows x_stride apart; panels: a table of them; out: [rows, out], dense; bias: [panels * panel]
// or null; workspace: [rows, row_words] words. A row with a value that is not finite has NaN in all outputs.
void triptych_linear_quant(const float* x, int64_t x_stride, const void* panels, int64_t num_panels, const float* bias, float* out,
                           uint32_t* workspace, int64_t rows, int64_t out_features, int64_t in_features) {
  linear<MixedQuantFormat>(x, x_stride, {(const uint32_t*)panels, bias, in_features, out_features, num_panels}, out, workspace, rows);
}

// The same as TiledQuantFormat computes it. A row with a value that is not finite has no finite output.
void triptych_linear_quant_tiles(const float* x, int64_t x_stride, const void* panels, int64_t num_panels, const float* bias, float* out,
                                 uint32_t* workspace, int64_t rows, int64_t out_features, int64_t in_features) {
  linear<TiledQuantFormat>(x, x_stride, {(const uint32_t*)panels, bias, in_features, out_features, num_panels}, out, workspace, rows);
}
}

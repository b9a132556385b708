// Packs quantised weights into panels, and unpacks them.
//
// Like linear_quant.cpp, it is compiled without contraction of products and sums.

#include "linear/linear_quant.h"
#include "linear/quant_exact.h"
#include "linear/quant_format.h"

namespace triptych {
namespace {

// What `triptych_quant_pack` takes: see there.
struct Unpacked {
  const uint8_t* values;
  const void *scales, *minimums;
  const uint8_t *part_scales, *part_minimums;
};

// Packs the weights of one output into its lane of a zeroed panel.
template <class Format>
void pack_output(const Unpacked& given, int64_t row, int64_t in, uint32_t* panel, int64_t lane) {
  const int64_t blocks = (in + Format::kBlock - 1) / Format::kBlock, groups = num_quant_groups(in);
  for (int64_t b = 0; b < blocks; b++) {
    uint32_t* block = panel + b * Format::kBlockWords;
    if constexpr (Format::kIsFloat) ((float*)block)[lane] = ((const float*)given.scales)[row * blocks + b] * 256;  // see quant_bytes.h
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
}  // namespace triptych

using namespace triptych;

extern "C" {

// Outputs of a panel; 32-bit words of a panel in a format.
int32_t triptych_quant_panel() { return int32_t(kQuantPanel); }
int64_t triptych_quant_panel_words(int32_t format, int64_t in_features) {
  return with_quant_format(format, [&](auto f) { return decltype(f)::panel_words(in_features); });
}

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

void triptych_quant_unpack(const void* panels, const int64_t* outputs, int64_t count, int64_t in_features, float* out) {
#pragma omp parallel for schedule(static) if (count > 16)
  for (int64_t i = 0; i < count; i++) {
    const QuantPanel& panel = ((const QuantPanel*)panels)[outputs[i] / kQuantPanel];
    with_quant_format(panel.format, [&](auto f) {
      unpack_output<decltype(f)>(panel.data, outputs[i] % kQuantPanel, in_features, out + i * in_features);
    });
  }
}
}

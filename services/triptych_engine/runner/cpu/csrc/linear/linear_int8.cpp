// Linear layers with 8-bit integers. Weights have a scale per output and group of kGroup inputs. Inputs are quantised dynamically,
// with a scale per row and group. This takes half the memory traffic of bfloat16, and has four times the rate of fp32 products if
// the CPU has VNNI.
//
// VNNI multiplies unsigned bytes by signed ones. The weights are shifted by 128, so that they are unsigned. This adds 128 times the
// sum of a group's inputs. That sum is known when the inputs are quantised, so the products' sum starts with minus 128 times that
// sum.
//
// This file is compiled without contraction of products and sums, except for explicit `fma`. Integers are exact. So all instruction
// sets give the same bits.

#include "linear/linear_int8.h"

#include "linear/int8_dot.h"

namespace triptych {
namespace {

typedef int8_t vb __attribute__((vector_size(kLanes)));
constexpr float kLargest = 127;    // of a quantised value; -128 is not used, so the range is symmetric
constexpr int32_t kShift = 128;    // of weights
constexpr float kTiniest = 1e-30;  // groups without a larger value count as zero: for smaller x, 127 / x may not be finite
constexpr uint32_t kInfinity = 0x7f800000, kMagnitude = 0x7fffffff;  // bits of floats; magnitudes have the same order as their bits

// Rounds to the nearest integer, ties to even: the addition of 1.5 * 2^23 leaves it in the low bits of the mantissa. |x| < 2^22.
inline vi round(vf x) { return (vi)(x + 12582912.0f) - 0x4b400000; }

// a * b + c, rounded once.
inline vf fma(vf a, vf b, vf c) {
#if defined(__AVX512F__)
  return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#else
  for (int i = 0; i < kLanes; i++) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return c;
#endif
}

// Bits of the largest magnitude; those of a NaN are larger than all others.
inline uint32_t largest_bits(const float* x, int64_t size) {
  vi most = vi{};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    const vi bits = (vi)load(x + i) & int32_t(kMagnitude);
    most = bits > most ? bits : most;
  }
  uint32_t result = 0;
  for (int lane = 0; lane < kLanes; lane++) result = std::max(result, uint32_t(most[lane]));
  for (; i < size; i++) {
    uint32_t bits;
    std::memcpy(&bits, x + i, 4);
    result = std::max(result, bits & kMagnitude);
  }
  return result;
}

// The scale of values with this largest magnitude; NaN if that is not finite, and 0 if all values count as zero.
inline float scale_of(uint32_t largest) {
  float x;
  std::memcpy(&x, &largest, 4);
  return largest >= kInfinity ? __builtin_nanf("") : x < kTiniest ? 0 : x / kLargest;
}
inline float inverse_of(float scale, uint32_t largest) {
  float x;
  std::memcpy(&x, &largest, 4);
  return scale > 0 ? kLargest / x : 0;
}

// q = x / scale, rounded; size at most kGroup. If the scale is 0 or NaN, q is 0. Returns the sum of q.
inline int32_t quantise(const float* x, int64_t size, float scale, float inverse, int8_t* q) {
  if (!(scale > 0)) {
    std::memset(q, 0, size);
    return 0;
  }
  vi sum = vi{};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    const vi rounded = round(load(x + i) * inverse);
    const vb bytes = __builtin_convertvector(rounded, vb);
    std::memcpy(q + i, &bytes, sizeof bytes);
    sum += rounded;
  }
  int32_t total = 0;
  for (int lane = 0; lane < kLanes; lane++) total += sum[lane];
  for (; i < size; i++) {
    q[i] = int8_t(round(splat(x[i] * inverse))[0]);
    total += q[i];
  }
  return total;
}

// Rows of a tile; and rows that are multiplied by all panels of a thread before the next rows: their inputs stay in the L2 cache.
#if defined(__AVX512F__)
constexpr int kInt8Rows = 12;  // 24 sums, two weights and a factor in 32 registers
#else
constexpr int kInt8Rows = 3;
#endif
constexpr int64_t kInt8RowBlock = 8 * kInt8Rows;

// Packed layout of each group: [quads, kPanel] words of four weights, then the scales [kPanel].
int64_t panel_words(int64_t in_features) { return (num_quads(in_features) + num_groups(in_features)) * kPanel; }
constexpr int64_t kQuads = kGroup / 4, kGroupWords = (kQuads + 1) * kPanel;

struct Int8Panel {
  const uint32_t* weight;
  const float* bias;  // [kPanel] or null
  int64_t in, columns;
};

// sum += quads of inputs, of R rows, times weights.
template <int R>
inline void add_quads(const uint32_t* x, int64_t x_words, const uint32_t* weight, int64_t quads, vi* low, vi* high) {
  for (int64_t d = 0; d < quads; d++) {
    const Weights first = weights_at(weight + d * kPanel), second = weights_at(weight + d * kPanel + kLanes);
#pragma GCC unroll 12
    for (int r = 0; r < R; r++) {
      const int32_t four = int32_t(x[r * x_words + d]);
      low[r] = dot(low[r], first, four);
      high[r] = dot(high[r], second, four);
    }
  }
}

template <int R>
inline void int8_tile(const uint32_t* x, int64_t x_words, const Int8Panel& panel, float* out, int64_t out_stride) {
  const int64_t quads = num_quads(panel.in), groups = num_groups(panel.in);
  const float* scales = (const float*)(x + quads);
  const int32_t* starts = (const int32_t*)(x + quads + groups);
  vf low[R], high[R];
  for (int r = 0; r < R; r++) low[r] = high[r] = vf{};
  for (int64_t g = 0; g < groups; g++) {
    vi low_sum[R], high_sum[R];
    for (int r = 0; r < R; r++) low_sum[r] = high_sum[r] = splat_int(starts[r * x_words + g]);
    const uint32_t* weight = panel.weight + g * kGroupWords;
    const int64_t size = std::min(kQuads, quads - g * kQuads);
    if (size == kQuads) {
      add_quads<R>(x + g * kQuads, x_words, weight, kQuads, low_sum, high_sum);
    } else {
      add_quads<R>(x + g * kQuads, x_words, weight, size, low_sum, high_sum);
    }
    const float* weight_scales = (const float*)(weight + size * kPanel);
    const vf low_scale = load(weight_scales), high_scale = load(weight_scales + kLanes);
    for (int r = 0; r < R; r++) {
      const vf scale = splat(scales[r * x_words + g]);
      low[r] = fma(__builtin_convertvector(low_sum[r], vf) * scale, low_scale, low[r]);
      high[r] = fma(__builtin_convertvector(high_sum[r], vf) * scale, high_scale, high[r]);
    }
  }
  for (int r = 0; r < R; r++) {
    if (panel.bias) {
      low[r] += load(panel.bias);
      high[r] += load(panel.bias + kLanes);
    }
    float* to = out + r * out_stride;
    if (panel.columns == kPanel) {
      store(to, low[r]);
      store(to + kLanes, high[r]);
    } else {
      float both[kPanel];
      store(both, low[r]);
      store(both + kLanes, high[r]);
      std::memcpy(to, both, panel.columns * sizeof(float));
    }
  }
}

template <int R>
inline void int8_tiles(const uint32_t* x, int64_t x_words, int64_t rows, const Int8Panel& panel, float* out, int64_t out_stride) {
  for (; rows >= R; rows -= R, x += R * x_words, out += R * out_stride) int8_tile<R>(x, x_words, panel, out, out_stride);
  if constexpr (R > 1) {
    if (rows) int8_tiles<R - 1>(x, x_words, rows, panel, out, out_stride);
  }
}

}  // namespace

void Int8Format::prepare_row(const float* row, int64_t in_features, uint32_t* prepared) {
  const int64_t quads = num_quads(in_features), groups = num_groups(in_features);
  int8_t* q = (int8_t*)prepared;
  float* scales = (float*)(prepared + quads);
  int32_t* starts = (int32_t*)(prepared + quads + groups);
  if (quads > 0) prepared[quads - 1] = 0;  // padding of the last word
  for (int64_t g = 0; g < groups; g++) {
    const int64_t begin = g * kGroup, size = std::min(kGroup, in_features - begin);
    const uint32_t largest = largest_bits(row + begin, size);
    scales[g] = scale_of(largest);
    starts[g] = -kShift * quantise(row + begin, size, scales[g], inverse_of(scales[g], largest), q + begin);
  }
}

void Int8Format::linear_shared(const float*, int64_t, const uint32_t* prepared, const PackedWeight& w, float* out, int64_t rows) {
  const int64_t num_panels = (w.out_features + kPanel - 1) / kPanel, words = num_prepared_words(w.in_features);
  for (int64_t row = 0; row < rows; row += kInt8RowBlock) {
    const int64_t num_rows = std::min(kInt8RowBlock, rows - row);
    // Two adjacent panels at a time, as in linear.cpp.
#pragma omp for schedule(dynamic, 2) nowait
    for (int64_t p = 0; p < num_panels; p++) {
      const Int8Panel panel{w.weight + p * panel_words(w.in_features), w.bias ? w.bias + p * kPanel : nullptr, w.in_features,
                            std::min(kPanel, w.out_features - p * kPanel)};
      int8_tiles<kInt8Rows>(prepared + row * words, words, num_rows, panel, out + row * w.out_features + p * kPanel, w.out_features);
    }
  }
}

}  // namespace triptych

using namespace triptych;

extern "C" {

// 32-bit words of a weight's panel, and of a row of inputs.
int64_t triptych_int8_panel_words(int64_t in_features) { return panel_words(in_features); }
int64_t triptych_int8_row_words(int64_t in_features) { return Int8Format::num_prepared_words(in_features); }

// packed: [ceil(out / panel), panel_words], see above; missing outputs are zero. weight: [out, in] fp32, dense.
void triptych_linear_int8_pack(const float* weight, uint32_t* packed, int64_t out_features, int64_t in_features) {
  const int64_t num_panels = (out_features + kPanel - 1) / kPanel;
#pragma omp parallel for schedule(static)
  for (int64_t p = 0; p < num_panels; p++) {
    for (int64_t begin = 0; begin < in_features; begin += kGroup) {
      const int64_t size = std::min(kGroup, in_features - begin);
      uint32_t* group = packed + p * panel_words(in_features) + begin / kGroup * kGroupWords;
      float* scales = (float*)(group + num_quads(size) * kPanel);
      std::memset(group, kShift, num_quads(size) * kPanel * 4);
      for (int64_t j = 0; j < kPanel; j++) {
        const int64_t column = p * kPanel + j;
        scales[j] = 0;
        if (column >= out_features) continue;
        const float* given = weight + column * in_features + begin;
        const uint32_t largest = largest_bits(given, size);
        int8_t q[kGroup];
        scales[j] = scale_of(largest);
        quantise(given, size, scales[j], inverse_of(scales[j], largest), q);
        for (int64_t i = 0; i < size; i++) ((uint8_t*)(group + i / 4 * kPanel + j))[i % 4] = uint8_t(q[i] + kShift);
      }
    }
  }
}

// out = x weight^T + bias. x: [rows, in], rows x_stride apart; out: [rows, out], dense; bias: [panels * panel] or null; workspace:
// [rows, row_words] words. A row with a value that is not finite has NaN in all outputs.
void triptych_linear_int8(const float* x, int64_t x_stride, const uint32_t* packed, const float* bias, float* out,
                          uint32_t* workspace, int64_t rows, int64_t out_features, int64_t in_features) {
  const PackedWeight w{packed, bias, in_features, out_features};
#pragma omp parallel
  {
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
      Int8Format::prepare_row(x + r * x_stride, in_features, workspace + r * Int8Format::num_prepared_words(in_features));
    }
    Int8Format::linear_shared(x, x_stride, workspace, w, out, rows);
  }
}
}

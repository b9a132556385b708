// Products with quantised weights in bfloat16 tiles. A tile of weights, 16 outputs of 32 inputs, is a group of a panel. Widening it takes
// as long as multiplying it with 64 rows. So many rows, and few for which a core can do both at the same time, take hardly longer than
// with weights that are bfloat16.
#pragma once

#include <utility>
#include <vector>

#include "elementwise.h"
#include "linear/linear_bf16.h"
#include "linear/quant_dot.h"
#include "linear/quant_floats.h"
#include "linear/quant_format.h"

#if defined(TRIPTYCH_BF16_TILES)

namespace triptych {
namespace {

// (x & mask) | more.
inline ri masked_or(ri x, uint32_t mask, ri more) {
#if defined(__AVX512F__)
  return _mm512_ternarylogic_epi32(x, splat_word(mask), more, 0xea);
#else
  return or_of(and_of(x, splat_word(mask)), more);
#endif
}

template <int kBy>
inline ri shift(ri x) {
  if constexpr (kBy < 0) return shift_right<-kBy>(x);
  else return shift_left<kBy>(x);
}

// Numbers are cut to bfloat16, not rounded, which takes half of the instructions. Cut off is half of 2^-7 on average, of numbers from 1 to 2;
// scales are larger by as much. So errors are as large as those of rounding, and their mean is next to zero.
constexpr float kCut = 1 + 0.6875f / 256;

inline void store_pairs(const rf (&low)[kRegisters], const rf (&high)[kRegisters], uint32_t* to) {
#pragma GCC unroll 4
  for (int i = 0; i < kRegisters; i++) {
    const ri words = masked_or((ri)high[i], 0xffff0000u, shift_right<16>((ri)low[i]));
    std::memcpy(to + i * kRegisterLanes, &words, sizeof words);
  }
}

// A value becomes bits of a mantissa, from one of these places on: so no integer is converted, and hardly one is shifted. With bits from
// place p on, the number is 1 + value * 2^(p - 23).
constexpr int kPlaces = 3, kFirstPlace = 8;  // 8, 12, 16

struct Mantissas {
  rf scale[kPlaces][kRegisters], minimum[kPlaces][kRegisters];

  explicit inline Mantissas(const ScaleAndMinimum& weights) {
#pragma GCC unroll 4
    for (int n = 0; n < kPlaces; n++)
#pragma GCC unroll 4
      for (int i = 0; i < kRegisters; i++) {
        scale[n][i] = weights.scale[i] * (kCut * float(1 << (23 - kFirstPlace - 4 * n)));
        minimum[n][i] = weights.minimum[i] * kCut - scale[n][i];
      }
  }
  template <int kPlace>
  inline rf weight(ri bits, int i) const {
    constexpr int n = (kPlace - kFirstPlace) / 4;
    return fma((rf)bits, scale[n][i], minimum[n][i]);
  }
};

// The weights of 16 outputs for byte b of quad k of a group, from one register of the word that has its low four bits, or all eight.
template <class Format, int k, int b>
inline rf weight_of(ri x, const uint32_t* high, const Mantissas& mantissas, int i) {
  const ri one = splat_word(0x3f800000);
  if constexpr (Format::kBits == 8) {
    return mantissas.weight<8>(masked_or(shift<8 - 8 * b>(x), 0xff00, one), i);
  } else {
    constexpr int kFrom = 8 * b + 4 * (k % 2), kBy = kFrom < 8 ? 12 : kFrom < 20 ? 0 : -12, kPlace = kFrom + kBy;
    ri bits = masked_or(shift<kBy>(x), 0xfu << kPlace, one);
    if constexpr (Format::kBits == 5) {
      bits = masked_or(shift<kPlace + 4 - 8 * b - k>(load_words(high)), 1u << (kPlace + 4), bits);
    } else if constexpr (Format::kBits == 6) {
      bits = masked_or(shift<kPlace + 4 - 8 * b - 2 * (k % 4)>(load_words(high + k / 4 * kQuantPanel)), 3u << (kPlace + 4), bits);
    }
    return mantissas.weight<kPlace>(bits, i);
  }
}

// A quad's weights in pairs of inputs, `stride` words from one pair to the next.
template <class Format, int k>
inline void quad_in_pairs(const ri (&x)[kRegisters], const uint32_t* group, const Mantissas& mantissas, uint32_t* pairs, int64_t stride) {
  rf wide[4][kRegisters];
#pragma GCC unroll 4
  for (int i = 0; i < kRegisters; i++) {
    const uint32_t* high = group + Format::kLowWords * kQuantPanel + i * kRegisterLanes;
    wide[0][i] = weight_of<Format, k, 0>(x[i], high, mantissas, i), wide[1][i] = weight_of<Format, k, 1>(x[i], high, mantissas, i);
    wide[2][i] = weight_of<Format, k, 2>(x[i], high, mantissas, i), wide[3][i] = weight_of<Format, k, 3>(x[i], high, mantissas, i);
  }
  store_pairs(wide[0], wide[1], pairs + 2 * k * stride);
  store_pairs(wide[2], wide[3], pairs + (2 * k + 1) * stride);
}

// Two quads, which share a word if their values have less than eight bits.
template <class Format, int k>
inline void two_quads_in_pairs(const uint32_t* group, const Mantissas& mantissas, uint32_t* pairs, int64_t stride) {
  ri x[kRegisters];
#pragma GCC unroll 4
  for (int i = 0; i < kRegisters; i++) x[i] = load_words(group + (Format::kBits == 8 ? k : k / 2) * kQuantPanel + i * kRegisterLanes);
  quad_in_pairs<Format, k>(x, group, mantissas, pairs, stride);
#pragma GCC unroll 4
  for (int i = 0; Format::kBits == 8 && i < kRegisters; i++) x[i] = load_words(group + (k + 1) * kQuantPanel + i * kRegisterLanes);
  quad_in_pairs<Format, k + 1>(x, group, mantissas, pairs, stride);
}

template <class Format, int kPart, int... i>
inline void part_in_pairs(const uint32_t* group, const ScaleAndMinimum& header, uint32_t* pairs, int64_t stride,
                          std::integer_sequence<int, i...>) {
  ScaleAndMinimum own;
  const Mantissas mantissas(scales_at<Format>(header, group, kPart, own));
  (two_quads_in_pairs<Format, 2 * (kPart * int(sizeof...(i)) + i)>(group, mantissas, pairs, stride), ...);
}

// The weights of 16 outputs for two inputs, as `widen_floats` makes them.
inline void widen_two_floats(const uint8_t* values, const rf (&scale)[kRegisters], rf (&low)[kRegisters], rf (&high)[kRegisters]) {
#if defined(__AVX512BW__)
  const __m512i wide = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i*)values));
  const __m512i magnitude = _mm512_and_si512(_mm512_slli_epi16(wide, 7), _mm512_set1_epi16(0x3f80));
  const __m512i halves = _mm512_ternarylogic_epi32(_mm512_slli_epi16(wide, 8), _mm512_set1_epi16(int16_t(0x8000)), magnitude, 0xea);
  low[0] = (rf)_mm512_cvtph_ps(_mm512_castsi512_si256(halves)) * scale[0];
  high[0] = (rf)_mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1)) * scale[0];
#else
  widen_floats(values, scale, low);
  widen_floats(values + kQuantPanel, scale, high);
#endif
}

template <class Format>
inline void group_in_pairs(const uint32_t* panel, int64_t g, uint32_t* pairs, int64_t stride) {
  if constexpr (Format::kIsFloat) {
    rf scale[kRegisters], low[kRegisters], high[kRegisters];
    const uint8_t* values = floats_at<Format>(panel, g, scale);
    for (int i = 0; i < kRegisters; i++) scale[i] *= kCut;
#pragma GCC unroll 4
    for (int64_t n = 0; n < kQuantGroup; n += 2) {
      widen_two_floats(values + n * kQuantPanel, scale, low, high);
      store_pairs(low, high, pairs + n / 2 * stride);
    }
  } else {
    const uint32_t* block = panel + g / Format::kGroups * Format::kBlockWords;
    const uint32_t* group = block + Format::kHeaderWords + g % Format::kGroups * Format::kGroupWords;
    ScaleAndMinimum header;
    read_header<Format>(block, header);
    constexpr auto halves = std::make_integer_sequence<int, kGroupQuads / 2 / Format::kParts>();
    part_in_pairs<Format, 0>(group, header, pairs, stride, halves);
    if constexpr (Format::kParts == 2) part_in_pairs<Format, 1>(group, header, pairs, stride, halves);
  }
}

// Two panels, or the last one, as one panel of bfloat16 weights.
struct PanelPair {
  const QuantPanel* panels;
  int num_panels;

  PanelPair(const QuantPanel* all, int64_t num_all, int64_t pair) : panels(all + 2 * pair), num_panels(int(std::min<int64_t>(2, num_all - 2 * pair))) {}
  // Whether their outputs are those of one panel. The last panel of a part of a product may be padded.
  bool is_whole() const {
    return num_panels == 2 && panels[1].first == panels[0].first + kQuantPanel && panels[1].columns == kQuantPanel;
  }
  void store_row(const float* row, float* out) const {
    for (int i = 0; i < num_panels; i++) std::memcpy(out + panels[i].first, row + i * kQuantPanel, panels[i].columns * sizeof(float));
  }
};

// Widens a pair of panels in steps, while another pair is multiplied: a core's vector and tile units work at the same time.
class Widening {
 public:
  Widening() = default;
  // words: [padded_inputs(in) / 2, kPanel].
  Widening(const PanelPair& pair, int64_t in, uint32_t* words, int64_t steps)
      : pair_(pair), words_(words), groups_(num_quant_groups(in)), left_(pair.num_panels * groups_) {
    steps_per_group_ = std::max<int64_t>(1, steps / left_);
    groups_per_step_ = (left_ + steps - 1) / std::max<int64_t>(1, steps);
    for (int i = 0; i < pair.num_panels; i++) {
      with_quant_format(pair.panels[i].format, [&](auto format) {
        widen_[i] = group_in_pairs<decltype(format)>;
        group_bytes_[i] = decltype(format)::panel_words(in) * 4 / groups_;
      });
    }
    prefetch(0, 0, kAhead * group_bytes_[0]);
  }

  void step() {
    if (++steps_ < steps_per_group_) return;
    steps_ = 0;
    for (int64_t i = std::min(groups_per_step_, left_); i > 0; i--) widen_group();
  }
  void finish() {
    while (left_ > 0) widen_group();
  }

 private:
  void widen_group() {
    const int i = left_ <= groups_ * (pair_.num_panels - 1);
    const int64_t g = groups_ * (pair_.num_panels - i) - left_;
    prefetch(i, (g + kAhead) * group_bytes_[i], group_bytes_[i]);
    widen_[i](pair_.panels[i].data, g, words_ + i * kQuantPanel + g * kQuantGroup / 2 * kPanel, kPanel);
    left_--;
  }

  // A core reads memory at its full rate only if many lines are on their way. Beyond the first panel there usually is the second.
  static constexpr int64_t kAhead = 16;
  void prefetch(int panel, int64_t from, int64_t bytes) const {
    for (int64_t at = 0; at < bytes; at += kCacheLine) __builtin_prefetch((const char*)pair_.panels[panel].data + from + at, 0, 2);
  }

  PanelPair pair_{nullptr, 0, 0};
  void (*widen_[2])(const uint32_t*, int64_t, uint32_t*, int64_t) = {};
  uint32_t* words_ = nullptr;
  int64_t group_bytes_[2] = {};
  int64_t groups_ = 0, left_ = 0;  // of each panel; of both, not widened yet
  int64_t steps_per_group_ = 1, groups_per_step_ = 0, steps_ = 0;
};

// Memory of a thread for two widened pairs. It lives as long as the thread.
class WidenedPairs {
 public:
  ~WidenedPairs() { std::free(words_); }
  uint32_t* of(int64_t in, int which) {
    const int64_t size = padded_inputs(in) / 2 * kPanel;
    if (size > size_) {
      std::free(words_);
      words_ = (uint32_t*)std::aligned_alloc(kCacheLine, 2 * size * 4);
      size_ = size;
    }
    return words_ + which * size;
  }

 private:
  uint32_t* words_ = nullptr;
  int64_t size_ = 0;
};

// out = inputs times a widened pair. x: [rows, in] bfloat16, padded to whole tiles.
inline void multiply_pair(const PanelPair& pair, const uint32_t* words, const float* bias, const uint32_t* x, int64_t x_stride,
                          int64_t rows, int64_t in, Widening& next, float* out, int64_t out_stride) {
  alignas(64) float padded[kPanel] = {};
  if (bias) std::memcpy(padded, bias, pair.num_panels * kQuantPanel * sizeof(float));
  for_rows(rows, [&](auto sums, int64_t row) {
    sums.begin(padded, 0);
    sums.add(x + row * x_stride, x_stride, num_pairs(in), Columns{words, words + kLanes, kPanel}, next);
    const int64_t left = rows - row;
    if (pair.is_whole() && left >= sums.kRows) return sums.end(out + row * out_stride + pair.panels->first, out_stride);
    alignas(64) float apart[sums.kRows][kPanel];
    sums.end(apart[0], kPanel);
    for (int64_t r = 0; r < std::min(left, sums.kRows); r++) pair.store_row(apart[r], out + (row + r) * out_stride);
  });
}

// A product's pairs of panels, distributed over the threads of the enclosing parallel region.
class TilesOf {
 public:
  // x: prepared rows, x_stride apart.
  TilesOf(const uint32_t* x, int64_t x_stride, int64_t rows, const PackedWeight& w)
      : x_(x), x_stride_(x_stride), rows_(rows), steps_(num_steps(rows, num_pairs(w.in_features))), w_(w) {}

  int64_t num_pairs_of_panels() const { return (w_.num_quant_panels + 1) / 2; }
  PanelPair pair(int64_t i) const { return PanelPair((const QuantPanel*)w_.weight, w_.num_quant_panels, i); }
  void widen(int64_t i, uint32_t* words) const { Widening(pair(i), w_.in_features, words, 1).finish(); }

  // The outputs of pair i, whose weights are in `words`. Meanwhile, pair `next` is widened to `next_words`; -1 is none.
  void multiply(int64_t i, const uint32_t* words, int64_t next, uint32_t* next_words, float* out, int64_t out_stride) const {
    Widening widening = next < 0 ? Widening() : Widening(pair(next), w_.in_features, next_words, steps_);
    multiply_pair(pair(i), words, w_.bias ? w_.bias + 2 * i * kQuantPanel : nullptr, x_, x_stride_, rows_, w_.in_features, widening, out,
                  out_stride);
    widening.finish();
  }

 private:
  const uint32_t* x_;
  int64_t x_stride_, rows_, steps_;
  const PackedWeight& w_;
};

inline void tiles_shared(const uint32_t* x, int64_t x_stride, const PackedWeight& w, float* out, int64_t rows) {
  static thread_local WidenedPairs memory;
  const TilesOf tiles(x, x_stride, rows, w);
  int64_t widened = -1;
  int which = 0;
  share_items(tiles.num_pairs_of_panels(), [&](int64_t i, int64_t next) {
    uint32_t *words = memory.of(w.in_features, which), *next_words = memory.of(w.in_features, 1 - which);
    if (widened != i) tiles.widen(i, words);
    tiles.multiply(i, words, next == i ? -1 : next, next_words, out, w.out_features);
    widened = next, which = 1 - which;
  });
}

// silu(gate) * up as bfloat16. The first half of the outputs are gates. gated: rows, gated_stride apart.
inline void gated_tiles_shared(const uint32_t* x, int64_t x_stride, const PackedWeight& w, uint32_t* gated, int64_t gated_stride, int64_t rows) {
  static thread_local WidenedPairs memory;
  static thread_local std::vector<float> outputs;
  outputs.resize(2 * rows * kPanel);
  float *gates = outputs.data(), *ups = gates + rows * kPanel;
  const TilesOf tiles(x, x_stride, rows, w);
  const int64_t half = tiles.num_pairs_of_panels() / 2;
  int64_t widened = -1;
  share_items(half, [&](int64_t i, int64_t next) {
    uint32_t *gate = memory.of(w.in_features, 0), *up = memory.of(w.in_features, 1);
    if (widened != i) tiles.widen(i, gate);
    tiles.multiply(i, gate, half + i, up, gates - i * kPanel, kPanel);
    tiles.multiply(half + i, up, next == i ? -1 : next, gate, ups - (half + i) * kPanel, kPanel);
    widened = next;
    for (int64_t r = 0; r < rows; r++) {
      silu_mul_row(gates + r * kPanel, ups + r * kPanel, (bf16*)(gated + r * gated_stride) + i * kPanel, kPanel);
    }
  });
}

}  // namespace
}  // namespace triptych

#endif

// The layout of packed quantised weights.
//
// A weight is (quantised value) * scale + minimum; the quantised value is an unsigned integer of a few bits, or a float of 8 bits. A
// block of inputs shares a header, and may have scales of its own for each group of 32 or each half group of 16. See quant_format.h
// for the formats.
//
// A panel holds 16 outputs, so that a word or a byte of each fills a vector: nothing is summed across a vector's lanes. Panels of one
// product may have different formats: popular GGUF files store the value projection with more bits than queries and keys.
#pragma once

#include "vector.h"

namespace triptych {

constexpr int64_t kQuantPanel = kLanes;  // outputs of a panel
constexpr int64_t kQuantGroup = 32;      // inputs that share a scale of the quantised input
constexpr int64_t kGroupQuads = kQuantGroup / 4;

struct QuantPanel {
  const uint32_t* data;  // its blocks, one after the other
  int32_t format;        // index into the formats of quant_format.h
  int32_t columns;       // outputs that exist
  int64_t first;         // index of the first output in the product's result
};

// Twice the floats of 4 bits (e2m1: a sign, 2 bits of exponent, 1 of mantissa), from 0 to 6 and then their negatives; plus kTableZero.
constexpr int kTableZero = 12;
constexpr uint8_t kTableValues[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

inline int64_t num_quant_groups(int64_t in_features) { return (in_features + kQuantGroup - 1) / kQuantGroup; }

// The minimum of the weights of a block.
enum class Minimum {
  kOffset,  // none is stored: minus scale * 2^(bits - 1)
  kHalf,    // stored as fp16
  kZero,    // a zero point is stored as a byte: minus scale * zero point
  kNone,    // none: the value is a float of 8 bits, and the scale is stored as fp32, times 2^8
  kTable,   // none is stored: the four bits are a float (e2m1), which kTableValues makes an integer; minus scale * kTableZero
};

// What a format stores, for each output.
// kBits: of a quantised value: 4, 5, 6 or 8.
// kBlock: inputs that share a header: the scale as fp16, and what kMinimum says.
// kScales: 0, or the number of integer scales of each group of 32 inputs, 8 bits each. A weight's scale is this times the block's. With
// a stored minimum, there are as many integer minimums. Without one, integer scales are signed.
template <int kBits_, int64_t kBlock_, Minimum kMinimum_, int kScales_ = 0>
struct QuantFormat {
  static constexpr int kBits = kBits_, kScales = kScales_, kParts = kScales_ > 1 ? kScales_ : 1;
  static constexpr int64_t kBlock = kBlock_, kGroups = kBlock / kQuantGroup;
  static constexpr Minimum kMinimum = kMinimum_;
  static constexpr bool kHasMinimums = kScales > 0 && kMinimum == Minimum::kHalf;
  static constexpr bool kIsFloat = kMinimum == Minimum::kNone, kHasTable = kMinimum == Minimum::kTable;

  // In words of 16 outputs each 32 bits wide, except for the header and the scales, whose words hold two or four outputs.
  // The low four bits of quads 2i and 2i + 1 share word i; the bits beyond four of all quads share the following words. Floats are
  // stored as bytes, 16 outputs of an input after those of the input before.
  static constexpr int64_t kLowWords = kBits == 8 ? kGroupQuads : kGroupQuads / 2;
  static constexpr int64_t kHighWords = kBits == 8 ? 0 : kBits - 4;
  static constexpr int64_t kQuadWords = (kLowWords + kHighWords) * kQuantPanel;
  static constexpr int64_t kScaleWords = (kScales + (kHasMinimums ? kScales : 0)) * kQuantPanel / 4;
  static constexpr int64_t kGroupWords = kQuadWords + kScaleWords;
  static constexpr int64_t kHeaderWords = kQuantPanel / 2 + (kMinimum == Minimum::kHalf || kIsFloat ? kQuantPanel / 2
                                                             : kMinimum == Minimum::kZero ? kQuantPanel / 4 : 0);
  static constexpr int64_t kBlockWords = kHeaderWords + kGroups * kGroupWords;

  static int64_t panel_words(int64_t in_features) { return (in_features + kBlock - 1) / kBlock * kBlockWords; }
};

// Byte b of quad k of 16 outputs, as it is stored. A byte's bits are at places 8 * b and more of a word, so that a shift and a mask give
// all four bytes at once (quad_of in quant_dot.h).
template <class Format>
inline vu values_at(const uint32_t* words, int k, int b) {
  if (Format::kBits == 8) return load(words + k * kQuantPanel) >> (8 * b) & 0xff;
  const vu low = load(words + k / 2 * kQuantPanel) >> (8 * b + 4 * (k % 2)) & 0xf;
  if (Format::kBits == 5) return low | (load(words + Format::kLowWords * kQuantPanel) >> (8 * b + k) & 1) << 4;
  if (Format::kBits == 6) return low | (load(words + (Format::kLowWords + k / 4) * kQuantPanel) >> (8 * b + 2 * (k % 4)) & 3) << 4;
  return low;
}

// Puts a value into the zeroed words of one output.
template <class Format>
inline void put_value(uint32_t* words, int k, int b, uint32_t q) {
  if (Format::kBits == 8) {
    words[k * kQuantPanel] |= q << 8 * b;
    return;
  }
  words[k / 2 * kQuantPanel] |= (q & 0xf) << (8 * b + 4 * (k % 2));
  if (Format::kBits == 5) words[Format::kLowWords * kQuantPanel] |= (q >> 4) << (8 * b + k);
  if (Format::kBits == 6) words[(Format::kLowWords + k / 4) * kQuantPanel] |= (q >> 4) << (8 * b + 2 * (k % 4));
}

}  // namespace triptych

// Linear layers with quantised weights. Inputs are quantised to 8 bits dynamically, with a scale per row and group of 32. So few rows
// take as long as reading the weights, which are a half to a quarter of bfloat16's bytes, and many rows use integer instructions.
//
// All formats have unsigned weights: value * scale + minimum. The minimums' part of a result is minimum times the sum of a group's
// inputs, which is known when the inputs are quantised.
//
// This file is compiled without contraction of products and sums, except for explicit `fma`. Integers are exact. So all instruction
// sets give the same bits.

#include "linear/linear_quant.h"

#include <type_traits>
#include <utility>

#include "linear/quant_dot.h"
#include "linear/quant_format.h"

namespace triptych {
namespace {

constexpr float kLargest = 127;    // of a quantised input; -128 is not used, so the range is symmetric
constexpr float kTiniest = 1e-30;  // groups without a larger value count as zero: for smaller x, 127 / x may not be finite
constexpr uint32_t kInfinity = 0x7f800000, kMagnitude = 0x7fffffff;  // bits of floats; magnitudes have the same order as their bits

// Rounds to the nearest integer, ties to even: the addition of 1.5 * 2^23 leaves it in the low bits of the mantissa. |x| < 2^22.
[[maybe_unused]] inline int32_t round(float x) {
  int32_t bits;
  x += 12582912.0f;
  std::memcpy(&bits, &x, 4);
  return bits - 0x4b400000;
}

// a * b + c, rounded once.
inline rf fma(rf a, rf b, rf c) {
#if defined(__AVX512F__)
  return (rf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
  return (rf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  for (int i = 0; i < kRegisterLanes; i++) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return c;
#endif
}

typedef int32_t rs __attribute__((vector_size(kRegisterLanes * 4)));
inline rf to_floats(rs x) { return __builtin_convertvector(x, rf); }
inline rf load_floats(const float* p) {
  rf x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

// Register i of 16 numbers of fp16, as fp32.
inline rf halves_at(const uint32_t* p, int i) {
#if defined(__AVX512F__)
  return (rf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
#elif defined(__AVX2__)
  return (rf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p + i));
#else
  __fp16 h[kRegisterLanes];
  std::memcpy(h, (const char*)p + i * sizeof h, sizeof h);
  rf x;
  for (int lane = 0; lane < kRegisterLanes; lane++) x[lane] = h[lane];
  return x;
#endif
}

// Register i of 16 bytes, as fp32. GCC converts them in many steps by itself.
template <class Byte>
inline rf bytes_at(const uint32_t* p, int i) {
#if defined(__AVX512F__)
  const __m128i bytes = _mm_loadu_si128((const __m128i*)p);
  return to_floats((rs)(std::is_signed<Byte>::value ? _mm512_cvtepi8_epi32(bytes) : _mm512_cvtepu8_epi32(bytes)));
#elif defined(__AVX2__)
  const __m128i bytes = _mm_loadl_epi64((const __m128i*)((const char*)p + i * kRegisterLanes));
  return to_floats((rs)(std::is_signed<Byte>::value ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes)));
#else
  typedef Byte Bytes __attribute__((vector_size(kRegisterLanes)));
  Bytes bytes;
  std::memcpy(&bytes, (const char*)p + i * kRegisterLanes, sizeof bytes);
  return to_floats(__builtin_convertvector(bytes, rs));
#endif
}

// The scale and the minimum of a block, or of one part of one of its groups; of 16 outputs.
struct ScaleAndMinimum {
  rf scale[kRegisters], minimum[kRegisters];
};

// These fill structs of the caller: GCC copies a returned one in smaller pieces than it is read in afterwards, which stalls.
template <class Format>
inline void read_header(const uint32_t* block, ScaleAndMinimum& header) {
#pragma GCC unroll 4
  for (int i = 0; i < kRegisters; i++) {
    const rf scale = header.scale[i] = halves_at(block, i);
    if constexpr (Format::kMinimum == Minimum::kHalf) header.minimum[i] = halves_at(block + kQuantPanel / 2, i);
    else if constexpr (Format::kMinimum == Minimum::kZero) header.minimum[i] = -(scale * bytes_at<uint8_t>(block + kQuantPanel / 2, i));
    else header.minimum[i] = scale * -float(1 << (Format::kBits - 1));
  }
}

// Returns the header if the format has no scales within a block, else `scales`, filled.
template <class Format>
inline const ScaleAndMinimum& scales_at(const ScaleAndMinimum& header, const uint32_t* group, int part, ScaleAndMinimum& scales) {
  if constexpr (Format::kScales == 0) return header;
  const uint32_t* at = group + Format::kQuadWords + part * kQuantPanel / 4;
#pragma GCC unroll 4
  for (int i = 0; i < kRegisters; i++) {
    if constexpr (Format::kHasMinimums) {  // the minimums are subtracted
      scales.scale[i] = header.scale[i] * bytes_at<uint8_t>(at, i);
      scales.minimum[i] = -(header.minimum[i] * bytes_at<uint8_t>(at + Format::kScales * kQuantPanel / 4, i));
    } else {
      const rf factor = bytes_at<int8_t>(at, i);
      scales.scale[i] = header.scale[i] * factor, scales.minimum[i] = header.minimum[i] * factor;
    }
  }
  return scales;
}

// Bits of the largest magnitude of a subgroup; those of a NaN are larger than all others.
[[maybe_unused]] inline uint32_t largest_bits(const float* x) {
  uint32_t most = 0;
  for (int64_t i = 0; i < kSubgroup; i++) {
    uint32_t bits;
    std::memcpy(&bits, x + i, 4);
    most = std::max(most, bits & kMagnitude);
  }
  return most;
}

inline float float_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

// The scale of a group: of its subgroup with the largest magnitudes, divided by the largest factor. NaN if a magnitude is not finite, and
// 0 if all values count as zero.
inline float scale_of(uint32_t largest) {
  if (largest >= kInfinity) return __builtin_nanf("");
  const float x = float_of(largest);
  return x < kTiniest ? 0 : x / (kLargest * kLargestFactor);
}

// A group whose values are all zero, or of which one is not finite.
inline void nothing_in_group(PreparedGroup& group, PreparedPairs* pairs) {
  std::memset(group.values, 0, sizeof group.values);
  std::memset(group.factors, 0, sizeof group.factors);
  group.sums[0] = group.sums[1] = group.scale;
  if (pairs) std::memset(pairs, 0, sizeof *pairs);
}

#if defined(__AVX2__)

// Largest magnitudes of four vectors, as bits.
inline __m128i largest_of_each(const __m256i (&x)[4]) {
  const __m256i first = _mm256_max_epi32(_mm256_permute2x128_si256(x[0], x[1], 0x20), _mm256_permute2x128_si256(x[0], x[1], 0x31));
  const __m256i second = _mm256_max_epi32(_mm256_permute2x128_si256(x[2], x[3], 0x20), _mm256_permute2x128_si256(x[2], x[3], 0x31));
  // Lanes of 128 bits: two numbers of x[0] or x[1], two of x[2] or x[3].
  const __m256i pairs = _mm256_max_epi32(_mm256_unpacklo_epi64(first, second), _mm256_unpackhi_epi64(first, second));
  const __m256i each = _mm256_max_epi32(pairs, _mm256_shuffle_epi32(pairs, 0xb1));
  const __m128i low = _mm256_castsi256_si128(each), high = _mm256_extracti128_si256(each, 1);  // 0 0 2 2, 1 1 3 3
  return _mm_blend_epi32(low, high, 0b1010);
}

// Quantises a group, and writes its pairs if `pairs` is not null.
inline void quantise_group(const float* x, PreparedGroup& group, PreparedPairs* pairs) {
  __m256 values[4];
  __m256i magnitudes[4];
  for (int s = 0; s < 4; s++) {
    values[s] = _mm256_loadu_ps(x + 8 * s);
    magnitudes[s] = _mm256_and_si256(_mm256_castps_si256(values[s]), _mm256_set1_epi32(int(kMagnitude)));
  }
  const __m128i largest = largest_of_each(magnitudes);
  const __m128i more = _mm_max_epi32(largest, _mm_shuffle_epi32(largest, 0x4e));
  const uint32_t most = uint32_t(_mm_cvtsi128_si32(_mm_max_epi32(more, _mm_shuffle_epi32(more, 0xb1))));
  group.scale = scale_of(most);
  if (!(group.scale > 0)) return nothing_in_group(group, pairs);
  const __m128 per_factor = _mm_set1_ps(1 / (group.scale * kLargest));
  const __m128i factors = _mm_min_epi32(_mm_set1_epi32(kLargestFactor),
                                        _mm_add_epi32(_mm_cvttps_epi32(_mm_mul_ps(_mm_castsi128_ps(largest), per_factor)), _mm_set1_epi32(1)));
  alignas(16) float inverses[4];
  _mm_store_ps(inverses, _mm_div_ps(_mm_set1_ps(1), _mm_mul_ps(_mm_set1_ps(group.scale), _mm_cvtepi32_ps(factors))));
  const __m128i in_halves = _mm_or_si128(factors, _mm_slli_epi32(factors, 16));
  _mm_storeu_si128((__m128i*)group.factors, kDotsBytes ? factors : in_halves);
  __m256i rounded[4];
  for (int s = 0; s < 4; s++) rounded[s] = _mm256_cvtps_epi32(_mm256_mul_ps(values[s], _mm256_set1_ps(inverses[s])));
  const __m256i mixed = _mm256_packs_epi16(_mm256_packs_epi32(rounded[0], rounded[1]), _mm256_packs_epi32(rounded[2], rounded[3]));
  const __m256i bytes = _mm256_permutevar8x32_epi32(mixed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  _mm256_storeu_si256((__m256i*)group.values, bytes);
  // Each word of `bytes` is a quad; a subgroup has two.
  const __m256i factor_of_quad = _mm256_permutevar8x32_epi32(_mm256_castsi128_si256(in_halves), _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3));
  const __m256i sums = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes), factor_of_quad);
  const __m256i half = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0x4e));
  const __m256i whole = _mm256_add_epi32(half, _mm256_shuffle_epi32(half, 0xb1));
  group.sums[0] = group.scale * float(_mm256_extract_epi32(whole, 0));
  group.sums[1] = group.scale * float(_mm256_extract_epi32(whole, 4));
  if (!pairs) return;
  const __m256i order = _mm256_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15, 0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
  for (int i = 0; i < 2; i++) {
    const __m256i some = _mm256_cvtepi8_epi16(i ? _mm256_extracti128_si256(bytes, 1) : _mm256_castsi256_si128(bytes));
    const __m256i factor = _mm256_permutevar8x32_epi32(_mm256_castsi128_si256(in_halves),
                                                       i ? _mm256_setr_epi32(2, 2, 2, 2, 3, 3, 3, 3) : _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1));
    _mm256_storeu_si256((__m256i*)pairs->values + i, _mm256_shuffle_epi8(_mm256_mullo_epi16(some, factor), order));
  }
}

#else

// Quantises a group. This is the definition; instruction sets above do the same in fewer steps.
inline void quantise_group(const float* x, PreparedGroup& group, PreparedPairs* pairs) {
  uint32_t largest[kSubgroups], most = 0;
  for (int64_t s = 0; s < kSubgroups; s++) most = std::max(most, largest[s] = largest_bits(x + s * kSubgroup));
  group.scale = scale_of(most);
  if (!(group.scale > 0)) return nothing_in_group(group, pairs);
  int32_t sums[2] = {};
  const float per_factor = 1 / (group.scale * kLargest);
  for (int64_t s = 0; s < kSubgroups; s++) {
    const int32_t factor = std::min(kLargestFactor, int32_t(float_of(largest[s]) * per_factor) + 1);
    const float inverse = 1 / (group.scale * float(factor));
    int32_t sum = 0;
    for (int64_t i = 0; i < kSubgroup; i++) {
      const int32_t value = round(x[s * kSubgroup + i] * inverse);
      group.values[s * kSubgroup + i] = int8_t(value);
      sum += value;
    }
    group.factors[s] = uint32_t(factor);
    sums[s / (kSubgroups / 2)] += sum * factor;
  }
  for (int half = 0; half < 2; half++) group.sums[half] = group.scale * float(sums[half]);
}

#endif

// Rows that share a pass over a panel. Their sums, two weights and an input fit in the registers.
#if defined(__AVX512F__)
constexpr int kQuantRows = 8;
#else
constexpr int kQuantRows = 4;
#endif
// Rows that are multiplied by all panels of a thread before the next rows: their inputs stay in the L2 cache.
constexpr int64_t kQuantRowBlock = 64;

// The sums of R rows and a panel's outputs.
template <int R>
struct Sums {
  rf of[R][kRegisters];

  inline void begin() {
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
      for (int i = 0; i < kRegisters; i++) of[r][i] = rf{};
  }
  inline void add(const float* bias) {
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
      for (int i = 0; i < kRegisters; i++) of[r][i] += load_floats(bias + i * kRegisterLanes);
  }
  inline void end(const QuantPanel& panel, float* out, int64_t out_stride) const {
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      if (panel.columns == kQuantPanel) std::memcpy(out + r * out_stride, of[r], sizeof of[r]);
      else std::memcpy(out + r * out_stride, of[r], panel.columns * sizeof(float));
    }
  }
};

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

// The weights of a panel's outputs for one group of inputs, as fp32.
struct WideGroup {
  float of[kQuantGroup][kQuantPanel];
};

template <class Format>
inline void widen_group(const uint32_t* panel, int64_t g, WideGroup& wide) {
  const uint32_t* block = panel + g / Format::kGroups * Format::kBlockWords;
  const uint32_t* group = block + Format::kHeaderWords + g % Format::kGroups * Format::kGroupWords;
  ScaleAndMinimum header;
  read_header<Format>(block, header);
  constexpr int kSize = kQuantGroup / Format::kParts;
  for (int part = 0; part < Format::kParts; part++) {
    ScaleAndMinimum own;
    const ScaleAndMinimum& weights = scales_at<Format>(header, group, part, own);
    for (int64_t n = part * kSize; n < (part + 1) * kSize; n++) {
      int32_t q[kQuantPanel];
      const vu values = values_at<Format>(group, int(n / 4), int(n % 4));
      std::memcpy(q, &values, sizeof q);
      for (int i = 0; i < kRegisters; i++) {
        rs some;
        std::memcpy(&some, q + i * kRegisterLanes, sizeof some);
        const rf weight = to_floats(some) * weights.scale[i] + weights.minimum[i];
        std::memcpy(wide.of[n] + i * kRegisterLanes, &weight, sizeof weight);
      }
    }
  }
}

// sums += R rows of a group's inputs, in fp32, times its weights. sums: [R][kQuantPanel].
template <int R>
inline void add_exact(const float* x, int64_t x_stride, int64_t size, const WideGroup& wide, float* sums) {
  Sums<R> some;
  std::memcpy(some.of, sums, sizeof some.of);
  for (int64_t n = 0; n < size; n++) {
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
      for (int i = 0; i < kRegisters; i++) {
        some.of[r][i] = fma(splat<rf>(x[r * x_stride + n]), load_floats(wide.of[n] + i * kRegisterLanes), some.of[r][i]);
      }
  }
  std::memcpy(sums, some.of, sizeof some.of);
}

// Rows of inputs in fp32 times one panel, whose weights are widened once for all rows.
constexpr int64_t kExactRows = 32;

template <class Format>
void exact_tile(const float* x, int64_t x_stride, int64_t rows, int64_t in, const QuantPanel& panel, const float* bias, float* out,
                int64_t out_stride) {
  float sums[kExactRows][kQuantPanel];
  for (int64_t r = 0; r < rows; r++) {
    if (bias) std::memcpy(sums[r], bias, sizeof sums[r]);
    else std::memset(sums[r], 0, sizeof sums[r]);
  }
  WideGroup wide;
  for (int64_t g = 0; g < num_quant_groups(in); g++) {
    widen_group<Format>(panel.data, g, wide);
    const int64_t size = std::min(kQuantGroup, in - g * kQuantGroup);
    const float* inputs = x + g * kQuantGroup;
    int64_t r = 0;
    for (; r + kQuantRows <= rows; r += kQuantRows) add_exact<kQuantRows>(inputs + r * x_stride, x_stride, size, wide, sums[r]);
    for (; r < rows; r++) add_exact<1>(inputs + r * x_stride, x_stride, size, wide, sums[r]);
  }
  for (int64_t r = 0; r < rows; r++) std::memcpy(out + r * out_stride, sums[r], panel.columns * sizeof(float));
}

// Writes the weights of one output, of all inputs, as fp32.
template <class Format>
void unpack_output(const uint32_t* panel, int64_t lane, int64_t in, float* out) {
  for (int64_t g = 0; g < num_quant_groups(in); g++) {
    WideGroup wide;
    widen_group<Format>(panel, g, wide);
    for (int64_t n = 0; n < std::min(kQuantGroup, in - g * kQuantGroup); n++) out[g * kQuantGroup + n] = wide.of[n][lane];
  }
}

// What `triptych_quant_pack` takes: see there.
struct Unpacked {
  const uint8_t* values;
  const uint16_t* scales;
  const void* minimums;
  const uint8_t *part_scales, *part_minimums;
};

// Packs the weights of one output into its lane of a zeroed panel.
template <class Format>
void pack_output(const Unpacked& given, int64_t row, int64_t in, uint32_t* panel, int64_t lane) {
  const int64_t blocks = (in + Format::kBlock - 1) / Format::kBlock, groups = num_quant_groups(in);
  for (int64_t b = 0; b < blocks; b++) {
    uint32_t* block = panel + b * Format::kBlockWords;
    ((uint16_t*)block)[lane] = given.scales[row * blocks + b];
    if constexpr (Format::kMinimum == Minimum::kHalf) {
      ((uint16_t*)(block + kQuantPanel / 2))[lane] = ((const uint16_t*)given.minimums)[row * blocks + b];
    } else if constexpr (Format::kMinimum == Minimum::kZero) {
      ((uint8_t*)(block + kQuantPanel / 2))[lane] = ((const uint8_t*)given.minimums)[row * blocks + b];
    }
  }
  for (int64_t g = 0; g < groups; g++) {
    uint32_t* group = panel + g / Format::kGroups * Format::kBlockWords + Format::kHeaderWords + g % Format::kGroups * Format::kGroupWords;
    for (int64_t i = g * kQuantGroup; i < std::min(in, (g + 1) * kQuantGroup); i++) {
      put_value<Format>(group + lane, int(i % kQuantGroup / 4), int(i % 4), given.values[row * in + i]);
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

void MixedQuantFormat::prepare_row(const float* row, int64_t in_features, uint32_t* prepared) {
  PreparedGroup* groups = PreparedRow::groups(prepared);
  PreparedPairs* pairs = PreparedRow::pairs(prepared, in_features);
  for (int64_t g = 0; g < num_quant_groups(in_features); g++) {
    const int64_t begin = g * kQuantGroup, size = std::min(kQuantGroup, in_features - begin);
    float padded[kQuantGroup] = {};
    if (size < kQuantGroup) std::memcpy(padded, row + begin, size * sizeof(float));
    quantise_group(size < kQuantGroup ? padded : row + begin, groups[g], kDotsBytes ? nullptr : pairs + g);
  }
}

void MixedQuantFormat::linear_shared(const float*, int64_t, const uint32_t* prepared, const PackedWeight& w, float* out, int64_t rows) {
  const QuantPanel* panels = (const QuantPanel*)w.weight;
  const int64_t words = num_prepared_words(w.in_features);
  for (int64_t row = 0; row < rows; row += kQuantRowBlock) {
    const int64_t num_rows = std::min(kQuantRowBlock, rows - row);
    // Four adjacent panels at a time: reading is fastest in long runs.
#pragma omp for schedule(dynamic, 4) nowait
    for (int64_t p = 0; p < w.num_quant_panels; p++) {
      const QuantPanel& panel = panels[p];
      with_quant_format(panel.format, [&](auto format) {
        quant_tiles<decltype(format), kQuantRows>(prepared + row * words, words, num_rows, w.in_features, panel,
                                                  w.bias ? w.bias + p * kQuantPanel : nullptr,
                                                  out + row * w.out_features + panel.first, w.out_features);
      });
    }
  }
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
// blocks] fp16; minimums: [out, blocks], fp16 or bytes or null; part_scales, part_minimums: [out, groups, scales of a group] bytes, or
// null; all dense. packed: [ceil(out / panel), panel_words].
void triptych_quant_pack(int32_t format, const uint8_t* values, const uint16_t* scales, const void* minimums,
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
  const PackedWeight w{(const uint32_t*)panels, bias, in_features, out_features, num_panels};
#pragma omp parallel
  {
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
      MixedQuantFormat::prepare_row(x + r * x_stride, in_features, workspace + r * MixedQuantFormat::num_prepared_words(in_features));
    }
    MixedQuantFormat::linear_shared(x, x_stride, workspace, w, out, rows);
  }
}
}

// Scales and minimums of quantised weights, of 16 outputs at once.
//
// Like linear_quant.cpp, it is compiled without contraction of products and sums.
#pragma once

#include <type_traits>

#include "linear/quant_instructions.h"

namespace triptych {
namespace {

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
    else header.minimum[i] = scale * -float(Format::kHasTable ? kTableZero : 1 << (Format::kBits - 1));
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

}  // namespace
}  // namespace triptych

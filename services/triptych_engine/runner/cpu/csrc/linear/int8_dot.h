// Products of bytes, four at a time, exact on every instruction set.
#pragma once

#include "vector.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace triptych {

inline vi splat_int(int32_t x) { return x - vi{}; }

// Weights: four weights of each of 16 outputs, one output per word, in the form in which this instruction set multiplies them.
// dot: sum + the products of these weights with four inputs.
#if defined(__AVX512VNNI__)
struct Weights {
  __m512i all;
};
inline Weights weights_at(const uint32_t* p) { return {_mm512_loadu_si512(p)}; }
inline vi dot(vi sum, const Weights& w, int32_t x) { return (vi)_mm512_dpbusd_epi32((__m512i)sum, w.all, _mm512_set1_epi32(x)); }
#elif defined(__AVX512BW__)
struct Weights {
  __m512i even, odd;  // as 16-bit integers
};
inline Weights weights_at(const uint32_t* p) {
  const __m512i w = _mm512_loadu_si512(p);
  return {_mm512_and_si512(w, _mm512_set1_epi16(0xff)), _mm512_srli_epi16(w, 8)};
}
inline vi dot(vi sum, const Weights& w, int32_t x) {
  const __m512i all = _mm512_set1_epi32(x);
  const __m512i even = _mm512_srai_epi16(_mm512_slli_epi16(all, 8), 8), odd = _mm512_srai_epi16(all, 8);
  return sum + (vi)_mm512_madd_epi16(w.even, even) + (vi)_mm512_madd_epi16(w.odd, odd);
}
#elif defined(__AVX2__)
struct Weights {
  __m256i even[2], odd[2];  // as 16-bit integers
};
inline Weights weights_at(const uint32_t* p) {
  Weights result;
  for (int half = 0; half < 2; half++) {
    const __m256i w = _mm256_loadu_si256((const __m256i*)(p + half * kLanes / 2));
    result.even[half] = _mm256_and_si256(w, _mm256_set1_epi16(0xff));
    result.odd[half] = _mm256_srli_epi16(w, 8);
  }
  return result;
}
inline vi dot(vi sum, const Weights& w, int32_t x) {
  const __m256i all = _mm256_set1_epi32(x);
  const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(all, 8), 8), odd = _mm256_srai_epi16(all, 8);
  __m256i products[2];
  for (int half = 0; half < 2; half++) {
    products[half] = _mm256_add_epi32(_mm256_madd_epi16(w.even[half], even), _mm256_madd_epi16(w.odd[half], odd));
  }
  vi both;
  std::memcpy(&both, products, sizeof both);
  return sum + both;
}
#else
struct Weights {
  vi byte[4];
};
inline Weights weights_at(const uint32_t* p) {
  vu w;
  std::memcpy(&w, p, sizeof w);
  return {{(vi)(w & 0xff), (vi)(w >> 8 & 0xff), (vi)(w >> 16 & 0xff), (vi)(w >> 24)}};
}
inline vi dot(vi sum, const Weights& w, int32_t x) {
  for (int i = 0; i < 4; i++) sum += w.byte[i] * splat_int(int8_t(x >> 8 * i));
  return sum;
}
#endif

}  // namespace triptych

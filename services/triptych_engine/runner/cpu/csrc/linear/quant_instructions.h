// Integer vectors and the products of bytes, on each instruction set.
#pragma once

#include "linear/quant_layout.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace triptych {

// A word of each of 16 outputs: kRegisters vectors.
#if defined(__AVX512BW__)
typedef __m512i ri;
inline ri load_words(const uint32_t* p) { return _mm512_loadu_si512(p); }
inline ri splat_word(uint32_t x) { return _mm512_set1_epi32(int(x)); }
inline ri add_halves(ri a, ri b) { return _mm512_add_epi16(a, b); }
inline ri multiply_bytes(ri w, ri x) { return _mm512_maddubs_epi16(w, x); }
// Each byte, from 0 to 15, as the entry of a table.
inline ri look_up(const uint8_t (&table)[16], ri bytes) {
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)table)), bytes);
}
inline ri multiply_halves(ri a, ri b) { return _mm512_madd_epi16(a, b); }
#elif defined(__AVX2__)
typedef __m256i ri;
inline ri load_words(const uint32_t* p) { return _mm256_loadu_si256((const __m256i*)p); }
inline ri splat_word(uint32_t x) { return _mm256_set1_epi32(int(x)); }
inline ri add_halves(ri a, ri b) { return _mm256_add_epi16(a, b); }
inline ri multiply_bytes(ri w, ri x) { return _mm256_maddubs_epi16(w, x); }
inline ri multiply_halves(ri a, ri b) { return _mm256_madd_epi16(a, b); }
inline ri look_up(const uint8_t (&table)[16], ri bytes) {
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)table)), bytes);
}
#else
typedef ru ri;
inline ri load_words(const uint32_t* p) {
  ri x;
  std::memcpy(&x, p, sizeof x);
  return x;
}
inline ri splat_word(uint32_t x) { return x - ri{}; }
inline ri look_up(const uint8_t (&table)[16], ri bytes) {
  uint8_t each[sizeof bytes];
  std::memcpy(each, &bytes, sizeof bytes);
  for (uint8_t& byte : each) byte = table[byte];
  std::memcpy(&bytes, each, sizeof bytes);
  return bytes;
}
#endif

template <int kBy>
inline ri shift_left(ri x) { return (ri)((ru)x << kBy); }
template <int kBy>
inline ri shift_right(ri x) { return (ri)((ru)x >> kBy); }
inline ri and_of(ri a, ri b) { return (ri)((ru)a & (ru)b); }
inline ri or_of(ri a, ri b) { return (ri)((ru)a | (ru)b); }
inline ri add_words(ri a, ri b) { return (ri)((ru)a + (ru)b); }

#if defined(__AVX512BW__)
inline ri multiply_words(ri a, ri b) { return _mm512_mullo_epi32(a, b); }
#else
inline ri multiply_words(ri a, ri b) { return (ri)((ru)a * (ru)b); }
#endif

// sum + a * b. kFits: a is a signed number of 16 bits, and b is one that is not negative.
template <bool kFits>
inline ri add_product(ri sum, ri a, ri b) {
#if defined(__AVX512VNNI__)
  if constexpr (kFits) return _mm512_dpwssd_epi32(sum, a, b);
#elif defined(__AVXVNNI__)
  if constexpr (kFits) return _mm256_dpwssd_avx_epi32(sum, a, b);
#endif
  return add_words(sum, multiply_words(a, b));
}

// x is complete here, before the next row begins. GCC would compute several rows side by side, and run out of registers.
inline void settle([[maybe_unused]] ri& x) {
#if defined(__AVX2__) && !defined(__AVX512F__)  // 16 registers
  __asm__ volatile("" : "+x"(x));
#endif
}

// The instruction that multiplies four unsigned bytes with four signed ones, and adds all four to a word.
#if defined(__AVX512VNNI__)
#define TRIPTYCH_DOT_BYTES(sum, w, x) _mm512_dpbusd_epi32(sum, w, x)
#elif defined(__AVXVNNI__)
#define TRIPTYCH_DOT_BYTES(sum, w, x) _mm256_dpbusd_avx_epi32(sum, w, x)
#elif !defined(__AVX2__)
inline ri dot_bytes(ri sum, ri w, ri x) {
  typedef decltype(rf{} < rf{}) Integers;
  Integers result = (Integers)sum;
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) result += (Integers)(w << (24 - 8 * i) >> 24) * ((Integers)(x << (24 - 8 * i)) >> 24);
  return (ri)result;
}
#define TRIPTYCH_DOT_BYTES(sum, w, x) dot_bytes(sum, w, x)
#endif

// Without it, two products are added to 16 bits, which hold such sums of two quads of weights of up to 6 bits. Weights of 8 bits are
// multiplied as 16 bits.
#if defined(TRIPTYCH_DOT_BYTES)
constexpr bool kDotsBytes = true;
#else
constexpr bool kDotsBytes = false;
#endif

}  // namespace triptych

// Integer vectors and the products of bytes, on each instruction set.
#pragma once

#include <type_traits>

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
// halves += the products of two quads of weights with x[0] and x[1], each two of them added to 16 bits.
inline void add_byte_products(const uint32_t* x, const ri (&first)[1], const ri (&second)[1], ri (&halves)[1]) {
  const ri low = _mm512_maddubs_epi16(first[0], splat_word(x[0])), high = _mm512_maddubs_epi16(second[0], splat_word(x[1]));
  halves[0] = _mm512_add_epi16(halves[0], _mm512_add_epi16(low, high));
}
// Each byte, from 0 to 15, as the entry of a table.
inline ri look_up(const uint8_t (&table)[16], ri bytes) {
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)table)), bytes);
}
inline ri multiply_halves(ri a, ri b) { return _mm512_madd_epi16(a, b); }
inline ri subtract_halves(ri a, ri b) { return _mm512_sub_epi16(a, b); }
#elif defined(__AVX2__)
typedef __m256i ri;
inline ri load_words(const uint32_t* p) { return _mm256_loadu_si256((const __m256i*)p); }
inline ri splat_word(uint32_t x) { return _mm256_set1_epi32(int(x)); }
// The same. GCC would run out of the 16 registers.
[[gnu::always_inline]] inline void add_byte_products(const uint32_t* x, const ri (&first)[2], const ri (&second)[2], ri (&halves)[2]) {
  ri input, products;
  __asm__("vpbroadcastd %[low], %[input]\n\t"
          "vpmaddubsw %[input], %[first0], %[products]\n\tvpaddw %[products], %[halves0], %[halves0]\n\t"
          "vpmaddubsw %[input], %[first1], %[products]\n\tvpaddw %[products], %[halves1], %[halves1]\n\t"
          "vpbroadcastd %[high], %[input]\n\t"
          "vpmaddubsw %[input], %[second0], %[products]\n\tvpaddw %[products], %[halves0], %[halves0]\n\t"
          "vpmaddubsw %[input], %[second1], %[products]\n\tvpaddw %[products], %[halves1], %[halves1]"
          : [halves0] "+&x"(halves[0]), [halves1] "+&x"(halves[1]), [input] "=&x"(input), [products] "=&x"(products)
          : [low] "m"(x[0]), [high] "m"(x[1]), [first0] "x"(first[0]), [first1] "x"(first[1]), [second0] "x"(second[0]), [second1] "x"(second[1]));
}
inline ri multiply_halves(ri a, ri b) { return _mm256_madd_epi16(a, b); }
inline ri subtract_halves(ri a, ri b) { return _mm256_sub_epi16(a, b); }
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

inline ri shift_right_by(ri x, int32_t by) {
#if defined(__AVX512BW__)
  return _mm512_srlv_epi32(x, _mm512_set1_epi32(by));
#elif defined(__AVX2__)
  return _mm256_srlv_epi32(x, _mm256_set1_epi32(by));
#else
  return x >> uint32_t(by);
#endif
}

// sum + a * b, of signed numbers of 16 bits in words. a is not negative.
inline ri add_product(ri sum, ri a, ri b) {
#if defined(__AVX512VNNI__)
  return _mm512_dpwssd_epi32(sum, a, b);
#elif defined(__AVXVNNI__)
  return _mm256_dpwssd_avx_epi32(sum, a, b);
#elif defined(__AVX2__)
  return add_words(sum, multiply_halves(a, b));
#else
  return sum + a * b;
#endif
}

// Calls each(i) for each register of a word of 16 outputs. The counter is a constant: GCC unrolls loops so late that it has arrays in memory.
template <class Each>
[[gnu::always_inline]] inline void each_register(const Each& each) {
  each(std::integral_constant<int, 0>());
  if constexpr (kRegisters > 1) each(std::integral_constant<int, 1>());
  if constexpr (kRegisters > 2) each(std::integral_constant<int, 2>()), each(std::integral_constant<int, 3>());
}
#define TRIPTYCH_INLINE __attribute__((always_inline))

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

// Without it, products are added to 16 bits, which hold such sums of four quads of weights of up to 5 bits, or of eight with values below
// 16. Other weights are multiplied as 16 bits.
#if defined(TRIPTYCH_DOT_BYTES)
constexpr bool kDotsBytes = true;
#else
constexpr bool kDotsBytes = false;
#endif

}  // namespace triptych

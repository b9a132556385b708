// Vectors of 16 floats with GCC vector extensions, which the compiler lowers to AVX-512, AVX2, SSE or NEON. Intrinsics are used
// where it generates bad code.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace triptych {

constexpr int kLanes = 16;  // floats in a vector

typedef float vf __attribute__((vector_size(kLanes * 4)));
typedef int32_t vi __attribute__((vector_size(kLanes * 4)));
typedef uint32_t vu __attribute__((vector_size(kLanes * 4)));
typedef uint16_t vh __attribute__((vector_size(kLanes * 2)));

// Vectors of the size of one register. GCC keeps sums in registers only if they are such vectors: it may put larger ones together
// in memory, in every step of a loop.
#if defined(__AVX512F__)
constexpr int kRegisterLanes = 16;
#elif defined(__AVX2__)
constexpr int kRegisterLanes = 8;
#else
constexpr int kRegisterLanes = 4;
#endif
typedef float rf __attribute__((vector_size(kRegisterLanes * 4)));
typedef int32_t rs __attribute__((vector_size(kRegisterLanes * 4)));
typedef uint32_t ru __attribute__((vector_size(kRegisterLanes * 4)));
constexpr int kRegisters = kLanes / kRegisterLanes;  // of a vf

struct bf16 {
  uint16_t bits;
};

template <class V = vf>
inline V splat(float x) { return x - V{}; }
inline vi iota() { return vi{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}; }
inline auto register_iota() {
  const vi all = iota();
  decltype(rf{} < rf{}) first;
  std::memcpy(&first, &all, sizeof first);
  return first;
}

// a * b + c, rounded once.
inline rf fma(rf a, rf b, rf c) {
#if defined(__AVX512F__)
  return (rf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
  return (rf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return (rf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#endif
}

// The same of vectors of one register or several: the same bits, whether or not a file is compiled with contraction.
template <class V>
[[gnu::always_inline]] inline V times_plus(V a, V b, V c) {
  constexpr int kParts = sizeof(V) / sizeof(rf);
  rf parts[3][kParts];
  std::memcpy(parts[0], &a, sizeof a), std::memcpy(parts[1], &b, sizeof b), std::memcpy(parts[2], &c, sizeof c);
#pragma GCC unroll 4
  for (int i = 0; i < kParts; i++) parts[0][i] = fma(parts[0][i], parts[1][i], parts[2][i]);
  std::memcpy(&a, parts[0], sizeof a);
  return a;
}

#if defined(__AVX2__) && !defined(__AVX512F__)
// sum += x * weight, two registers, rounded once. In a tile of sums, GCC would read the x of all rows first, run out of the 16
// registers and keep sums in memory.
[[gnu::always_inline]] inline void add_two_products(const float& x, const rf* weight, rf* sum) {
  rf factor;
  __asm__("vbroadcastss %3, %2\n\tvfmadd231ps %2, %4, %0\n\tvfmadd231ps %2, %5, %1"
          : "+&x"(sum[0]), "+&x"(sum[1]), "=&x"(factor)
          : "m"(x), "x"(weight[0]), "x"(weight[1]));
}
#endif

inline vf joined(const rf (&parts)[kRegisters]) {
  vf v;
#pragma GCC unroll 16
  for (int i = 0; i < kRegisters; i++) std::memcpy((char*)&v + i * sizeof(rf), &parts[i], sizeof(rf));
  return v;
}

inline vf load(const float* p) {
  vf v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline vf load(const bf16* p) {
#if defined(__AVX512F__)  // one instruction; GCC generates five for the code below
  return (vf)((vu)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i_u*)p)) << 16);
#else
  vh h;
  std::memcpy(&h, p, sizeof h);
  return (vf)(__builtin_convertvector(h, vu) << 16);
#endif
}
inline vu load(const uint32_t* p) {
  vu v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline void store(float* p, vf v) { std::memcpy(p, &v, sizeof v); }
inline void store(bf16* p, vf v) {  // round to nearest even
#if defined(__AVX512BF16__)  // subnormal numbers become zero
  const __m256bh h = _mm512_cvtneps_pbh((__m512)v);
#else
  vu u = (vu)v;
  vh h = __builtin_convertvector((u + 0x7fff + ((u >> 16) & 1)) >> 16, vh);
#endif
  std::memcpy(p, &h, sizeof h);
}
inline float to_float(float x) { return x; }
inline float to_float(bf16 x) {
  uint32_t u = uint32_t(x.bits) << 16;
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}

inline void convert(float from, float& to) { to = from; }
inline void convert(bf16 from, bf16& to) { to = from; }
inline void convert(float from, bf16& to) {
  uint32_t u;
  std::memcpy(&u, &from, 4);
  to.bits = uint16_t((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

// e^x for x <= 0; relative error below 2e-7 (Cephes' expf polynomial). V: vf or rf.
template <class V>
[[gnu::always_inline]] inline V exp_nonpositive(V x) {
  using Integers = decltype(x < x);
  x = x < -87.0f ? splat<V>(-87.0f) : x;
  V t = times_plus(x, splat<V>(1.44269504088896341f), splat<V>(-0.5f));  // x <= 0: truncation towards zero rounds to nearest
  Integers n = __builtin_convertvector(t, Integers);
  V k = __builtin_convertvector(n, V);
  V r = times_plus(k, splat<V>(2.12194440e-4f), times_plus(k, splat<V>(-0.693359375f), x));
  V p = splat<V>(1.9875691500e-4f);
  for (float next : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f}) {
    p = times_plus(p, r, splat<V>(next));
  }
  p = times_plus(p * r, r, r) + 1.0f;
  return (V)((Integers)p + (n << 23));
}
template <class V>
inline V tanh_of(V x) {  // through e^(-2|x|), which never overflows
  V a = x < 0.0f ? x : -x;
  V e = exp_nonpositive(a + a);
  V t = (1.0f - e) / (1.0f + e);
  return x < 0.0f ? -t : t;
}
template <class V>
[[gnu::always_inline]] inline V sigmoid(V x) {  // through e^(-|x|), which never overflows
  V e = exp_nonpositive(x < 0.0f ? x : -x);
  return (x < 0.0f ? e : splat<V>(1.0f)) / (1.0f + e);
}
template <class V>
[[gnu::always_inline]] inline V silu(V x) {  // x * sigmoid(x), through e^(-|x|), which never overflows
  V e = exp_nonpositive(x < 0.0f ? x : -x);
  return x * (x < 0.0f ? e : splat<V>(1.0f)) / (1.0f + e);
}
// By halves, which are vectors again: four operations in sequence, not fifteen.
inline float max_of(vf v) {
  float x[kLanes];
  std::memcpy(x, &v, sizeof v);
#pragma GCC unroll 4
  for (int half = kLanes / 2; half; half /= 2)
    for (int i = 0; i < half; i++) x[i] = std::max(x[i], x[i + half]);
  return x[0];
}
inline float sum_of(vf v) {
  float x[kLanes];
  std::memcpy(x, &v, sizeof v);
#pragma GCC unroll 4
  for (int half = kLanes / 2; half; half /= 2)
    for (int i = 0; i < half; i++) x[i] += x[i + half];
  return x[0];
}

}  // namespace triptych

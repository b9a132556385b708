// The paged KV cache of a layer: the layout of keys and values in a block, and how those of a token are written.
//
// Keys are transposed inside a block, so that one vector register holds the same component of 16 consecutive keys. So scores need
// no horizontal sums, neither for one row of queries (decode) nor for many (prefill).
//
//   float32:  K[block][head][component][slot]           V[block][head][slot][component]
//   bfloat16: K[block][head][component / 2][slot][2]    V[block][head][slot / 2][component][2]
//   int8:     K[block][head][component / 4][slot][4]    V[block][head][slot / 4][component][4]
//
// In bfloat16, numbers that are summed up are stored in pairs: two components of a key, two slots of a value. bfloat16 instructions
// take such pairs (linear_bf16.h), so they read the cache without conversion. An odd last component of keys is paired with zero.
//
// In int8, each key and each value of a head has a float32 scale, its largest number by 127. The scales are behind the numbers of a
// head's part of a block, in the order of the slots. Keys are padded with zeros to four components.
//
// In latent attention (MLA), values are the first components of the keys, and only keys are stored: v_cache is null. There is one head
// then, and there are no sinks.
#pragma once

#include <cmath>
#include <type_traits>

#include "vector.h"

namespace triptych {

// Arguments for one layer. Strides in elements; the last dimension of q, k, v is contiguous, out is [T, Hq, Dv] and dense.
struct PagedAttentionArgs {
  const void* q;             // [T, Hq, D]
  const void* k;             // [T, Hkv, D], or null if there is nothing to write
  const void* v;             // [T, Hkv, Dv], or null like v_cache
  void* out;                 // [T, Hq, Dv]
  void* k_cache;             // [num_blocks, Hkv, D, block_size] numbers, in the order above
  void* v_cache;             // [num_blocks, Hkv, block_size, Dv] numbers, in the order above; null if values are in the keys
  const int64_t* slots;      // [T] cache slot of each token: block * block_size + offset
  const int32_t* block_table;  // [num_seqs, block_table_stride]
  const int64_t* window_slots;         // the same for layers with a window, if these have blocks of their own; else null
  const int32_t* window_block_table;
  const int32_t* tile_seq;   // [num_tiles] sequence of each query tile
  const int32_t* tile_start; // [num_tiles] first token of each tile, in the flat batch
  const int32_t* tile_len;   // [num_tiles] tokens of each tile; tile_len * (Hq / Hkv) <= row tile, or 1 token
  const int32_t* positions;  // [T] position of each token in its sequence
  const int32_t* key_end;    // [T] one past the last key that the token attends to
  const int32_t* full_key_end; // the same in layers without a window, if it is another there; else null
  const float* sinks;        // [Hq] logits of attention sinks, or null
  int64_t q_stride_t, q_stride_h, k_stride_t, k_stride_h, v_stride_t, v_stride_h;
  int32_t num_tokens, num_tiles, block_table_stride, block_size;
  int32_t num_q_heads, num_kv_heads, head_dim, v_head_dim;
  int32_t window;            // number of keys that a token attends to, including its own; 0 for all
  float scaling, softcap;    // softcap 0 for none
};

using Args = PagedAttentionArgs;

// Whether a value is the first v_head_dim components of its key.
inline bool values_in_keys(const Args& a) { return !a.v_cache; }

constexpr int kMostDims = 1024;  // of a head, in int8
typedef int8_t vb __attribute__((vector_size(kLanes)));

// An 8-bit number of the cache.
struct q8 {
  int8_t value;
};

// Numbers per 32-bit word.
template <class T>
constexpr int kPerWord = 4 / int(sizeof(T));
// Numbers that take the place of a scale.
template <class T>
constexpr int kScaleSize = std::is_same_v<T, q8> ? 4 : 0;

// Numbers of a key, including padding.
template <class T>
inline int64_t key_dim(const Args& a) {
  return (a.head_dim + kPerWord<T> - 1) / kPerWord<T> * kPerWord<T>;
}
// What a key and a value take in the cache, in numbers.
template <class T>
inline int64_t key_size(const Args& a) {
  return key_dim<T>(a) + kScaleSize<T>;
}
template <class T>
inline int64_t value_size(const Args& a) {
  return a.v_head_dim + kScaleSize<T>;
}
// The part of a block that belongs to a head.
template <class T>
inline T* keys_of(const Args& a, int64_t block, int head) {
  return (T*)a.k_cache + (block * a.num_kv_heads + head) * key_size<T>(a) * a.block_size;
}
template <class T>
inline T* values_of(const Args& a, int64_t block, int head) {
  return (T*)a.v_cache + (block * a.num_kv_heads + head) * a.block_size * value_size<T>(a);
}
// The scales of a block's keys or values of a head, [block_size].
inline float* scales_of(const Args& a, q8* numbers, int64_t size) { return (float*)(numbers + size * a.block_size); }

template <class A>
inline void write_key(const Args& a, const A* key, float* keys, int64_t offset) {
  for (int d = 0; d < a.head_dim; d++) keys[d * a.block_size + offset] = to_float(key[d]);
}
template <class A>
inline void write_key(const Args& a, const A* key, bf16* keys, int64_t offset) {
  uint32_t* words = (uint32_t*)keys + offset;
  for (int d = 0; d < a.head_dim; d += kLanes, key += kLanes, words += kLanes / 2 * a.block_size) {
    const int n = std::min(kLanes, a.head_dim - d);
    alignas(4) bf16 some[kLanes] = {};
    uint32_t pairs[kLanes / 2];
    if (n == kLanes) {
      store(some, load(key));
    } else {
      for (int i = 0; i < n; i++) convert(key[i], some[i]);
    }
    std::memcpy(pairs, some, sizeof pairs);
    for (int i = 0; i < (n + 1) / 2; i++) words[i * a.block_size] = pairs[i];
  }
}
template <class V>
inline void write_value(const Args& a, const V* value, float* values, int64_t offset) {
  for (int d = 0; d < a.v_head_dim; d += kLanes) store(values + offset * a.v_head_dim + d, load(value + d));
}
template <class V>
inline void write_value(const Args& a, const V* value, bf16* values, int64_t offset) {
  bf16* to = values + offset / 2 * 2 * a.v_head_dim + offset % 2;
  for (int d = 0; d < a.v_head_dim; d += kLanes, to += 2 * kLanes) {
    bf16 some[kLanes];
    store(some, load(value + d));
    for (int i = 0; i < kLanes; i++) to[2 * i] = some[i];  // another thread may write the numbers in between
  }
}

// A vector's numbers as multiples of a scale, rounded to nearest even, and zeros up to a multiple of 16; returns the scale. It is no
// number if one of the vector's is none.
template <class A>
inline float quantize(const A* from, int size, int8_t* to) {
  float numbers[kMostDims];
  const int whole = size / kLanes * kLanes, padded = (size + kLanes - 1) / kLanes * kLanes;
  for (int i = 0; i < whole; i += kLanes) store(numbers + i, load(from + i));
  for (int i = whole; i < padded; i++) numbers[i] = i < size ? to_float(from[i]) : 0.0f;
  vf largest{}, zeros{};
  for (int i = 0; i < padded; i += kLanes) {
    const vf x = load(numbers + i), y = x < 0.0f ? -x : x;
    largest = largest > y ? largest : y;
    zeros += x * 0.0f;
  }
  const float most = max_of(largest), inverse = most > 0.0f ? 127.0f / most : 0.0f;
  constexpr float kToInteger = 12582912.0f;  // 1.5 * 2^23: in a sum with it, no place is left for a fraction
  for (int i = 0; i < padded; i += kLanes) {
    const vf rounded = (load(numbers + i) * inverse + kToInteger) - kToInteger;
    const auto bytes = __builtin_convertvector(__builtin_convertvector(rounded, vi), vb);
    std::memcpy(to + i, &bytes, sizeof bytes);
  }
  return most / 127.0f + sum_of(zeros);
}
template <class A>
inline void write_key(const Args& a, const A* key, q8* keys, int64_t offset) {
  int8_t numbers[kMostDims];
  scales_of(a, keys, key_dim<q8>(a))[offset] = quantize(key, a.head_dim, numbers);
  for (int d = 0; d < a.head_dim; d += 4) std::memcpy((uint32_t*)keys + d / 4 * a.block_size + offset, numbers + d, 4);
}
template <class V>
inline void write_value(const Args& a, const V* value, q8* values, int64_t offset) {
  int8_t numbers[kMostDims];
  scales_of(a, values, a.v_head_dim)[offset] = quantize(value, a.v_head_dim, numbers);
  q8* to = values + offset / 4 * 4 * a.v_head_dim + offset % 4;
  for (int d = 0; d < a.v_head_dim; d++) to[4 * d].value = numbers[d];  // another thread may write the numbers in between
}

// Queries and keys are of type A (fp32 when rotary embeddings were applied in it), values of type V, the cache of type T.
template <class A, class V, class T>
inline void write_token(const Args& a, int t) {
  const int64_t block = a.slots[t] / a.block_size, offset = a.slots[t] % a.block_size;
  for (int h = 0; h < a.num_kv_heads; h++) {
    write_key(a, (const A*)a.k + t * a.k_stride_t + h * a.k_stride_h, keys_of<T>(a, block, h), offset);
    if (!values_in_keys(a)) write_value(a, (const V*)a.v + t * a.v_stride_t + h * a.v_stride_h, values_of<T>(a, block, h), offset);
  }
}

// The four numbers of each word.
inline void widen(vu words, vf (&parts)[4]) {
  for (int p = 0; p < 4; p++) parts[p] = __builtin_convertvector((vi)(words << (24 - 8 * p)) >> 24, vf);
}

// The components of 16 keys that share words, from d on: d alone in float32, two in bfloat16, four in int8.
inline void load_keys(const float* keys, int64_t d, int block_size, vf (&parts)[1]) { parts[0] = load(keys + d * block_size); }
inline void load_keys(const bf16* keys, int64_t d, int block_size, vf (&parts)[2]) {
  const vu pairs = load((const uint32_t*)keys + d / 2 * block_size);
  parts[0] = (vf)(pairs << 16), parts[1] = (vf)(pairs & 0xffff0000u);
}
inline void load_keys(const q8* keys, int64_t d, int block_size, vf (&parts)[4]) {
  widen(load((const uint32_t*)keys + d / 4 * block_size), parts);
}
// The same of values from j on: 16 components from c on of each.
inline void load_values(const float* values, int64_t j, int64_t c, int Dv, vf (&parts)[1]) { parts[0] = load(values + j * Dv + c); }
inline void load_values(const bf16* values, int64_t j, int64_t c, int Dv, vf (&parts)[2]) {
  const vu pairs = load((const uint32_t*)values + j / 2 * Dv + c);
  parts[0] = (vf)(pairs << 16), parts[1] = (vf)(pairs & 0xffff0000u);
}

inline void load_values(const q8* values, int64_t j, int64_t c, int Dv, vf (&parts)[4]) {
  widen(load((const uint32_t*)values + j / 4 * Dv + c), parts);
}

}  // namespace triptych

// Attention over a paged KV cache for CPUs: decode and chunked prefill in one routine, online softmax, grouped queries.
//
// The cache keeps keys transposed inside a block, K[block][head][d][slot], so that one vector register holds the same component of
// 16 consecutive keys: scores need no horizontal sums, for one query row (decode) as for many (prefill). Values are kept plain,
// V[block][head][slot][d]. Arithmetic is fp32 whatever the storage type.
//
// Online softmax: Milakov & Gimelshein 2018 (arXiv:1805.02867). Paged cache: Kwon et al. 2023 (arXiv:2309.06180).

#pragma once

#include <memory>

#include "vector.h"

namespace triptych {

constexpr int kKeyTile = 128;     // keys whose scores are held at once
constexpr int kRowTile = 32;      // query rows (tokens x grouped heads) that share a pass over the keys
constexpr float kMasked = -1e30f; // below any real score; finite, so that differences stay finite

// One layer's call. Strides in elements; the last dimension of q, k, v is contiguous, out is [T, Hq, Dv] and dense.
struct PagedAttentionArgs {
  const void* q;             // [T, Hq, D]
  const void* k;             // [T, Hkv, D]
  const void* v;             // [T, Hkv, Dv]
  void* out;                 // [T, Hq, Dv]
  void* k_cache;             // [num_blocks, Hkv, D, block_size]
  void* v_cache;             // [num_blocks, Hkv, block_size, Dv]
  const int64_t* slots;      // [T] cache slot of each token: block * block_size + offset
  const int32_t* block_table;  // [num_seqs, block_table_stride]
  const int32_t* tile_seq;   // [num_tiles] sequence of each query tile
  const int32_t* tile_start; // [num_tiles] first token of each tile, in the flat batch
  const int32_t* tile_len;   // [num_tiles] tokens of each tile; tile_len * (Hq / Hkv) <= row tile, or 1 token
  const int32_t* positions;  // [T] position of each token in its sequence
  const int32_t* key_end;    // [T] one past the last key that the token sees
  const float* sinks;        // [Hq] logits of attention sinks, or null
  int64_t q_stride_t, q_stride_h, k_stride_t, k_stride_h, v_stride_t, v_stride_h;
  int32_t num_tokens, num_tiles, block_table_stride, block_size;
  int32_t num_q_heads, num_kv_heads, head_dim, v_head_dim;
  int32_t window;            // keys that a token sees, itself included; 0 for all
  float scaling, softcap;    // softcap 0 for none
};

using Args = PagedAttentionArgs;

// Queries and keys are of type A (fp32 when rotary embeddings were applied in it), values and results of type V, the cache of type T.
template <class A, class V, class T>
inline void write_token(const Args& a, int t) {
  const int64_t block = a.slots[t] / a.block_size, offset = a.slots[t] % a.block_size;
  const A* k = (const A*)a.k + t * a.k_stride_t;
  const V* v = (const V*)a.v + t * a.v_stride_t;
  for (int h = 0; h < a.num_kv_heads; h++, k += a.k_stride_h, v += a.v_stride_h) {
    T* kc = (T*)a.k_cache + (block * a.num_kv_heads + h) * a.head_dim * a.block_size + offset;
    for (int d = 0; d < a.head_dim; d++) convert(k[d], kc[d * a.block_size]);
    T* vc = (T*)a.v_cache + ((block * a.num_kv_heads + h) * a.block_size + offset) * a.v_head_dim;
    for (int d = 0; d < a.v_head_dim; d += kLanes) store(vc + d, load(v + d));
  }
}

// scores[r][0..16*NB) = q[r] . K for R rows and NB groups of 16 keys.
template <class T, int R, int NB>
inline void scores_kernel(const float* q, int D, const T* const* keys, int key_stride, float* scores) {
  vf acc[R][NB];
  for (int r = 0; r < R; r++)
    for (int n = 0; n < NB; n++) acc[r][n] = vf{};
  for (int d = 0; d < D; d++) {
    vf k[NB];
    for (int n = 0; n < NB; n++) k[n] = load(keys[n] + (int64_t)d * key_stride);
    for (int r = 0; r < R; r++)
      for (int n = 0; n < NB; n++) acc[r][n] += q[r * D + d] * k[n];
  }
  for (int r = 0; r < R; r++)
    for (int n = 0; n < NB; n++) store(scores + r * kKeyTile + n * kLanes, acc[r][n]);
}

template <class T, int NB>
inline void scores_rows(const float* q, int rows, int D, const T* const* keys, int key_stride, float* scores) {
  constexpr int kMax = NB >= 2 ? 6 : 8;
  for (int r = 0; r < rows;) {
    const float* qr = q + r * D;
    float* s = scores + r * kKeyTile;
    const int left = rows - r;
    if (left >= kMax) { scores_kernel<T, kMax, NB>(qr, D, keys, key_stride, s); r += kMax; }
    else if (left >= 4) { scores_kernel<T, 4, NB>(qr, D, keys, key_stride, s); r += 4; }
    else if (left == 3) { scores_kernel<T, 3, NB>(qr, D, keys, key_stride, s); r += 3; }
    else if (left == 2) { scores_kernel<T, 2, NB>(qr, D, keys, key_stride, s); r += 2; }
    else { scores_kernel<T, 1, NB>(qr, D, keys, key_stride, s); r += 1; }
  }
}

// out[r][0..16*C) += weights[r] . V for R rows and n keys of one block.
template <class T, int R, int C>
inline void values_kernel(const float* weights, const T* values, int n, int Dv, float* out) {
  vf acc[R][C];
  for (int r = 0; r < R; r++)
    for (int c = 0; c < C; c++) acc[r][c] = load(out + r * Dv + c * kLanes);
  for (int j = 0; j < n; j++) {
    vf v[C];
    for (int c = 0; c < C; c++) v[c] = load(values + (int64_t)j * Dv + c * kLanes);
    for (int r = 0; r < R; r++)
      for (int c = 0; c < C; c++) acc[r][c] += weights[r * kKeyTile + j] * v[c];
  }
  for (int r = 0; r < R; r++)
    for (int c = 0; c < C; c++) store(out + r * Dv + c * kLanes, acc[r][c]);
}

template <class T, int C>
inline void values_rows(const float* weights, int rows, const T* values, int n, int Dv, float* out) {
  for (int r = 0; r < rows;) {
    const float* w = weights + r * kKeyTile;
    float* o = out + r * Dv;
    const int left = rows - r;
    if (left >= 6) { values_kernel<T, 6, C>(w, values, n, Dv, o); r += 6; }
    else if (left >= 4) { values_kernel<T, 4, C>(w, values, n, Dv, o); r += 4; }
    else if (left == 3) { values_kernel<T, 3, C>(w, values, n, Dv, o); r += 3; }
    else if (left == 2) { values_kernel<T, 2, C>(w, values, n, Dv, o); r += 2; }
    else { values_kernel<T, 1, C>(w, values, n, Dv, o); r += 1; }
  }
}

struct Scratch {
  float* q;       // [rows, D]
  float* out;     // [rows, Dv]
  float* scores;  // [rows, kKeyTile]
};

// One tile of query tokens against one key/value head.
template <class A, class V, class T>
inline void attend(const Args& a, int tile, int h, const Scratch& s) {
  const int D = a.head_dim, Dv = a.v_head_dim, bs = a.block_size, group = a.num_q_heads / a.num_kv_heads;
  const int t0 = a.tile_start[tile], tokens = a.tile_len[tile], rows = tokens * group;
  const int32_t* table = a.block_table + (int64_t)a.tile_seq[tile] * a.block_table_stride;
  float row_max[rows], row_sum[rows];
  int begin = INT32_MAX, end = 0;
  for (int t = 0; t < tokens; t++) {
    begin = std::min(begin, a.window ? std::max(0, a.positions[t0 + t] + 1 - a.window) : 0);
    end = std::max(end, a.key_end[t0 + t]);
    for (int g = 0; g < group; g++) {
      const A* q = (const A*)a.q + (t0 + t) * a.q_stride_t + (h * group + g) * a.q_stride_h;
      float* row = s.q + (t * group + g) * D;
      for (int d = 0; d < D; d++) row[d] = to_float(q[d]) * a.scaling;
      row_max[t * group + g] = a.sinks ? a.sinks[h * group + g] : kMasked;
      row_sum[t * group + g] = a.sinks ? 1.0f : 0.0f;
    }
  }
  std::memset(s.out, 0, sizeof(float) * rows * Dv);

  for (int first = begin / kLanes * kLanes; first < end; first += kKeyTile) {
    const int last = std::min(first + kKeyTile, end), groups = (last - first + kLanes - 1) / kLanes;
    for (int n = 0; n < groups; n += 2) {
      const T* keys[2];
      for (int i = 0; i < 2; i++) {
        const int key = first + (n + i) * kLanes;
        const int64_t block = key < end ? table[key / bs] : 0;
        keys[i] = (const T*)a.k_cache + (block * a.num_kv_heads + h) * D * bs + key % bs;
      }
      if (n + 1 < groups) scores_rows<T, 2>(s.q, rows, D, keys, bs, s.scores + n * kLanes);
      else scores_rows<T, 1>(s.q, rows, D, keys, bs, s.scores + n * kLanes);
    }
    for (int r = 0; r < rows; r++) {
      const int t = t0 + r / group;
      const int from = a.window ? a.positions[t] + 1 - a.window : 0, to = a.key_end[t];
      float* row = s.scores + r * kKeyTile;
      vf top = splat(row_max[r]);
      for (int n = 0; n < groups; n++) {
        vf x = load(row + n * kLanes);
        if (a.softcap != 0.0f) x = tanh_of(x / a.softcap) * a.softcap;
        const vi key = iota() + (first + n * kLanes);
        x = ((key >= from) & (key < to)) ? x : splat(kMasked);
        store(row + n * kLanes, x);
        top = top > x ? top : x;
      }
      const float new_max = max_of(top), rescale = exp_nonpositive(splat(row_max[r] - new_max))[0];
      vf sum = vf{};
      for (int n = 0; n < groups; n++) {
        const vf x = load(row + n * kLanes);
        const vf w = x <= kMasked ? vf{} : exp_nonpositive(x - new_max);
        store(row + n * kLanes, w);
        sum += w;
      }
      if (new_max != row_max[r]) {
        row_sum[r] *= rescale;
        for (int c = 0; c < Dv; c += kLanes) store(s.out + r * Dv + c, load(s.out + r * Dv + c) * rescale);
        row_max[r] = new_max;
      }
      row_sum[r] += sum_of(sum);
    }
    for (int key = first; key < last;) {
      const int n = std::min(bs - key % bs, last - key);
      const int64_t block = table[key / bs];
      const T* values = (const T*)a.v_cache + ((block * a.num_kv_heads + h) * bs + key % bs) * (int64_t)Dv;
      const float* w = s.scores + (key - first);
      int c = 0;
      for (; c + 4 * kLanes <= Dv; c += 4 * kLanes) values_rows<T, 4>(w, rows, values + c, n, Dv, s.out + c);
      for (; c < Dv; c += kLanes) values_rows<T, 1>(w, rows, values + c, n, Dv, s.out + c);
      key += n;
    }
  }
  for (int r = 0; r < rows; r++) {
    V* out = (V*)a.out + ((int64_t)(t0 + r / group) * a.num_q_heads + h * group + r % group) * Dv;
    const float scale = row_sum[r] > 0.0f ? 1.0f / row_sum[r] : 0.0f;
    for (int c = 0; c < Dv; c += kLanes) store(out + c, load(s.out + r * Dv + c) * scale);
  }
}

// This thread's scratch memory for a layer, kept from call to call.
inline Scratch scratch_for(const Args& a) {
  const int max_rows = std::max(kRowTile, a.num_q_heads / a.num_kv_heads);
  // Freed with its thread: the team shrinks and grows when the number of threads is changed.
  static thread_local std::unique_ptr<float[]> memory;
  static thread_local size_t capacity = 0;
  const size_t need = (size_t)max_rows * (a.head_dim + a.v_head_dim + kKeyTile);
  if (need > capacity) {
    memory.reset(new float[need]);
    capacity = need;
  }
  float* buffer = memory.get();
  return {buffer, buffer + max_rows * a.head_dim, buffer + max_rows * (a.head_dim + a.v_head_dim)};
}

// Both are shared out among the threads of the parallel region that they are called in, who wait at their end.
template <class A, class V, class T>
inline void write_shared(const Args& a) {
#pragma omp for schedule(static)
  for (int t = 0; t < a.num_tokens; t++) write_token<A, V, T>(a, t);
}
template <class A, class V, class T>
inline void attend_shared(const Args& a) {
  const Scratch scratch = scratch_for(a);
  const int items = a.num_tiles * a.num_kv_heads;
#pragma omp for schedule(dynamic, 1)
  for (int i = 0; i < items; i++) attend<A, V, T>(a, i / a.num_kv_heads, i % a.num_kv_heads, scratch);
}

}  // namespace triptych

// Attention over a paged KV cache for CPUs: decode and chunked prefill in one routine, online softmax, grouped queries.
//
// The cache keeps keys transposed inside a block, K[block][head][d][slot], so that one vector register holds the same component of
// 16 consecutive keys: scores need no horizontal sums, for one query row (decode) as for many (prefill). Values are kept plain,
// V[block][head][slot][d]. Arithmetic is fp32 whatever the storage type.
//
// Online softmax: Milakov & Gimelshein 2018 (arXiv:1805.02867). Paged cache: Kwon et al. 2023 (arXiv:2309.06180).

#pragma once

#include <iterator>
#include <memory>
#include <numeric>
#include <type_traits>

#include "attention_products.h"

namespace triptych {

constexpr int kRowTile = 32;      // query rows (tokens x grouped heads) that share a pass over the keys
constexpr float kMasked = -1e30f; // below any real score; finite, so that differences stay finite

template <class T>
constexpr bool kNarrow = !std::is_same_v<T, float>;

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

// A thread's own memory.
struct Scratch {
  float* q;        // [rows, D], scaled
  float* out;      // [rows, Dv], not yet divided by row_sum
  float* scores;   // [rows, kKeyTile], then weights
  float* row_max;  // [rows]
  float* row_sum;  // [rows], of weights relative to row_max
  float* wide;     // keys [D, 2 * kLanes] or values [kKeyTile, Dv], widened
};

// One tile of query tokens against one key/value head: its rows are tokens x grouped heads.
struct Tile {
  int head, first_token, tokens, group, rows;
  const int32_t* table;  // the sequence's blocks
  int begin, end;        // keys that any of the rows sees

  Tile(const Args& a, int tile, int h)
      : head(h), first_token(a.tile_start[tile]), tokens(a.tile_len[tile]), group(a.num_q_heads / a.num_kv_heads), rows(tokens * group),
        table(a.block_table + (int64_t)a.tile_seq[tile] * a.block_table_stride), begin(INT32_MAX), end(0) {
    for (int t = first_token; t < first_token + tokens; t++) {
      begin = std::min(begin, first_key(a, t));
      end = std::max(end, a.key_end[t]);
    }
  }
  static int first_key(const Args& a, int token) { return a.window ? std::max(0, a.positions[token] + 1 - a.window) : 0; }
  int token(int row) const { return first_token + row / group; }
  int q_head(int row) const { return head * group + row % group; }
  // Of the block's part that belongs to the head.
  template <class T>
  const T* keys(const Args& a, int key) const {
    const int64_t block = table[key / a.block_size];
    return (const T*)a.k_cache + (block * a.num_kv_heads + head) * a.head_dim * a.block_size + key % a.block_size;
  }
  template <class T>
  const T* values(const Args& a, int key) const {
    const int64_t block = table[key / a.block_size];
    return (const T*)a.v_cache + ((block * a.num_kv_heads + head) * a.block_size + key % a.block_size) * (int64_t)a.v_head_dim;
  }
};

template <class A>
inline void begin_rows(const Args& a, const Tile& tile, const Scratch& s) {
  for (int r = 0; r < tile.rows; r++) {
    const A* q = (const A*)a.q + tile.token(r) * a.q_stride_t + tile.q_head(r) * a.q_stride_h;
    for (int d = 0; d < a.head_dim; d++) s.q[r * a.head_dim + d] = to_float(q[d]) * a.scaling;
    s.row_max[r] = a.sinks ? a.sinks[tile.q_head(r)] : kMasked;
    s.row_sum[r] = a.sinks ? 1.0f : 0.0f;
  }
  std::memset(s.out, 0, sizeof(float) * tile.rows * a.v_head_dim);
}

// Scores of keys first to last, by pairs of groups of 16.
template <class T>
inline void score_keys(const Args& a, const Tile& tile, const Scratch& s, int first, int last) {
  const int D = a.head_dim;
  for (int key = first; key < last; key += 2 * kLanes) {
    const bool both = key + kLanes < last;
    const T* keys[] = {tile.keys<T>(a, key), both ? tile.keys<T>(a, key + kLanes) : nullptr};
    float* scores = s.scores + (key - first);
    if (!both) {
      scores_rows<T, 1>(s.q, tile.rows, D, keys, a.block_size, scores);
    } else if (kNarrow<T> && tile.rows > kScoreRows) {
      for (int n = 0; n < 2; n++)
        for (int d = 0; d < D; d++) store(s.wide + d * 2 * kLanes + n * kLanes, load(keys[n] + (int64_t)d * a.block_size));
      const float* wide[] = {s.wide, s.wide + kLanes};
      scores_rows<float, 2>(s.q, tile.rows, D, wide, 2 * kLanes, scores);
    } else {
      scores_rows<T, 2>(s.q, tile.rows, D, keys, a.block_size, scores);
    }
  }
}

// Makes weights of a row's scores of keys first to last: masked, relative to the largest score so far, to which what was summed up
// before is scaled.
inline void weigh_row(const Args& a, const Tile& tile, const Scratch& s, int r, int first, int last) {
  const int from = Tile::first_key(a, tile.token(r)), to = a.key_end[tile.token(r)], groups = (last - first + kLanes - 1) / kLanes;
  float* row = s.scores + r * kKeyTile;
  vf top = splat(s.row_max[r]);
  for (int n = 0; n < groups; n++) {
    vf x = load(row + n * kLanes);
    if (a.softcap != 0.0f) x = tanh_of(x / a.softcap) * a.softcap;
    const vi key = iota() + (first + n * kLanes);
    x = ((key >= from) & (key < to)) ? x : splat(kMasked);
    store(row + n * kLanes, x);
    top = top > x ? top : x;
  }
  const float new_max = max_of(top);
  vf sum = vf{};
  for (int n = 0; n < groups; n++) {
    const vf x = load(row + n * kLanes);
    const vf w = x <= kMasked ? vf{} : exp_nonpositive(x - new_max);
    store(row + n * kLanes, w);
    sum += w;
  }
  if (new_max != s.row_max[r]) {
    const float rescale = exp_nonpositive(splat(s.row_max[r] - new_max))[0];
    float* out = s.out + r * a.v_head_dim;
    for (int c = 0; c < a.v_head_dim; c += kLanes) store(out + c, load(out + c) * rescale);
    s.row_sum[r] *= rescale;
    s.row_max[r] = new_max;
  }
  s.row_sum[r] += sum_of(sum);
}

// weights: [rows, kKeyTile], of n values, which lie one after the other.
template <class T>
inline void add_block(const Args& a, const Tile& tile, const Scratch& s, const float* weights, const T* values, int n) {
  const int Dv = a.v_head_dim;
  int c = 0;
  for (; c + 4 * kLanes <= Dv; c += 4 * kLanes) values_rows<T, 4>(weights, tile.rows, values + c, n, Dv, s.out + c);
  for (; c < Dv; c += kLanes) values_rows<T, 1>(weights, tile.rows, values + c, n, Dv, s.out + c);
}

template <class T>
inline void add_values(const Args& a, const Tile& tile, const Scratch& s, int first, int last) {
  for (int key = first, n; key < last; key += n) {
    n = std::min(a.block_size - key % a.block_size, last - key);
    const T* values = tile.values<T>(a, key);
    if (kNarrow<T> && tile.rows > kValueRows) {
      for (int i = 0; i < n * a.v_head_dim; i += kLanes) store(s.wide + i, load(values + i));
      add_block(a, tile, s, s.scores + (key - first), (const float*)s.wide, n);
    } else {
      add_block(a, tile, s, s.scores + (key - first), values, n);
    }
  }
}

// Queries and keys that come are of type A, values and results of type V, the cache of type T.
template <class A, class V, class T>
inline void attend(const Args& a, const Tile& tile, const Scratch& s) {
  begin_rows<A>(a, tile, s);
  for (int first = tile.begin / kLanes * kLanes; first < tile.end; first += kKeyTile) {
    const int last = std::min(first + kKeyTile, tile.end);
    score_keys<T>(a, tile, s, first, last);
    for (int r = 0; r < tile.rows; r++) weigh_row(a, tile, s, r, first, last);
    add_values<T>(a, tile, s, first, last);
  }
  for (int r = 0; r < tile.rows; r++) {
    V* out = (V*)a.out + ((int64_t)tile.token(r) * a.num_q_heads + tile.q_head(r)) * a.v_head_dim;
    const float scale = s.row_sum[r] > 0.0f ? 1.0f / s.row_sum[r] : 0.0f;
    for (int c = 0; c < a.v_head_dim; c += kLanes) store(out + c, load(s.out + r * a.v_head_dim + c) * scale);
  }
}

// This thread's scratch memory for a layer, kept from call to call.
inline Scratch scratch_for(const Args& a) {
  const size_t rows = std::max(kRowTile, a.num_q_heads / a.num_kv_heads), D = a.head_dim, Dv = a.v_head_dim;
  const size_t sizes[] = {rows * D, rows * Dv, rows * kKeyTile, rows, rows, std::max(D * 2 * kLanes, kKeyTile * Dv)};
  // Freed with its thread: the team shrinks and grows when the number of threads is changed.
  static thread_local std::unique_ptr<float[]> memory;
  static thread_local size_t capacity = 0;
  const size_t need = std::accumulate(std::begin(sizes), std::end(sizes), size_t(0));
  if (need > capacity) {
    memory.reset(new float[need]);
    capacity = need;
  }
  Scratch s;
  float** parts[] = {&s.q, &s.out, &s.scores, &s.row_max, &s.row_sum, &s.wide};
  float* next = memory.get();
  for (int i = 0; i < 6; i++) *parts[i] = next, next += sizes[i];
  return s;
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
  for (int i = 0; i < items; i++) attend<A, V, T>(a, Tile(a, i / a.num_kv_heads, i % a.num_kv_heads), scratch);
}

}  // namespace triptych

// Attention over a paged KV cache for CPUs: decode and chunked prefill in one routine, online softmax, grouped queries. Softmax is
// float32; the two products are computed in float32 (attention_fp32.h) or with bfloat16 instructions (attention_bf16.h).
//
// Online softmax: Milakov & Gimelshein 2018 (arXiv:1805.02867). Paged cache: Kwon et al. 2023 (arXiv:2309.06180).
//
// `Products` is one of the structs in those two headers. It has
// - query_words(args), prepare_query(query, D, to): the form in which it reads a row of queries;
// - score(args, tile, scratch, first, groups, prefetch): computes the scores of `groups` groups of 16 keys, from key `first` on,
//   for all rows;
// - padded_groups(groups), store_weights(row, key, weights): how many groups of weights add_values reads, and how it reads them;
// - add_values(...): adds the values, multiplied by these weights, to `out`;
// - prefetch(args, own, next, group, groups): prefetches what comes after the key tile of `own` that begins with `group`, while
//   that tile is computed.
#pragma once

#include <omp.h>

#include "attention/attention_bf16.h"
#include "attention/attention_fp32.h"

namespace triptych {

constexpr float kMasked = -1e30f;  // below any real score; finite, so that differences stay finite

template <class Products, class A>
void begin_rows(const Args& a, const Tile& tile, const Scratch& s) {
  for (int r = 0; r < tile.rows; r++) {
    const A* q = (const A*)a.q + tile.token(r) * a.q_stride_t + tile.q_head(r) * a.q_stride_h;
    float* scaled = (float*)s.panel;
    for (int d = 0; d < a.head_dim; d++) scaled[d] = to_float(q[d]) * a.scaling;
    Products::prepare_query(scaled, a.head_dim, s.q + r * s.query_words);
    s.row_max[r] = a.sinks ? a.sinks[tile.q_head(r)] : kMasked;
    s.row_sum[r] = a.sinks ? 1.0f : 0.0f;
  }
  std::memset(s.out, 0, sizeof(float) * tile.rows * s.out_stride);
}

// Turns a row's scores into weights: masked, and relative to the largest score so far. Earlier sums are rescaled accordingly.
template <class Products>
inline void weigh_row(const Args& a, const Tile& tile, const Scratch& s, int r, int first, int groups) {
  const int from = Tile::first_key(a, tile.token(r)), to = std::min(a.key_end[tile.token(r)], first + groups * kLanes);
  const int padded = Products::padded_groups(groups);
  const bool sees_all = from <= first && first + padded * kLanes <= to;
  float* row = s.scores + r * kKeyTile;
  rf top[kRegisters], sum[kRegisters];
#pragma GCC unroll 16
  for (int i = 0; i < kRegisters; i++) top[i] = splat<rf>(s.row_max[r]), sum[i] = rf{};
  for (int n = 0; n < padded; n++) {
#pragma GCC unroll 16
    for (int i = 0; i < kRegisters; i++) {
      float* scores = row + n * kLanes + i * kRegisterLanes;
      rf x = load_part(scores, 0, 0);
      if (a.softcap != 0.0f) x = tanh_of(x / a.softcap) * a.softcap;
      if (!sees_all) {
        const auto key = register_iota() + (first + n * kLanes + i * kRegisterLanes);
        x = ((key >= from) & (key < to)) ? x : splat<rf>(kMasked);
      }
      if (!sees_all || a.softcap != 0.0f) std::memcpy(scores, &x, sizeof x);
      top[i] = top[i] > x ? top[i] : x;
    }
  }
  const float new_max = max_of(joined(top));
  for (int n = 0; n < padded; n++) {
#pragma GCC unroll 16
    for (int i = 0; i < kRegisters; i++) {
      const rf x = load_part(row + n * kLanes, i, 0);
      rf w = exp_nonpositive(x - new_max);
      if (!sees_all) w = x <= kMasked ? rf{} : w;
      sum[i] += w;
      Products::store_weights(row, n * kLanes + i * kRegisterLanes, w);
    }
  }
  if (new_max != s.row_max[r]) {
    const float rescale = exp_nonpositive(splat<rf>(s.row_max[r] - new_max))[0];
    float* out = s.out + r * s.out_stride;
    for (int c = 0; c < a.v_head_dim; c++) out[c] *= rescale;
    s.row_sum[r] *= rescale;
    s.row_max[r] = new_max;
  }
  s.row_sum[r] += sum_of(joined(sum));
}

// Stores a row's result, which is of type V, given its sums.
template <class V>
void finish_row(const Args& a, const Tile& tile, int r, const float* sums, float row_sum) {
  V* out = (V*)a.out + ((int64_t)tile.token(r) * a.num_q_heads + tile.q_head(r)) * a.v_head_dim;
  const float scale = row_sum > 0.0f ? 1.0f / row_sum : 0.0f;
  for (int c = 0; c < a.v_head_dim; c += kLanes) store(out + c, load(sums + c) * scale);
}

// What depends on the types of queries (A) and results (V). Called by address: all that is between is compiled once for all types.
struct RowFunctions {
  void (*begin)(const Args& a, const Tile& tile, const Scratch& s);
  void (*finish)(const Args& a, const Tile& tile, int r, const float* sums, float row_sum);

  void finish_all(const Args& a, const Tile& tile, const Scratch& s) const {
    for (int r = 0; r < tile.rows; r++) finish(a, tile, r, s.out + r * s.out_stride, s.row_sum[r]);
  }
};
template <class Products, class A, class V>
constexpr RowFunctions kRowFunctions{begin_rows<Products, A>, finish_row<V>};

// Sums up the values of the keys of `own`, into scratch. next: what this thread computes next, or the same as `own`.
template <class Products>
inline void attend(const Args& a, const RowFunctions& functions, const HeadsTile& own, const HeadsTile& next, const Scratch& scratch) {
  for (int h = 0; h < own.heads; h++) functions.begin(a, own.of_head(h), scratch.of_head(h));
  for (int group = 0, groups; group < own.num_groups; group += groups) {
    groups = own.groups_from(group);
    const int first = (own.first_group + group) * kLanes;
    auto prefetch = Products::prefetch(a, own, next, group, groups);
    for (int h = 0; h < own.heads; h++) {
      const Tile tile = own.of_head(h);
      const Scratch s = scratch.of_head(h);
      Products::score(a, tile, s, first, groups, prefetch);
      for (int r = 0; r < tile.rows; r++) weigh_row<Products>(a, tile, s, r, first, groups);
      Products::add_values(a, tile, s, first, groups, prefetch);
    }
  }
}

// The threads of the enclosing parallel region share the work of these functions; after `write_shared`, they wait for each other.
template <class A, class V, class T>
inline void write_shared(const Args& a) {
  if (!a.k) return;  // they are in the cache, as those of cross-attention
#pragma omp for schedule(static)
  for (int t = 0; t < a.num_tokens; t++) write_token<A, V, T>(a, t);
}

constexpr int kTilesPerThread = 4;

template <class Products>
[[gnu::noinline]] void attend_shared(const Args& a, const RowFunctions& functions) {
  if (a.num_tiles == 0) return;
  // If many sequences decode, a thread computes all heads of one, so it reads a block from start to end. Otherwise, heads of one
  // sequence are distributed over threads.
  const bool all_heads = a.num_tiles == a.num_tokens && a.num_tiles >= kTilesPerThread * omp_get_num_threads();
  const int heads = all_heads ? a.num_kv_heads : 1, parts = a.num_kv_heads / heads, items = a.num_tiles * parts;
  const int tokens = *std::max_element(a.tile_len, a.tile_len + a.num_tiles);
  const Scratch scratch = scratch_for(a, tokens, heads, Products::query_words(a));
  // Start with the last tiles of a prompt, which attend to the most keys. So only short items are left when threads become idle.
  const auto item = [&](int64_t i) { return HeadsTile(a, a.num_tiles - 1 - int(i / parts), int(i % parts) * heads, heads); };
  [[maybe_unused]] Products products;
  share_items(items, [&](int64_t i, int64_t next) {
    const HeadsTile own = item(i);
    attend<Products>(a, functions, own, item(next), scratch);
    for (int h = 0; h < own.heads; h++) functions.finish_all(a, own.of_head(h), scratch.of_head(h));
  });
}

// The fastest products. kRounds: queries and weights may be rounded to the type of the cache.
#if defined(TRIPTYCH_BF16_DOT)
template <class T, bool kRounds>
using FastestProducts = std::conditional_t<kRounds && std::is_same_v<T, bf16>, Bf16AttentionProducts, Fp32Products<T>>;
#else
template <class T, bool kRounds>
using FastestProducts = Fp32Products<T>;
#endif

// They are in paged_attention.cpp, for decoder_layer.cpp too.
#if defined(TRIPTYCH_BF16_DOT)
extern template void attend_shared<Bf16AttentionProducts>(const Args&, const RowFunctions&);
#endif
extern template void attend_shared<Fp32Products<float>>(const Args&, const RowFunctions&);
extern template void attend_shared<Fp32Products<bf16>>(const Args&, const RowFunctions&);
extern template void attend_shared<Fp32Products<q8>>(const Args&, const RowFunctions&);

}  // namespace triptych

// The two products of attention in float32, with a KV cache of either type, see paged_attention.h.
#pragma once

#include "attention/attention_tile.h"

namespace triptych {

// Number of rows whose sums fit in registers. More rows read the same keys and values again, so these are widened once before.
constexpr int kScoreRows = 6, kValueRows = 6;

// scores[r][0..16*NB) = q[r] . K for R rows and NB groups of 16 keys. q: [R, D], D even if T is bfloat16.
template <class T, int R, int NB>
inline void scores_kernel(const float* q, int64_t D, const T* const* keys, int key_stride, float* scores) {
  constexpr int P = kPerWord<T>;
  vf acc[R][NB];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 16
    for (int n = 0; n < NB; n++) acc[r][n] = vf{};
  for (int64_t d = 0; d < D; d += P) {
    vf k[NB][P];
#pragma GCC unroll 16
    for (int n = 0; n < NB; n++) load_keys(keys[n], d, key_stride, k[n]);
#pragma GCC unroll 16
    for (int p = 0; p < P; p++)
#pragma GCC unroll 16
      for (int r = 0; r < R; r++)
#pragma GCC unroll 16
        for (int n = 0; n < NB; n++) acc[r][n] += q[r * D + d + p] * k[n][p];
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 16
    for (int n = 0; n < NB; n++) store(scores + r * kKeyTile + n * kLanes, acc[r][n]);
}

template <class T, int NB>
inline void scores_rows(const float* q, int rows, int64_t D, const T* const* keys, int key_stride, float* scores) {
  constexpr int kMax = NB >= 2 ? kScoreRows : 8;
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

// out[r][0..16*C) += weights[r] . V for R rows and n keys of one block, components c and on.
template <class T, int R, int C>
inline void values_kernel(const float* weights, const T* values, int n, int c0, int Dv, float* out, int out_stride) {
  constexpr int P = kPerWord<T>;
  vf acc[R][C];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 16
    for (int c = 0; c < C; c++) acc[r][c] = load(out + r * out_stride + c * kLanes);
  const auto add = [&](int j, int parts) {
    vf v[C][P];
#pragma GCC unroll 16
    for (int c = 0; c < C; c++) load_values(values, j, c0 + c * kLanes, Dv, v[c]);
#pragma GCC unroll 16
    for (int p = 0; p < parts; p++)
#pragma GCC unroll 16
      for (int r = 0; r < R; r++)
#pragma GCC unroll 16
        for (int c = 0; c < C; c++) acc[r][c] += weights[r * kKeyTile + j + p] * v[c][p];
  };
  int j = 0;
  for (; j + P <= n; j += P) add(j, P);
  if (j < n) add(j, 1);  // the other half of the last pair is undefined
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 16
    for (int c = 0; c < C; c++) store(out + r * out_stride + c * kLanes, acc[r][c]);
}

template <class T, int C>
inline void values_rows(const float* weights, int rows, const T* values, int n, int c, int Dv, float* out, int out_stride) {
  for (int r = 0; r < rows;) {
    const float* w = weights + r * kKeyTile;
    float* o = out + r * out_stride + c;
    const int left = rows - r;
    if (left >= kValueRows) { values_kernel<T, kValueRows, C>(w, values, n, c, Dv, o, out_stride); r += kValueRows; }
    else if (left >= 4) { values_kernel<T, 4, C>(w, values, n, c, Dv, o, out_stride); r += 4; }
    else if (left == 3) { values_kernel<T, 3, C>(w, values, n, c, Dv, o, out_stride); r += 3; }
    else if (left == 2) { values_kernel<T, 2, C>(w, values, n, c, Dv, o, out_stride); r += 2; }
    else { values_kernel<T, 1, C>(w, values, n, c, Dv, o, out_stride); r += 1; }
  }
}

// Products for paged_attention.h, which describes the functions. T: type of the cache.
template <class T>
struct Fp32Products {
  struct Prefetch {};  // none
  static Prefetch prefetch(const Args&, const HeadsTile&, const HeadsTile&, int, int) { return {}; }

  static int64_t query_words(const Args& a) { return key_size<T>(a); }
  static void prepare_query(const float* query, int D, uint32_t* q) {
    std::memcpy(q, query, sizeof(float) * D);
    if (D % kPerWord<T>) q[D] = 0;
  }
  static int padded_groups(int groups) { return groups; }
  static void store_weights(float* row, int n, vf weights) { store(row + n * kLanes, weights); }

  static void score(const Args& a, const Tile& tile, const Scratch& s, int first, int groups, Prefetch&) {
    const int64_t D = s.query_words;
    const float* q = (const float*)s.q;
    for (int n = 0; n < groups; n += 2) {
      const bool both = n + 1 < groups;
      const int key = first + n * kLanes;
      const T* keys[] = {tile.keys<T>(a, key), both ? tile.keys<T>(a, key + kLanes) : nullptr};
      float* scores = s.scores + n * kLanes;
      if (!both) {
        scores_rows<T, 1>(q, tile.rows, D, keys, a.block_size, scores);
      } else if (kPerWord<T> > 1 && tile.rows > kScoreRows) {
        float* wide = (float*)s.panel;
        for (int i = 0; i < 2; i++)
          for (int64_t d = 0; d < D; d += kPerWord<T>) {
            vf parts[kPerWord<T>];
            load_keys(keys[i], d, a.block_size, parts);
            for (int p = 0; p < kPerWord<T>; p++) store(wide + (d + p) * kPanel + i * kLanes, parts[p]);
          }
        const float* widened[] = {wide, wide + kLanes};
        scores_rows<float, 2>(q, tile.rows, D, widened, kPanel, scores);
      } else {
        scores_rows<T, 2>(q, tile.rows, D, keys, a.block_size, scores);
      }
    }
  }

  static void add_values(const Args& a, const Tile& tile, const Scratch& s, int first, int groups, Prefetch&) {
    const int last = std::min(first + groups * kLanes, tile.end), Dv = a.v_head_dim;
    for (int key = first, n; key < last; key += n) {
      n = std::min(a.block_size - key % a.block_size, last - key);
      const T* values = tile.values<T>(a, key);
      const float* weights = s.scores + (key - first);
      if (kPerWord<T> > 1 && tile.rows > kValueRows) {
        float* wide = (float*)s.panel;
        for (int j = 0; j < n; j += kPerWord<T>)
          for (int c = 0; c < Dv; c += kLanes) {
            vf parts[kPerWord<T>];
            load_values(values, j, c, Dv, parts);
            for (int p = 0; p < kPerWord<T>; p++) store(wide + (j + p) * Dv + c, parts[p]);
          }
        add_block(s, tile.rows, weights, (const float*)wide, n, Dv);
      } else {
        add_block(s, tile.rows, weights, values, n, Dv);
      }
    }
  }

 private:
  template <class Values>
  static void add_block(const Scratch& s, int rows, const float* weights, const Values* values, int n, int Dv) {
    int c = 0;
    for (; c + 4 * kLanes <= Dv; c += 4 * kLanes) values_rows<Values, 4>(weights, rows, values, n, c, Dv, s.out, s.out_stride);
    for (; c < Dv; c += kLanes) values_rows<Values, 1>(weights, rows, values, n, c, Dv, s.out, s.out_stride);
  }
};

}  // namespace triptych

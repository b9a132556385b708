// The two products of attention, of some rows of queries with some keys, and of weights with values, see paged_attention.h.
#pragma once

#include "vector.h"

namespace triptych {

constexpr int kKeyTile = 128;     // keys whose scores are held at once
// Rows whose sums are in registers at once. More rows go through the same keys and values again, so these are widened once before.
constexpr int kScoreRows = 6, kValueRows = 6;

// scores[r][0..16*NB) = q[r] . K for R rows and NB groups of 16 keys.
template <class T, int R, int NB>
inline void scores_kernel(const float* q, int D, const T* const* keys, int key_stride, float* scores) {
  vf acc[R][NB];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 16
    for (int n = 0; n < NB; n++) acc[r][n] = vf{};
  for (int d = 0; d < D; d++) {
    vf k[NB];
#pragma GCC unroll 16
    for (int n = 0; n < NB; n++) k[n] = load(keys[n] + (int64_t)d * key_stride);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 16
      for (int n = 0; n < NB; n++) acc[r][n] += q[r * D + d] * k[n];
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 16
    for (int n = 0; n < NB; n++) store(scores + r * kKeyTile + n * kLanes, acc[r][n]);
}

template <class T, int NB>
inline void scores_rows(const float* q, int rows, int D, const T* const* keys, int key_stride, float* scores) {
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

// out[r][0..16*C) += weights[r] . V for R rows and n keys of one block.
template <class T, int R, int C>
inline void values_kernel(const float* weights, const T* values, int n, int Dv, float* out) {
  vf acc[R][C];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 16
    for (int c = 0; c < C; c++) acc[r][c] = load(out + r * Dv + c * kLanes);
  for (int j = 0; j < n; j++) {
    vf v[C];
#pragma GCC unroll 16
    for (int c = 0; c < C; c++) v[c] = load(values + (int64_t)j * Dv + c * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 16
      for (int c = 0; c < C; c++) acc[r][c] += weights[r * kKeyTile + j] * v[c];
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 16
    for (int c = 0; c < C; c++) store(out + r * Dv + c * kLanes, acc[r][c]);
}

template <class T, int C>
inline void values_rows(const float* weights, int rows, const T* values, int n, int Dv, float* out) {
  for (int r = 0; r < rows;) {
    const float* w = weights + r * kKeyTile;
    float* o = out + r * Dv;
    const int left = rows - r;
    if (left >= kValueRows) { values_kernel<T, kValueRows, C>(w, values, n, Dv, o); r += kValueRows; }
    else if (left >= 4) { values_kernel<T, 4, C>(w, values, n, Dv, o); r += 4; }
    else if (left == 3) { values_kernel<T, 3, C>(w, values, n, Dv, o); r += 3; }
    else if (left == 2) { values_kernel<T, 2, C>(w, values, n, Dv, o); r += 2; }
    else { values_kernel<T, 1, C>(w, values, n, Dv, o); r += 1; }
  }
}

}  // namespace triptych

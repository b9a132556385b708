// Sums of products in fp32, which stay in registers: each of some rows, times the weights of some outputs. In attention, rows are queries
// and weights keys, or rows are weights and outputs the components of values.
#pragma once

#include <utility>

#include "vector.h"

namespace triptych {

// sum += x * weight, rounded once.
template <int N>
[[gnu::always_inline]] inline void add_product(const float& x, const rf (&weight)[N], rf (&sum)[N]) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  if constexpr (N == 2) return add_two_products(x, weight, sum);
#endif
#pragma GCC unroll 16
  for (int i = 0; i < N; i++) sum[i] = fma(splat<rf>(x), weight[i], sum[i]);
}

// One register at a time: GCC may copy an array in smaller pieces than it is read in afterwards, which stalls.
template <int N>
[[gnu::always_inline]] inline void load_row(const float* from, rf (&row)[N]) {
#pragma GCC unroll 16
  for (int i = 0; i < N; i++) std::memcpy(&row[i], from + i * kRegisterLanes, sizeof(rf));
}

// R rows of N registers. Rows are counted by constants: GCC keeps arrays that loops index in memory.
template <int R, int N>
struct Sums {
  rf of[R][N];

  // from: a row of it is from_stride after the row before; null: zeros.
  [[gnu::always_inline]] inline void begin(const float* from, int64_t from_stride) { begin(from, from_stride, kRows); }
  // Adds the same to each row.
  [[gnu::always_inline]] inline void add(const float* row) { add(row, kRows); }
  // An input of each row, times its weights.
  [[gnu::always_inline]] inline void add_input(const float* x, int64_t x_stride, const rf (&weight)[N]) {
    add_input(x, x_stride, weight, kRows);
  }
  [[gnu::always_inline]] inline void end(float* out, int64_t out_stride) const { end(out, out_stride, kRows); }
  // columns: outputs that are written, the first ones.
  [[gnu::always_inline]] inline void end(float* out, int64_t out_stride, int64_t columns) const {
    if (columns == N * kRegisterLanes) return end(out, out_stride);
    float all[R][N * kRegisterLanes];
    end(all[0], N * kRegisterLanes);
    for (int r = 0; r < R; r++) std::memcpy(out + r * out_stride, all[r], columns * sizeof(float));
  }

 private:
  static constexpr auto kRows = std::make_integer_sequence<int, R>();

  template <int... r>
  [[gnu::always_inline]] inline void begin(const float* from, int64_t from_stride, std::integer_sequence<int, r...>) {
    (begin_row(from ? from + r * from_stride : nullptr, of[r]), ...);
  }
  template <int... r>
  [[gnu::always_inline]] inline void add(const float* row, std::integer_sequence<int, r...>) {
    (add_row(row, of[r]), ...);
  }
  template <int... r>
  [[gnu::always_inline]] inline void add_input(const float* x, int64_t x_stride, const rf (&weight)[N], std::integer_sequence<int, r...>) {
    (add_product(x[r * x_stride], weight, of[r]), ...);
  }
  template <int... r>
  [[gnu::always_inline]] inline void end(float* out, int64_t out_stride, std::integer_sequence<int, r...>) const {
    (end_row(of[r], out + r * out_stride), ...);
  }
  [[gnu::always_inline]] static inline void begin_row(const float* from, rf (&row)[N]) {
    if (from) return load_row(from, row);
#pragma GCC unroll 16
    for (int i = 0; i < N; i++) row[i] = rf{};
  }
  [[gnu::always_inline]] static inline void add_row(const float* added, rf (&row)[N]) {
    rf some[N];
    load_row(added, some);
#pragma GCC unroll 16
    for (int i = 0; i < N; i++) row[i] += some[i];
  }
  [[gnu::always_inline]] static inline void end_row(const rf (&row)[N], float* out) {
#pragma GCC unroll 16
    for (int i = 0; i < N; i++) std::memcpy(out + i * kRegisterLanes, &row[i], sizeof(rf));
  }
};

// Calls compute(R), R a constant, if rows, which is at most kMost, is R.
template <int kMost, class Compute>
[[gnu::always_inline]] inline void with_rows(int64_t rows, const Compute& compute) {
  if (rows == kMost) return compute(std::integral_constant<int, kMost>());
  if constexpr (kMost > 1) with_rows<kMost - 1>(rows, compute);
}

// Calls compute(R, first row), R a constant, for tiles of at most kMost rows. The last two tiles share what is left: a tile of few rows
// takes as long as one of more, waiting for its sums.
template <int kMost, class Compute>
inline void share_rows(int64_t rows, const Compute& compute) {
  for (int64_t first = 0, some; first < rows; first += some) {
    const int64_t left = rows - first;
    some = left <= kMost ? left : left < 2 * kMost ? (left + 1) / 2 : kMost;
    with_rows<kMost>(some, [&](auto R) { compute(R, first); });
  }
}

}  // namespace triptych

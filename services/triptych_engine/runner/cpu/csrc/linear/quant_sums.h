// Sums of products with quantised weights.
//
// Like linear_quant.cpp, it is compiled without contraction of products and sums.
#pragma once

#include <utility>

#include "linear/quant_scales.h"

namespace triptych {
namespace {

// Rows that share a pass over a panel. Their sums, two weights and an input fit in the registers.
#if defined(__AVX512F__)
constexpr int kQuantRows = 8;
#else
constexpr int kQuantRows = 4;
#endif

// The same for products in fp32, which need fewer registers beside the sums.
#if defined(__AVX512F__)
constexpr int kFloatRows = 12;
#else
constexpr int kFloatRows = 6;
#endif

// sum += x * weight, rounded once.
[[gnu::always_inline]] inline void add_product(const float& x, const rf (&weight)[kRegisters], rf (&sum)[kRegisters]) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  add_two_products(x, weight, sum);
#else
#pragma GCC unroll 4
  for (int i = 0; i < kRegisters; i++) sum[i] = fma(splat<rf>(x), weight[i], sum[i]);
#endif
}

// The sums of R rows and a panel's outputs. Rows are counted by constants: GCC keeps arrays that loops index in memory.
template <int R>
struct Sums {
  rf of[R][kRegisters];

  [[gnu::always_inline]] inline void begin() { begin(kRows); }
  // Sums so far, [R, kQuantPanel].
  [[gnu::always_inline]] inline void begin(const float* sums) { begin(sums, kRows); }
  [[gnu::always_inline]] inline void add(const float* bias) { add(bias, kRows); }
  // An input of each row, times its weights.
  [[gnu::always_inline]] inline void add_input(const float* x, int64_t x_stride, const rf (&weight)[kRegisters]) {
    add_input(x, x_stride, weight, kRows);
  }
  [[gnu::always_inline]] inline void end(float* sums) const { end(sums, kRows); }
  [[gnu::always_inline]] inline void end(const QuantPanel& panel, float* out, int64_t out_stride) const {
    end(panel, out, out_stride, kRows);
  }

 private:
  static constexpr auto kRows = std::make_integer_sequence<int, R>();
  using Row = rf[kRegisters];

  template <int... r>
  [[gnu::always_inline]] inline void begin(std::integer_sequence<int, r...>) { (begin_row(of[r]), ...); }
  template <int... r>
  [[gnu::always_inline]] inline void begin(const float* sums, std::integer_sequence<int, r...>) {
    (load_row(of[r], sums + r * kQuantPanel), ...);
  }
  template <int... r>
  [[gnu::always_inline]] inline void add(const float* bias, std::integer_sequence<int, r...>) { (add_row(of[r], bias), ...); }
  template <int... r>
  [[gnu::always_inline]] inline void add_input(const float* x, int64_t x_stride, const rf (&weight)[kRegisters],
                                               std::integer_sequence<int, r...>) {
    (add_product(x[r * x_stride], weight, of[r]), ...);
  }
  template <int... r>
  [[gnu::always_inline]] inline void end(float* sums, std::integer_sequence<int, r...>) const {
    (store_row(of[r], sums + r * kQuantPanel), ...);
  }
  template <int... r>
  [[gnu::always_inline]] inline void end(const QuantPanel& panel, float* out, int64_t out_stride, std::integer_sequence<int, r...>) const {
    (end_row(of[r], panel, out + r * out_stride), ...);
  }

  [[gnu::always_inline]] static inline void begin_row(Row& row) {
#pragma GCC unroll 4
    for (int i = 0; i < kRegisters; i++) row[i] = rf{};
  }
  [[gnu::always_inline]] static inline void load_row(Row& row, const float* sums) {
#pragma GCC unroll 4
    for (int i = 0; i < kRegisters; i++) row[i] = load_floats(sums + i * kRegisterLanes);
  }
  [[gnu::always_inline]] static inline void add_row(Row& row, const float* bias) {
#pragma GCC unroll 4
    for (int i = 0; i < kRegisters; i++) row[i] += load_floats(bias + i * kRegisterLanes);
  }
  [[gnu::always_inline]] static inline void store_row(const Row& row, float* sums) {
#pragma GCC unroll 4
    for (int i = 0; i < kRegisters; i++) std::memcpy(sums + i * kRegisterLanes, &row[i], sizeof(rf));
  }
  [[gnu::always_inline]] static inline void end_row(const Row& row, const QuantPanel& panel, float* out) {
    float sums[kQuantPanel];
    store_row(row, sums);
    if (panel.columns == kQuantPanel) std::memcpy(out, sums, sizeof sums);
    else std::memcpy(out, sums, panel.columns * sizeof(float));
  }
};

}  // namespace
}  // namespace triptych

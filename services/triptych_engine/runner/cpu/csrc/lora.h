// Low-rank updates of products (LoRA, arXiv 2106.09685): out += scale * B (A x), for the rows whose sequence has an adapter. Rows of
// different adapters are computed in one step. The result of a row does not depend on the other rows.
#pragma once

#include "vector.h"

namespace triptych {

constexpr int kLoraPanel = 32;        // outputs that B keeps together
constexpr int kMaxLoraRank = 512;     // the product A x is kept on the stack
constexpr int kUpdatesPerLayer = 8;   // up to four of the input product (q, k, v), output, gate, up, down
constexpr int kLoraRows = 4;          // computed at once: each number of A and B is loaded once for all of them

}  // namespace triptych

extern "C" {

// An adapter's update of one linear layer.
struct LoraUpdate {
  const void* a;      // [in_features, rank rounded up to kLanes], zeros behind the rank; null for a layer that it does not change
  const void* b;      // [ceil(out_features / kLoraPanel), rank, kLoraPanel], zeros behind the last output
  int64_t in_features, out_features;
  int64_t first;      // index of the layer's first output among those of its product
  int32_t rank;
  int32_t is_bf16;    // whether A and B are bfloat16, else float32
  float scale;
};
}

namespace triptych {

template <class T>
inline rf load_register(const T* p) {
  if constexpr (kRegisters == 1) {
    const vf v = load(p);
    rf r;
    std::memcpy(&r, &v, sizeof r);
    return r;
  } else if constexpr (sizeof(T) == 4) {
    rf r;
    std::memcpy(&r, p, sizeof r);
    return r;
  } else {
    typedef uint16_t rh __attribute__((vector_size(kRegisterLanes * 2)));
    rh h;
    std::memcpy(&h, p, sizeof h);
    return (rf)(__builtin_convertvector(h, ru) << 16);
  }
}

// inner = scale * A x, [R, kMaxLoraRank]. Even and odd inputs are summed apart, for more sums at once.
template <int R, class T>
void lora_down(const LoraUpdate& u, const float* x, int64_t x_stride, float (*inner)[kMaxLoraRank]) {
  const int64_t padded = (u.rank + kLanes - 1) / kLanes * kLanes;
  for (int64_t first = 0; first < padded; first += kRegisterLanes) {
    const T* a = (const T*)u.a + first;
    rf even[R] = {}, odd[R] = {};
    int64_t i = 0;
    for (; i + 2 <= u.in_features; i += 2) {
      const rf one = load_register(a + i * padded), other = load_register(a + (i + 1) * padded);
#pragma GCC unroll 4
      for (int r = 0; r < R; r++) {
        even[r] += x[r * x_stride + i] * one;
        odd[r] += x[r * x_stride + i + 1] * other;
      }
    }
    for (; i < u.in_features; i++) {
      const rf one = load_register(a + i * padded);
      for (int r = 0; r < R; r++) even[r] += x[r * x_stride + i] * one;
    }
    for (int r = 0; r < R; r++) {
      const rf sum = (even[r] + odd[r]) * u.scale;
      std::memcpy(inner[r] + first, &sum, sizeof sum);
    }
  }
}

// out += B inner.
template <int R, class T>
void lora_up(const LoraUpdate& u, const float (*inner)[kMaxLoraRank], float* out, int64_t out_stride) {
  constexpr int kPair = 2 * kRegisterLanes;
  const T* panel = (const T*)u.b;
  for (int64_t begin = 0; begin < u.out_features; begin += kLoraPanel, panel += u.rank * kLoraPanel) {
    for (int64_t part = 0; part < kLoraPanel && begin + part < u.out_features; part += kPair) {
      rf sums[R][2] = {};
      for (int64_t j = 0; j < u.rank; j++) {
        const T* b = panel + j * kLoraPanel + part;
        const rf low = load_register(b), high = load_register(b + kRegisterLanes);
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
          sums[r][0] += inner[r][j] * low;
          sums[r][1] += inner[r][j] * high;
        }
      }
      const int64_t size = std::min<int64_t>(kPair, u.out_features - begin - part);
      for (int r = 0; r < R; r++) {
        float* to = out + r * out_stride + begin + part;
        float sum[kPair];
        std::memcpy(sum, sums[r], sizeof sum);
        for (int64_t i = 0; i < size; i++) to[i] += sum[i];
      }
    }
  }
}

template <int R, class T>
void lora_rows(const LoraUpdate& u, const float* x, int64_t x_stride, float* out, int64_t out_stride) {
  float inner[R][kMaxLoraRank];
  lora_down<R, T>(u, x, x_stride, inner);
  lora_up<R, T>(u, inner, out, out_stride);
}

// The update of so many rows, at most kLoraRows. x: [rows, in_features]; out: [rows, ...], outputs of the product.
template <class T>
void lora_update(const LoraUpdate& u, const float* x, int64_t x_stride, float* out, int64_t out_stride, int64_t rows) {
  out += u.first;
  switch (rows) {
    case 1: return lora_rows<1, T>(u, x, x_stride, out, out_stride);
    case 2: return lora_rows<2, T>(u, x, x_stride, out, out_stride);
    case 3: return lora_rows<3, T>(u, x, x_stride, out, out_stride);
    default: return lora_rows<4, T>(u, x, x_stride, out, out_stride);
  }
}

// The updates of a step.
struct LoraStep {
  const int32_t* slots;               // [rows] index of the row's adapter in this step, or -1; or null if no row has one
  const LoraUpdate* const* adapters;  // of each adapter [num_layers, kUpdatesPerLayer]

  // The number of rows from this one on, at most kLoraRows, that have the same adapter.
  int64_t run(int64_t row, int64_t end) const {
    int64_t rows = 1;
    while (rows < kLoraRows && row + rows < end && slots[row + rows] == slots[row]) rows++;
    return rows;
  }

  // Adds updates [first, first + count) of a layer to rows [begin, end) of a product. x: [rows, in]; out: [rows, out].
  void add(int64_t layer, int first, int count, const float* x, int64_t in, float* out, int64_t out_size, int64_t begin,
           int64_t end) const {
    for (int64_t row = begin, rows; row < end; row += rows) {
      rows = run(row, end);
      if (slots[row] < 0) continue;
      const LoraUpdate* updates = adapters[slots[row]] + layer * kUpdatesPerLayer + first;
      for (int i = 0; i < count; i++) {
        const LoraUpdate& u = updates[i];
        if (!u.a) continue;
        if (u.is_bf16) lora_update<bf16>(u, x + row * in, in, out + row * out_size, out_size, rows);
        else lora_update<float>(u, x + row * in, in, out + row * out_size, out_size, rows);
      }
    }
  }
};

}  // namespace triptych

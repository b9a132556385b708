// The operations of elementwise.cpp on one row.
#pragma once

#include <type_traits>

#include "vector.h"

namespace triptych {

inline void widen_row(const bf16* x, float* out, int64_t size) {
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) store(out + i, load(x + i));
  for (; i < size; i++) out[i] = to_float(x[i]);
}

// 1 / rms(x).
template <class In>
inline float inverse_rms(const In* x, int64_t size, float eps) {
  vf squares = vf{};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    const vf v = load(x + i);
    squares += v * v;
  }
  float sum = sum_of(squares);
  for (; i < size; i++) sum += to_float(x[i]) * to_float(x[i]);
  return 1.0f / __builtin_sqrtf(sum / size + eps);
}

template <class In, class Out>
inline void norm_row(const In* x, const float* weight, Out* out, int64_t size, float eps) {
  const float scale = inverse_rms(x, size, eps);
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) store(out + i, load(x + i) * scale * load(weight + i));
  for (; i < size; i++) convert(to_float(x[i]) * scale * weight[i], out[i]);
}

// sum = x + scale * added; out = normed(sum).
template <class T>
inline void add_norm_row(const float* x, const T* added, const float* weight, float* sum, T* out, int64_t size, float eps,
                         float scale = 1.0f) {
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) store(sum + i, load(x + i) + scale * load(added + i));
  for (; i < size; i++) sum[i] = x[i] + scale * to_float(added[i]);
  norm_row(sum, weight, out, size, eps);
}

// One head: out = rotated(normed(x)). cos, sin: [rotary_dim]; the dimensions beyond are copied.
template <class T>
inline void rope_head(const T* x, const float* weight, const float* cos, const float* sin, float* out, int64_t head_dim, int64_t rotary_dim,
               float eps) {
  if (weight) {
    norm_row(x, weight, out, head_dim, eps);
  } else {
    for (int64_t i = 0; i < head_dim; i++) out[i] = to_float(x[i]);
  }
  const int64_t half = rotary_dim / 2;
  for (int64_t i = 0; i < half; i++) {
    const float a = out[i], b = out[i + half];
    out[i] = a * cos[i] - b * sin[i];
    out[i + half] = b * cos[i + half] + a * sin[i + half];
  }
}

template <class In, class Out>
[[gnu::always_inline]] inline void silu_mul_row(const In* gate, const In* up, Out* out, int64_t size) {
  int64_t i = 0;
  if constexpr (std::is_same<In, float>::value && std::is_same<Out, float>::value) {  // in registers, see vector.h
    for (; i + kRegisterLanes <= size; i += kRegisterLanes) {
      rf g, u;
      std::memcpy(&g, gate + i, sizeof g);
      std::memcpy(&u, up + i, sizeof u);
      g = silu(g) * u;
      std::memcpy(out + i, &g, sizeof g);
    }
  }
  for (; i + kLanes <= size; i += kLanes) store(out + i, silu(load(gate + i)) * load(up + i));
  for (; i < size; i++) convert(silu(splat(to_float(gate[i])))[0] * to_float(up[i]), out[i]);
}

// x = x * sigmoid(gate).
inline void sigmoid_mul_row(const float* gate, float* x, int64_t size) {
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) store(x + i, load(x + i) * sigmoid(load(gate + i)));
  for (; i < size; i++) x[i] *= sigmoid(splat(gate[i]))[0];
}

}  // namespace triptych

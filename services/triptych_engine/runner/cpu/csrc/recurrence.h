// A matrix-valued recurrence, one state per head: see Recurrence in runner/recurrent/ops.py, and its norm.
#pragma once

#include <algorithm>

#include "short_conv.h"

namespace triptych {

// query, key: [num_tokens, num_key_heads, key_dim], value: [num_tokens, num_heads, value_dim], tokens apart by their strides. out:
// dense. decay: [num_tokens, num_heads], or [num_tokens, num_heads, key_dim] if it is per row. beta: [num_tokens, num_heads]. skip:
// [num_heads] or null. state: [num_slots, num_heads, key_dim, value_dim].
struct RecurArgs {
  RecurrentSegments segments;
  const void *query, *key, *value;
  const float *decay, *beta, *skip;
  float* state;
  void* out;
  int64_t query_stride, key_stride, value_stride;
  int32_t num_key_heads, num_heads, key_dim, value_dim;
  int32_t has_delta_rule, normalizes, decays_rows;
  float scale;
};

constexpr float kNormEps = 1e-6f;     // as transformers' own l2norm
constexpr int kTileFloats = 8 << 10;  // of the columns of a state, a part of the first cache
constexpr int kMostKeyDim = 512;

// Whether the kernel takes these shapes.
inline bool takes_recurrence(int64_t key_dim, int64_t value_dim) {
  return key_dim % kLanes == 0 && key_dim <= kMostKeyDim && value_dim % kRegisterLanes == 0;
}

// out = x * factor, or normed(x) * factor. size: a multiple of kLanes.
template <class T>
void prepare_vector(const T* x, float* out, int64_t size, bool normalizes, float factor) {
  if (normalizes) {
    vf squares = vf{};
    for (int64_t i = 0; i < size; i += kLanes) {
      const vf v = load(x + i);
      squares += v * v;
    }
    factor /= __builtin_sqrtf(sum_of(squares) + kNormEps);
  }
  for (int64_t i = 0; i < size; i += kLanes) store(out + i, load(x + i) * factor);
}

// `count` registers of columns of one head's state. The columns do not depend on each other: each token reads and changes them by
// its query, its key, and its value in the same columns.
template <int count>
struct StateColumns {
  static constexpr int kSize = count * kRegisterLanes;
  rf state[kTileFloats / kRegisterLanes];

  // state = decay * state; returns state^T key.
  template <bool decays_rows>
  inline void decay(const float* key, const float* decay, int64_t key_dim, rf* memory) {
    rf sums[2][count] = {};
    rf factor = splat<rf>(decay[0]);
    for (int64_t i = 0; i < key_dim; i += 2) {
      for (int u = 0; u < 2; u++) {
        rf* row = state + (i + u) * count;
        if (decays_rows) factor = splat<rf>(decay[i + u]);
        const rf k = splat<rf>(key[i + u]);
#pragma GCC unroll 8
        for (int c = 0; c < count; c++) {
          row[c] *= factor;
          sums[u][c] = fma(row[c], k, sums[u][c]);
        }
      }
    }
    for (int c = 0; c < count; c++) memory[c] = sums[0][c] + sums[1][c];
  }

  // state = decay * state + key (x) added; returns state^T query.
  template <bool decays, bool decays_rows>
  inline void add(const float* key, const float* query, const float* decay, const rf* added, int64_t key_dim, rf* read) {
    rf sums[2][count] = {};
    rf factor = splat<rf>(decay[0]);
    for (int64_t i = 0; i < key_dim; i += 2) {
      for (int u = 0; u < 2; u++) {
        rf* row = state + (i + u) * count;
        if (decays && decays_rows) factor = splat<rf>(decay[i + u]);
        const rf k = splat<rf>(key[i + u]), q = splat<rf>(query[i + u]);
#pragma GCC unroll 8
        for (int c = 0; c < count; c++) {
          row[c] = fma(k, added[c], decays ? row[c] * factor : row[c]);
          sums[u][c] = fma(row[c], q, sums[u][c]);
        }
      }
    }
    for (int c = 0; c < count; c++) read[c] = sums[0][c] + sums[1][c];
  }

  void load_from(const float* matrix, int64_t key_dim, int64_t value_dim) {
    for (int64_t i = 0; i < key_dim; i++) std::memcpy(state + i * count, matrix + i * value_dim, kSize * sizeof(float));
  }
  void store_to(float* matrix, int64_t key_dim, int64_t value_dim) const {
    for (int64_t i = 0; i < key_dim; i++) std::memcpy(matrix + i * value_dim, state + i * count, kSize * sizeof(float));
  }
};

template <class T, int count, bool decays_rows>
void recur_columns(const RecurArgs& args, int64_t sequence, int64_t head, int64_t column) {
  const RecurrentSegments& segments = args.segments;
  const int64_t key_dim = args.key_dim, value_dim = args.value_dim;
  const int64_t key_head = head / (args.num_heads / args.num_key_heads);
  alignas(64) StateColumns<count> columns;
  alignas(64) float query[kMostKeyDim], key[kMostKeyDim], value[StateColumns<count>::kSize];
  const auto matrix_of = [&](int32_t slot) { return args.state + (slot * args.num_heads + head) * key_dim * value_dim + column; };

  const int32_t first = segments.first_segment[sequence], last = segments.first_segment[sequence + 1];
  if (first == last) return;
  if (segments.is_fresh[first]) {
    std::fill(columns.state, columns.state + key_dim * count, rf{});
  } else {
    columns.load_from(matrix_of(segments.slots[first]), key_dim, value_dim);
  }
  for (int32_t s = first; s < last; s++) {
    for (int64_t t = segments.first_token[s]; t < segments.first_token[s + 1]; t++) {
      prepare_vector((const T*)args.query + t * args.query_stride + key_head * key_dim, query, key_dim, args.normalizes, args.scale);
      prepare_vector((const T*)args.key + t * args.key_stride + key_head * key_dim, key, key_dim, args.normalizes, 1.0f);
      const T* own = (const T*)args.value + t * args.value_stride + head * value_dim + column;
      for (int i = 0; i < StateColumns<count>::kSize; i++) value[i] = to_float(own[i]);
      const int64_t gate = t * args.num_heads + head;
      const float* decay = args.decay + (decays_rows ? gate * key_dim : gate);
      rf added[count], out[count];
      std::memcpy(added, value, sizeof added);
      if (args.has_delta_rule) {
        rf memory[count];
        columns.template decay<decays_rows>(key, decay, key_dim, memory);
        for (int c = 0; c < count; c++) added[c] = args.beta[gate] * (added[c] - memory[c]);
        columns.template add<false, decays_rows>(key, query, decay, added, key_dim, out);
      } else {
        for (int c = 0; c < count; c++) added[c] *= args.beta[gate];
        columns.template add<true, decays_rows>(key, query, decay, added, key_dim, out);
      }
      float result[StateColumns<count>::kSize];
      std::memcpy(result, out, sizeof result);
      T* to = (T*)args.out + gate * value_dim + column;
      const float skip = args.skip ? args.skip[head] : 0.0f;
      for (int i = 0; i < StateColumns<count>::kSize; i++) convert(result[i] + skip * value[i], to[i]);
    }
    if (segments.snapshots[s] >= 0) columns.store_to(matrix_of(segments.snapshots[s]), key_dim, value_dim);
  }
  columns.store_to(matrix_of(segments.slots[first]), key_dim, value_dim);
}

template <class T, int count>
void recur_by(const RecurArgs& args) {
  const int64_t size = StateColumns<count>::kSize, parts = args.value_dim / size, sequences = args.segments.num_sequences;
#pragma omp for schedule(static) nowait
  for (int64_t i = 0; i < sequences * args.num_heads * parts; i++) {
    // All threads share each sequence: a prompt takes longer than those that decode beside it.
    const int64_t sequence = i % sequences, head = i / sequences / parts, column = i / sequences % parts * size;
    if (args.decays_rows) {
      recur_columns<T, count, true>(args, sequence, head, column);
    } else {
      recur_columns<T, count, false>(args, sequence, head, column);
    }
  }
}

// Computes it, distributed over the threads of the enclosing parallel region, without a barrier at the end. As many columns at once as
// divide the state, and fit.
template <class T>
void recur_shared(const RecurArgs& args) {
  int count = 4;
  while (count > 1 && (args.value_dim % (count * kRegisterLanes) || args.key_dim * count * kRegisterLanes > kTileFloats)) count /= 2;
  if (count == 4) return recur_by<T, 4>(args);
  if (count == 2) return recur_by<T, 2>(args);
  recur_by<T, 1>(args);
}
extern template void recur_shared<float>(const RecurArgs&);  // it is in recurrent.cpp, for decoder_layer.cpp too

// out = x / rms(x) * weight * silu(gate); or, if the gate comes first, y / rms(y) * weight of y = x * silu(gate). out may be x.
template <class T>
inline void gated_norm_row(const T* x, const T* gate, const float* weight, T* out, int64_t size, float eps, bool gates_first) {
  const float scale = gates_first ? 1.0f : inverse_rms(x, size, eps);
  const auto factor = [&](int64_t i) { return gates_first ? splat(1.0f) : scale * load(weight + i); };
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) store(out + i, load(x + i) * factor(i) * silu(load(gate + i)));
  for (; i < size; i++) convert(to_float(x[i]) * (gates_first ? 1.0f : scale * weight[i]) * silu(splat(to_float(gate[i])))[0], out[i]);
  if (gates_first) norm_row(out, weight, out, size, eps);
}

}  // namespace triptych

// Small operations around the matrix products, each in one pass over its data.

#include "vector.h"

namespace {

using namespace triptych;

// Rows below this size are not worth waking another thread for.
constexpr int64_t kParallelElements = 1 << 14;

template <class In, class Out>
void rms_norm(const In* x, const float* weight, Out* out, int64_t rows, int64_t size, float eps) {
#pragma omp parallel for schedule(static) if (rows * size >= kParallelElements)
  for (int64_t r = 0; r < rows; r++) {
    const In* in = x + r * size;
    Out* to = out + r * size;
    vf squares = vf{};
    int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) {
      const vf v = load(in + i);
      squares += v * v;
    }
    float sum = sum_of(squares);
    for (; i < size; i++) sum += to_float(in[i]) * to_float(in[i]);
    const float scale = 1.0f / __builtin_sqrtf(sum / size + eps);
    for (i = 0; i + kLanes <= size; i += kLanes) store(to + i, load(in + i) * scale * load(weight + i));
    for (; i < size; i++) convert(to_float(in[i]) * scale * weight[i], to[i]);
  }
}

}  // namespace

extern "C" {

// out[r] = x[r] / rms(x[r]) * weight. x, out: [rows, size], dense; weight: [size].
#define RMS_NORM(name, In, Out)                                                                                  \
  void triptych_rms_norm_##name(const void* x, const float* w, void* out, int64_t rows, int64_t size, float eps) { \
    rms_norm((const In*)x, w, (Out*)out, rows, size, eps);                                                         \
  }
RMS_NORM(fp32_fp32, float, float)
RMS_NORM(fp32_bf16, float, bf16)
RMS_NORM(bf16_fp32, bf16, float)
RMS_NORM(bf16_bf16, bf16, bf16)
#undef RMS_NORM

// out[r] = silu(gate_up[r][:size]) * gate_up[r][size:]. gate_up: [rows, 2 * size], out: [rows, size]; bf16, dense.
void triptych_silu_mul_bf16(const uint16_t* gate_up, uint16_t* out, int64_t rows, int64_t size) {
#pragma omp parallel for schedule(static) if (rows * size >= kParallelElements)
  for (int64_t r = 0; r < rows; r++) {
    const bf16* gate = (const bf16*)gate_up + r * 2 * size;
    const bf16* up = gate + size;
    bf16* to = (bf16*)out + r * size;
    int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) store(to + i, silu(load(gate + i)) * load(up + i));
    for (; i < size; i++) convert(silu(splat(to_float(gate[i])))[0] * to_float(up[i]), to[i]);
  }
}

// Logits in fp32, whose top is exact: a bf16 logit of 25 is a multiple of 1/8, so the likeliest tokens often tie. Converts a row and
// computes again, in fp32, each logit that rounding could have moved past the row's largest.
// logits: [rows, vocab] bf16; hidden: [rows, size] bf16, what the logits were computed from; weight: [vocab, size] bf16; bias: [vocab]
// fp32 or null; out: [rows, vocab] fp32. All dense.
void triptych_refine_logits(const uint16_t* logits, const uint16_t* hidden, const uint16_t* weight, const float* bias, float* out,
                            int64_t rows, int64_t vocab, int64_t size) {
  constexpr float kUlp = 1.0f / 128;  // two roundings of half a unit in the eighth bit
#pragma omp parallel for schedule(static) if (rows > 1)
  for (int64_t r = 0; r < rows; r++) {
    const bf16* in = (const bf16*)logits + r * vocab;
    const bf16* h = (const bf16*)hidden + r * size;
    float* to = out + r * vocab;
    vf top = splat(-3e38f);
    int64_t i = 0;
    for (; i + kLanes <= vocab; i += kLanes) {
      const vf v = load(in + i);
      store(to + i, v);
      top = v > top ? v : top;
    }
    float largest = max_of(top);
    for (; i < vocab; i++) {
      to[i] = to_float(in[i]);
      largest = std::max(largest, to[i]);
    }
    const float threshold = largest - kUlp * (largest < 0 ? -largest : largest);
    for (i = 0; i < vocab; i += kLanes) {
      const int64_t n = std::min<int64_t>(kLanes, vocab - i);
      if (n == kLanes) {
        const vi above = load(to + i) >= threshold;
        int any = 0;
        for (int j = 0; j < kLanes; j++) any |= above[j];
        if (!any) continue;
      }
      for (int64_t j = i; j < i + n; j++) {
        if (!(to[j] >= threshold)) continue;
        const bf16* w = (const bf16*)weight + j * size;
        vf sum = vf{};
        int64_t d = 0;
        for (; d + kLanes <= size; d += kLanes) sum += load(h + d) * load(w + d);
        float dot = sum_of(sum);
        for (; d < size; d++) dot += to_float(h[d]) * to_float(w[d]);
        to[j] = dot + (bias ? bias[j] : 0.0f);
      }
    }
  }
}

// Index of the largest element of each row, the first of equals, and its value. x: [rows, size] fp32, dense.
void triptych_argmax(const float* x, int64_t rows, int64_t size, int64_t* index, float* value) {
#pragma omp parallel for schedule(static) if (rows > 1)
  for (int64_t r = 0; r < rows; r++) {
    const float* in = x + r * size;
    vf top = splat(-__builtin_inff());
    vi poisoned = vi{};  // lanes that met NaN
    int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) {
      const vf v = load(in + i);
      top = v > top ? v : top;
      poisoned |= v != v;
    }
    float largest = max_of(top);
    int nan = 0;
    for (int j = 0; j < kLanes; j++) nan |= poisoned[j];
    for (; i < size; i++) {
      largest = std::max(largest, in[i]);
      nan |= in[i] != in[i];
    }
    int64_t at = 0;
    while (at < size - 1 && in[at] != largest) at++;
    index[r] = at;
    value[r] = nan ? __builtin_nanf("") : largest;
  }
}
}

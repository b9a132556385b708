// Small operations around the matrix products, each in one pass over its data.

#include "elementwise.h"

namespace {

using namespace triptych;

// With fewer elements it is not worth waking other threads.
constexpr int64_t kParallelElements = 1 << 14;

template <class In, class Out>
void rms_norm(const In* x, const float* weight, Out* out, int64_t rows, int64_t size, float eps) {
#pragma omp parallel for schedule(static) if (rows * size >= kParallelElements)
  for (int64_t r = 0; r < rows; r++) norm_row(x + r * size, weight, out + r * size, size, eps);
}

template <class T>
void add_rms_norm(const float* x, const T* added, const float* weight, float* sum, T* out, int64_t rows, int64_t size, float eps) {
#pragma omp parallel for schedule(static) if (rows * size >= kParallelElements)
  for (int64_t r = 0; r < rows; r++) {
    add_norm_row(x + r * size, added + r * size, weight, sum + r * size, out + r * size, size, eps);
  }
}

template <class T>
void qk_norm_rope(const T* qkv, int64_t row_stride, const float* q_weight, const float* k_weight, float eps, const float* cos,
                  const float* sin, int64_t rotary_dim, float* out, int64_t rows, int64_t num_q_heads, int64_t num_kv_heads,
                  int64_t head_dim) {
  const int64_t num_heads = num_q_heads + num_kv_heads;
#pragma omp parallel for schedule(static) if (rows * num_heads * head_dim >= kParallelElements)
  for (int64_t r = 0; r < rows; r++) {
    for (int64_t h = 0; h < num_heads; h++) {
      rope_head(qkv + r * row_stride + h * head_dim, h < num_q_heads ? q_weight : k_weight, cos + r * rotary_dim,
                sin + r * rotary_dim, out + (r * num_heads + h) * head_dim, head_dim, rotary_dim, eps);
    }
  }
}

template <class T>
void silu_mul(const T* gate_up, T* out, int64_t rows, int64_t size) {
#pragma omp parallel for schedule(static) if (rows * size >= kParallelElements)
  for (int64_t r = 0; r < rows; r++) {
    const T* gate = gate_up + r * 2 * size;
    silu_mul_row(gate, gate + size, out + r * size, size);
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

// sum = x + added; out[r] = sum[r] / rms(sum[r]) * weight. All [rows, size], dense; x and sum, which may be the same, fp32.
#define ADD_RMS_NORM(name, T)                                                                                                 \
  void triptych_add_rms_norm_##name(const float* x, const void* added, const float* w, float* sum, void* out, int64_t rows,   \
                                    int64_t size, float eps) {                                                                \
    add_rms_norm(x, (const T*)added, w, sum, (T*)out, rows, size, eps);                                                       \
  }
ADD_RMS_NORM(fp32, float)
ADD_RMS_NORM(bf16, bf16)
#undef ADD_RMS_NORM

// The query and key heads at the start of each row, normalised over head_dim if a weight is given, and rotated by halves.
// qkv: [rows, row_stride]; weights: [head_dim] or null; cos, sin: [rows, rotary_dim]; out: [rows, num_q_heads + num_kv_heads, head_dim].
#define QK_NORM_ROPE(name, T)                                                                                                 \
  void triptych_qk_norm_rope_##name(const void* qkv, int64_t row_stride, const float* q_weight, const float* k_weight, float eps, \
                                    const float* cos, const float* sin, int64_t rotary_dim, float* out, int64_t rows,         \
                                    int64_t num_q_heads, int64_t num_kv_heads, int64_t head_dim) {                            \
    qk_norm_rope((const T*)qkv, row_stride, q_weight, k_weight, eps, cos, sin, rotary_dim, out, rows, num_q_heads,            \
                 num_kv_heads, head_dim);                                                                                     \
  }
QK_NORM_ROPE(fp32, float)
QK_NORM_ROPE(bf16, bf16)
#undef QK_NORM_ROPE

// out[r] = silu(gate_up[r][:size]) * gate_up[r][size:]. gate_up: [rows, 2 * size], out: [rows, size]; dense.
void triptych_silu_mul_fp32(const void* gate_up, void* out, int64_t rows, int64_t size) {
  silu_mul((const float*)gate_up, (float*)out, rows, size);
}
void triptych_silu_mul_bf16(const void* gate_up, void* out, int64_t rows, int64_t size) {
  silu_mul((const bf16*)gate_up, (bf16*)out, rows, size);
}
}

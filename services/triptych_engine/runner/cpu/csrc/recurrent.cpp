// The recurrences of hybrid models over a ragged batch, each as a call of its own: see runner/recurrent/ops.py, whose TorchRecurrentOps
// computes the same.

#include "recurrence.h"

template void triptych::conv_shared<float>(const ConvArgs&);
template void triptych::recur_shared<float>(const RecurArgs&);

namespace {

using namespace triptych;

constexpr int64_t kParallelElements = 1 << 14;  // with fewer it is not worth waking other threads

template <class T>
void conv(const ConvArgs& args) {
  const RecurrentSegments& segments = args.segments;
  const int64_t num_tokens = segments.first_token[segments.first_segment[segments.num_sequences]];
#pragma omp parallel if (num_tokens * args.channels >= kParallelElements)
  conv_shared<T>(args);
}

template <class T>
void recur(const RecurArgs& args) {
  const int64_t elements = args.segments.num_sequences * args.num_heads * args.key_dim * args.value_dim;
#pragma omp parallel if (elements >= kParallelElements)
  recur_shared<T>(args);
}

template <class T>
void gated_rms_norm(const T* x, const T* gate, const float* weight, T* out, int64_t rows, int64_t size, float eps, bool gates_first) {
#pragma omp parallel for schedule(static) if (rows * size >= kParallelElements)
  for (int64_t r = 0; r < rows; r++) {
    gated_norm_row(x + r * size, gate + r * size, weight, out + r * size, size, eps, gates_first);
  }
}

}  // namespace

extern "C" {

// out = x / rms(x) * weight * silu(gate), or the norm of x * silu(gate). x, gate, out: [rows, size], dense; weight: [size].
void triptych_gated_rms_norm_fp32(const float* x, const float* gate, const float* weight, float* out, int64_t rows, int64_t size,
                                  float eps, int gates_first) {
  gated_rms_norm(x, gate, weight, out, rows, size, eps, gates_first);
}
void triptych_gated_rms_norm_bf16(const void* x, const void* gate, const float* weight, void* out, int64_t rows, int64_t size,
                                  float eps, int gates_first) {
  gated_rms_norm((const bf16*)x, (const bf16*)gate, weight, (bf16*)out, rows, size, eps, gates_first);
}

int64_t triptych_conv_args_size() { return sizeof(triptych::ConvArgs); }
int64_t triptych_recur_args_size() { return sizeof(triptych::RecurArgs); }

// Whether the kernels take these shapes.
int triptych_conv_takes(int64_t channels, int64_t width) { return takes_conv(channels, width); }
int triptych_recur_takes(int64_t key_dim, int64_t value_dim) { return takes_recurrence(key_dim, value_dim); }

void triptych_conv_fp32(const triptych::ConvArgs* args) { conv<float>(*args); }
void triptych_conv_bf16(const triptych::ConvArgs* args) { conv<bf16>(*args); }
void triptych_recur_fp32(const triptych::RecurArgs* args) { recur<float>(*args); }
void triptych_recur_bf16(const triptych::RecurArgs* args) { recur<bf16>(*args); }

}

// A causal convolution over the last tokens of each sequence, per channel: see RecurrentOps.conv in runner/recurrent/ops.py.
#pragma once

#include "elementwise.h"

namespace triptych {

// A batch cut into segments, at whose ends a snapshot of the state may be made. See RecurrentStep in runner/recurrent/step.py.
struct RecurrentSegments {
  const int32_t* first_segment;  // [num_sequences + 1], of each sequence
  const int32_t* first_token;    // [num_segments + 1], of each segment
  const int32_t* slots;          // [num_segments], where the state is
  const int32_t* is_fresh;       // [num_segments], whether the state is zero before
  const int32_t* snapshots;      // [num_segments], the slot to which the state is copied after it; -1 for none
  int64_t num_sequences;
};

// x, out: [num_tokens, channels], rows x_stride apart; out is dense. weight: [width + 1, channels] float, the oldest token first.
// bias: [channels] or null. state: [num_slots, width, channels]. With is_gated, x is [num_tokens, 3 * channels]: what the input is
// multiplied by, what the result is multiplied by, and the input.
struct ConvArgs {
  RecurrentSegments segments;
  const void* x;
  const float* weight;
  const float* bias;
  float* state;
  void* out;
  int64_t x_stride, channels;
  int32_t width, silu, is_gated;
};

constexpr int kMostWidth = 4;  // of a convolution

// Whether the kernel takes these shapes.
inline bool takes_conv(int64_t channels, int64_t width) { return channels % kLanes == 0 && width >= 1 && width <= kMostWidth; }

// kLanes channels of one sequence, from `channel` on.
template <class T, int width>
inline void conv_channels(const ConvArgs& args, int64_t sequence, int64_t channel) {
  const RecurrentSegments& segments = args.segments;
  const int64_t channels = args.channels;
  const T* x = (const T*)args.x + channel;
  T* out = (T*)args.out + channel;
  vf weight[width + 1], before[width];
  for (int j = 0; j <= width; j++) weight[j] = load(args.weight + j * channels + channel);
  const vf bias = args.bias ? load(args.bias + channel) : vf{};
  const auto state_of = [&](int32_t slot) { return args.state + slot * width * channels + channel; };
  const auto keep = [&](int32_t slot) {
    for (int j = 0; j < width; j++) store(state_of(slot) + j * channels, before[j]);
  };

  const int32_t first = segments.first_segment[sequence], last = segments.first_segment[sequence + 1];
  if (first == last) return;
  for (int j = 0; j < width; j++) before[j] = segments.is_fresh[first] ? vf{} : load(state_of(segments.slots[first]) + j * channels);
  for (int32_t s = first; s < last; s++) {
    for (int64_t t = segments.first_token[s]; t < segments.first_token[s + 1]; t++) {
      const T* row = x + t * args.x_stride;
      const vf newest = args.is_gated ? load(row) * load(row + 2 * channels) : load(row);
      vf sum = bias + weight[width] * newest;
      for (int j = 0; j < width; j++) sum += weight[j] * before[j];
      if (args.silu) sum = silu(sum);
      store(out + t * channels, args.is_gated ? sum * load(row + channels) : sum);
      for (int j = 0; j + 1 < width; j++) before[j] = before[j + 1];
      before[width - 1] = newest;
    }
    if (segments.snapshots[s] >= 0) keep(segments.snapshots[s]);
  }
  keep(segments.slots[first]);
}

template <class T, int width>
inline void conv_of_width(const ConvArgs& args) {
  const int64_t parts = args.channels / kLanes, sequences = args.segments.num_sequences;
#pragma omp for schedule(static) nowait
  for (int64_t i = 0; i < sequences * parts; i++) conv_channels<T, width>(args, i % sequences, i / sequences * kLanes);
}

// Computes it, distributed over the threads of the enclosing parallel region, without a barrier at the end.
template <class T>
void conv_shared(const ConvArgs& args) {
  switch (args.width) {
    case 1: return conv_of_width<T, 1>(args);
    case 2: return conv_of_width<T, 2>(args);
    case 3: return conv_of_width<T, 3>(args);
    default: return conv_of_width<T, kMostWidth>(args);
  }
}
extern template void conv_shared<float>(const ConvArgs&);  // it is in recurrent.cpp, for decoder_layer.cpp too

}  // namespace triptych

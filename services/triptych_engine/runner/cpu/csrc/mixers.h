// What a decoder layer computes between its input product and its output product, and where tokens read others: an attention, or what is
// recurrent in its place. See runner/fusion/mixers.py.
#pragma once

#include <cmath>

#include "decoder_args.h"
#include "elementwise.h"
#include "stage_clock.h"
#include "team.h"

namespace triptych {

// Where a head's query or key begins in a row of the input product.
inline int64_t head_offset(const DecoderLayerArgs& l, int64_t head) {
  const int64_t gates = l.has_gate ? std::min<int64_t>(head, l.num_q_heads) : 0;
  return (head + gates) * l.head_dim;
}

template <class Format>
PagedAttentionArgs attention_of(const DecoderLayerArgs& l, const DecoderStepArgs& s, int64_t layer, const Workspace<Format>& w) {
  PagedAttentionArgs a = *s.attention;
  const int64_t num_heads = l.num_q_heads + l.num_kv_heads, keys = l.num_q_heads * (int64_t)l.head_dim;
  a.q = w.inner, a.k = w.inner + keys, a.v = w.in + head_offset(l, num_heads), a.out = w.mixed;
  a.k_cache = s.k_caches[layer], a.v_cache = s.v_caches[layer], a.sinks = l.sinks;
  a.q_stride_t = a.k_stride_t = num_heads * l.head_dim, a.v_stride_t = l.in.out_features;
  a.q_stride_h = a.k_stride_h = l.head_dim, a.v_stride_h = l.v_head_dim;
  a.num_q_heads = l.num_q_heads, a.num_kv_heads = l.num_kv_heads, a.head_dim = l.head_dim, a.v_head_dim = l.v_head_dim;
  if (l.window && a.window_slots) a.slots = a.window_slots, a.block_table = a.window_block_table;
  if (!l.window && a.full_key_end) a.key_end = a.full_key_end;
  a.window = l.window, a.scaling = l.scaling, a.softcap = l.softcap;
  return a;
}

template <class Format>
void rotate_token(const DecoderLayerArgs& l, const DecoderStepArgs& s, const Workspace<Format>& w, int64_t t) {
  const int64_t num_heads = l.num_q_heads + l.num_kv_heads, angle = (s.positions ? s.positions[t] : t) * s.rotary_dim;
  for (int64_t h = 0; h < num_heads; h++) {
    rope_head(w.in + t * l.in.out_features + head_offset(l, h), h < l.num_q_heads ? l.q_norm : l.k_norm, s.cos + angle, s.sin + angle,
              w.inner + (t * num_heads + h) * l.head_dim, l.head_dim, s.rotary_dim, l.qk_norm_eps);
  }
}

// The attention of a layer: w.in -> w.mixed. There is a barrier at the end.
template <class Format, class Cache>
void attend(const DecoderLayerArgs& l, const DecoderStepArgs& s, int64_t layer, const Workspace<Format>& w, Team& team, StageClock& clock) {
  const PagedAttentionArgs a = attention_of(l, s, layer, w);
  Team::for_rows(s.attention->num_tokens, [&](int64_t r) {
    rotate_token(l, s, w, r);
    write_token<float, float, Cache>(a, int(r));
  });
  team.wait();
  clock.mark(kOtherStage);
  attend_shared<FastestProducts<Cache, Format::kRounds>, float, float>(a);
  team.wait();
  clock.mark(kAttentionStage);
  if (!l.has_gate) return;
  Team::for_rows(s.attention->num_tokens, [&](int64_t r) {
    for (int64_t h = 0; h < l.num_q_heads; h++) {
      const float* gate = w.in + r * l.in.out_features + head_offset(l, h) + l.head_dim;
      sigmoid_mul_row(gate, w.mixed + r * l.out.in_features + h * l.head_dim, l.head_dim);
    }
  });
  team.wait();
}

// What a layer has in the place of an attention: w.in -> w.mixed. There is a barrier at the end.
template <class Format>
void convolve(const DecoderLayerArgs& l, const DecoderStepArgs& s, int64_t layer, const Workspace<Format>& w, Team& team) {
  const RecurrentLayerArgs& r = *l.recurrent;
  conv_shared<float>({*s.segments, w.in, r.conv_weight, r.conv_bias, s.conv_states[layer], w.mixed, l.in.out_features,
                      l.out.in_features, r.conv_width, false, true});
  team.wait();
}

// What a token's state is multiplied by: e^(rate * softplus(x + bias)).
inline float decay_of(float x, float rate, float bias) {
  x += bias;
  return std::exp(rate * (x > 20.0f ? x : std::log1p(std::exp(x))));  // torch's softplus, which is x from 20 on
}

template <class Format>
void recur_by_delta_rule(const DecoderLayerArgs& l, const DecoderStepArgs& s, int64_t layer, const Workspace<Format>& w, Team& team) {
  const RecurrentLayerArgs& r = *l.recurrent;
  const int64_t rows = s.attention->num_tokens, channels = delta_channels(r), heads = r.num_heads, values = heads * r.value_dim;
  const int64_t keys = int64_t(r.num_key_heads) * r.key_dim;
  float *qkv = w.inner, *beta = qkv + rows * channels, *decay = beta + rows * heads;
  conv_shared<float>({*s.segments, w.in, r.conv_weight, r.conv_bias, s.conv_states[layer], qkv, l.in.out_features, channels, r.conv_width,
                      true, false});
  Team::for_rows(rows, [&](int64_t t) {
    const float* given = w.in + t * l.in.out_features + channels + values;
    for (int64_t h = 0; h < heads; h++) {
      beta[t * heads + h] = 1.0f / (1.0f + std::exp(-given[h]));
      decay[t * heads + h] = decay_of(given[heads + h], r.decay_rates[h], r.decay_bias[h]);
    }
  });
  team.wait();
  recur_shared<float>({*s.segments, qkv, qkv + keys, qkv + 2 * keys, decay, beta, nullptr, s.matrix_states[layer], w.mixed, channels,
                       channels, channels, r.num_key_heads, r.num_heads, r.key_dim, r.value_dim, true, true, false,
                       1.0f / __builtin_sqrtf(float(r.key_dim))});
  team.wait();
  Team::for_rows(rows, [&](int64_t t) {
    const float* gate = w.in + t * l.in.out_features + channels;
    for (int64_t h = 0; h < heads; h++) {
      float* row = w.mixed + t * values + h * r.value_dim;
      gated_norm_row(row, gate + h * r.value_dim, r.norm, row, r.value_dim, r.norm_eps);
    }
  });
  team.wait();
}

}  // namespace triptych

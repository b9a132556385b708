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

inline PagedAttentionArgs attention_of(const DecoderLayerArgs& l, const DecoderStepArgs& s, int64_t layer, const Workspace& w) {
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

[[gnu::noinline]] inline void rotate_token(const DecoderLayerArgs& l, const DecoderStepArgs& s, const Workspace& w, int64_t t) {
  const int64_t num_heads = l.num_q_heads + l.num_kv_heads, angle = (s.positions ? s.positions[t] : t) * s.rotary_dim;
  for (int64_t h = 0; h < num_heads; h++) {
    rope_head(w.in + t * l.in.out_features + head_offset(l, h), h < l.num_q_heads ? l.q_norm : l.k_norm, s.cos + angle, s.sin + angle,
              w.inner + (t * num_heads + h) * l.head_dim, l.head_dim, s.rotary_dim, l.qk_norm_eps);
  }
}

template <class Cache, class Products>
[[gnu::noinline]] void attend_to(const DecoderLayerArgs& l, const DecoderStepArgs& s, int64_t layer, const Workspace& w, Team& team,
                                 StageClock& clock) {
  const PagedAttentionArgs a = attention_of(l, s, layer, w);
  Team::for_rows(s.attention->num_tokens, [&](int64_t r) {
    rotate_token(l, s, w, r);
    write_token<float, float, Cache>(a, int(r));
  });
  team.wait();
  clock.mark(kOtherStage);
  attend_shared<Products>(a, kRowFunctions<Products, float, float>);
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

// The attention of a layer: w.in -> w.mixed. There is a barrier at the end. kRounds: see linear.h.
template <bool kRounds>
void attend(const DecoderLayerArgs& l, const DecoderStepArgs& s, int64_t layer, const Workspace& w, Team& team, StageClock& clock) {
  if (s.cache_bits == 8) attend_to<q8, FastestProducts<q8, kRounds>>(l, s, layer, w, team, clock);
  else if (s.cache_bits == 16) attend_to<bf16, FastestProducts<bf16, kRounds>>(l, s, layer, w, team, clock);
  else attend_to<float, FastestProducts<float, kRounds>>(l, s, layer, w, team, clock);
}

// What a layer has in the place of an attention: w.in -> w.mixed. There is a barrier at the end.
[[gnu::noinline]] inline void convolve(const DecoderLayerArgs& l, const DecoderStepArgs& s, int64_t layer, const Workspace& w, Team& team) {
  const RecurrentLayerArgs& r = *l.recurrent;
  conv_shared<float>({*s.segments, w.in, r.conv_weight, r.conv_bias, s.conv_states[layer], w.mixed, l.in.out_features,
                      l.out.in_features, r.conv_width, false, true});
  team.wait();
}

inline float softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }  // as torch's, which is x from 20 on

// A recurrence behind a convolution. There is a barrier at the end.
[[gnu::noinline]] inline void recur(const DecoderLayerArgs& l, const DecoderStepArgs& s, int64_t layer, const Workspace& w, Team& team) {
  const RecurrentLayerArgs& r = *l.recurrent;
  const RecurrentLayout at(r);
  const int64_t rows = s.attention->num_tokens, channels = recurrent_channels(r), heads = r.num_heads, values = heads * r.value_dim;
  const bool has_delta_rule = !r.skip;
  float *qkv = w.inner, *beta = qkv + rows * channels, *decay = beta + rows * heads;
  conv_shared<float>({*s.segments, w.in + at.conv, r.conv_weight, r.conv_bias, s.conv_states[layer], qkv, l.in.out_features, channels,
                      r.conv_width, true, false});
  Team::for_rows(rows, [&](int64_t t) {
    const float* given = w.in + t * l.in.out_features + at.heads;
    for (int64_t h = 0; h < heads; h++) {
      const float time_step = softplus(given[has_delta_rule ? heads + h : h] + r.decay_bias[h]);
      beta[t * heads + h] = has_delta_rule ? 1.0f / (1.0f + std::exp(-given[h])) : time_step;
      decay[t * heads + h] = std::exp(r.decay_rates[h] * time_step);
    }
  });
  team.wait();
  recur_shared<float>({*s.segments, qkv + at.query, qkv + at.key, qkv + at.value, decay, beta, r.skip, s.matrix_states[layer], w.mixed,
                       channels, channels, channels, r.num_key_heads, r.num_heads, r.key_dim, r.value_dim, has_delta_rule, has_delta_rule,
                       false, has_delta_rule ? 1.0f / __builtin_sqrtf(float(r.key_dim)) : 1.0f});
  team.wait();
  const int64_t norms = has_delta_rule ? heads : 1, size = values / norms;
  Team::for_rows(rows, [&](int64_t t) {
    const float* gate = w.in + t * l.in.out_features + at.gate;
    for (int64_t n = 0; n < norms; n++) {
      float* row = w.mixed + t * values + n * size;
      gated_norm_row(row, gate + n * size, r.norm, row, size, r.norm_eps, !has_delta_rule);
    }
  });
  team.wait();
}

}  // namespace triptych

// What decoder_layer.cpp gets, and where it keeps what it computes.
#pragma once

#include "attention/paged_attention.h"
#include "linear/linear_quant.h"
#include "lora.h"
#include "ranks.h"
#include "recurrence.h"

namespace triptych {
extern "C" {

// What a layer has in the place of an attention: a convolution between two gates (LFM2), or a gated delta rule behind a convolution
// (Qwen3.5). Its input product has, for each token, what ConvArgs describes; or queries, keys and values, which are convolved, a gate of
// [num_heads, value_dim], and beta and decay of each head before their functions.
struct RecurrentLayerArgs {
  const float* conv_weight;  // see ConvArgs
  const float* conv_bias;    // or null
  const float* decay_rates;  // [num_heads], the most negative decays fastest; null without a delta rule, and then the next fields are 0
  const float* decay_bias;   // [num_heads]
  const float* norm;         // [value_dim]
  int32_t conv_width, num_key_heads, num_heads, key_dim, value_dim;
  float norm_eps;
};

// Arguments that are the same in all steps.
struct DecoderLayerArgs {
  const float* norm;      // [hidden]
  const float* mlp_norm;  // [hidden]
  const float* q_norm;    // [head_dim], or null
  const float* k_norm;    // [head_dim], or null
  PackedWeight in;        // hidden -> (num_q_heads + num_kv_heads) * head_dim + num_kv_heads * v_head_dim; behind each head's query may be
                          // its gate. Or what `recurrent` describes
  PackedWeight out;       // num_q_heads * v_head_dim, or of the recurrent part -> hidden
  PackedWeight gate_up;   // hidden -> 2 * intermediate
  PackedWeight down;      // intermediate -> hidden
  const float* sinks;     // [num_q_heads], or null
  const RecurrentLayerArgs* recurrent;  // in the place of the attention, or null
  Ranks* ranks;           // whose shares of the layer are added up, or null
  int32_t num_q_heads, num_kv_heads, head_dim, v_head_dim, window;  // 0 without an attention
  int32_t has_gate;       // whether an attention's output is multiplied by the sigmoid of a gate, [num_q_heads, head_dim]
  int32_t index;          // of the layer in the model
  float norm_eps, mlp_norm_eps, qk_norm_eps, scaling, softcap;
};

// What comes before and after the layers, the same in all steps.
struct DecoderEndsArgs {
  const void* embedding;   // [vocab, hidden], fp32 or bf16, or a table of quantised panels (quant_layout.h); or null
  const float* norm;       // [hidden]
  PackedWeight head;       // hidden -> vocab, in the layers' format
  float embedding_scale, norm_eps;
  int32_t embedding_bits;  // of a number: 32, 16, or 0 if quantised
  int32_t rounds;          // whether the norm's result is rounded to bf16
};

// Arguments of one step.
struct DecoderStepArgs {
  const PagedAttentionArgs* attention;  // metadata of the step; fields that depend on the layer are not read
  const DecoderLayerArgs* const* layers;  // [num_layers]
  void* const* k_caches;                  // [num_layers], null for layers without an attention
  void* const* v_caches;
  float* const* conv_states;              // [num_layers], null for layers with an attention; or null if all have one
  float* const* matrix_states;            // the same of delta rules
  const RecurrentSegments* segments;      // of the recurrent layers, or null
  const float* x;             // [rows, hidden], input of the first layer; not read if token_ids are given
  float* out;                 // [rows, hidden], output of the last layer; not the same memory as x
  const float* cos;           // [rows, rotary_dim]; with positions, those of all positions
  const float* sin;           // the same
  const int64_t* token_ids;   // [rows], or null
  const int64_t* positions;   // [rows], or null
  const DecoderEndsArgs* ends;  // with it, logits are computed; else null
  const int64_t* wanted;      // [num_wanted], rows whose logits are computed
  float* logits;              // [num_wanted, vocab]
  float* workspace;   // rows, rounded up to a multiple of 16, * the format's triptych_decoder_layers_workspace
  int64_t* stage_ns;  // [kStages], see stage_clock.h: time is added; or null
  const int32_t* lora_slots;                // see LoraStep
  const LoraUpdate* const* lora_adapters;
  int64_t num_layers, rotary_dim, num_wanted;  // at most as many are wanted as there are rows
  int32_t cache_bits;  // of a number of the cache: 32 (float32), 16 (bfloat16), 8 (int8)
};
}

// Queries, keys and values of a delta rule, [tokens, ...].
inline int64_t delta_channels(const RecurrentLayerArgs& r) {
  return 2 * int64_t(r.num_key_heads) * r.key_dim + int64_t(r.num_heads) * r.value_dim;
}

// Words per row between the input product and the result of the attention: queries and keys; or what a delta rule reads.
inline int64_t inner_words(const DecoderLayerArgs& l) {
  if (!l.recurrent) return (l.num_q_heads + l.num_kv_heads) * int64_t(l.head_dim);
  return l.recurrent->decay_rates ? delta_channels(*l.recurrent) + 2 * l.recurrent->num_heads : 0;
}

// The intermediate results between x and out of any of the layers, [rows, ...] each. They are at the same place in all layers: a thread may
// begin a layer while others still read what they have of the one before.
template <class Format>
struct Workspace {
  float *normed, *in, *inner, *mixed, *added, *gate_up, *gated;
  float* prepared;  // the input of the current product, in the format's form; last, because products may read beyond its rows
  int64_t per_row = 0;

  Workspace(const DecoderLayerArgs* const* layers, int64_t num_layers, float* memory, int64_t rows) {
    int64_t sizes[8] = {};
    for (int64_t i = 0; i < num_layers; i++) {
      const DecoderLayerArgs& l = *layers[i];
      const int64_t widest = std::max({l.in.in_features, l.out.in_features, l.gate_up.in_features, l.down.in_features});
      const int64_t own[8] = {l.in.in_features,   l.in.out_features,      inner_words(l),
                              l.out.in_features,  l.out.out_features,     l.gate_up.out_features,
                              l.down.in_features, Format::num_prepared_words(widest)};
      for (int j = 0; j < 8; j++) sizes[j] = std::max(sizes[j], own[j]);
    }
    float** parts[] = {&normed, &in, &inner, &mixed, &added, &gate_up, &gated, &prepared};
    for (int j = 0; j < 8; j++) {
      *parts[j] = memory + rows * per_row;
      per_row += sizes[j];
    }
  }
};

}  // namespace triptych

// What decoder_layer.cpp gets, and where it keeps what it computes.
#pragma once

#include "attention/paged_attention.h"
#include "linear/linear_quant.h"
#include "lora.h"
#include "ranks.h"
#include "recurrence.h"

namespace triptych {
extern "C" {

// What a layer has in the place of an attention: a convolution between two gates (LFM2), or a recurrence behind a convolution: a gated
// delta rule (Qwen3.5), or Mamba-2 (Granite 4). Its input product has, for each token, what ConvArgs describes; or what
// RecurrentLayout does.
struct RecurrentLayerArgs {
  const float* conv_weight;  // see ConvArgs
  const float* conv_bias;    // or null
  const float* decay_rates;  // [num_heads], the most negative decays fastest; null without a recurrence, and then the next fields are 0
  const float* decay_bias;   // [num_heads]
  const float* norm;         // [value_dim]; of Mamba-2 [num_heads * value_dim]
  const float* skip;         // [num_heads] of Mamba-2; null of a delta rule
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
  float residual_scale;   // of what is added to the residual stream
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
  float* const* matrix_states;            // the same of recurrences
  const RecurrentSegments* segments;      // of the recurrent layers, or null
  const float* x;             // [rows, hidden], input of the first layer; not read if token_ids are given
  float* out;                 // [rows, hidden], output of the last layer, with `ends` perhaps only of the wanted rows; not the memory of x
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

// Queries, keys and values of a recurrence, [tokens, ...].
inline int64_t recurrent_channels(const RecurrentLayerArgs& r) {
  return 2 * int64_t(r.num_key_heads) * r.key_dim + int64_t(r.num_heads) * r.value_dim;
}

// Where a recurrence's parts begin in a token's row of the input product: what is convolved; the gates, [num_heads, value_dim]; and what
// decay and beta are made of: of a delta rule beta, then decay, [num_heads] each, of Mamba-2 one for both. And in a row of the
// convolution's result: queries and keys, [num_key_heads, key_dim] each, and values.
struct RecurrentLayout {
  int64_t conv, gate, heads, query, key, value;

  explicit RecurrentLayout(const RecurrentLayerArgs& r) {
    const int64_t keys = int64_t(r.num_key_heads) * r.key_dim, values = int64_t(r.num_heads) * r.value_dim;
    heads = 2 * keys + 2 * values;
    if (r.skip) conv = values, gate = 0, value = 0, key = values, query = values + keys;
    else conv = 0, gate = 2 * keys + values, query = 0, key = keys, value = 2 * keys;
  }
};

// Words per row between the input product and the result of the attention: queries and keys; or what a recurrence reads.
inline int64_t inner_words(const DecoderLayerArgs& l) {
  if (!l.recurrent) return (l.num_q_heads + l.num_kv_heads) * int64_t(l.head_dim);
  return l.recurrent->decay_rates ? recurrent_channels(*l.recurrent) + 2 * l.recurrent->num_heads : 0;
}

// The intermediate results between x and out of any of the layers, [rows, ...] each. They are at the same place in all layers: a thread may
// begin a layer while others still read what they have of the one before. The last layer keeps rows of `mixed` in `in`, and of x in `gate_up`.
struct Workspace {
  float *normed, *in, *inner, *mixed, *added, *gate_up, *gated;
  float* prepared;  // the input of the current product, in the format's form; last, because products may read beyond its rows
  int64_t per_row = 0;

  // num_prepared_words: the format's, see linear.h.
  Workspace(const DecoderLayerArgs* const* layers, int64_t num_layers, int64_t (*num_prepared_words)(int64_t in_features), float* memory,
            int64_t rows) {
    int64_t sizes[8] = {};
    for (int64_t i = 0; i < num_layers; i++) {
      const DecoderLayerArgs& l = *layers[i];
      const int64_t widest = std::max({l.in.in_features, l.out.in_features, l.gate_up.in_features, l.down.in_features});
      const int64_t in = std::max(l.in.out_features, l.out.in_features), gate_up = std::max(l.gate_up.out_features, l.in.in_features);
      const int64_t own[8] = {l.in.in_features,    in,      inner_words(l),     l.out.in_features,
                              l.out.out_features, gate_up, l.down.in_features, num_prepared_words(widest)};
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

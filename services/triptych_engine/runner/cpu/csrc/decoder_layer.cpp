// Decoder layers of the common kind, one or several consecutive ones, in one call and one parallel region; also with embedding and output
// head. A layer has an attention, or a short convolution between two gates in its place (LFM2). With few rows, a layer computes for about a hundred microseconds, and ten calls from Python take as long. Activations are fp32,
// weights have any format (see linear.h), and the cache may be bf16 or int8.

#include "elementwise.h"
#include "linear/linear_quant.h"
#include "lora.h"
#include "attention/paged_attention.h"
#include "ranks.h"
#include "short_conv.h"
#include "stage_clock.h"
#include "team.h"

using namespace triptych;

extern "C" {

// Arguments that are the same in all steps.
struct DecoderLayerArgs {
  const float* norm;      // [hidden]
  const float* mlp_norm;  // [hidden]
  const float* q_norm;    // [head_dim], or null
  const float* k_norm;    // [head_dim], or null
  PackedWeight in;        // hidden -> (num_q_heads + num_kv_heads) * head_dim + num_kv_heads * v_head_dim, or 3 * channels
  PackedWeight out;       // num_q_heads * v_head_dim, or channels -> hidden
  PackedWeight gate_up;   // hidden -> 2 * intermediate
  PackedWeight down;      // intermediate -> hidden
  const float* sinks;     // [num_q_heads], or null
  const float* conv_weight;  // see ConvArgs; null in a layer with an attention
  const float* conv_bias;    // or null
  Ranks* ranks;           // whose shares of the layer are added up, or null
  int32_t num_q_heads, num_kv_heads, head_dim, v_head_dim, window;  // 0 in a layer with a convolution
  int32_t conv_width;
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
  void* const* k_caches;                  // [num_layers], null for layers with a convolution
  void* const* v_caches;
  float* const* conv_states;              // [num_layers], null for layers with an attention; or null if all have one
  const RecurrentSegments* segments;      // of the convolutions, or null
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

namespace {

// The intermediate results between x and out of any of the layers, [rows, ...] each. They are at the same place in all layers: a thread may
// begin a layer while others still read what they have of the one before.
template <class Format>
struct Workspace {
  float *normed, *in, *qk, *mixed, *added, *gate_up, *gated;
  float* prepared;  // the input of the current product, in the format's form; last, because products may read beyond its rows
  int64_t per_row = 0;

  Workspace(const DecoderLayerArgs* const* layers, int64_t num_layers, float* memory, int64_t rows) {
    int64_t sizes[8] = {};
    for (int64_t i = 0; i < num_layers; i++) {
      const DecoderLayerArgs& l = *layers[i];
      const int64_t widest = std::max({l.in.in_features, l.out.in_features, l.gate_up.in_features, l.down.in_features});
      const int64_t own[8] = {l.in.in_features,   l.in.out_features,      (l.num_q_heads + l.num_kv_heads) * (int64_t)l.head_dim,
                              l.out.in_features,  l.out.out_features,     l.gate_up.out_features,
                              l.down.in_features, Format::num_prepared_words(widest)};
      for (int j = 0; j < 8; j++) sizes[j] = std::max(sizes[j], own[j]);
    }
    float** parts[] = {&normed, &in, &qk, &mixed, &added, &gate_up, &gated, &prepared};
    for (int j = 0; j < 8; j++) {
      *parts[j] = memory + rows * per_row;
      per_row += sizes[j];
    }
  }
};

// A product's input. Each row is written and then prepared by the same thread; after that the product is computed.
template <class Format>
struct Input {
  float* x;            // [rows, size]
  uint32_t* prepared;  // [rows, Format::num_prepared_words(size)]
  int64_t size;

  float* row(int64_t r) const { return x + r * size; }
  void written(int64_t r, int64_t rows) const { Format::prepare_row(row(r), size, prepared + r * Format::num_prepared_words(size), rows); }
  void multiply(const PackedWeight& w, float* out, int64_t rows) const { Format::linear_shared(x, size, prepared, w, out, rows); }
};

template <class Format>
PagedAttentionArgs attention_of(const DecoderLayerArgs& l, const DecoderStepArgs& s, int64_t layer, const Workspace<Format>& w) {
  PagedAttentionArgs a = *s.attention;
  const int64_t num_heads = l.num_q_heads + l.num_kv_heads, keys = l.num_q_heads * (int64_t)l.head_dim;
  a.q = w.qk, a.k = w.qk + keys, a.v = w.in + num_heads * l.head_dim, a.out = w.mixed;
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
    rope_head(w.in + t * l.in.out_features + h * l.head_dim, h < l.num_q_heads ? l.q_norm : l.k_norm, s.cos + angle, s.sin + angle,
              w.qk + (t * num_heads + h) * l.head_dim, l.head_dim, s.rotary_dim, l.qk_norm_eps);
  }
}

// A product's result, before the thread goes over its own rows: the updates of their adapters are added.
struct Adapted {
  const LoraStep lora;
  const int64_t layer, rows;

  void add(int first, int count, const float* x, const PackedWeight& w, float* out) const {
    if (!lora.slots) return;
    const Team::Rows own = Team::own_rows(rows);
    lora.add(layer, first, count, x, w.in_features, out, w.out_features, own.begin, own.end);
  }
};

void add_row(float* to, const float* added, int64_t size) {
  for (int64_t i = 0; i < size; i++) to[i] += added[i];
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
}

// The gated convolution of a layer in the place of the attention: w.in -> w.mixed. There is a barrier at the end.
void convolve(const DecoderLayerArgs& l, const DecoderStepArgs& s, int64_t layer, const float* in, float* mixed, Team& team, StageClock& clock) {
  if (s.lora_slots) team.wait();  // a thread reads the rows of others, to which these have added updates
  conv_shared<float>({*s.segments, in, l.conv_weight, l.conv_bias, s.conv_states[layer], mixed, l.in.out_features, l.out.in_features,
                      l.conv_width, false, true});
  team.wait();
  clock.mark(kOtherStage);
}

// One layer, computed by all threads of a parallel region. x may be s.out.
template <class Format, class Cache>
void compute_layer(const DecoderStepArgs& s, int64_t layer, const float* x, const Workspace<Format>& w, Team& team, StageClock& clock,
                   Exchange& exchange) {
  const DecoderLayerArgs& l = *s.layers[layer];
  const int64_t rows = s.attention->num_tokens, hidden = l.in.in_features, inner = l.down.in_features;
  uint32_t* prepared = (uint32_t*)w.prepared;
  const Input<Format> normed{w.normed, prepared, hidden}, mixed{w.mixed, prepared, l.out.in_features},
      gated{w.gated, prepared, inner};
  const Adapted adapted{{s.lora_slots, s.lora_adapters}, l.index, rows};
  Team::for_rows(rows, [&](int64_t r) {
    norm_row(x + r * hidden, l.norm, normed.row(r), hidden, l.norm_eps);
    normed.written(r, rows);
  });
  team.wait();
  clock.mark(kOtherStage);
  normed.multiply(l.in, w.in, rows);
  team.wait();
  clock.mark(kLinearStage);
  adapted.add(0, 3, w.normed, l.in, w.in);
  if (l.conv_weight) convolve(l, s, layer, w.in, w.mixed, team, clock);
  else attend<Format, Cache>(l, s, layer, w, team, clock);
  if (Format::num_prepared_words(1) > 0) {  // several threads write a row, so it is prepared after all have written
    Team::for_rows(rows, [&](int64_t r) { mixed.written(r, rows); });
    team.wait();
  }
  clock.mark(kOtherStage);
  mixed.multiply(l.out, w.added, rows);
  team.wait();
  exchange.sum(w.added, rows * hidden);
  clock.mark(kLinearStage);
  adapted.add(3, 1, w.mixed, l.out, w.added);
  Team::for_rows(rows, [&](int64_t r) {
    add_norm_row(x + r * hidden, w.added + r * hidden, l.mlp_norm, s.out + r * hidden, normed.row(r), hidden, l.mlp_norm_eps);
    normed.written(r, rows);
  });
  team.wait();
  clock.mark(kOtherStage);
  if (!s.lora_slots && Format::gates(l.gate_up, rows)) {
    uint32_t* prepared_gated = (uint32_t*)w.gated;  // in the same place: the prepared form is at most as long
    Format::gated_shared(prepared, l.gate_up, prepared_gated, rows);
    team.wait();
    Format::linear_shared(nullptr, 0, prepared_gated, l.down, w.added, rows);
  } else {
    normed.multiply(l.gate_up, w.gate_up, rows);
    team.wait();
    clock.mark(kLinearStage);
    adapted.add(4, 2, w.normed, l.gate_up, w.gate_up);
    Team::for_rows(rows, [&](int64_t r) {
      silu_mul_row(w.gate_up + 2 * r * inner, w.gate_up + (2 * r + 1) * inner, gated.row(r), inner);
      gated.written(r, rows);
    });
    team.wait();
    clock.mark(kOtherStage);
    gated.multiply(l.down, w.added, rows);
  }
  team.wait();
  exchange.sum(w.added, rows * hidden);
  clock.mark(kLinearStage);
  adapted.add(6, 1, w.gated, l.down, w.added);
  // No barrier: the next layer begins with the same rows in the same threads.
  Team::for_rows(rows, [&](int64_t r) { add_row(s.out + r * hidden, w.added + r * hidden, hidden); });
  clock.mark(kOtherStage);
}

void embed(const DecoderEndsArgs& e, int64_t token_id, int64_t hidden, float* row) {
  const int64_t first = token_id * hidden;
  if (e.embedding_bits == 0) triptych_quant_unpack(e.embedding, &token_id, 1, hidden, row);
  else if (e.embedding_bits == 16) widen_row((const bf16*)e.embedding + first, row, hidden);
  else std::memcpy(row, (const float*)e.embedding + first, hidden * sizeof(float));
  for (int64_t i = 0; e.embedding_scale != 1 && i < hidden; i++) row[i] *= e.embedding_scale;
}

// The last norm and the output head, of the rows that are wanted. Not inlined: it would be compiled for each type of the cache.
template <class Format>
[[gnu::noinline]] void compute_logits(const DecoderStepArgs& s, const Workspace<Format>& w, Team& team, StageClock& clock) {
  const DecoderEndsArgs& e = *s.ends;
  const int64_t hidden = e.head.in_features;
  const Input<Format> normed{w.normed, (uint32_t*)w.prepared, hidden};
  team.wait();
  Team::for_rows(s.num_wanted, [&](int64_t r) {
    const float* row = s.out + s.wanted[r] * hidden;
    if (e.rounds) {
      bf16* rounded = (bf16*)(w.added + r * hidden);
      norm_row(row, e.norm, rounded, hidden, e.norm_eps);
      widen_row(rounded, normed.row(r), hidden);
    } else {
      norm_row(row, e.norm, normed.row(r), hidden, e.norm_eps);
    }
    normed.written(r, s.num_wanted);
  });
  team.wait();
  clock.mark(kOtherStage);
  normed.multiply(e.head, s.logits, s.num_wanted);
  team.wait();
  clock.mark(kHeadStage);
}

template <class Format, class Cache>
void decoder_layers(const DecoderStepArgs& s) {
  Team team;
#pragma omp parallel
  {
    StageClock clock(s.stage_ns);
    Exchange exchange(s.layers[0]->ranks, team);
    const Workspace<Format> w(s.layers, s.num_layers, s.workspace, s.attention->num_tokens);
    const float* x = s.x;
    if (s.token_ids) {  // the first layer begins with the same rows in the same threads
      const int64_t hidden = s.layers[0]->in.in_features;
      Team::for_rows(s.attention->num_tokens, [&](int64_t r) { embed(*s.ends, s.token_ids[r], hidden, s.out + r * hidden); });
      x = s.out;
      clock.mark(kEmbeddingStage);
    }
    for (int64_t i = 0; i < s.num_layers; i++) compute_layer<Format, Cache>(s, i, i ? s.out : x, w, team, clock, exchange);
    if (s.ends) compute_logits<Format>(s, w, team, clock);
  }
}

}  // namespace

extern "C" {

int64_t triptych_decoder_layer_args_size() { return sizeof(DecoderLayerArgs); }
int64_t triptych_decoder_ends_args_size() { return sizeof(DecoderEndsArgs); }
int64_t triptych_decoder_step_args_size() { return sizeof(DecoderStepArgs); }
int64_t triptych_lora_update_size() { return sizeof(LoraUpdate); }

// Computes layers; and the number of 32-bit words of workspace that they need per row. name: format of all of their weights.
#define DECODER_LAYERS(name, Format)                                                                                              \
  int64_t triptych_decoder_layers_workspace_##name(const DecoderLayerArgs* const* layers, int64_t num_layers) {                    \
    return Workspace<Format>(layers, num_layers, nullptr, 0).per_row;                                                              \
  }                                                                                                                                \
  void triptych_decoder_layers_##name(const DecoderStepArgs* s) {                                                                  \
    if (s->cache_bits == 8) decoder_layers<Format, q8>(*s);                                                                        \
    else if (s->cache_bits == 16) decoder_layers<Format, bf16>(*s);                                                                \
    else decoder_layers<Format, float>(*s);                                                                                        \
  }
DECODER_LAYERS(bf16, Bf16Format)
DECODER_LAYERS(wide, WideFormat)
DECODER_LAYERS(quant, MixedQuantFormat)
DECODER_LAYERS(quant_fast, FastQuantFormat)
}

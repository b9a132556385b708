// Decoder layers of the common kind, one or several consecutive ones, in one call and one parallel region; also with embedding and output
// head. A layer has an attention, or what is recurrent in its place. With few rows, a layer computes for about a hundred microseconds, and
// ten calls from Python take as long. Activations are fp32, weights have any format (see linear.h), and the cache may be bf16 or int8.

#include "decoder_args.h"
#include "elementwise.h"
#include "mixers.h"
#include "stage_clock.h"
#include "team.h"

using namespace triptych;

namespace {

// A product's input. Each row is written and then prepared by the same thread; after that the product is computed.
template <class Format>
struct Input {
  float* x;            // [rows, size]
  uint32_t* prepared;  // [rows, Format::num_prepared_words(size)]
  int64_t size, step_rows;

  float* row(int64_t r) const { return x + r * size; }
  void written(int64_t r) const {
    Format::prepare_row(row(r), size, prepared + r * Format::num_prepared_words(size), step_rows);
  }
  void multiply(const PackedWeight& w, float* out, int64_t rows) const { Format::linear_shared(x, size, prepared, w, out, rows, step_rows); }
};

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

void add_row(float* to, const float* added, int64_t size, float scale) {
  for (int64_t i = 0; i < size; i++) to[i] += scale * added[i];
}

// Whether the last layer goes on with only those rows whose logits are wanted, once its tokens have read others. Adapters are numbered by
// the rows of the step. All ranks must decide alike: so it depends on nothing that is a rank's own.
bool narrows(const DecoderStepArgs& s) { return s.ends && !s.lora_slots && s.num_wanted < s.attention->num_tokens; }

// Keeps the wanted rows of x, [rows, size], in another place. There is no barrier at the end.
const float* keep_wanted(const DecoderStepArgs& s, const float* x, int64_t size, float* to) {
  Team::for_rows(s.num_wanted, [&](int64_t r) { std::memcpy(to + r * size, x + s.wanted[r] * size, size * sizeof(float)); });
  return to;
}

// One layer, computed by all threads of a parallel region. x may be s.out.
template <class Format>
void compute_layer(const DecoderStepArgs& s, int64_t layer, const float* x, const Workspace& w, Team& team, StageClock& clock,
                   Exchange& exchange) {
  const DecoderLayerArgs& l = *s.layers[layer];
  const int64_t hidden = l.in.in_features, inner = l.down.in_features;
  const int64_t step_rows = s.attention->num_tokens;
  int64_t rows = step_rows;
  uint32_t* prepared = (uint32_t*)w.prepared;
  const Input<Format> normed{w.normed, prepared, hidden, step_rows}, gated{w.gated, prepared, inner, step_rows};
  Input<Format> mixed{w.mixed, prepared, l.out.in_features, step_rows};
  const Adapted adapted{{s.lora_slots, s.lora_adapters}, l.index, rows};
  Team::for_rows(rows, [&](int64_t r) {
    norm_row(x + r * hidden, l.norm, normed.row(r), hidden, l.norm_eps);
    normed.written(r);
  });
  team.wait();
  clock.mark(kOtherStage);
  normed.multiply(l.in, w.in, rows);
  team.wait();
  clock.mark(kLinearStage);
  adapted.add(0, 4, w.normed, l.in, w.in);
  if (!l.recurrent) {
    attend<Format::kRounds>(l, s, layer, w, team, clock);
  } else {
    if (s.lora_slots) team.wait();  // a thread reads the rows of others, to which these have added updates
    if (l.recurrent->decay_rates) recur(l, s, layer, w, team);
    else convolve(l, s, layer, w, team);
    clock.mark(kAttentionStage);
  }
  if (layer == s.num_layers - 1 && narrows(s)) {  // both places are free, and have room for it (see Workspace)
    rows = s.num_wanted;
    if (rows == 0) return;
    keep_wanted(s, w.mixed, mixed.size, w.in), mixed.x = w.in;
    x = keep_wanted(s, x, hidden, w.gate_up);
    team.wait();
  }
  if (Format::num_prepared_words(1) > 0) {  // several threads write a row, so it is prepared after all have written
    Team::for_rows(rows, [&](int64_t r) { mixed.written(r); });
    team.wait();
  }
  clock.mark(kOtherStage);
  mixed.multiply(l.out, w.added, rows);
  team.wait();
  exchange.sum(w.added, rows * hidden);
  clock.mark(kLinearStage);
  adapted.add(4, 1, w.mixed, l.out, w.added);
  Team::for_rows(rows, [&](int64_t r) {
    add_norm_row(x + r * hidden, w.added + r * hidden, l.mlp_norm, s.out + r * hidden, normed.row(r), hidden, l.mlp_norm_eps, l.residual_scale);
    normed.written(r);
  });
  team.wait();
  clock.mark(kOtherStage);
  if (!s.lora_slots && Format::gates(l.gate_up, l.down, step_rows)) {
    uint32_t* prepared_gated = (uint32_t*)w.gated;  // in the same place: the prepared form is at most as long
    Format::gated_shared(prepared, l.gate_up, prepared_gated, rows, step_rows);
    team.wait();
    Format::linear_shared(nullptr, 0, prepared_gated, l.down, w.added, rows, step_rows);
  } else {
    normed.multiply(l.gate_up, w.gate_up, rows);
    team.wait();
    clock.mark(kLinearStage);
    adapted.add(5, 2, w.normed, l.gate_up, w.gate_up);
    Team::for_rows(rows, [&](int64_t r) {
      silu_mul_row(w.gate_up + 2 * r * inner, w.gate_up + (2 * r + 1) * inner, gated.row(r), inner);
      gated.written(r);
    });
    team.wait();
    clock.mark(kOtherStage);
    gated.multiply(l.down, w.added, rows);
  }
  team.wait();
  exchange.sum(w.added, rows * hidden);
  clock.mark(kLinearStage);
  adapted.add(7, 1, w.gated, l.down, w.added);
  // No barrier: the next layer begins with the same rows in the same threads.
  Team::for_rows(rows, [&](int64_t r) { add_row(s.out + r * hidden, w.added + r * hidden, hidden, l.residual_scale); });
  clock.mark(kOtherStage);
}

void embed(const DecoderEndsArgs& e, int64_t token_id, int64_t hidden, float* row) {
  const int64_t first = token_id * hidden;
  if (e.embedding_bits == 0) triptych_quant_unpack(e.embedding, &token_id, 1, hidden, row);
  else if (e.embedding_bits == 16) widen_row((const bf16*)e.embedding + first, row, hidden);
  else std::memcpy(row, (const float*)e.embedding + first, hidden * sizeof(float));
  for (int64_t i = 0; e.embedding_scale != 1 && i < hidden; i++) row[i] *= e.embedding_scale;
}

// The last norm and the output head, of the rows that are wanted.
template <class Format>
void compute_logits(const DecoderStepArgs& s, const Workspace& w, Team& team, StageClock& clock) {
  const DecoderEndsArgs& e = *s.ends;
  const int64_t hidden = e.head.in_features;
  const Input<Format> normed{w.normed, (uint32_t*)w.prepared, hidden, s.num_wanted};
  const bool has_only_wanted = narrows(s);
  team.wait();
  Team::for_rows(s.num_wanted, [&](int64_t r) {
    const float* row = s.out + (has_only_wanted ? r : s.wanted[r]) * hidden;
    if (e.rounds) {
      bf16* rounded = (bf16*)(w.added + r * hidden);
      norm_row(row, e.norm, rounded, hidden, e.norm_eps);
      widen_row(rounded, normed.row(r), hidden);
    } else {
      norm_row(row, e.norm, normed.row(r), hidden, e.norm_eps);
    }
    normed.written(r);
  });
  team.wait();
  clock.mark(kOtherStage);
  normed.multiply(e.head, s.logits, s.num_wanted);
  team.wait();
  clock.mark(kHeadStage);
}

template <class Format>
void decoder_layers(const DecoderStepArgs& s) {
  Team team;
#pragma omp parallel
  {
    StageClock clock(s.stage_ns);
    Exchange exchange(s.layers[0]->ranks, team);
    const Workspace w(s.layers, s.num_layers, Format::num_prepared_words, s.workspace, s.attention->num_tokens);
    const float* x = s.x;
    if (s.token_ids) {  // the first layer begins with the same rows in the same threads
      const int64_t hidden = s.layers[0]->in.in_features;
      Team::for_rows(s.attention->num_tokens, [&](int64_t r) { embed(*s.ends, s.token_ids[r], hidden, s.out + r * hidden); });
      x = s.out;
      clock.mark(kEmbeddingStage);
    }
    for (int64_t i = 0; i < s.num_layers; i++) compute_layer<Format>(s, i, i ? s.out : x, w, team, clock, exchange);
    if (s.ends) compute_logits<Format>(s, w, team, clock);
  }
}

}  // namespace

extern "C" {

int64_t triptych_decoder_layer_args_size() { return sizeof(DecoderLayerArgs); }
int64_t triptych_decoder_ends_args_size() { return sizeof(DecoderEndsArgs); }
int64_t triptych_decoder_step_args_size() { return sizeof(DecoderStepArgs); }
int64_t triptych_recurrent_layer_args_size() { return sizeof(RecurrentLayerArgs); }
int64_t triptych_lora_update_size() { return sizeof(LoraUpdate); }

// Computes layers; and the number of 32-bit words of workspace that they need per row. name: format of all of their weights.
#define DECODER_LAYERS(name, Format)                                                                                              \
  int64_t triptych_decoder_layers_workspace_##name(const DecoderLayerArgs* const* layers, int64_t num_layers) {                    \
    return Workspace(layers, num_layers, Format::num_prepared_words, nullptr, 0).per_row;                                          \
  }                                                                                                                                \
  void triptych_decoder_layers_##name(const DecoderStepArgs* s) { decoder_layers<Format>(*s); }
DECODER_LAYERS(bf16, Bf16Format)
DECODER_LAYERS(wide, WideFormat)
DECODER_LAYERS(quant, MixedQuantFormat)
DECODER_LAYERS(quant_fast, FastQuantFormat)
}

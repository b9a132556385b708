// The experts of a mixture in one call: each token is computed by the few experts that are chosen for it, and only their weights are read.
//
// A pair is a token and one of its experts. Pairs are sorted by expert, so each expert multiplies adjacent rows. All experts' products
// follow each other without a barrier between them: with one row each, an expert alone has too little to share.

#include <vector>

#include "elementwise.h"
#include "linear/linear.h"
#include "linear/linear_quant.h"
#include "team.h"

namespace triptych {
namespace {

// How gate and up are joined.
enum Activation : int32_t {
  kSilu = 0,     // silu(gate) * up; all of gate comes first
  kClamped = 1,  // gpt-oss: gate and up, both clamped, take turns: (up + 1) * gate * sigmoid(alpha * gate)
};

// Mirrored in kernel_args.py.
struct ExpertsArgs {
  const float* x;               // [rows, hidden]
  const int64_t* chosen;        // [rows, top_k] experts
  const float* shares;          // [rows, top_k]
  const PackedWeight* gate_up;  // [experts], hidden -> 2 * inner
  const PackedWeight* down;     // [experts], inner -> hidden
  float* out;                   // [rows, hidden]: of each token the sum of its experts' results, times their shares, in their order
  float* workspace;             // [rows * top_k + 15, rounded up to 16, experts_workspace]
  int64_t rows, top_k, num_experts;
  float alpha, limit;
  int32_t activation;
};

// The pairs of each expert.
struct Pairs {
  std::vector<int64_t> begins;      // [experts + 1]
  std::vector<int64_t> tokens;      // [pairs] row of x
  std::vector<int64_t> experts;     // [pairs]
  std::vector<int64_t> places;      // [rows, top_k] pair, of each token in the order of its experts
  std::vector<float> shares;        // [pairs]

  explicit Pairs(const ExpertsArgs& a) : begins(a.num_experts + 1), tokens(a.rows * a.top_k), experts(tokens), places(tokens), shares(tokens.size()) {
    for (int64_t i = 0; i < size(); i++) begins[a.chosen[i] + 1]++;
    for (int64_t e = 0; e < a.num_experts; e++) begins[e + 1] += begins[e];
    std::vector<int64_t> next(begins.begin(), begins.end() - 1), filled(a.rows);
    for (int64_t i = 0; i < size(); i++) {
      const int64_t pair = next[a.chosen[i]]++;
      tokens[pair] = i / a.top_k;
      experts[pair] = a.chosen[i];
      shares[pair] = a.shares[i];
    }
    for (int64_t pair = 0; pair < size(); pair++) places[tokens[pair] * a.top_k + filled[tokens[pair]]++] = pair;
  }

  int64_t size() const { return int64_t(tokens.size()); }
  int64_t count(int64_t expert) const { return begins[expert + 1] - begins[expert]; }
};

// The intermediate results, [pairs, ...] each. Products may read prepared rows beyond the last one: these come last.
template <class Format>
struct Workspace {
  float *x, *gate_up, *gated, *added;
  float *prepared_x, *prepared_gated;
  int64_t x_words, gated_words, per_pair = 0;

  Workspace(const PackedWeight& gate_up_of, const PackedWeight& down_of, float* memory, int64_t pairs)
      : x_words(Format::num_prepared_words(gate_up_of.in_features)), gated_words(Format::num_prepared_words(down_of.in_features)) {
    const int64_t sizes[] = {gate_up_of.in_features, gate_up_of.out_features, down_of.in_features, down_of.out_features, gated_words, x_words};
    float** parts[] = {&x, &gate_up, &gated, &added, &prepared_gated, &prepared_x};
    for (int i = 0; i < 6; i++) {
      *parts[i] = memory + pairs * per_pair;
      per_pair += sizes[i];
    }
  }
};

void join_clamped(const float* both, float* out, int64_t inner, float alpha, float limit) {
  constexpr int64_t kBlock = 64;
  float gate[kBlock], up[kBlock];
  for (int64_t begin = 0; begin < inner; begin += kBlock) {
    const int64_t size = std::min(kBlock, inner - begin);
    for (int64_t i = 0; i < size; i++) {
      gate[i] = alpha * std::min(both[2 * (begin + i)], limit);
      up[i] = (std::clamp(both[2 * (begin + i) + 1], -limit, limit) + 1) / alpha;
    }
    silu_mul_row(gate, up, out + begin, size);
  }
}

template <class Format>
void compute(const ExpertsArgs& a) {
  const PackedWeight &gate_up = a.gate_up[0], &down = a.down[0];
  const int64_t hidden = gate_up.in_features, inner = down.in_features, out_features = down.out_features;
  const Pairs pairs(a);
  const Workspace<Format> w(gate_up, down, a.workspace, (pairs.size() + 15) / 16 * 16);
  Team team;
  const auto for_experts = [&](const auto& multiply) {
    for (int64_t e = 0; e < a.num_experts; e++) {
      if (pairs.count(e)) multiply(e, pairs.begins[e], pairs.count(e));
    }
  };
  const auto gates = [&](int64_t e) { return a.activation == kSilu && Format::gates(a.gate_up[e], a.down[e], pairs.count(e)); };
#pragma omp parallel
  {
    Team::for_rows(pairs.size(), [&](int64_t p) {
      std::memcpy(w.x + p * hidden, a.x + pairs.tokens[p] * hidden, hidden * sizeof(float));
      Format::prepare_row(w.x + p * hidden, hidden, (uint32_t*)w.prepared_x + p * w.x_words, pairs.count(pairs.experts[p]));
    });
    team.wait();
    for_experts([&](int64_t e, int64_t begin, int64_t count) {
      const uint32_t* prepared = (const uint32_t*)w.prepared_x + begin * w.x_words;
      if (gates(e)) Format::gated_shared(prepared, a.gate_up[e], (uint32_t*)w.prepared_gated + begin * w.gated_words, count, count);
      else Format::linear_shared(w.x + begin * hidden, hidden, prepared, a.gate_up[e], w.gate_up + begin * 2 * inner, count, count);
    });
    team.wait();
    Team::for_rows(pairs.size(), [&](int64_t p) {
      const int64_t expert = pairs.experts[p];
      if (gates(expert)) return;
      const float* both = w.gate_up + p * 2 * inner;
      float* gated = w.gated + p * inner;
      if (a.activation == kClamped) join_clamped(both, gated, inner, a.alpha, a.limit);
      else silu_mul_row(both, both + inner, gated, inner);
      Format::prepare_row(gated, inner, (uint32_t*)w.prepared_gated + p * w.gated_words, pairs.count(expert));
    });
    team.wait();
    for_experts([&](int64_t e, int64_t begin, int64_t count) {
      const uint32_t* prepared = (const uint32_t*)w.prepared_gated + begin * w.gated_words;
      Format::linear_shared(w.gated + begin * inner, inner, prepared, a.down[e], w.added + begin * out_features, count, count);
    });
    team.wait();
    Team::for_rows(a.rows, [&](int64_t r) {
      float* out = a.out + r * out_features;
      std::memset(out, 0, out_features * sizeof(float));
      for (int64_t k = 0; k < a.top_k; k++) {
        const int64_t pair = pairs.places[r * a.top_k + k];
        const float* added = w.added + pair * out_features;
        for (int64_t i = 0; i < out_features; i++) out[i] += added[i] * pairs.shares[pair];
      }
    });
  }
}

}  // namespace
}  // namespace triptych

using namespace triptych;

extern "C" {

int64_t triptych_experts_args_size() { return sizeof(ExpertsArgs); }

// Computes a layer's experts; and the number of 32-bit words of workspace for each pair. name: format of all of their weights.
#define EXPERTS(name, Format)                                                                       \
  int64_t triptych_experts_workspace_##name(const ExpertsArgs* a) {                                 \
    return Workspace<Format>(a->gate_up[0], a->down[0], nullptr, 0).per_pair;                       \
  }                                                                                                 \
  void triptych_experts_##name(const ExpertsArgs* a) { compute<Format>(*a); }
EXPERTS(bf16, Bf16Format)
EXPERTS(wide, WideFormat)
EXPERTS(quant, MixedQuantFormat)
EXPERTS(quant_fast, FastQuantFormat)
}

// Chooses tokens from logits, without a sort of the whole vocabulary.

#include <cmath>

#include "sampling/descending.h"
#include "sampling/edits.h"

using namespace triptych;

extern "C" {

// How a token is chosen from a row of logits.
struct DrawArgs {
  int64_t row;         // of the logits
  double top_p, min_p;
  int64_t top_k;       // 0: all tokens
  const uint32_t* mask;  // [size / 32, rounded up] bit i of word w is set if token 32 * w + i may be chosen; null: all tokens may
  const Edits* edits;  // null: none
  float temperature;   // 0: the likeliest token is taken
  int32_t is_cut;      // whether top_k, top_p or min_p leaves tokens out
  int64_t num_draws;   // of tokens; at most 1 where is_cut
};
}

namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

// One row of logits, and a thread's scratch memory for it.
class Row {
 public:
  const int64_t size;  // of the vocabulary

  explicit Row(int64_t size)
      : size(size), num_blocks((size + kBlock - 1) / kBlock), weights(new float[num_blocks * kBlock]),
        block_sums(new double[num_blocks]), block_most(new float[num_blocks]), scratch(num_blocks * kBlock) {}

  // Chooses a.num_draws tokens by as many numbers; they are -1 if no logit is finite. The first is -2 if one is NaN or infinite.
  void choose(const DrawArgs& a, const float* row, const double* numbers, int64_t* tokens) {
    logits = row, mask = a.mask;
    const bool draws_any = a.temperature > 0 && !a.is_cut;
    scale = std::min(1.0f / a.temperature, std::numeric_limits<float>::max());
    largest = kNothing;
    bool has_nan = false;
    for (int64_t b = 0; b < num_blocks; b++) {
      float buffer[kBlock];
      const float* x = block(b, buffer);
      block_sums[b] = 0, block_most[b] = x ? most_of(x, has_nan) : kNothing;
      largest = std::max(largest, block_most[b]);
      // While the block is in the nearest cache, it is summed as well, relative to its own largest logit.
      if (draws_any && block_most[b] > kNothing) block_sums[b] = weigh(x, block_most[b], buffer);
    }
    std::fill(tokens, tokens + a.num_draws, -1);
    if (has_nan || largest == -kNothing) tokens[0] = -2;
    if (has_nan || !std::isfinite(largest)) return;
    if (a.temperature == 0) {
      std::fill(tokens, tokens + a.num_draws, likeliest());
    } else if (a.is_cut) {
      if (a.num_draws) tokens[0] = draw_cut(a, numbers[0]);
    } else {
      const double total = sum_blocks();
      for (int64_t i = 0; i < a.num_draws; i++) tokens[i] = draw_any(numbers[i] * total);
    }
  }

 private:
  const int64_t num_blocks;
  std::unique_ptr<float[]> weights;      // [num_blocks * kBlock], relative to the largest; unset in blocks that weigh nothing
  std::unique_ptr<double[]> block_sums;  // [num_blocks] of weights
  std::unique_ptr<float[]> block_most;   // [num_blocks] largest logit; once there are weights, largest weight
  Descending::Scratch scratch;
  const float* logits;
  const uint32_t* mask;
  float scale, largest;
  int64_t last_block;  // that weighs anything

  // The logits of a block, -inf beyond the vocabulary and where the mask leaves nothing; null if it leaves nothing of the block.
  const float* block(int64_t b, float* buffer) const {
    const int64_t begin = b * kBlock, end = std::min(size, begin + kBlock);
    if (!mask && end == begin + kBlock) return logits + begin;
    if (mask) {
      uint32_t any = 0;
      for (int64_t w = begin / 32; w < (end + 31) / 32; w++) any |= mask[w];
      if (!any) return nullptr;
    }
    for (int64_t i = begin; i < begin + kBlock; i += kLanes) {
      const uint32_t bits = i >= end ? 0 : mask ? mask[i / 32] >> (i % 32) : ~0u;
      vf v = splat(kNothing);
      if (bits & 0xffff) {
        if (i + kLanes <= end) {
          v = load(logits + i);
        } else {
          std::copy(logits + i, logits + end, (float*)&v);
        }
        const vi is_in = ((vi{} + int32_t(bits)) >> iota()) & 1;
        v = is_in != 0 ? v : splat(kNothing);
      }
      store(buffer + i - begin, v);
    }
    return buffer;
  }

  static float most_of(const float* x, bool& has_nan) {
    vf most = splat(kNothing);
    vi poisoned = vi{};
    for (int64_t i = 0; i < kBlock; i += kLanes) {
      const vf v = load(x + i);
      most = v > most ? v : most;
      poisoned |= v != v;
    }
    has_nan |= bits_of(poisoned) != 0;
    return max_of(most);
  }

  // Sets the weights of a block relative to a logit; returns their sum.
  float weigh(const float* x, float relative_to, float* to) const {
    vf sum = vf{};
    for (int64_t i = 0; i < kBlock; i += kLanes) {
      const vf w = weight_of(load(x + i) - relative_to, scale);
      store(to + i, w);
      sum += w;
    }
    return sum_of(sum);
  }

  // The first token with the largest logit.
  int64_t likeliest() const {
    int64_t b = 0, i = 0;
    while (block_most[b] != largest) b++;
    float buffer[kBlock];
    const float* x = block(b, buffer);
    while (x[i] != largest) i++;
    return b * kBlock + i;
  }

  // Makes the sums of blocks relative to the largest logit; returns their sum.
  double sum_blocks() {
    double total = 0;
    for (int64_t b = 0; b < num_blocks; b++) {
      if (block_sums[b] > 0) total += block_sums[b] *= std::exp((block_most[b] - largest) * scale);
      if (block_sums[b] > 0) last_block = b;
    }
    return total;
  }

  // The first token, in the order of ids, at which the sum of weights exceeds `left`.
  int64_t draw_any(double left) const {
    int64_t token = -1;
    bool is_found = false;
    for (int64_t b = 0; b < num_blocks; b++) {
      if (!(block_sums[b] > 0)) continue;
      if (!is_found && left >= block_sums[b] && b < last_block) {
        left -= block_sums[b];
        continue;
      }
      is_found = true;  // though rounding may let it point past this block's last token, to the next block
      float buffer[kBlock];
      weigh(block(b, buffer), largest, buffer);
      for (int64_t i = 0; i < kBlock; i++) {
        if (!(buffer[i] > 0)) continue;
        token = b * kBlock + i;
        if ((left -= buffer[i]) < 0) return token;
      }
    }
    return token < 0 ? likeliest() : token;
  }

  // A token of those that the cuts leave, in the order of probability.
  int64_t draw_cut(const DrawArgs& a, double number) {
    double total = 0;
    for (int64_t b = 0; b < num_blocks; b++) {
      float* to = weights.get() + b * kBlock;
      if (block_most[b] > kNothing) {
        total += weigh(block(b, to), largest, to);
        vf most = vf{};
        for (int64_t i = 0; i < kBlock; i += kLanes) most = load(to + i) > most ? load(to + i) : most;
        block_most[b] = max_of(most);
      } else {
        block_most[b] = 0;  // so that nobody reads the weights
      }
    }
    const float least = std::max(float(a.min_p), std::numeric_limits<float>::min());
    Descending order(weights.get(), block_most.get(), num_blocks, scratch, least);
    int64_t token = 0;
    Position end{size, total};  // of what top_k and min_p leave
    if (a.top_k) {
      end = order.find([&](Position at) { return at.rank >= a.top_k; }, token);
    } else if (a.min_p > 0) {
      end = order.end();
    }
    if (a.top_p < 1) {
      const double most = a.top_p * end.mass;
      end = order.find([&](Position at) { return at.rank >= end.rank || at.mass >= most; }, token);
    }
    const double target = number * end.mass;
    order.find([&](Position at) { return at.rank >= end.rank || at.mass > target; }, token);
    return token;
  }
};

uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

}  // namespace

extern "C" {

int64_t triptych_draw_args_size() { return sizeof(DrawArgs); }

int64_t triptych_edits_size() { return sizeof(Edits); }

// Chooses tokens for each of n arguments from softmax(logits / temperature) of the tokens in the mask. What min_p, top_k and top_p
// leave is drawn in the order of probability, all tokens in the order of ids.
//
// logits: [rows, size] fp32, which are the same afterwards, but rows with edits are changed meanwhile; numbers: [n, most_draws] in
// [0, 1), one for each draw; tokens: [n, most_draws], of which only the draws are set, as by Row::choose.
void triptych_draw(float* logits, int64_t size, const DrawArgs* args, int64_t n, int64_t most_draws, const double* numbers,
                   int64_t* tokens) {
#pragma omp parallel if (n > 1)
  {
    static thread_local std::unique_ptr<Row> kept;
    if (!kept || kept->size != size) kept.reset(new Row(size));
    static thread_local EditedRow edited;
    Row& row = *kept;
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < n; i++) {
      float* x = logits + args[i].row * size;
      if (args[i].edits) edited.apply(*args[i].edits, x, size);
      row.choose(args[i], x, numbers + i * most_draws, tokens + i * most_draws);
      if (args[i].edits) edited.undo();
    }
  }
}

// Counts one more token in the penalties of each of n rows, which have room for it. edits: one for each row; rows, tokens: [n].
void triptych_count_tokens(Edits* edits, const int64_t* rows, const int64_t* tokens, int64_t n) {
  for (int64_t r = 0; r < n; r++) {
    Edits& e = edits[rows[r]];
    int64_t i = 0;
    while (i < e.num_penalized && e.penalized[i] != tokens[r]) i++;
    if (i == e.num_penalized) e.penalized[i] = tokens[r], e.counts[i] = 0, e.num_penalized++;
    e.counts[i]++;
  }
}

// Numbers in [0, 1), functions of (seed, position, draw) alone, by SplitMix64 (Steele, Lea, Flood 2014). seeds, positions: [n];
// numbers: [n, draws].
void triptych_uniform(const uint64_t* seeds, const uint64_t* positions, int64_t n, int64_t draws, double* numbers) {
  for (int64_t i = 0; i < n; i++) {
    for (int64_t j = 0; j < draws; j++) {
      const uint64_t place = positions[i] + (uint64_t(j) << 60) + 1;
      *numbers++ = double(mix(mix(seeds[i]) + place * 0x9E3779B97F4A7C15) >> 11) * 0x1p-53;
    }
  }
}
}

// Draws tokens from logits, without a sort of the whole vocabulary.

#include <cmath>

#include "sampling/descending.h"

using namespace triptych;

extern "C" {

// How a token is drawn from a row of logits.
struct DrawArgs {
  int64_t row;         // of the logits
  double number;       // in [0, 1)
  double top_p, min_p;
  int64_t top_k;       // 0: all tokens
  const uint32_t* mask;  // [size / 32, rounded up] bit i of word w is set if token 32 * w + i may be drawn; null: all tokens may
  float temperature;   // 0, only with a mask: the likeliest token is taken
  float largest;       // of the row; not read with a mask
  int32_t is_cut;      // whether top_k, top_p or min_p leaves tokens out
};
}

namespace {

// A thread's scratch memory for one row.
class Row {
 public:
  const int64_t size;

  explicit Row(int64_t size)
      : size(size), num_blocks((size + kBlock - 1) / kBlock), weights(new float[num_blocks * kBlock]),
        block_sums(new double[num_blocks]), block_most(new float[num_blocks]),
        scratch(num_blocks * kBlock) {}

  // The token that is drawn; -1 if the mask leaves no token with a finite logit.
  int64_t choose(const DrawArgs& a, const float* logits) {
    if (!a.mask) {
      weigh(logits, a.largest, a.temperature, false);
    } else {
      const float largest = take(logits, a.mask);
      if (!std::isfinite(largest)) return -1;
      if (a.temperature == 0) return likeliest(largest);
      weigh(weights.get(), largest, a.temperature, true);
    }
    return a.is_cut ? draw_cut(a) : draw_any(a.number);
  }

 private:
  int64_t num_blocks;
  std::unique_ptr<float[]> weights;      // [num_blocks * kBlock], relative to the largest
  std::unique_ptr<double[]> block_sums;  // [num_blocks]
  std::unique_ptr<float[]> block_most;   // [num_blocks] largest weight
  Descending::Scratch scratch;
  double total;  // mass of all tokens

  // Sets the weights to the logits of the tokens in the mask, and to -inf elsewhere; returns the largest.
  float take(const float* logits, const uint32_t* mask) {
    const vf nothing = splat(-std::numeric_limits<float>::infinity());
    float largest = nothing[0];
    for (int64_t b = 0; b < num_blocks; b++) {
      vf most = nothing;
      for (int64_t i = b * kBlock; i < (b + 1) * kBlock; i += kLanes) {
        const uint32_t bits = i < size ? mask[i / 32] >> (i % 32) : 0;
        vf v = nothing;
        if (bits & 0xffff) {
          if (i + kLanes <= size) {
            v = load(logits + i);
          } else {  // beyond the vocabulary, there is nothing
            std::copy(logits + i, logits + size, (float*)&v);
          }
          const vi is_in = ((vi{} + int32_t(bits)) >> iota()) & 1;
          v = is_in != 0 ? v : nothing;
          most = v > most ? v : most;
        }
        store(weights.get() + i, v);
      }
      block_most[b] = max_of(most);
      largest = std::max(largest, block_most[b]);
    }
    return largest;
  }

  // After `take`: the first token with the largest logit.
  int64_t likeliest(float largest) const {
    int64_t b = 0;
    while (block_most[b] != largest) b++;
    int64_t token = b * kBlock;
    while (weights[token] != largest) token++;
    return token;
  }

  // Sets the weights of all tokens. is_taken: the logits are those of `take`, in the place of the weights.
  void weigh(const float* logits, float largest, float temperature, bool is_taken) {
    const float scale = 1.0f / temperature;
    total = 0;
    for (int64_t b = 0; b < num_blocks; b++) {
      float* to = weights.get() + b * kBlock;
      if (is_taken && !(block_most[b] >= -std::numeric_limits<float>::max())) {
        std::fill(to, to + kBlock, 0.0f);
        block_sums[b] = block_most[b] = 0;
        continue;
      }
      const float* from = logits + b * kBlock;
      float last[kBlock];
      if ((b + 1) * kBlock > size) {  // beyond the vocabulary, weights are 0
        std::fill(last, last + kBlock, -std::numeric_limits<float>::infinity());
        std::copy(from, logits + size, last);
        from = last;
      }
      vf sum = vf{}, most = vf{};
      for (int64_t i = 0; i < kBlock; i += kLanes) {
        const vf w = weight_of(load(from + i) - largest, scale);
        store(to + i, w);
        sum += w;
        most = w > most ? w : most;
      }
      block_sums[b] = sum_of(sum), block_most[b] = max_of(most);
      total += block_sums[b];
    }
  }

  // The first token, in the order of ids, at which the sum of weights exceeds number * total.
  int64_t draw_any(double number) const {
    double left = number * total;
    int64_t b = 0;
    for (; b < num_blocks - 1 && left >= block_sums[b]; b++) left -= block_sums[b];
    int64_t last = -1;
    for (; b < num_blocks; b++) {
      for (int64_t i = b * kBlock; i < std::min(size, (b + 1) * kBlock); i++) {
        if (weights[i] <= 0) continue;
        last = i;
        if ((left -= weights[i]) < 0) return i;
      }
    }
    // Rounding could point past the last token that has any weight.
    for (int64_t i = size - 1; last < 0 && i >= 0; i--) last = weights[i] > 0 ? i : last;
    return last;
  }

  // A token of those that the cuts leave, in the order of probability.
  int64_t draw_cut(const DrawArgs& a) {
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
    const double target = a.number * end.mass;
    order.find([&](Position at) { return at.rank >= end.rank || at.mass > target; }, token);
    return token;
  }
};

}  // namespace

extern "C" {

int64_t triptych_draw_args_size() { return sizeof(DrawArgs); }

// Draws a token for each of n arguments, from softmax(logits / temperature) of the tokens in the mask. What min_p, top_k and top_p leave
// is drawn in the order of probability, all tokens in the order of ids. logits: [rows, size] fp32, without a mask rows of which the
// largest value is finite; tokens: [n], -1 where the mask leaves no token with a finite logit.
void triptych_draw(const float* logits, int64_t size, const DrawArgs* args, int64_t n, int64_t* tokens) {
#pragma omp parallel if (n > 1)
  {
    static thread_local std::unique_ptr<Row> kept;
    if (!kept || kept->size != size) kept.reset(new Row(size));
    Row& row = *kept;
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < n; i++) {
      tokens[i] = row.choose(args[i], logits + args[i].row * size);
    }
  }
}
}

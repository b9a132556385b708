// Draws tokens from logits: two passes over each row, and no sort of the whole vocabulary.

#include <tuple>

#include "sampling/candidates.h"

using namespace triptych;

extern "C" {

// How a token is drawn from a row of logits.
struct DrawArgs {
  int64_t row;         // of the logits
  double number;       // in [0, 1)
  double top_p, min_p;
  int64_t top_k;       // 0: all tokens
  float temperature;
  int32_t is_cut;      // whether top_k, top_p or min_p leaves tokens out
};
}

namespace {

// Smallest weights of candidates, relative to the largest weight, that are tried one after the other.
constexpr float kLevels[] = {1.0f / 16, 1.0f / 1024, 1.0f / (1 << 20), std::numeric_limits<float>::min()};

// A thread's scratch memory for one row.
struct Row {
  int64_t size, num_blocks;
  std::unique_ptr<float[]> weights;      // [num_blocks * kBlock], relative to the largest
  std::unique_ptr<double[]> block_sums;  // [num_blocks]
  std::unique_ptr<Candidate[]> candidates;  // [size]
  std::unique_ptr<int32_t[]> bucket_of;  // [size]
  std::unique_ptr<float[]> block_most;   // [num_blocks] largest weight
  double total;                          // mass of all tokens

  explicit Row(int64_t size)
      : size(size), num_blocks((size + kBlock - 1) / kBlock), weights(new float[num_blocks * kBlock]),
        block_sums(new double[num_blocks]), block_most(new float[num_blocks]), candidates(new Candidate[size]), bucket_of(new int32_t[size]) {}

  void weigh(const float* logits, float temperature) {
    const float largest = largest_of(logits, size), scale = 1.0f / temperature;
    total = 0;
    for (int64_t b = 0; b < num_blocks; b++) {
      float* to = weights.get() + b * kBlock;
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

  // Takes the tokens of at least this weight as candidates; returns their number and their mass.
  std::pair<int64_t, double> gather(float least) {
    int64_t n = 0;
    double mass = 0;
    for (int64_t b = 0; b < num_blocks; b++) {
      if (!(block_most[b] >= least)) continue;
      for (int64_t i = b * kBlock; i < (b + 1) * kBlock; i += kLanes) {
        for (uint32_t mask = lanes_from(load(weights.get() + i), least); mask; mask &= mask - 1) {
          const int64_t token = i + __builtin_ctz(mask);
          candidates[n++] = {weights[token], int32_t(token)};
          mass += weights[token];
        }
      }
    }
    return {n, mass};
  }

  // Takes at least the tokens that the cuts can leave; returns their number.
  int64_t gather_for(const DrawArgs& a) {
    const float min_p = float(a.min_p);
    if (min_p > 0 && !a.top_k) return gather(min_p).first;  // top-p is of the mass of all of them
    int64_t n = 0;
    for (const float level : kLevels) {
      double mass;
      std::tie(n, mass) = gather(std::max(level, min_p));
      // A margin for the rounding of sums.
      if (level <= min_p || (a.top_k ? n >= a.top_k : mass > a.top_p * total * (1 + 1e-6))) break;
    }
    return n;
  }

  int64_t draw_cut(const DrawArgs& a);
};

int64_t Row::draw_cut(const DrawArgs& a) {
  Descending ordered(candidates.get(), bucket_of.get(), gather_for(a));
  const int64_t top_k = a.top_k ? a.top_k : size;
  // Mass that top_k and min_p leave; without them it is that of all tokens.
  double kept = total;
  if (a.top_k || a.min_p > 0) {
    kept = ordered.find([&](const Candidate*, int64_t end, double) { return end <= top_k; },
                        [&](const Candidate&, int64_t rank, double) { return rank >= top_k; }).second;
  }
  const double most = a.top_p * kept;
  const auto [size_left, mass] =
      ordered.find([&](const Candidate*, int64_t end, double after) { return end <= top_k && after < most; },
                   [&](const Candidate&, int64_t rank, double before) { return rank > 0 && (rank >= top_k || before >= most); });
  const double target = a.number * mass;
  const int64_t rank = ordered.find([&](const Candidate*, int64_t end, double after) { return end < size_left && after <= target; },
                                    [&](const Candidate& one, int64_t rank, double before) {
                                      return rank + 1 >= size_left || before + one.weight > target;
                                    }).first;
  return ordered.token(rank);
}

}  // namespace

extern "C" {

int64_t triptych_draw_args_size() { return sizeof(DrawArgs); }

// Draws a token for each of n arguments, from softmax(logits / temperature). What min_p, top_k and top_p leave is drawn in the order
// of probability, all tokens in the order of ids. logits: [rows, size] fp32, rows of which the largest value is finite; tokens: [n].
void triptych_draw(const float* logits, int64_t size, const DrawArgs* args, int64_t n, int64_t* tokens) {
#pragma omp parallel if (n > 1)
  {
    static thread_local std::unique_ptr<Row> kept;
    if (!kept || kept->size != size) kept.reset(new Row(size));
    Row& row = *kept;
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < n; i++) {
      row.weigh(logits + args[i].row * size, args[i].temperature);
      tokens[i] = args[i].is_cut ? row.draw_cut(args[i]) : row.draw_any(args[i].number);
    }
  }
}
}

// Log probabilities of tokens.

#include <cmath>

#include "sampling/candidates.h"

using namespace triptych;

extern "C" {

// Log probabilities of n rows of logits: of the chosen token, its rank (1 is the likeliest), and the `most` likeliest tokens.
// logits: [num_rows, size] fp32; rows, chosen, ranks: [n]; logprobs: [n]; top_ids, top: [n, most]; most at most size.
void triptych_logprobs(const float* logits, int64_t size, const int64_t* rows, const int64_t* chosen, int64_t n, int64_t most,
                       float* logprobs, int64_t* ranks, int64_t* top_ids, float* top) {
#pragma omp parallel if (n > 1)
  {
    std::unique_ptr<Candidate[]> best(new Candidate[most + 1]);
#pragma omp for schedule(dynamic, 1)
    for (int64_t r = 0; r < n; r++) {
      const float* x = logits + rows[r] * size;
      const float own = x[chosen[r]];
      float largest = -std::numeric_limits<float>::infinity();  // so far; the total is relative to it
      double total = 0;
      int64_t rank = 1, num_best = 0;
      std::fill(best.get(), best.get() + most, Candidate{largest, 0});  // a row with NaN finds fewer
      float least = -std::numeric_limits<float>::infinity();  // of the best, once there are enough
      for (int64_t begin = 0; begin < size; begin += kBlock) {
        const int64_t end = std::min(size, begin + kBlock);
        const float block_most = largest_of(x + begin, end - begin);
        if (block_most > largest) total *= std::exp(double(largest) - block_most), largest = block_most;
        const float relative_to = std::max(largest, -std::numeric_limits<float>::max());  // finite
        vf sum = vf{};
        vi above = vi{};
        int64_t i = begin;
        for (; i + kLanes <= end; i += kLanes) {
          const vf v = load(x + i);
          sum += weight_of(v - relative_to, 1.0f);
          above -= v > own;
        }
        for (int lane = 0; lane < kLanes; lane++) rank += above[lane];
        total += sum_of(sum);
        for (; i < end; i++) total += std::exp(x[i] - relative_to), rank += x[i] > own;
        if (!most || !(num_best < most || block_most > least)) continue;
        const auto take = [&](int64_t token) {
          if (num_best == most && !(x[token] > least)) return;
          const Candidate one{x[token], int32_t(token)};
          int64_t at = num_best < most ? num_best++ : most - 1;
          for (; at > 0 && one < best[at - 1]; at--) best[at] = best[at - 1];
          best[at] = one;
          if (num_best == most) least = best[most - 1].weight;
        };
        int64_t j = begin;
        for (; j + kLanes <= end; j += kLanes) {
          for (uint32_t mask = lanes_from(load(x + j), least); mask; mask &= mask - 1) take(j + __builtin_ctz(mask));
        }
        for (; j < end; j++) take(j);
      }
      const float log_total = float(std::log(total));
      logprobs[r] = own - largest - log_total;
      ranks[r] = rank;
      for (int64_t i = 0; i < most; i++) {
        top_ids[r * most + i] = best[i].token;
        top[r * most + i] = best[i].weight - largest - log_total;
      }
    }
  }
}
}

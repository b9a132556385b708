// Positions in the descending order of a row's weights, without sorting them.
#pragma once

#include "sampling/candidates.h"

namespace triptych {

// The first `rank` tokens of the order, which have `mass`.
struct Position {
  int64_t rank;
  double mass;
};

// Weights of tokens, in the order of weight, then of token id. Weights are at most 1.
//
// A position is looked for between two weights. Each pass over the weights sums those from several weights between the two, and so leaves
// the stretch between two of these. When few weights are left between the two, only these are sorted.
class Descending {
 public:
  // A thread's scratch memory for rows of so many weights.
  struct Scratch {
    std::unique_ptr<Candidate[]> candidates;
    std::unique_ptr<float[]> left;  // weights of a stretch; a vector more than there are weights
    explicit Scratch(int64_t size) : candidates(new Candidate[size]), left(new float[size + kBlock]) {}
  };

  // weights: [num_blocks * kBlock]; block_most: [num_blocks] largest weight of each block. Weights below `least`, which is positive,
  // are not in the order.
  Descending(const float* weights, const float* block_most, int64_t num_blocks, Scratch& scratch, float least)
      : weights_(weights), block_most_(block_most), num_blocks_(num_blocks), candidates_(scratch.candidates.get()),
        left_(scratch.left.get()), least_(to_bits(least)) {
    // The octaves near the largest weight hold most of what a position is looked for in.
    constexpr int kOctaves[kFirstPivots] = {2, 4, 7, 13};
    for (int j = 0; j < kFirstPivots; j++) first_[j].bits = std::max(kOne - (kOctaves[j] << 23), least_);
    sum_from(first_, weights_, num_blocks_, block_most_);
  }

  // The position after all tokens.
  Position end() const {
    int64_t n;
    return collect({{least_, 0, 0}, {least_, 0, 0}}, n);
  }

  // The first position beyond the start for which is_passed(position) is true; the position after all tokens if there is none.
  // is_passed never turns false again along the order. `token` is set to the last token before the position.
  template <class IsPassed>
  Position find(const IsPassed& is_passed, int64_t& token) {
    Position position{0, 0};
    if (walk(position, num_first_, is_passed, token)) return position;
    Stretch at{{kOne + 1, 0, 0}, {least_, std::numeric_limits<int64_t>::max(), 0}};
    at.narrow(first_, is_passed);
    if (at.low.count <= kMostSorted) {
      at.high = {kOne + 1, 0, 0};  // then further positions are found among the same candidates
    } else if (at.low.count - at.high.count > kMostSorted) {
      narrow_further(at, is_passed);
    }
    // Sums in float32 may have led to a neighbour of the right stretch.
    for (int32_t width = std::max(at.width(), 1);; width = std::min(2 * width, 1 << 23)) {
      int64_t n;
      position = collect(at, n);
      num_first_ = 0;
      if (position.rank && is_passed(position)) {
        at.low.bits = at.high.bits, at.high.bits = std::min(at.high.bits + width, kOne + 1);
        continue;
      }
      if (at.width() > 1) std::sort(candidates_, candidates_ + n);
      if (!position.rank) num_first_ = n;
      if (walk(position, n, is_passed, token) || at.low.bits <= least_) return position;
      at.high.bits = at.low.bits, at.low.bits = std::max(at.low.bits - width, least_);
    }
  }

 private:
  static constexpr int kFirstPivots = 4, kPivots = 8;  // of the first pass, and of passes over what it leaves
  static constexpr int64_t kMostSorted = 128;
  static constexpr int32_t kOne = 0x3f800000;  // 1.0f; the bits of positive floats have their order

  // A weight, the number of weights from it on, and their mass.
  struct Pivot {
    int32_t bits;
    int64_t count;
    float mass;
  };
  // Weights w with low <= w < high. The position is not beyond what is from low on, and beyond what is from high on.
  struct Stretch {
    Pivot high, low;
    int32_t width() const { return high.bits - low.bits; }
    template <int N, class IsPassed>
    void narrow(const Pivot (&pivots)[N], const IsPassed& is_passed) {
      for (int j = 0; j < N; j++) {
        if (pivots[j].bits >= high.bits || pivots[j].bits <= low.bits) continue;
        if (pivots[j].count && is_passed(Position{pivots[j].count, pivots[j].mass})) {
          low = pivots[j];
          return;
        }
        high = pivots[j];
      }
    }
  };

  static int32_t to_bits(float x) {
    int32_t bits;
    std::memcpy(&bits, &x, 4);
    return bits;
  }
  static float to_float(int32_t bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
  }

  // Moves a position over n candidates until it is passed; whether it is.
  template <class IsPassed>
  bool walk(Position& position, int64_t n, const IsPassed& is_passed, int64_t& token) const {
    for (int64_t i = 0; i < n; i++) {
      position = {position.rank + 1, position.mass + candidates_[i].weight};
      token = candidates_[i].token;
      if (is_passed(position)) return true;
    }
    return false;
  }

  // Narrows a stretch until few weights are left in it.
  template <class IsPassed>
  void narrow_further(Stretch& at, const IsPassed& is_passed) const {
    const Pivot outside = at.high;
    const int64_t n = copy_left(at), num_blocks = (n + kBlock - 1) / kBlock;
    at.low.count = outside.count + n;
    while (at.low.count - at.high.count > kMostSorted && at.width() > 1) {
      Pivot pivots[kPivots];
      const int32_t step = std::max(at.width() / (kPivots + 1), 1);
      for (int j = 0; j < kPivots; j++) pivots[j].bits = std::max(at.high.bits - (j + 1) * step, at.low.bits);
      sum_from(pivots, left_, num_blocks, nullptr);
      for (int j = 0; j < kPivots; j++) pivots[j].count += outside.count, pivots[j].mass += outside.mass;
      at.narrow(pivots, is_passed);
    }
  }

  // Copies the weights of a stretch to `left_`, and zeros up to the end of a block; returns their number.
  int64_t copy_left(const Stretch& at) const {
    const float high = to_float(at.high.bits), low = to_float(at.low.bits);
    int64_t n = 0;
    for (int64_t b = 0; b < num_blocks_; b++) {
      if (!(block_most_[b] >= low)) continue;
      for (int64_t i = b * kBlock; i < (b + 1) * kBlock; i += kLanes) {
        const vf v = load(weights_ + i);
        const uint32_t mask = bits_of((v >= low) & (v < high));
#if defined(__AVX512F__)
        _mm512_storeu_ps(left_ + n, _mm512_maskz_compress_ps(__mmask16(mask), (__m512)v));
        n += __builtin_popcount(mask);
#else
        for (uint32_t bits = mask; bits; bits &= bits - 1) left_[n++] = weights_[i + __builtin_ctz(bits)];
#endif
      }
    }
    std::fill(left_ + n, left_ + (n + kBlock - 1) / kBlock * kBlock, 0.0f);
    return n;
  }

  // Sets count and mass of pivots, which descend and are positive. most: [num_blocks] largest weight of each block, or null.
  template <int N>
  static void sum_from(Pivot (&pivots)[N], const float* weights, int64_t num_blocks, const float* most) {
    vf from[N], mass[N] = {};
    vi count[N] = {};
    for (int j = 0; j < N; j++) from[j] = splat(to_float(pivots[j].bits));
    const float lowest = to_float(pivots[N - 1].bits);
    for (int64_t b = 0; b < num_blocks; b++) {
      if (most && !(most[b] >= lowest)) continue;
      for (int64_t i = b * kBlock; i < (b + 1) * kBlock; i += kLanes) {
        const vf v = load(weights + i);
#pragma GCC unroll 8
        for (int j = 0; j < N; j++) {
#if defined(__AVX512F__)  // GCC would make vectors of the masks
          const __mmask16 is_in = _mm512_cmp_ps_mask((__m512)v, (__m512)from[j], _CMP_GE_OQ);
          mass[j] = (vf)_mm512_mask_add_ps((__m512)mass[j], is_in, (__m512)mass[j], (__m512)v);
          count[j] = (vi)_mm512_mask_sub_epi32((__m512i)count[j], is_in, (__m512i)count[j], _mm512_set1_epi32(-1));
#else
          const vi is_in = v >= from[j];
          mass[j] += (vf)((vi)v & is_in), count[j] -= is_in;
#endif
        }
      }
    }
    for (int j = 0; j < N; j++) {
      pivots[j].mass = sum_of(mass[j]), pivots[j].count = 0;
      for (int lane = 0; lane < kLanes; lane++) pivots[j].count += count[j][lane];
    }
  }

  // Makes the weights of a stretch the candidates, in the order of ids; returns the position before them, and sets their number.
  Position collect(const Stretch& at, int64_t& n) const {
    typedef double vd __attribute__((vector_size(kLanes * 8)));
    const float high = to_float(at.high.bits), low = to_float(at.low.bits);
    vd mass = {};
    vi count = {};
    n = 0;
    for (int64_t b = 0; b < num_blocks_; b++) {
      if (!(block_most_[b] >= low)) continue;
      for (int64_t i = b * kBlock; i < (b + 1) * kBlock; i += kLanes) {
        const vf v = load(weights_ + i);
        const vi is_before = v >= high;
        mass += __builtin_convertvector((vf)((vi)v & is_before), vd), count -= is_before;
        for (uint32_t mask = bits_of((v >= low) & ~is_before); mask; mask &= mask - 1) {
          const int64_t token = i + __builtin_ctz(mask);
          candidates_[n++] = {weights_[token], int32_t(token)};
        }
      }
    }
    Position before{0, 0};
    for (int lane = 0; lane < kLanes; lane++) before.rank += count[lane], before.mass += mass[lane];
    return before;
  }

  const float* weights_;
  const float* block_most_;
  int64_t num_blocks_;
  Candidate* candidates_;
  float* left_;
  int32_t least_;
  int64_t num_first_ = 0;  // candidates that are the first tokens of the order
  Pivot first_[kFirstPivots];
};

}  // namespace triptych

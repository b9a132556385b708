// Products with quantised weights that are widened to bfloat16, once for a block of rows. A tile of weights, 16 outputs of 32 inputs, is a
// group of a panel. Widening takes about as long as multiplying with 50 rows in tiles, or with 8 in vectors; with few rows, reading
// bfloat16 weights takes as long.
#pragma once

#include <vector>

#include "elementwise.h"
#include "linear/linear_bf16.h"
#include "linear/quant_format.h"
#include "linear/quant_pairs.h"

#if defined(TRIPTYCH_BF16_DOT)

namespace triptych {
namespace {

// Two panels, or the last one, as one panel of bfloat16 weights.
struct PanelPair {
  const QuantPanel* panels;
  int num_panels;

  PanelPair(const QuantPanel* all, int64_t num_all, int64_t pair)
      : panels(all + 2 * pair), num_panels(int(std::min<int64_t>(2, num_all - 2 * pair))) {}
  // Whether a row of the result has all of the outputs, one after the other.
  bool is_whole() const {
    return num_panels == 2 && panels[0].columns + panels[1].columns == kPanel && panels[1].first == panels[0].first + kQuantPanel;
  }
  // Each panel has a place of its own in the result: the last one of a part of a product may be padded.
  void store_row(const float* row, float* out) const {
    for (int i = 0; i < num_panels; i++) std::memcpy(out + panels[i].first, row + i * kQuantPanel, panels[i].columns * sizeof(float));
  }
};

// Groups whose weights are widened, and multiplied with all rows, before the next ones. Of rows that need one pass, sums stay in tiles, and
// two chunks are in the L1 cache. Otherwise sums are loaded and stored for each chunk. A pass of vectors has few rows, and all of them read
// the chunk.
constexpr int64_t kShortChunk = 8, kVectorChunk = 16, kLongChunk = 48;

// Widens a chunk of a pair of panels in steps, while another chunk is multiplied: a core's vector and tile units work at the same time.
class Widening {
 public:
  Widening() = default;
  // words: [groups * 16, kPanel].
  Widening(const PanelPair& pair, int64_t in, int64_t first_group, int64_t groups, uint32_t* words, int64_t steps)
      : pair_(pair), words_(words), first_(first_group), groups_(groups), left_(pair.num_panels * groups) {
    steps_per_group_ = std::max<int64_t>(1, steps / left_);
    groups_per_step_ = (left_ + steps - 1) / std::max<int64_t>(1, steps);
    for (int i = 0; i < pair.num_panels; i++) {
      with_quant_format(pair.panels[i].format, [&](auto format) {
        widen_[i] = group_in_pairs<decltype(format)>;
        group_bytes_[i] = decltype(format)::panel_words(in) * 4 / num_quant_groups(in);
      });
    }
  }

  void step() {
    if (++steps_ < steps_per_group_) return;
    steps_ = 0;
    for (int64_t i = std::min(groups_per_step_, left_); i > 0; i--) widen_group();
  }
  void finish() {
    while (left_ > 0) widen_group();
  }

 private:
  void widen_group() {
    const int i = left_ <= groups_ * (pair_.num_panels - 1);
    const int64_t done = groups_ * (pair_.num_panels - i) - left_, g = first_ + done;
    // A core reads memory at its full rate only if many lines are on their way. What follows a panel in memory usually is the next one.
    const char* ahead = (const char*)pair_.panels[i].data + (g + kAhead) * group_bytes_[i];
    for (int64_t at = 0; at < group_bytes_[i]; at += kCacheLine) __builtin_prefetch(ahead + at, 0, 2);
    widen_[i](pair_.panels[i].data, g, words_ + i * kQuantPanel + done * kQuantGroup / 2 * kPanel, kPanel);
    left_--;
  }

  static constexpr int64_t kAhead = 16;
  PanelPair pair_{nullptr, 0, 0};
  void (*widen_[2])(const uint32_t*, int64_t, uint32_t*, int64_t) = {};
  uint32_t* words_ = nullptr;
  int64_t group_bytes_[2] = {};
  int64_t first_ = 0, groups_ = 0, left_ = 0;  // of each panel; of both, not widened yet
  int64_t steps_per_group_ = 1, groups_per_step_ = 0, steps_ = 0;
};

// A product's pairs of panels, as one thread computes them.
class TilesOf {
 public:
  // x: prepared rows, x_stride apart, readable up to a whole tile.
  TilesOf(const uint32_t* x, int64_t x_stride, int64_t rows, const PackedWeight& w)
      : x_(x), x_stride_(x_stride), rows_(rows), groups_(num_quant_groups(w.in_features)),
        keeps_sums_(uses_tiles() && rows <= 2 * kTile), chunk_(keeps_sums_ ? kShortChunk : uses_tiles() ? kLongChunk : kVectorChunk), w_(w) {}

  int64_t num_pairs_of_panels() const { return (w_.num_quant_panels + 1) / 2; }
  PanelPair pair(int64_t i) const { return PanelPair((const QuantPanel*)w_.weight, w_.num_quant_panels, i); }
  // Rows of `sums`: a pass may go beyond the last one.
  static int64_t padded_rows(int64_t rows) { return (rows + 2 * kTile - 1) / (2 * kTile) * 2 * kTile; }

  // sums: [padded_rows, kPanel], the outputs of pair i. Meanwhile, the beginning of pair `next` is widened; -1 is none.
  // out: where the outputs of the first `num_direct` rows go instead; rows of a whole pass do if the first one does.
  void multiply(int64_t i, int64_t next, float* sums, float* out = nullptr, int64_t out_stride = 0, int64_t num_direct = 0) {
    if (widened_ != i) widening(i, 0, current_, 1).finish();
    alignas(64) float bias[kPanel] = {};
    if (w_.bias) std::memcpy(bias, w_.bias + 2 * i * kQuantPanel, pair(i).num_panels * kQuantPanel * sizeof(float));
    for (int64_t first = 0; first < groups_; first += chunk_, current_ = 1 - current_) {
      const int64_t pairs = std::min(chunk_, groups_ - first) * kQuantGroup / 2, steps = num_steps(rows_, pairs);
      const bool is_last = first + chunk_ >= groups_;
      Widening then;
      if (!is_last) then = widening(i, first + chunk_, 1 - current_, steps);
      else if (next >= 0) then = widening(next, 0, 1 - current_, steps);
      for_rows(rows_, [&](auto tiles, int64_t row) {
        if (first == 0) tiles.begin(bias, 0);
        else if (!keeps_sums_) tiles.begin(sums + row * kPanel, kPanel);
        else __asm__ volatile("" ::: "memory");  // as in begin_tiles
        tiles.add(x_ + row * x_stride_ + first * kQuantGroup / 2, x_stride_, pairs,
                  Columns{words_[current_], words_[current_] + kLanes, kPanel}, then);
        if (is_last && row < num_direct) tiles.end(out + row * out_stride, out_stride);
        else if (is_last || !keeps_sums_) tiles.end(sums + row * kPanel, kPanel);
      });
      then.finish();
    }
    widened_ = next;
  }

 private:
  Widening widening(int64_t i, int64_t first, int which, int64_t steps) {
    return Widening(pair(i), w_.in_features, first, std::min(chunk_, groups_ - first), words_[which], steps);
  }

  const uint32_t* x_;
  int64_t x_stride_, rows_, groups_;
  bool keeps_sums_;  // in tiles, from chunk to chunk
  int64_t chunk_;
  const PackedWeight& w_;
  int64_t widened_ = -1;  // the pair whose beginning is in words_[current_]
  int current_ = 0;
  // Half a page more than needed: a core takes a load for one of what it has just stored at the same place in another page.
  alignas(64) uint32_t words_[2][kLongChunk * kQuantGroup / 2 * kPanel + 512];
};

// A thread's memory for sums. It lives as long as the thread.
inline float* memory_for_sums(int64_t size) {
  static thread_local std::vector<float> memory;
  if ((int64_t)memory.size() < size) memory.resize(size);
  return memory.data();
}

// These functions' work is distributed over the threads of the enclosing parallel region.
inline void tiles_shared(const uint32_t* x, int64_t x_stride, const PackedWeight& w, float* out, int64_t rows) {
  TilesOf tiles(x, x_stride, rows, w);
  float* sums = memory_for_sums(TilesOf::padded_rows(rows) * kPanel);
  const int64_t whole_passes = uses_tiles() ? rows / (2 * kTile) * 2 * kTile : rows;
  share_items(tiles.num_pairs_of_panels(), [&](int64_t i, int64_t next) {
    const PanelPair pair = tiles.pair(i);
    const int64_t num_direct = pair.is_whole() ? whole_passes : 0;
    tiles.multiply(i, next == i ? -1 : next, sums, out + pair.panels[0].first, w.out_features, num_direct);
    for (int64_t r = num_direct; r < rows; r++) pair.store_row(sums + r * kPanel, out + r * w.out_features);
  });
}

// silu(gate) * up as bfloat16. The first half of the outputs are gates. gated: rows, gated_stride apart.
inline void gated_tiles_shared(const uint32_t* x, int64_t x_stride, const PackedWeight& w, uint32_t* gated, int64_t gated_stride,
                               int64_t rows) {
  TilesOf tiles(x, x_stride, rows, w);
  const int64_t size = TilesOf::padded_rows(rows) * kPanel, half = tiles.num_pairs_of_panels() / 2;
  float *gates = memory_for_sums(2 * size), *ups = gates + size;
  share_items(half, [&](int64_t i, int64_t next) {
    tiles.multiply(i, half + i, gates);
    tiles.multiply(half + i, next == i ? -1 : next, ups);
    for (int64_t r = 0; r < rows; r++) {
      silu_mul_row(gates + r * kPanel, ups + r * kPanel, (bf16*)(gated + r * gated_stride) + i * kPanel, kPanel);
    }
  });
}

}  // namespace
}  // namespace triptych

#endif

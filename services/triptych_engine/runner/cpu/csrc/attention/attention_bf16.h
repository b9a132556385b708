// The two products of attention with the CPU's bfloat16 instructions, see paged_attention.h: queries and weights are rounded, sums
// are float32. They are the products of linear layers (linear_bf16.h); the 32 outputs are 32 keys, or 32 components of values.
#pragma once

#include "attention/cache_prefetch.h"
#include "attention/key_values.h"
#include "linear/linear_bf16.h"

#if defined(TRIPTYCH_BF16_DOT)

namespace triptych {

// Products for paged_attention.h, which describes the functions.
struct Bf16AttentionProducts {
  using Prefetch = CachePrefetch<bf16>;
  TileScope tiles;

  static Prefetch prefetch(const Args& a, const HeadsTile& own, const HeadsTile& next, int group, int groups) {
    const int64_t columns = (a.v_head_dim + kPanel - 1) / kPanel;
    // With vectors, the rows of a prompt take so long to compute that its keys need no prefetching: with prefetching, a prompt's
    // attention took 1.25 times as long on a Zen 5.
    if (!uses_tiles() && own.tile.rows > kDotRows) return Prefetch(a, own, next, group, 0, 1);  // nothing
    const int64_t steps = own.heads * (padded_groups(groups) / 2 * num_steps(own.tile.rows, key_pairs(a)) +
                                       columns * num_steps(own.tile.rows, groups * kLanes / 2));
    return Prefetch(a, own, next, group, groups, steps);
  }

  static int64_t query_words(const Args& a) { return num_pairs(a.head_dim); }
  static void prepare_query(const float* query, int D, uint32_t* q) { round_row(query, D, q); }
  static int padded_groups(int groups) { return (groups + 1) / 2 * 2; }  // rounded up to what products read
  static void store_weights(float* row, int key, rf weights) {
    bf16* to = (bf16*)row + key;
#if defined(__AVX512F__)
    store(to, weights);
#else  // in tests, which emulate the instructions
    for (int i = 0; i < kRegisterLanes; i++) convert(weights[i], to[i]);
#endif
  }

  static void score(const Args& a, const Tile& tile, const Scratch& s, int first, int groups, Prefetch& next) {
    for (int n = 0; n < groups; n += 2) {
      const int key = first + n * kLanes;
      const uint32_t* low = (const uint32_t*)tile.keys<bf16>(a, key);
      // Without a second group, the first one is used twice; the second result is ignored.
      const uint32_t* high = n + 1 < groups ? (const uint32_t*)tile.keys<bf16>(a, key + kLanes) : low;
      Columns columns{low, high, a.block_size};
      if (uses_tiles() && a.head_dim % kInputs) columns = padded_keys(a, columns, s.panel);
      for_rows(tile.rows, [&](auto sums, int64_t row) {
        sums.begin(nullptr, 0);
        sums.add(s.q + row * s.query_words, s.query_words, key_pairs(a), columns, next);
        sums.end(s.scores + row * kKeyTile + n * kLanes, kKeyTile);
      });
    }
  }

  static void add_values(const Args& a, const Tile& tile, const Scratch& s, int first, int groups, Prefetch& next) {
    const bool gathers = uses_tiles() || values_in_keys(a);
    for (int c = 0; c < a.v_head_dim; c += kPanel) {
      const Columns gathered = gathers ? gathered_values(a, tile, first, groups, c, s.panel) : Columns{};
      for_rows(tile.rows, [&](auto sums, int64_t row) {
        float* out = s.out + row * s.out_stride + c;
        const uint32_t* weights = (const uint32_t*)(s.scores + row * kKeyTile);
        sums.begin(out, s.out_stride);
        if (gathers) {
          sums.add(weights, kKeyTile, padded_groups(groups) * kLanes / 2, gathered, next);
        } else if constexpr (!decltype(sums)::kIsTile) {
          for (int n = 0; n < groups; n++) add_group(a, tile, first + n * kLanes, c, weights + n * kLanes / 2, sums, next);
        }
        sums.end(out, s.out_stride);
      });
    }
  }

 private:
  static int64_t key_pairs(const Args& a) { return uses_tiles() ? num_pairs(a.head_dim) : (a.head_dim + 1) / 2; }

  static Columns value_columns(const Args& a, const Tile& tile, int key, int c) {
    const uint32_t* low = (const uint32_t*)tile.values<bf16>(a, key) + c;
    return {low, c + kLanes < a.v_head_dim ? low + kLanes : low, a.v_head_dim};
  }

  template <class Sums>
  static void add_group(const Args& a, const Tile& tile, int key, int c, const uint32_t* weights, Sums& sums, Prefetch& next) {
    const Columns values = value_columns(a, tile, key, c);
    const int valid = std::min(kLanes, tile.end - key);
    sums.add(weights, kKeyTile, valid / 2, values, next);
    if (valid % 2) {  // the other half of the last pair is undefined
      alignas(64) uint32_t last[kPanel];
      copy_pair<0xffffu>(values, valid / 2, last);
      sums.add(weights + valid / 2, kKeyTile, 1, Columns{last, last + kLanes, 0}, next);
    }
  }

  template <uint32_t kMask>
  static void copy_pair(const Columns& from, int64_t pair, uint32_t* to) {
    const vu low = load(from.low + pair * from.stride) & kMask, high = load(from.high + pair * from.stride) & kMask;
    std::memcpy(to, &low, sizeof low);
    std::memcpy(to + kLanes, &high, sizeof high);
  }

  // The same keys, padded with zeros to whole tiles: behind a head's keys are those of the next head.
  static Columns padded_keys(const Args& a, const Columns& keys, uint32_t* panel) {
    const int64_t pairs = (a.head_dim + 1) / 2;
    for (int64_t d = 0; d < pairs; d++) copy_pair<~0u>(keys, d, panel + d * kPanel);
    std::memset(panel + pairs * kPanel, 0, (num_pairs(a.head_dim) - pairs) * kPanel * 4);
    return {panel, panel + kLanes, kPanel};
  }

  // A tile reads the values of 32 slots from one place. So two groups are copied there, with zeros for slots beyond the last key. So are
  // values that are in the keys, all groups of them.
  static Columns gathered_values(const Args& a, const Tile& tile, int first, int groups, int c, uint32_t* panel) {
    uint32_t* to = panel;
    for (int n = 0; n < padded_groups(groups); n++, to += kLanes / 2 * kPanel) {
      const int key = first + n * kLanes, valid = std::min(kLanes, tile.end - key);
      if (valid < kLanes) std::memset(to, 0, kLanes / 2 * kPanel * 4);
      if (valid <= 0) continue;
      if (values_in_keys(a)) {
        for (int d = 0; d < kPanel && c + d < a.v_head_dim; d += kLanes) {
          value_pairs_of_keys(tile.keys<bf16>(a, key), c + d, a.block_size, valid, to + d, kPanel);
        }
        continue;
      }
      const Columns values = value_columns(a, tile, key, c);
      for (int j = 0; j < valid / 2; j++) copy_pair<~0u>(values, j, to + j * kPanel);
      if (valid % 2) copy_pair<0xffffu>(values, valid / 2, to + valid / 2 * kPanel);
    }
    return {panel, panel + kLanes, kPanel};
  }
};

}  // namespace triptych

#endif

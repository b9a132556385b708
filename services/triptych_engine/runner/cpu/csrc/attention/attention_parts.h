// Attention of layers whose values are in their keys (MLA): all query heads share one head of keys. So a sequence that decodes is one
// tile, and threads share its keys. Each part of the context is summed up by itself, and then the parts, in their order.
//
// The borders of parts are at fixed keys, and sums are added in the same way when one thread computes all parts: a row's result must
// not depend on the rows and sequences that are computed with it.
#pragma once

#include "attention/paged_attention.h"

namespace triptych {

// The sums of a tile over a part of its keys, as in Scratch: `out` [rows, Dv], row_max [rows], row_sum [rows].
struct PartSums {
  float *out, *row_max, *row_sum;

  static int64_t size(const Args& a, int64_t rows) { return rows * (a.v_head_dim + 2); }
  PartSums(const Args& a, float* memory, int64_t rows)
      : out(memory), row_max(memory + rows * a.v_head_dim), row_sum(row_max + rows) {}
};

// Adds a row's sums over further keys. Not inlined: the compiler could round in another way in another place.
[[gnu::noinline]] inline void add_part(float* out, float& row_max, float& row_sum, const float* more, float more_max, float more_sum,
                                       int64_t size) {
  const float top = row_max > more_max ? row_max : more_max;
  const float own = exp_nonpositive(splat<rf>(row_max - top))[0], other = exp_nonpositive(splat<rf>(more_max - top))[0];
  for (int64_t c = 0; c < size; c += kLanes) store(out + c, load(out + c) * own + load(more + c) * other);
  row_max = top, row_sum = row_sum * own + more_sum * other;
}

// Tiles whose parts the threads share: as many as there is room for, at least one.
struct Wave {
  int first_tile, num_tiles;
  int64_t num_parts;

  // parts: room for so many.
  Wave(const Args& a, int first, int64_t parts) : first_tile(first), num_tiles(0), num_parts(0) {
    while (first + num_tiles < a.num_tiles) {
      const HeadsTile next(a, first + num_tiles, 0, 1);
      const int more = next.end_part() - next.first_part();
      if (num_tiles && num_parts + more > parts) break;
      num_parts += more, num_tiles++;
    }
  }
  // A tile of the wave, and which parts of the wave are its own.
  struct TileParts {
    HeadsTile tile;
    int64_t begin, end;
  };
  TileParts parts_of(const Args& a, int index) const {
    return find(a, [&](int i, int64_t) { return i == index; });
  }
  TileParts of_part(const Args& a, int64_t part) const {
    return find(a, [&](int, int64_t end) { return part < end; });
  }

 private:
  template <class Found>
  TileParts find(const Args& a, const Found& found) const {
    int64_t begin = 0;
    for (int i = 0;; i++) {
      const HeadsTile tile(a, first_tile + i, 0, 1);
      const int64_t end = begin + tile.end_part() - tile.first_part();
      if (found(i, end)) return {tile, begin, end};
      begin = end;
    }
  }
};

constexpr int64_t kMostPartFloats = 4 << 20;

// Whether the threads share the parts of tiles, not the tiles.
inline bool shares_parts(const Args& a, int threads) { return a.num_tiles < kTilesPerThread * threads; }

// Rows of the largest tile.
inline int64_t most_rows(const Args& a) {
  return a.num_tiles ? *std::max_element(a.tile_len, a.tile_len + a.num_tiles) * (int64_t)(a.num_q_heads / a.num_kv_heads) : 0;
}

// Floats that the threads need together for the parts of a wave.
inline int64_t part_floats(const Args& a, int threads) {
  if (!shares_parts(a, threads)) return 0;
  int64_t most = 0;
  const int64_t size = PartSums::size(a, most_rows(a));
  for (int first = 0; first < a.num_tiles;) {
    const Wave wave(a, first, kMostPartFloats / size);
    most = std::max(most, wave.num_parts), first += wave.num_tiles;
  }
  return most * size;
}

// As attend_shared. memory: of all threads, with room for `part_floats`.
template <class Products>
[[gnu::noinline]] void attend_parts(const Args& a, const RowFunctions& functions, float* memory) {
  if (a.num_tiles == 0) return;
  const int64_t most = most_rows(a), size = PartSums::size(a, most);
  const Scratch scratch = scratch_for(a, int(most / (a.num_q_heads / a.num_kv_heads)), 2, Products::query_words(a));
  const Scratch total = scratch.of_head(0), one = scratch.of_head(1);
  [[maybe_unused]] Products products;
  const auto attend_part = [&](const HeadsTile& tile, int part, const Scratch& to) {
    const HeadsTile own = tile.of_part(part);
    attend<Products>(a, functions, own, part + 1 < tile.end_part() ? tile.of_part(part + 1) : own, to);
  };
  if (!shares_parts(a, omp_get_num_threads())) {
    share_items(a.num_tiles, [&](int64_t i, int64_t) {
      const HeadsTile tile(a, a.num_tiles - 1 - int(i), 0, 1);
      for (int part = tile.first_part(); part < tile.end_part(); part++) {
        const bool is_first = part == tile.first_part();
        attend_part(tile, part, is_first ? total : one);
        for (int r = 0; r < tile.tile.rows && !is_first; r++) {
          add_part(total.out + r * total.out_stride, total.row_max[r], total.row_sum[r], one.out + r * one.out_stride, one.row_max[r],
                   one.row_sum[r], a.v_head_dim);
        }
      }
      functions.finish_all(a, tile.tile, total);
    });
    return;
  }
  for (int first = 0; first < a.num_tiles;) {
    const Wave wave(a, first, kMostPartFloats / size);
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < wave.num_parts; i++) {
      const auto [tile, begin, end] = wave.of_part(a, i);
      attend_part(tile, tile.first_part() + int(i - begin), one);
      const PartSums to(a, memory + i * size, most);
      for (int r = 0; r < tile.tile.rows; r++) {
        std::copy_n(one.out + r * one.out_stride, a.v_head_dim, to.out + r * a.v_head_dim);
        to.row_max[r] = one.row_max[r], to.row_sum[r] = one.row_sum[r];
      }
    }
#pragma omp for schedule(static)
    for (int64_t i = 0; i < wave.num_tiles * most; i++) {
      const auto [tile, begin, end] = wave.parts_of(a, int(i / most));
      const int r = int(i % most);
      if (r >= tile.tile.rows) continue;
      const PartSums sums(a, memory + begin * size, most);
      float* out = sums.out + r * a.v_head_dim;
      for (int64_t p = begin + 1; p < end; p++) {
        const PartSums more(a, memory + p * size, most);
        add_part(out, sums.row_max[r], sums.row_sum[r], more.out + r * a.v_head_dim, more.row_max[r], more.row_sum[r], a.v_head_dim);
      }
      functions.finish(a, tile.tile, r, out, sums.row_sum[r]);
    }
    first += wave.num_tiles;
  }
}

}  // namespace triptych

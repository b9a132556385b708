// The units of work of attention, and a thread's scratch memory.
#pragma once

#include <iterator>
#include <memory>
#include <numeric>

#include "attention/kv_cache.h"
#include "linear/linear_panel.h"

namespace triptych {

constexpr int kKeyTile = 128;  // number of keys whose scores are kept at once
constexpr int kGroupsPerTile = kKeyTile / kLanes;
// Groups of keys that are summed up by themselves, where several threads share the keys of a tile; in whole key tiles.
constexpr int kGroupsPerPart = 2 * kGroupsPerTile;
// Groups that products take at once.
constexpr int kGroupsAtOnce = 2;
// Query rows (tokens x grouped heads) that share a pass over the keys.
#if defined(TRIPTYCH_BF16_TILES)
constexpr int kRowTile = 96;
#else
constexpr int kRowTile = 32;
#endif

inline int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

// One tile of query tokens against one key/value head: its rows are tokens x grouped heads.
struct Tile {
  int head, first_token, tokens, group, rows;
  const int32_t* table;  // the sequence's blocks
  int begin, end;        // keys that any of the rows attends to

  Tile(const Args& a, int tile, int h)
      : head(h), first_token(a.tile_start[tile]), tokens(a.tile_len[tile]), group(a.num_q_heads / a.num_kv_heads), rows(tokens * group),
        table(a.block_table + (int64_t)a.tile_seq[tile] * a.block_table_stride), begin(INT32_MAX), end(0) {
    for (int t = first_token; t < first_token + tokens; t++) {
      begin = std::min(begin, first_key(a, t));
      end = std::max(end, a.key_end[t]);
    }
  }
  static int first_key(const Args& a, int token) { return a.window ? std::max(0, a.positions[token] + 1 - a.window) : 0; }
  int token(int row) const { return first_token + row / group; }
  int q_head(int row) const { return head * group + row % group; }
  // The group of 16 keys or values that begins at `key`. A group is always within one block.
  template <class T>
  const T* keys(const Args& a, int key) const {
    return keys_of<T>(a, table[key / a.block_size], head) + key % a.block_size * kPerWord<T>;
  }
  // The scales of the keys and values of that group.
  const float* key_scales(const Args& a, int key) const { return scales(a, key, keys_of<q8>, key_dim<q8>(a)); }
  const float* value_scales(const Args& a, int key) const {
    return values_in_keys(a) ? key_scales(a, key) : scales(a, key, values_of<q8>, a.v_head_dim);
  }
  const float* scales(const Args& a, int key, q8* (*part)(const Args&, int64_t, int), int64_t size) const {
    return scales_of(a, part(a, table[key / a.block_size], head), size) + key % a.block_size;
  }
  template <class T>
  const T* values(const Args& a, int key) const {
    return values_of<T>(a, table[key / a.block_size], head) + (int64_t)(key % a.block_size) * a.v_head_dim;
  }
};

// One tile against some adjacent heads. A thread iterates over key tiles, and in each over the heads, because the heads of a block
// are adjacent in memory.
//
// A row's sums are rescaled between key tiles, and rounded. So the borders of key tiles are at fixed keys: a row's result must not
// depend on the rows and sequences that are computed with it.
struct HeadsTile {
  Tile tile;  // of the first head
  int heads;
  int first_group, num_groups;  // of 16 keys

  HeadsTile(const Args& a, int index, int first_head, int heads)
      : tile(a, index, first_head), heads(heads), first_group(tile.begin / (kGroupsAtOnce * kLanes) * kGroupsAtOnce),
        num_groups((tile.end + kLanes - 1) / kLanes - first_group) {}
  // Number of groups of the key tile that begins with `group`.
  int groups_from(int group) const {
    return std::min(kGroupsPerTile - (first_group + group) % kGroupsPerTile, num_groups - group);
  }
  Tile of_head(int h) const {
    Tile one = tile;
    one.head += h;
    return one;
  }
  // Its keys are those of some parts of the context.
  int first_part() const { return first_group / kGroupsPerPart; }
  int end_part() const { return (first_group + num_groups + kGroupsPerPart - 1) / kGroupsPerPart; }
  HeadsTile of_part(int part) const {
    HeadsTile one = *this;
    one.first_group = std::max(first_group, part * kGroupsPerPart);
    one.num_groups = std::min(first_group + num_groups, (part + 1) * kGroupsPerPart) - one.first_group;
    return one;
  }
};

// A thread's scratch memory.
struct Scratch {
  int64_t rows;         // of a head, rounded up to what products write
  int64_t query_words;  // 32-bit words of a query in the form that products read
  int64_t out_stride;
  uint32_t* q;      // [rows, query_words], scaled
  float* out;       // [rows, out_stride], not yet divided by row_sum
  float* row_max;   // [rows]
  float* row_sum;   // [rows], of weights relative to row_max
  // All heads share the following.
  float* scores;    // [rows, kKeyTile]; replaced by the weights, in the form that products read
  uint32_t* panel;  // keys [D, kPanel] or values [kKeyTile, Dv] in another form, each dimension rounded up to kPanel

  Scratch of_head(int h) const {
    Scratch s = *this;
    s.q += h * rows * query_words, s.out += h * rows * out_stride, s.row_max += h * rows, s.row_sum += h * rows;
    return s;
  }
};

// The calling thread's scratch memory, for `heads` heads of tiles of at most `tokens` tokens. It is kept between calls.
inline Scratch scratch_for(const Args& a, int tokens, int heads, int64_t query_words) {
  Scratch s;
  s.rows = round_up(tokens * (a.num_q_heads / a.num_kv_heads), kPanel);
  s.query_words = query_words;
  s.out_stride = round_up(a.v_head_dim, kPanel);
  const size_t sizes[] = {size_t(heads * s.rows * query_words), size_t(heads * s.rows * s.out_stride), size_t(heads * s.rows),
                          size_t(heads * s.rows), size_t(s.rows * kKeyTile),
                          size_t(std::max(round_up(a.head_dim, kPanel) * kPanel, kKeyTile * s.out_stride))};
  // Freed when its thread ends: the OpenMP team shrinks and grows when the number of threads is changed.
  static thread_local std::unique_ptr<float[]> memory;
  static thread_local size_t capacity = 0;
  const size_t need = std::accumulate(std::begin(sizes), std::end(sizes), size_t(kLanes), [](size_t sum, size_t size) {
    return sum + round_up(size, kLanes);
  });
  if (need > capacity) {
    memory.reset(new float[need]());
    capacity = need;
  }
  float* parts[6];
  float* next = (float*)(round_up((intptr_t)memory.get(), kCacheLine));
  for (int i = 0; i < 6; i++) parts[i] = next, next += round_up(sizes[i], kLanes);
  s.q = (uint32_t*)parts[0], s.out = parts[1], s.row_max = parts[2], s.row_sum = parts[3], s.scores = parts[4];
  s.panel = (uint32_t*)parts[5];
  return s;
}

}  // namespace triptych

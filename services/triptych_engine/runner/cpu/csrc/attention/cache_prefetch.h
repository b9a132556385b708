// Prefetching of the KV cache. A head's part of a block is a few kilobytes, too short for hardware prefetchers.
#pragma once

#include "attention/attention_tile.h"
#include "prefetch.h"

namespace triptych {

// Prefetches what a thread reads next from the KV cache: groups of keys, then of values, each in their order in a block.
//
// While a thread computes `own`, it prefetches what `own` has beyond a key tile, and as much of `next`, in equal shares for each group
// that it computes: the last key tile of `own` may be much shorter than the first one of `next`.
template <class T>
class CachePrefetch {
 public:
  // Prefetches the share of `groups` groups of `own` from `group` on, in `steps` steps; nothing for no groups.
  CachePrefetch(const Args& a, const HeadsTile& own, const HeadsTile& next, int group, int groups, int64_t steps)
      : a_(a), own_(own), next_(next), num_own_(std::max(0, own.num_groups - kGroupsPerTile)),
        key_lines_(key_dim<T>(a) / kPerWord<T>), value_lines_(values_in_keys(a) ? 0 : a.v_head_dim * kLanes * sizeof(T) / kCacheLine) {
    const int kinds = values_in_keys(a) ? 1 : 2;
    const int total = num_own_ + std::min(next.num_groups, kGroupsPerTile), all = std::max(1, own.num_groups);
    first_ = group * total / all;
    num_pieces_ = ((group + groups) * total / all - first_) * own.heads;
    constexpr int kStreams = Prefetch::kStreams;
    const int64_t lines = num_pieces_ * (key_lines_ + value_lines_) / kStreams;
    lines_per_step_ = (lines + steps - 1) / std::max<int64_t>(steps, 1);
    lines_left_ = lines;
    for (int j = 0; j < kStreams; j++) {
      streams_[j].piece = kinds * num_pieces_ * j / kStreams;
      streams_[j].end = kinds * num_pieces_ * (j + 1) / kStreams;
    }
  }

  void step() {
    if (lines_left_ > 0) fetch_some();
  }

 private:
  void fetch_some() {
    lines_left_ -= lines_per_step_;
    for (int64_t i = 0; i < lines_per_step_; i++) {
#pragma GCC unroll 4
      for (Stream& stream : streams_) {
        if (stream.lines_left == 0 && !next_piece(stream)) continue;
        __builtin_prefetch(stream.line, 0, 2);
        stream.line += stream.line_bytes;
        stream.lines_left--;
      }
    }
  }

  struct Stream {
    const char* line = nullptr;
    int64_t lines_left = 0, line_bytes = 0;
    int piece = 0, end = 0;  // pieces: keys of a group and head, then values of a group and head
  };

  bool next_piece(Stream& stream) const {
    if (stream.piece == stream.end) return false;
    const int piece = stream.piece % num_pieces_;
    const int index = first_ + piece / own_.heads;
    const HeadsTile& from = index < num_own_ ? own_ : next_;
    const Tile tile = from.of_head(piece % own_.heads);
    const int key = (from.first_group + (index < num_own_ ? index + kGroupsPerTile : index - num_own_)) * kLanes;
    if (stream.piece < num_pieces_) {
      stream.line = (const char*)tile.template keys<T>(a_, key), stream.lines_left = key_lines_, stream.line_bytes = a_.block_size * 4;
    } else {
      stream.line = (const char*)tile.template values<T>(a_, key), stream.lines_left = value_lines_, stream.line_bytes = kCacheLine;
    }
    stream.piece++;
    return true;
  }

  const Args& a_;
  const HeadsTile &own_, &next_;
  const int num_own_;      // groups of `own` beyond a key tile
  int first_, num_pieces_;  // pieces of groups from the `first_` on, of these and then of `next`
  int64_t key_lines_, value_lines_, lines_left_, lines_per_step_;  // of each stream
  Stream streams_[Prefetch::kStreams];
};

}  // namespace triptych

// What the ranks of one host tell each other: sums and copies through memory that all of them have mapped.
//
// Memory, all zero at first:
//
//   stamps   a cache line for each rank: the last round whose data the rank has written
//   slots    [2][ranks][kSlotBytes]: what the ranks have written in rounds with an even and with an odd number
//
// In a round, each rank writes its slot, then its stamp, waits for the stamps of all, and reads the slots of all. Who waits in round n
// for a stamp knows that its rank has read all of round n - 1, so that a slot is not written again before all have read it.
//
// A rank that is gone is waited for for ever: the engine ends the others.
#pragma once

#include "team.h"

#include <algorithm>
#include <cstring>

#include <time.h>

namespace triptych {

constexpr int64_t kSlotBytes = 1 << 19;

struct Ranks {
  struct alignas(64) Stamp {
    std::atomic<int64_t> round;
  };

  Stamp* stamps;
  char* slots;
  int32_t rank, size;
  int64_t round = 0;  // the last one of this rank

  static int64_t memory_bytes(int32_t size) { return size * (int64_t(sizeof(Stamp)) + 2 * kSlotBytes); }

  char* slot(int64_t of_round, int32_t of_rank) const { return slots + ((of_round & 1) * size + of_rank) * kSlotBytes; }

  // Waits until all ranks have written a round.
  void wait_for(int64_t wanted) const {
    for (int32_t r = 0; r < size; r++) {
      for (int64_t i = 0; stamps[r].round.load(std::memory_order_acquire) < wanted; i++) {
        if (i < kSpins) spin_once();
        else if (i < 4 * kSpins) std::this_thread::yield();
        else sleep();
      }
    }
  }

 private:
  static void sleep() {
    const timespec moment{0, 50'000};
    nanosleep(&moment, nullptr);
  }
};

// One thread's part in what its rank exchanges. All threads of a team have one, and call the same.
class Exchange {
 public:
  // ranks: null if there are no others.
  Exchange(Ranks* ranks, Team& team) : ranks_(ranks), team_(team), round_(ranks ? ranks->round : 0) {}
  ~Exchange() {
    if (ranks_ && omp_get_thread_num() == 0) ranks_->round = round_;
  }

  // data[n], which all threads have written before a barrier, becomes the sum of all ranks' data, added in their order.
  void sum(float* data, int64_t n) {
    if (!ranks_) return;
    constexpr int64_t kFloats = kSlotBytes / sizeof(float);
    for (int64_t first = 0; first < n; first += kFloats) {
      float* part = data + first;
      const Team::Rows own = write((const char*)part, std::min(kFloats, n - first), sizeof(float));
      std::memcpy(part + own.begin, (const float*)ranks_->slot(round_, 0) + own.begin, (own.end - own.begin) * sizeof(float));
      for (int32_t r = 1; r < ranks_->size; r++) {
        const float* other = (const float*)ranks_->slot(round_, r);
        for (int64_t i = own.begin; i < own.end; i++) part[i] += other[i];
      }
    }
    team_.wait();
  }

  // Copies sizes[r] bytes of each rank r to outs[r]. data: this rank's.
  void gather(const char* data, const int64_t* sizes, char* const* outs) {
    const int64_t most = *std::max_element(sizes, sizes + ranks_->size);
    for (int64_t first = 0; first < most; first += kSlotBytes) {
      write(data + first, std::clamp<int64_t>(sizes[ranks_->rank] - first, 0, kSlotBytes), 1);
      for (int32_t r = 0; r < ranks_->size; r++) {
        const Team::Rows own = Team::own_rows(std::clamp<int64_t>(sizes[r] - first, 0, kSlotBytes));
        std::memcpy(outs[r] + first + own.begin, ranks_->slot(round_, r) + own.begin, own.end - own.begin);
      }
    }
    team_.wait();
  }

 private:
  // Writes `count` items of the next round, and waits for those of all ranks. Returns the thread's own items.
  Team::Rows write(const char* data, int64_t count, int64_t item_bytes) {
    const Team::Rows own = Team::own_rows(count);
    round_++;
    std::memcpy(ranks_->slot(round_, ranks_->rank) + own.begin * item_bytes, data + own.begin * item_bytes,
                (own.end - own.begin) * item_bytes);
    team_.wait();
    if (omp_get_thread_num() == 0) ranks_->stamps[ranks_->rank].round.store(round_, std::memory_order_release);
    ranks_->wait_for(round_);
    return own;
  }

  Ranks* const ranks_;
  Team& team_;
  int64_t round_;
};

}  // namespace triptych

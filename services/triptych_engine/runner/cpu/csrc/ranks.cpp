// Sums and copies of all ranks, outside of decoder layers.

#include "ranks.h"

using namespace triptych;

namespace {

constexpr int64_t kParallelBytes = 1 << 17;

}  // namespace

extern "C" {

int64_t triptych_ranks_memory_bytes(int32_t size) { return Ranks::memory_bytes(size); }

// memory: of triptych_ranks_memory_bytes, shared by the ranks. The result lives as long as the process.
void* triptych_ranks_open(void* memory, int32_t rank, int32_t size) {
  return new Ranks{(Ranks::Stamp*)memory, (char*)memory + size * sizeof(Ranks::Stamp), rank, size};
}

// data[n] becomes the sum of all ranks' data.
void triptych_ranks_sum(Ranks* ranks, float* data, int64_t n) {
  Team team;
#pragma omp parallel if (n * int64_t(sizeof(float)) >= kParallelBytes)
  Exchange(ranks, team).sum(data, n);
}

// Copies sizes[r] bytes of each rank r to outs[r]. data: this rank's.
void triptych_ranks_gather(Ranks* ranks, const void* data, const int64_t* sizes, void* const* outs) {
  Team team;
#pragma omp parallel if (*std::max_element(sizes, sizes + ranks->size) >= kParallelBytes)
  Exchange(ranks, team).gather((const char*)data, sizes, (char* const*)outs);
}
}

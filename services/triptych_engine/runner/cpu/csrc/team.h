// The threads of a parallel region: how they wait for each other, and share rows.
#pragma once

#include <omp.h>

#include <atomic>
#include <cstdint>
#include <thread>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#endif

namespace triptych {

// How often a thread spins at a barrier before it sleeps: as often as libgomp's do by default, see triptych_common/host/torch_env.py.
constexpr int kSpins = 4000;

inline void spin_once() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// All threads of the enclosing parallel region must use it; one object for all of them. libgomp's own barrier makes a system call each
// time, for threads that may sleep: it takes two microseconds, this one a third of one, and a decoder layer has ten of them.
class Team {
 public:
  // Waits until all threads are here.
  void wait() {
    const int32_t round = round_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == omp_get_num_threads()) {
      arrived_.store(0, std::memory_order_relaxed);
      round_.store(round + 1);  // in one order with `sleepers_`: either it is seen below, or the sleeper sees the new round
      if (sleepers_.load()) wake();
      return;
    }
    for (int i = 0; i < kSpins; i++, spin_once()) {
      if (round_.load(std::memory_order_acquire) != round) return;
    }
    sleepers_.fetch_add(1);
    while (round_.load() == round) sleep(round);
    sleepers_.fetch_sub(1);
  }

  // The rows of this thread, [begin, end). They are always the same.
  struct Rows {
    int64_t begin, end;
  };
  static Rows own_rows(int64_t rows) {
    const int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
    return {rows * thread / threads, rows * (thread + 1) / threads};
  }

  // Calls compute(row) for each row of this thread.
  template <class Compute>
  static void for_rows(int64_t rows, const Compute& compute) {
    const Rows own = own_rows(rows);
    for (int64_t r = own.begin; r < own.end; r++) compute(r);
  }

 private:
#if defined(__linux__)
  void sleep(int32_t round) { syscall(SYS_futex, &round_, FUTEX_WAIT_PRIVATE, round, nullptr, nullptr, 0); }
  void wake() { syscall(SYS_futex, &round_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0); }
#else
  void sleep(int32_t) { std::this_thread::yield(); }
  void wake() {}
#endif

  alignas(64) std::atomic<int32_t> arrived_{0};
  alignas(64) std::atomic<int32_t> round_{0};
  alignas(64) std::atomic<int32_t> sleepers_{0};
};

}  // namespace triptych

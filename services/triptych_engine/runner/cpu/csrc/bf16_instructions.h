// The instructions that multiply bfloat16, and an emulation of them in plain C++. With the emulation, code that uses them is tested
// on CPUs without them: -DTRIPTYCH_EMULATE_BF16=1 emulates AVX512_BF16, 2 also AMX, 0 means neither of them.
//
// TRIPTYCH_BF16_DOT is defined if AVX512_BF16 is available or emulated, TRIPTYCH_BF16_TILES if AMX is.
#pragma once

#include "vector.h"

#if defined(TRIPTYCH_EMULATE_BF16)
#if TRIPTYCH_EMULATE_BF16 > 0
#define TRIPTYCH_BF16_DOT
#endif
#if TRIPTYCH_EMULATE_BF16 > 1
#define TRIPTYCH_BF16_TILES
#endif
#elif defined(__AVX512BF16__)
#include <immintrin.h>
#define TRIPTYCH_BF16_DOT
#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#define TRIPTYCH_BF16_TILES
#endif
#endif

namespace triptych {

// A tile is 16 rows of 64 bytes: sums are [16 rows, 16 outputs] fp32; inputs [16 rows, 16 pairs], weights [16 pairs, 16 outputs].
constexpr int64_t kTile = 16;

#if defined(TRIPTYCH_BF16_DOT)

// sum + the product of two pairs, lane by lane. Subnormal numbers count as zero.
inline vf dot_pairs(vf sum, vu a, vu b) {
#if defined(TRIPTYCH_EMULATE_BF16)
  sum += (vf)(a & 0xffff0000u) * (vf)(b & 0xffff0000u);
  return sum + (vf)(a << 16) * (vf)(b << 16);
#else
  return (vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
#endif
}

#endif

#if defined(TRIPTYCH_BF16_TILES)

#if defined(TRIPTYCH_EMULATE_BF16)

inline uint32_t (&emulated_tile(int t))[kTile][kTile] {
  static thread_local uint32_t tiles[8][kTile][kTile];
  return tiles[t];
}
inline void emulated_load(int t, const void* from, int64_t stride) {
  for (int64_t i = 0; i < kTile; i++) std::memcpy(emulated_tile(t)[i], (const char*)from + i * stride, 4 * kTile);
}
inline void emulated_store(int t, void* to, int64_t stride) {
  for (int64_t i = 0; i < kTile; i++) std::memcpy((char*)to + i * stride, emulated_tile(t)[i], 4 * kTile);
}
inline void emulated_dot(int sum, int a, int b) {  // as in Intel's manual: even and odd inputs are summed separately
  for (int64_t m = 0; m < kTile; m++) {
    vf even = vf{}, odd = vf{}, total;
    for (int64_t k = 0; k < kTile; k++) {
      const uint32_t pair = emulated_tile(a)[m][k];
      const vu first = vu{} + (pair << 16), second = vu{} + (pair & 0xffff0000u), weight = load(emulated_tile(b)[k]);
      even += (vf)first * (vf)(weight << 16);
      odd += (vf)second * (vf)(weight & 0xffff0000u);
    }
    std::memcpy(&total, emulated_tile(sum)[m], sizeof total);
    total += even + odd;
    std::memcpy(emulated_tile(sum)[m], &total, sizeof total);
  }
}
inline void emulated_zero(int t) { std::memset(emulated_tile(t), 0, sizeof emulated_tile(t)); }

// Macros, because the intrinsics need the tile's number as a literal.
#define TRIPTYCH_TILE_LOAD(t, from, stride) emulated_load(t, from, stride)
#define TRIPTYCH_TILE_STORE(t, to, stride) emulated_store(t, to, stride)
#define TRIPTYCH_TILE_DOT(sum, inputs, weights) emulated_dot(sum, inputs, weights)
#define TRIPTYCH_TILE_ZERO(t) emulated_zero(t)

inline bool tiles_permitted() { return true; }
inline void begin_tiles() {}
inline void end_tiles() {}

#else

#define TRIPTYCH_TILE_LOAD(t, from, stride) _tile_loadd(t, from, stride)
#define TRIPTYCH_TILE_STORE(t, to, stride) _tile_stored(t, to, stride)
#define TRIPTYCH_TILE_DOT(sum, inputs, weights) _tile_dpbf16ps(sum, inputs, weights)
#define TRIPTYCH_TILE_ZERO(t) _tile_zero(t)

// Whether the Linux kernel permits this process to use tiles; requested once.
inline bool tiles_permitted() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  static const bool permitted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return permitted;
}

struct TileConfig {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};
// A constant in memory: the intrinsic tells the compiler only about its first bytes.
alignas(64) inline const TileConfig kTileConfig = {1,
                                                   0,
                                                   {},
                                                   {64, 64, 64, 64, 64, 64, 64, 64},
                                                   {16, 16, 16, 16, 16, 16, 16, 16}};

// Called before and after a thread uses tiles: other code configures them differently, and tiles in use slow down thread switches.
inline void begin_tiles() {
  __asm__ volatile("" ::: "memory");  // earlier writes must be done: the intrinsics do not declare that they read memory
  _tile_loadconfig(&kTileConfig);
}
inline void end_tiles() { _tile_release(); }

#endif
#endif

}  // namespace triptych

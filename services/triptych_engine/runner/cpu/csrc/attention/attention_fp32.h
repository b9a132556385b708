// The two products of attention in float32, with a KV cache of any type, see paged_attention.h. With a cache in int8, scores are
// products of bytes where the CPU has an instruction for these: queries are rounded to 8 bits, too.
#pragma once

#include "attention/cache_prefetch.h"
#include "attention/key_values.h"
#include "linear/quant_instructions.h"
#include "sums.h"

namespace triptych {

// Numbers of rows, of groups of keys, and of columns of values whose sums fit in registers. More rows read the same keys and values
// again, so these are widened once before.
#if defined(__AVX512F__)
constexpr int kScoreRows = 6, kScoreGroups = 2, kScoreRowsOfOne = 8, kValueRows = 6, kValueColumns = 4;
#else  // a group or a column takes several registers
constexpr int kScoreRows = 6, kScoreGroups = 1, kScoreRowsOfOne = 6, kValueRows = 6, kValueColumns = 1;
#endif

// Register i of 16 words. In bfloat16 and int8 a word has several numbers, and these are those at place p.
inline rf load_part(const float* from, int i, int) {
  rf part;
  std::memcpy(&part, from + i * kRegisterLanes, sizeof part);
  return part;
}
inline rf load_part(const bf16* from, int i, int p) {
  ru pairs;
  std::memcpy(&pairs, (const uint32_t*)from + i * kRegisterLanes, sizeof pairs);
  return p ? (rf)(pairs & 0xffff0000u) : (rf)(pairs << 16);
}

inline rf load_part(const q8* from, int i, int p) {
  ru words;
  std::memcpy(&words, (const uint32_t*)from + i * kRegisterLanes, sizeof words);
  return __builtin_convertvector((rs)(words << (24 - 8 * p)) >> 24, rf);
}

// scores[r][0..16*NB) = q[r] . K for R rows and NB groups of 16 keys. q: [R, D], D a multiple of kPerWord<T>.
template <class T, int R, int NB, class Prefetch>
[[gnu::noinline]] void scores_kernel(const float* q, int64_t D, const T* const* keys, int key_stride, float* scores, Prefetch& next) {
  constexpr int P = kPerWord<T>, N = NB * kRegisters;
  Sums<R, N> sums;
  sums.begin(nullptr, 0);
  for (int64_t d = 0; d < D; d += P) {
    next.step();
#pragma GCC unroll 16
    for (int p = 0; p < P; p++) {
      rf k[N];
#pragma GCC unroll 16
      for (int n = 0; n < N; n++) k[n] = load_part(keys[n / kRegisters] + d * key_stride, n % kRegisters, p);
      sums.add_input(q + d + p, D, k);
    }
  }
  sums.end(scores, kKeyTile);
}

template <class T, int NB, class Prefetch>
inline void scores_rows(const float* q, int rows, int64_t D, const T* const* keys, int key_stride, float* scores, Prefetch& next) {
  share_rows<NB >= 2 ? kScoreRows : kScoreRowsOfOne>(rows, [&](auto R, int64_t r) {
    scores_kernel<T, R, NB>(q + r * D, D, keys, key_stride, scores + r * kKeyTile, next);
  });
}

// The same of bytes. q: [R, words + 2], words of four numbers, their scale, and 128 times their sum, see prepare_query.
#if defined(TRIPTYCH_DOT_BYTES)
template <int R, int NB, class Prefetch>
inline void byte_scores(const uint32_t* q, int64_t words, const q8* const* keys, int block_size, float* scores, Prefetch& next) {
  constexpr int N = NB * kRegisters;
  const ri bias = splat_word(0x80808080u);  // the instruction takes unsigned numbers on one side
  ri acc[R][N];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 16
    for (int n = 0; n < N; n++) acc[r][n] = ri{};
  for (int64_t w = 0; w < words; w++) {
    next.step();
    ri k[N];
#pragma GCC unroll 16
    for (int n = 0; n < N; n++) {
      const uint32_t* from = (const uint32_t*)keys[n / kRegisters] + w * block_size + n % kRegisters * kRegisterLanes;
      k[n] = (ri)((ru)load_words(from) ^ (ru)bias);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      const ri x = splat_word(q[r * (words + 2) + w]);
#pragma GCC unroll 16
      for (int n = 0; n < N; n++) acc[r][n] = TRIPTYCH_DOT_BYTES(acc[r][n], k[n], x);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) {
    float scale, added;
    std::memcpy(&scale, q + r * (words + 2) + words, sizeof scale);
    std::memcpy(&added, q + r * (words + 2) + words + 1, sizeof added);
#pragma GCC unroll 16
    for (int n = 0; n < N; n++) {
      const rf score = (__builtin_convertvector((rs)acc[r][n], rf) - added) * scale;
      std::memcpy(scores + r * kKeyTile + n * kRegisterLanes, &score, sizeof score);
    }
  }
}

template <int NB, class Prefetch>
inline void byte_scores_rows(const uint32_t* q, int rows, int64_t words, const q8* const* keys, int block_size, float* scores,
                             Prefetch& next) {
  share_rows<kScoreRows>(rows, [&](auto R, int64_t r) {
    byte_scores<R, NB>(q + r * (words + 2), words, keys, block_size, scores + r * kKeyTile, next);
  });
}
#endif

// sums[r] += weights[r] * a value. values: its word, at place p of which it is.
template <class T, int R, int N>
[[gnu::always_inline]] inline void add_value(const float* weights, const T* values, int p, Sums<R, N>& sums) {
  rf v[N];
#pragma GCC unroll 16
  for (int c = 0; c < N; c++) v[c] = load_part(values, c, p);
  sums.add_input(weights + p, kKeyTile, v);
}

// out[r][0..16*C) += weights[r] . V for R rows and n keys of one block, components c and on.
template <class T, int R, int C, class Prefetch>
[[gnu::noinline]] void values_kernel(const float* weights, const T* values, int n, int c, int Dv, float* out, int out_stride,
                                     Prefetch& next) {
  constexpr int P = kPerWord<T>;
  Sums<R, C * kRegisters> sums;
  sums.begin(out, out_stride);
  values += c * P;
  int j = 0;
  for (; j + P <= n; j += P, weights += P, values += P * (int64_t)Dv) {
    next.step();
#pragma GCC unroll 4
    for (int p = 0; p < P; p++) add_value(weights, values, p, sums);
  }
  for (int p = 0; p < n - j; p++) add_value(weights, values, p, sums);  // the other numbers of the last word are undefined
  sums.end(out, out_stride);
}

template <class T, int C, class Prefetch>
inline void values_rows(const float* weights, int rows, const T* values, int n, int c, int Dv, float* out, int out_stride,
                        Prefetch& next) {
  share_rows<kValueRows>(rows, [&](auto R, int64_t r) {
    values_kernel<T, R, C>(weights + r * kKeyTile, values, n, c, Dv, out + r * out_stride + c, out_stride, next);
  });
}

// Products for paged_attention.h, which describes the functions. T: type of the cache.
template <class T>
struct Fp32Products {
  using Prefetch = CachePrefetch<T>;
  static Prefetch prefetch(const Args& a, const HeadsTile& own, const HeadsTile& next, int group, int groups) {
    // The rows of a prompt take so long to compute that its keys come in time.
    if (own.tile.rows > kScoreRows) return Prefetch(a, own, next, group, 0, 1);  // nothing
    const int64_t score_steps = (groups + kScoreGroups - 1) / kScoreGroups * (key_dim<T>(a) / kPerWord<T>);
    const int64_t columns = a.v_head_dim / (kValueColumns * kLanes) + a.v_head_dim / kLanes % kValueColumns;
    return Prefetch(a, own, next, group, groups, own.heads * (score_steps + columns * groups * kLanes / kPerWord<T>));
  }

  static constexpr bool kOfBytes = std::is_same_v<T, q8> && kDotsBytes;

  static int64_t query_words(const Args& a) { return kOfBytes ? key_dim<T>(a) / 4 + 2 : key_dim<T>(a); }
  static void prepare_query(const float* query, int D, uint32_t* q) {
    if constexpr (kOfBytes) {
      const int words = (D + 3) / 4;
      int8_t numbers[kMostDims];
      const float scale = quantize(query, D, numbers);
      const float added = 128.0f * float(std::accumulate(numbers, numbers + D, 0));
      std::memcpy(q, numbers, 4 * words);
      std::memcpy(q + words, &scale, sizeof scale);
      std::memcpy(q + words + 1, &added, sizeof added);
      return;
    }
    std::memcpy(q, query, sizeof(float) * D);
    for (int d = D; d % kPerWord<T>; d++) q[d] = 0;
  }
  static int padded_groups(int groups) { return groups; }
  static void store_weights(float* row, int key, rf weights) { std::memcpy(row + key, &weights, sizeof weights); }

  static void score(const Args& a, const Tile& tile, const Scratch& s, int first, int groups, Prefetch& next) {
    const int64_t D = s.query_words;
    const float* q = (const float*)s.q;
    for (int n = 0; n < groups; n += kScoreGroups) {
      constexpr int NB = kScoreGroups;
      const int key = first + n * kLanes;
      float* scores = s.scores + n * kLanes;
      const T* keys[NB];
      for (int i = 0; i < NB && n + i < groups; i++) keys[i] = tile.keys<T>(a, key + i * kLanes);
#if defined(TRIPTYCH_DOT_BYTES)
      if constexpr (kOfBytes) {
        const int64_t words = D - 2;
        if (n + NB > groups) byte_scores_rows<1>(s.q, tile.rows, words, keys, a.block_size, scores, next);
        else byte_scores_rows<NB>(s.q, tile.rows, words, keys, a.block_size, scores, next);
      } else
#endif
      if (n + NB > groups) {
        scores_rows<T, 1>(q, tile.rows, D, keys, a.block_size, scores, next);
      } else if (kPerWord<T> > 1 && tile.rows > kScoreRows) {
        static_assert(NB * kLanes <= kPanel);
        float* wide = (float*)s.panel;
        const float* widened[NB];
        for (int i = 0; i < NB; i++) {
          widened[i] = wide + i * kLanes;
          for (int64_t d = 0; d < D; d += kPerWord<T>) {
            vf parts[kPerWord<T>];
            load_keys(keys[i], d, a.block_size, parts);
            for (int p = 0; p < kPerWord<T>; p++) store(wide + (d + p) * kPanel + i * kLanes, parts[p]);
          }
        }
        scores_rows<float, NB>(q, tile.rows, D, widened, kPanel, scores, next);
      } else {
        scores_rows<T, NB>(q, tile.rows, D, keys, a.block_size, scores, next);
      }
      if constexpr (std::is_same_v<T, q8>) {
        for (int i = 0; i < NB && n + i < groups; i++) scale_columns(s, tile.rows, n + i, tile.key_scales(a, key + i * kLanes));
      }
    }
  }

  static void add_values(const Args& a, const Tile& tile, const Scratch& s, int first, int groups, Prefetch& next) {
    const int last = std::min(first + groups * kLanes, tile.end), Dv = a.v_head_dim;
    if constexpr (std::is_same_v<T, q8>) {
      for (int n = 0; n < groups; n++) scale_columns(s, tile.rows, n, tile.value_scales(a, first + n * kLanes));
    }
    if (values_in_keys(a)) return add_keys(a, tile, s, first, last, next);
    for (int key = first, n; key < last; key += n) {
      n = std::min(a.block_size - key % a.block_size, last - key);
      const T* values = tile.values<T>(a, key);
      const float* weights = s.scores + (key - first);
      if (kPerWord<T> > 1 && tile.rows > kValueRows) {
        float* wide = (float*)s.panel;
        for (int j = 0; j < n; j += kPerWord<T>)
          for (int c = 0; c < Dv; c += kLanes) {
            vf parts[kPerWord<T>];
            load_values(values, j, c, Dv, parts);
            for (int p = 0; p < kPerWord<T>; p++) store(wide + (j + p) * Dv + c, parts[p]);
          }
        add_block(s, tile.rows, weights, (const float*)wide, n, Dv, next);
      } else {
        add_block(s, tile.rows, weights, values, n, Dv, next);
      }
    }
  }

 private:
  // Multiplies the scores or weights of a group of 16 keys.
  static void scale_columns(const Scratch& s, int rows, int group, const float* scales) {
    const vf by = load(scales);
    for (int r = 0; r < rows; r++) {
      float* row = s.scores + r * kKeyTile + group * kLanes;
      store(row, load(row) * by);
    }
  }

  // The same with values that are in the keys.
  static void add_keys(const Args& a, const Tile& tile, const Scratch& s, int first, int last, Prefetch& next) {
    constexpr int kMost = kValueColumns * kLanes;
    float* wide = (float*)s.panel;  // [keys, components]
    for (int c = 0, some; c < a.v_head_dim; c += some) {
      some = std::min(kMost, a.v_head_dim - c);
      for (int key = first; key < last; key += kLanes) {
        const T* keys = tile.keys<T>(a, key);
        for (int d = 0; d < some; d += kLanes) values_of_keys(keys, c + d, a.block_size, wide + (key - first) * some + d, some);
      }
      Scratch part = s;
      part.out += c;
      add_block(part, tile.rows, s.scores, wide, last - first, some, next);
    }
  }

  template <class Values>
  static void add_block(const Scratch& s, int rows, const float* weights, const Values* values, int n, int Dv, Prefetch& next) {
    int c = 0;
    constexpr int C = kValueColumns;
    for (; c + C * kLanes <= Dv; c += C * kLanes) values_rows<Values, C>(weights, rows, values, n, c, Dv, s.out, s.out_stride, next);
    for (; c < Dv; c += kLanes) values_rows<Values, 1>(weights, rows, values, n, c, Dv, s.out, s.out_stride, next);
  }
};

}  // namespace triptych

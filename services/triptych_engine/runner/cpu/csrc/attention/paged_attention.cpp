// Attention over a paged KV cache for CPUs, see paged_attention.h.

#include <vector>

#include "attention/attention_parts.h"

using namespace triptych;

#if defined(TRIPTYCH_BF16_DOT)
template void triptych::attend_shared<Bf16AttentionProducts>(const Args&, const RowFunctions&);
#endif
template void triptych::attend_shared<Fp32Products<float>>(const Args&, const RowFunctions&);
template void triptych::attend_shared<Fp32Products<bf16>>(const Args&, const RowFunctions&);
template void triptych::attend_shared<Fp32Products<q8>>(const Args&, const RowFunctions&);

namespace {

template <class A, class V, class T>
void run(const Args& a) {
  using Products = FastestProducts<T, std::is_same_v<V, bf16>>;
  const RowFunctions& functions = kRowFunctions<Products, A, V>;
  if (values_in_keys(a)) {
    static thread_local std::vector<float> parts;  // several teams of threads may compute at the same time
    parts.resize(std::max(parts.size(), size_t(part_floats(a, omp_get_max_threads()))));
    float* memory = parts.data();
#pragma omp parallel
    {
      write_shared<A, V, T>(a);
      attend_parts<Products>(a, functions, memory);
    }
    return;
  }
#pragma omp parallel
  {
    write_shared<A, V, T>(a);
    attend_shared<Products>(a, functions);
  }
}

}  // namespace

extern "C" {

// Writes the tokens' keys and values into the cache, then attends. Block size and v_head_dim must be multiples of 16. The types in
// a name are those of queries and keys, of values and results, and of the cache.
void triptych_paged_attention_fp32_fp32_fp32(const PagedAttentionArgs* args) { run<float, float, float>(*args); }
void triptych_paged_attention_fp32_fp32_bf16(const PagedAttentionArgs* args) { run<float, float, bf16>(*args); }
void triptych_paged_attention_fp32_bf16_bf16(const PagedAttentionArgs* args) { run<float, bf16, bf16>(*args); }
void triptych_paged_attention_bf16_bf16_bf16(const PagedAttentionArgs* args) { run<bf16, bf16, bf16>(*args); }
void triptych_paged_attention_fp32_fp32_int8(const PagedAttentionArgs* args) { run<float, float, q8>(*args); }
void triptych_paged_attention_fp32_bf16_int8(const PagedAttentionArgs* args) { run<float, bf16, q8>(*args); }
void triptych_paged_attention_bf16_bf16_int8(const PagedAttentionArgs* args) { run<bf16, bf16, q8>(*args); }
int32_t triptych_row_tile() { return kRowTile; }
// Whether queries are rounded to 8 bits, if the cache is.
int32_t triptych_rounds_queries() { return Fp32Products<q8>::kOfBytes; }
int64_t triptych_args_size() { return sizeof(PagedAttentionArgs); }
}

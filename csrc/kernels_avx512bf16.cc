// The kernels of AVX-512 with AVX512_BF16: AVX-512's, but for those that compute in bf16, which CMakeLists.txt compiles once more for it.
#include "kernels.h"

namespace taut::avx512bf16 {

void linear_bf16(const LinearF32& a, int64_t row_begin, int64_t row_end, int64_t panel_begin, int64_t panel_end);
void attention(const Attention& a, const AttentionWork& w, float* scratch);
void attention_chunk(const Attention& a, const AttentionWork& w, int64_t chunk, float* partial, float* scratch);
void attention_join(const Attention& a, const AttentionWork& w, float* partials);
void attention_full(const AttentionFull& a, int64_t seq_begin, int64_t seq_end, int64_t kv_head, int64_t token_begin,
                    int64_t token_end, float* scratch);
int64_t attention_scratch(int64_t head_dim, int64_t rows, int64_t tiles);
int64_t attention_partial(int64_t head_dim, int64_t rows);

#if defined(TAUT_EMULATE_BF16)  // on a machine that may lack AVX-512
namespace base = avx2;
#else
namespace base = avx512;
#endif

const KernelTable& table() {
  static const KernelTable kTable = [] {
    KernelTable t = base::kTable;
    t.isa = "avx512bf16";
    t.linear_bf16 = linear_bf16;
    t.attention = attention;
    t.attention_chunk = attention_chunk;
    t.attention_join = attention_join;
    t.attention_full = attention_full;
    t.attention_scratch = attention_scratch;
    t.attention_partial = attention_partial;
    return t;
  }();
  return kTable;
}

}  // namespace taut::avx512bf16

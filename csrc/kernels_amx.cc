// The kernels of AMX: AVX-512's, but for the integer products of many rows, their peak and encoders' attention, which CMakeLists.txt compiles once more for it.
#include "kernels.h"

namespace taut::amx {

void linear_q8(const LinearQ8& a, int64_t row_begin, int64_t row_end, int64_t panel_begin, int64_t panel_end, void* scratch);
void linear_q4(const LinearQ8& a, int64_t row_begin, int64_t row_end, int64_t panel_begin, int64_t panel_end, void* scratch);
int64_t linear_q8_scratch(int64_t k, int64_t pieces);
int64_t linear_q4_scratch(int64_t k, int64_t pieces);
int64_t peak_int8(int64_t rounds);
void attention_full(const AttentionFull& a, int64_t seq_begin, int64_t seq_end, int64_t kv_head, int64_t token_begin,
                    int64_t token_end, float* scratch);

const KernelTable& table() {
  static const KernelTable kTable = [] {
    KernelTable t = avx512::kTable;
    t.isa = "amx";
    t.block_rows = 512;
    t.linear_q8 = linear_q8;
    t.linear_q4 = linear_q4;
    t.linear_q8_scratch = linear_q8_scratch;
    t.linear_q4_scratch = linear_q4_scratch;
    t.peak_int8 = peak_int8;
    t.attention_full = attention_full;
    return t;
  }();
  return kTable;
}

}  // namespace taut::amx

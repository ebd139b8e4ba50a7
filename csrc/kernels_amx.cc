// The kernels of AMX: AVX-512's, but for the integer products of many rows and their peak, which CMakeLists.txt compiles once more for it.
#include "kernels.h"

namespace taut::amx {

void linear_q8(const LinearQ8& a, int64_t row_begin, int64_t row_end, int64_t panel_begin, int64_t panel_end, void* scratch);
void linear_q4(const LinearQ8& a, int64_t row_begin, int64_t row_end, int64_t panel_begin, int64_t panel_end, void* scratch);
int64_t linear_q8_scratch(int64_t k, int64_t pieces);
int64_t linear_q4_scratch(int64_t k, int64_t pieces);
int64_t peak_int8(int64_t rounds);

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
    return t;
  }();
  return kTable;
}

}  // namespace taut::amx

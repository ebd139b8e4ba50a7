// The int4 linear for the ISA this file is compiled for. See linear_q4.h for the arithmetic.
#include "linear_q4.h"

#if defined(TAUT_ISA_avx512)
#include "kernels/linear_q4_avx512.h"
#elif defined(TAUT_AVX_VNNI)
#include "kernels/linear_q4_avxvnni.h"
#elif defined(TAUT_ISA_avx2)
#include "kernels/linear_q4_avx2_many.h"
#else
#include "kernels/linear_q4_scalar.h"
#endif

namespace taut::TAUT_ISA_NS {
namespace {

#if defined(TAUT_ISA_avx512)
using Isa = Avx512Q4;
#elif defined(TAUT_AVX_VNNI)
using Isa = AvxVnniQ4;
#elif defined(TAUT_ISA_avx2)
using Isa = Avx2Q4;
#else
using Isa = ScalarQ4;
#endif

}  // namespace

int64_t linear_q4_scratch([[maybe_unused]] int64_t k, [[maybe_unused]] int64_t pieces) {
#if defined(TAUT_ISA_avx2) && !defined(TAUT_AVX_VNNI)
  return ManyRowsQ4::scratch_bytes(k, pieces);
#else
  return 0;
#endif
}

void linear_q4(const LinearQ8& a, int64_t row_begin, int64_t row_end, int64_t panel_begin, int64_t panel_end,
               [[maybe_unused]] void* scratch) {
#if defined(TAUT_ISA_avx2) && !defined(TAUT_AVX_VNNI)
  for (; row_end - row_begin >= ManyRowsQ4::kLeast; row_begin += ManyRowsQ4::kRows) {
    const int64_t end = row_end - row_begin < ManyRowsQ4::kRows ? row_end : row_begin + ManyRowsQ4::kRows;
    ManyRowsQ4 group(a, row_begin, end, scratch);
    for (int64_t panel = panel_begin; panel < panel_end; ++panel) group.run_panel(panel);
  }
#endif
  run<Isa>(a, row_begin, row_end, panel_begin, panel_end);
}

}  // namespace taut::TAUT_ISA_NS

// The int8 linear for the ISA this file is compiled for. See linear_q8.h for the arithmetic.
#include "linear_q8.h"

#include <algorithm>

#if defined(TAUT_ISA_avx512)
#include "linear_q8_avx512.h"
#elif defined(TAUT_AVX_VNNI)
#include "kernels/linear_q8_avxvnni.h"
#elif defined(TAUT_ISA_avx2)
#include "linear_q8_avx2_many.h"
#else
#include "linear_q8_scalar.h"
#endif

namespace taut::TAUT_ISA_NS {
namespace {

#if defined(TAUT_ISA_avx512)
using Isa = Avx512;
#elif defined(TAUT_AVX_VNNI)
using Isa = AvxVnni;
#elif defined(TAUT_ISA_avx2)
using Isa = Avx2;
#else
using Isa = Scalar;
#endif

}  // namespace

// Bytes of scratch that a call over K inputs in so many pieces needs.
int64_t linear_q8_scratch([[maybe_unused]] int64_t k, [[maybe_unused]] int64_t pieces) {
#if defined(TAUT_ISA_avx2) && !defined(TAUT_AVX_VNNI)
  return ManyRows::scratch_bytes(k, pieces);
#else
  return 0;
#endif
}

void linear_q8(const LinearQ8& a, int64_t row_begin, int64_t row_end, int64_t panel_begin, int64_t panel_end,
               [[maybe_unused]] void* scratch) {
#if defined(TAUT_ISA_avx2) && !defined(TAUT_AVX_VNNI)
  constexpr int64_t kMany = 5 * kTileRows;  // fewer do not pay for the sorting
  for (; row_end - row_begin >= kMany; row_begin += ManyRows::kRows) {
    ManyRows group(a, row_begin, std::min(row_begin + ManyRows::kRows, row_end), scratch);
    for (int64_t panel = panel_begin; panel < panel_end; ++panel) group.run_panel(panel);
  }
#endif
  run<Isa>(a, row_begin, row_end, panel_begin, panel_end);
}

}  // namespace taut::TAUT_ISA_NS

// The int4 linear for the ISA this file is compiled for. See linear_q4.h for the arithmetic.
#include "linear_q4.h"

#if defined(TAUT_ISA_avx512)
#include "kernels/linear_q4_avx512.h"
#if defined(TAUT_AMX)
#include "kernels/linear_amx.h"
#endif
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
#if defined(TAUT_AMX)
using Many = AmxRows<AmxQ4>;
#else
using Many = NoManyRows;
#endif
#elif defined(TAUT_AVX_VNNI)
using Isa = AvxVnniQ4;
using Many = NoManyRows;
#elif defined(TAUT_ISA_avx2)
using Isa = Avx2Q4;
using Many = ManyRowsQ4;
#else
using Isa = ScalarQ4;
using Many = NoManyRows;
#endif

}  // namespace

// Bytes of scratch that a call over K inputs in so many pieces needs.
int64_t linear_q4_scratch(int64_t k, int64_t pieces) { return scratch_bytes<Many>(k, pieces); }

void linear_q4(const LinearQ8& a, int64_t row_begin, int64_t row_end, int64_t panel_begin, int64_t panel_end, void* scratch) {
  run_blocks<Isa, Many>(a, row_begin, row_end, panel_begin, panel_end, scratch);
}

}  // namespace taut::TAUT_ISA_NS

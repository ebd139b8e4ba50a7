// The int8 linear for the ISA this file is compiled for. See linear_q8.h for the arithmetic.
#include "linear_q8.h"

#if defined(TAUT_ISA_avx512)
#include "linear_q8_avx512.h"
#if defined(TAUT_AMX)
#include "kernels/linear_amx.h"
#endif
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
#if defined(TAUT_AMX)
using Many = AmxRows<AmxQ8>;
#else
using Many = NoManyRows;
#endif
#elif defined(TAUT_AVX_VNNI)
using Isa = AvxVnni;
using Many = NoManyRows;
#elif defined(TAUT_ISA_avx2)
using Isa = Avx2;
using Many = ManyRows;
#else
using Isa = Scalar;
using Many = NoManyRows;
#endif

}  // namespace

// Bytes of scratch that a call over K inputs in so many pieces needs.
int64_t linear_q8_scratch(int64_t k, int64_t pieces) { return scratch_bytes<Many>(k, pieces); }

void linear_q8(const LinearQ8& a, int64_t row_begin, int64_t row_end, int64_t panel_begin, int64_t panel_end, void* scratch) {
  run_blocks<Isa, Many>(a, row_begin, row_end, panel_begin, panel_end, scratch);
}

}  // namespace taut::TAUT_ISA_NS

// The int8 linear for the ISA this file is compiled for. See linear_q8.h for the arithmetic.
#include "linear_q8.h"

#if defined(TAUT_ISA_avx512)
#include "linear_q8_avx512.h"
#elif defined(TAUT_ISA_avx2)
#include "linear_q8_avx2.h"
#else
#include "linear_q8_scalar.h"
#endif

namespace taut::TAUT_ISA_NS {
namespace {

#if defined(TAUT_ISA_avx512)
using Isa = Avx512;
#elif defined(TAUT_ISA_avx2)
using Isa = Avx2;
#else
using Isa = Scalar;
#endif

}  // namespace

void linear_q8(const LinearQ8& a, int64_t row_begin, int64_t row_end, int64_t panel_begin, int64_t panel_end) {
  run<Isa>(a, row_begin, row_end, panel_begin, panel_end);
}

}  // namespace taut::TAUT_ISA_NS

// The kernels of this ISA.
#include "kernels.h"
#include "kernels/tile.h"

namespace taut::TAUT_ISA_NS {

// Declared by type: a function type from its pointer type.
template <typename T>
struct Pointee;
template <typename T>
struct Pointee<T*> {
  using Type = T;
};
#define TAUT_KERNEL(type, name) Pointee<type>::Type name;
#include "kernels.def"
#undef TAUT_KERNEL
int64_t attention_scratch(int64_t head_dim, int64_t rows, int64_t tiles);
int64_t attention_partial(int64_t head_dim, int64_t rows);
int64_t linear_q8_scratch(int64_t k, int64_t pieces);
int64_t linear_q4_scratch(int64_t k, int64_t pieces);

#define TAUT_STRING_(x) #x
#define TAUT_STRING(x) TAUT_STRING_(x)

extern const KernelTable kTable;
const KernelTable kTable = {
    TAUT_STRING(TAUT_ISA_NS), kTileRows,         kBlockRows,
#define TAUT_KERNEL(type, name) name,
#include "kernels.def"
#undef TAUT_KERNEL
    attention_scratch,        attention_partial, linear_q8_scratch, linear_q4_scratch,
};

}  // namespace taut::TAUT_ISA_NS

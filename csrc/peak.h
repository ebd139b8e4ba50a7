// Loops that run at this ISA's ceilings, for measuring them (limit_probe.h).
#pragma once
#include <cstdint>

namespace taut {

// Runs `rounds` rounds of independent multiply-adds in registers; returns how many multiply-adds that were, 0 where the ISA lacks them.
using PeakFn = int64_t (*)(int64_t rounds);
// Reads [p, p + bytes), bytes a multiple of 256; prefetching `ahead` bytes when it is not 0. Returns a digest so that nothing is elided.
using ReadFn = int32_t (*)(const uint8_t* p, int64_t bytes, int64_t ahead);

}  // namespace taut

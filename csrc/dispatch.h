// Which ISA's kernels run.
#pragma once
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels.h"

namespace taut {

// The forced ISA cannot run here, or has no such name.
class IsaError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// ISAs that this processor and operating system can run, plainest first.
std::vector<std::string> runnable_isas();

// The kernels of `isa`; "" means the one that TAUT_ISA forces, else the widest that can run. Throws IsaError.
const KernelTable& kernels(const std::string& isa);

}  // namespace taut

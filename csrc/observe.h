// The step that takes statistics of a float value: the specification is src/taut/quant/statistics.py, whose arrays it fills.
#pragma once
#include <memory>

#include "program.h"

namespace taut {

std::unique_ptr<Op> make_observe(const StepSpec& step);

}  // namespace taut

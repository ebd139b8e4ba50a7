// How the steps of a Program read their arguments.
#pragma once
#include <stdexcept>

#include "program.h"

namespace taut {

template <typename T>
const T* weight(const StepSpec& step, size_t index) {
  return index < step.weights.size() ? reinterpret_cast<const T*>(step.weights[index]) : nullptr;
}

inline const Operand& input(const StepSpec& step, size_t index) {
  if (index >= step.inputs.size()) {
    throw std::invalid_argument("step " + step.op + " lacks input " + std::to_string(index));
  }
  return step.inputs[index];
}

inline const Operand& output(const StepSpec& step, size_t index) {
  if (index >= step.outputs.size()) {
    throw std::invalid_argument("step " + step.op + " lacks output " + std::to_string(index));
  }
  return step.outputs[index];
}

// How a quantized value is laid out; owns the lists that the kernels point into.
struct QuantizedLayout {
  std::vector<int32_t> begin, group;
  QuantizedRows rows;

  QuantizedLayout() = default;
  QuantizedLayout(const StepSpec& step, int64_t features) : begin(step.list("piece_begin")), group(step.list("piece_group")) {
    const auto& segment = step.list("piece_segment");
    if (begin.size() < 2 || segment.size() != 5 || segment[4] != static_cast<int32_t>(begin.size()) - 1) {
      throw std::invalid_argument("step " + step.op + " has malformed pieces");
    }
    rows.scales_offset = static_cast<int32_t>(step.i("scales_offset"));
    rows.features = static_cast<int32_t>(features);
    rows.pieces.k = begin.back();
    rows.pieces.count = static_cast<int32_t>(begin.size()) - 1;
    std::copy(segment.begin(), segment.end(), rows.pieces.segment);
  }

  QuantizedRows at(uint8_t* data, int64_t row_bytes) const {
    QuantizedRows r = rows;
    r.data = data;
    r.row_bytes = row_bytes;
    r.pieces.begin = begin.data();
    r.piece_group = group.data();
    return r;
  }
};

}  // namespace taut

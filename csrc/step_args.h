// How the steps of a Program read their arguments.
#pragma once
#include <algorithm>
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

// The arithmetic of bidirectional attention.
inline Products products_of(const StepSpec& step) {
  return step.i("blocks") != 0 ? Products::kBlocks : step.i("bf16") != 0 ? Products::kPairs : Products::kF32;
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

  // Of a step that writes the rows: by a calibrated scale and offset, where it has them.
  void read_static(const StepSpec& step) {
    const auto scale = step.floats.find("scale");
    if (scale == step.floats.end() || scale->second <= 0) return;
    if (std::any_of(group.begin(), group.end(), [](int32_t g) { return g != 0; })) {
      throw std::invalid_argument("step " + step.op + ": a static quantizer has one scale for the whole row, not groups");
    }
    rows.scale = static_cast<float>(scale->second), rows.offset = step.f("offset");
  }

  // `fallbacks`: where a static quantizer counts the rows that it gave their own scale; null: nobody asks.
  QuantizedRows at(uint8_t* data, int64_t row_bytes, int64_t* fallbacks = nullptr) const {
    QuantizedRows r = rows;
    r.data = data;
    r.row_bytes = row_bytes;
    r.pieces.begin = begin.data();
    r.piece_group = group.data();
    r.fallbacks = fallbacks;
    return r;
  }
};

// The scales of a quantized linear's weights: of columns, or of groups of inputs, which must be the pieces of its rows.
inline void set_scales(LinearQ8& linear, const StepSpec& step, const QuantizedLayout& layout) {
  const int64_t group = step.i("weight_group");
  if (group == 0) {
    linear.w_scale = weight<float>(step, 2);
    return;
  }
  if (layout.rows.pieces.count * group != layout.rows.pieces.k) {
    throw std::invalid_argument("step " + step.op + ": the pieces of its input are not the groups of its weight");
  }
  linear.group_scale = weight<float>(step, 2);
}

}  // namespace taut

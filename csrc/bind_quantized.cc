// Bindings of the int8 weight packer, the int8 linear (for tests and benchmarks) and the limit probe.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>

#include "dispatch.h"
#include "limit_probe.h"
#include "pack_q4.h"
#include "run_linear.h"
#include "threads.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace taut {
namespace {

using Matrix = nb::ndarray<nb::ro, nb::ndim<2>, nb::device::cpu>;
using Bytes = nb::ndarray<uint8_t, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Output = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void require(bool holds, const std::string& message) {
  if (!holds) {
    throw std::invalid_argument(message);
  }
}

int64_t panels_of(int64_t n) { return (n + kPanelColumns - 1) / kPanelColumns; }

// Items [0, count) on the pool's threads, or here.
template <typename Body>
void for_each(ThreadPool* pool, int64_t count, const Body& body) {
  if (pool == nullptr) {
    for (int64_t i = 0; i < count; ++i) {
      body(i, 0);
    }
    return;
  }
  const std::lock_guard lock(pool->running);
  pool->run(count, nullptr, body);
}

Source source_of(const Matrix& w, const std::string& type) {
  const bool wide = type == "f32";
  require(wide || type == "f16" || type == "bf16", "pack: type is '" + type + "'; accepted: f32, f16, bf16");
  require(w.itemsize() == (wide ? 4u : 2u), "pack: a weight of type " + type + " has " + (wide ? "4" : "2") +
                                                "-byte elements, not " + std::to_string(w.itemsize()) +
                                                " (view bf16 and f16 as uint16)");
  return wide ? Source::kF32 : type == "f16" ? Source::kF16 : Source::kBf16;
}

int64_t packed_size(int64_t n, int64_t k, int64_t group) {
  return panels_of(n) * (group == 0 ? kPanelColumns * ((k + 3) / 4 * 4) : k / group * q4_group_bytes(group));
}

bool is_group(int64_t group, int64_t k) { return (group == 32 || group == 64 || group == 128) && k % group == 0; }

void pack(const Matrix& w, const std::string& type, Bytes packed, Floats scale, int64_t group, int64_t weight_group,
          bool by_input, int64_t panel_begin, std::optional<int64_t> panel_end, std::shared_ptr<ThreadPool> pool,
          const std::string& isa) {
  PackQ4 p;
  p.source = source_of(w, type);
  p.n = static_cast<int64_t>(w.shape(0)), p.k = static_cast<int64_t>(w.shape(1)), p.group = group;
  p.weight_group = weight_group, p.by_input = by_input;
  const int64_t panels = panels_of(p.n), end = panel_end.value_or(panels);
  require(p.n > 0 && p.k > 0 && w.stride(1) == 1, "pack: the weight must have rows, columns and contiguous columns");
  require((group == 0 || is_group(group, p.k)) && (weight_group == 0 || is_group(weight_group, p.k)),
          "pack: group must be 0, or 32, 64 or 128 that divides the columns; so must weight_group");
  require((group != 0) + (weight_group != 0) + by_input <= 1,
          "pack: only one of group, weight_group and by_input can be asked for");
  const int64_t bytes = by_input ? panels * kPanelColumns * p.k : packed_size(p.n, p.k, group);
  const int64_t num_scales = panels * kPanelColumns * (weight_group == 0 ? 1 : p.k / weight_group);
  require(static_cast<int64_t>(packed.size()) == bytes && static_cast<int64_t>(scale.size()) == num_scales,
          "pack: packed or scale does not have the size of the packed weight (quant/schemes: packed_shape)");
  require(0 <= panel_begin && panel_begin <= end && end <= panels,
          "pack: panels must lie in [0, " + std::to_string(panels) + "]");
  p.w = static_cast<const uint8_t*>(w.data());
  p.row_bytes = w.stride(0) * static_cast<int64_t>(w.itemsize());
  p.packed = packed.data(), p.scale = scale.data();
  const KernelTable& table = kernels(isa);
  std::atomic<int64_t> bad{p.n};
  {
    const nb::gil_scoped_release release;
    for_each(pool.get(), end - panel_begin, [&](int64_t i, int) {
      const int64_t panel = panel_begin + i;
      const int64_t row = group == 0 ? table.pack_q8(p, panel, panel + 1) : table.pack_q4(p, panel, panel + 1);
      for (int64_t seen = bad.load(); row >= 0 && row < seen && !bad.compare_exchange_weak(seen, row);) {}
    });
  }
  require(bad.load() == p.n,
          "row " + std::to_string(bad.load()) + " holds NaN or infinite weights; only finite weights can be quantized");
}

// Rows [row_begin, row_end) x panels of y, for tests and benchmarks: the caller vouches for the layout of x.
struct Cut {
  std::vector<int32_t> begin, segment;
};

LinearQ8 linear_args(const Bytes& x, int64_t row_bytes, int32_t scales_offset, const Cut& cut, const Bytes& w,
                     const Floats& w_scale, const std::optional<Floats>& bias, const Output& y, int activation, int64_t group,
                     int64_t weight_group) {
  require(cut.segment.size() == 5 && !cut.begin.empty() && cut.segment[4] + 1 == static_cast<int32_t>(cut.begin.size()),
          "linear: begin needs one entry more than there are pieces, segment five");
  LinearQ8 a;
  a.x = x.data(), a.x_row_bytes = row_bytes, a.scales_offset = scales_offset;
  a.pieces.k = cut.begin.back(), a.pieces.count = cut.segment[4], a.pieces.begin = cut.begin.data();
  std::copy(cut.segment.begin(), cut.segment.end(), a.pieces.segment);
  a.w = w.data(), (weight_group == 0 ? a.w_scale : a.group_scale) = w_scale.data(),
  a.bias = bias.has_value() ? bias->data() : nullptr;
  a.n = static_cast<int32_t>(y.shape(1)), a.y = y.data(), a.y_row_bytes = a.n * 4;
  a.activation = static_cast<Activation>(activation);
  const int64_t padded = panels_of(a.n) * kPanelColumns;
  require(static_cast<int64_t>(x.size()) >= static_cast<int64_t>(y.shape(0)) * row_bytes &&
              static_cast<int64_t>(w.size()) == packed_size(a.n, a.pieces.k, group) &&
              static_cast<int64_t>(w_scale.size()) == padded * (weight_group == 0 ? 1 : a.pieces.count) &&
              (!bias.has_value() || static_cast<int64_t>(bias->size()) == padded),
          "linear: x, w, w_scale or bias is smaller than the shape of y needs");
  for (const int64_t own : {group, weight_group}) {
    require(own == 0 || a.pieces.count * own == a.pieces.k, "linear: the pieces must be the groups of the weight");
  }
  return a;
}

void linear(Bytes x, int64_t row_bytes, int32_t scales_offset, std::vector<int32_t> begin, std::vector<int32_t> segment,
            Bytes w, Floats w_scale, std::optional<Floats> bias, Output y, int activation, std::vector<int64_t> rows,
            int64_t group, int64_t weight_group, std::shared_ptr<ThreadPool> pool, const std::string& isa) {
  const Cut cut{std::move(begin), std::move(segment)};
  const LinearQ8 a = linear_args(x, row_bytes, scales_offset, cut, w, w_scale, bias, y, activation, group, weight_group);
  require(rows.size() >= 2 && rows.front() >= 0 && std::is_sorted(rows.begin(), rows.end()) &&
              rows.back() <= static_cast<int64_t>(y.shape(0)),
          "linear: rows must be ascending cuts inside y");
  const KernelTable& table = kernels(isa);
  const nb::gil_scoped_release release;
  std::shared_ptr<ThreadPool> threads = pool ? pool : std::make_shared<ThreadPool>(1);
  const std::lock_guard lock(threads->running);
  const LinearKind& kind = group == 0 ? kLinearQ8 : kLinearQ4;
  threads->reserve_scratch(scratch_floats(table, kind, a.pieces));
  for (size_t i = 0; i + 1 < rows.size(); ++i) {
    LinearQ8 span = a;
    span.x += rows[i] * a.x_row_bytes;
    span.y += rows[i] * (a.y_row_bytes / 4);
    run_linear(table, kind, *threads, nullptr, span, rows[i + 1] - rows[i]);
  }
}

}  // namespace

void bind_quantized(nb::module_& m) {
  m.def("pack", &pack, "w"_a, "type"_a, "packed"_a, "scale"_a, "group"_a = 0, "weight_group"_a = 0, "by_input"_a = false,
        "panel_begin"_a = 0, "panel_end"_a = nb::none(), "pool"_a = nb::none(), "isa"_a = "",
        "Quantizes `w` (N, K) of type f32, f16 or bf16 (the latter two as uint16) into `packed` and `scale` as quant/schemes "
        "does: int4 with `group` 32, 64 or 128, else int8, by output row or in groups of `weight_group`, or as fp32 linears "
        "read it (`by_input`); only panels of 64 rows in [panel_begin, panel_end). ValueError where a weight is not finite.");
  m.def("linear", &linear, "x"_a, "row_bytes"_a, "scales_offset"_a, "begin"_a, "segment"_a, "w"_a, "w_scale"_a, "bias"_a, "y"_a,
        "activation"_a = 0, "rows"_a, "group"_a = 0, "weight_group"_a = 0, "pool"_a = nb::none(), "isa"_a = "",
        "The int4 (`group` 32, 64, 128) or int8 linear kernel on laid-out rows, span by span of the row cuts `rows`; with "
        "`weight_group` w_scale is that of groups");
  nb::class_<LimitProbe>(m, "LimitProbe", "Measures the machine's ceilings; every call takes about `seconds`")
      .def(
          "__init__",
          [](LimitProbe* self, int num_threads, const std::string& isa) { new (self) LimitProbe(kernels(isa), num_threads); },
          "num_threads"_a, "isa"_a = "")
      .def(
          "int8", [](const LimitProbe& p, double seconds) { return p.operations(Rate::kInt8, seconds); }, "seconds"_a,
          nb::call_guard<nb::gil_scoped_release>(), "Operations per second, two per multiply-add")
      .def(
          "f32", [](const LimitProbe& p, double seconds) { return p.operations(Rate::kF32, seconds); }, "seconds"_a,
          nb::call_guard<nb::gil_scoped_release>())
      .def(
          "bf16", [](const LimitProbe& p, double seconds) { return p.operations(Rate::kBf16, seconds); }, "seconds"_a,
          nb::call_guard<nb::gil_scoped_release>(), "0 where there is no bf16 dot product")
      .def("read", &LimitProbe::read, "seconds"_a, nb::call_guard<nb::gil_scoped_release>(), "Bytes per second");
}

}  // namespace taut

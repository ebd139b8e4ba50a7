// The Python module taut._native: plain numbers and arrays in, numpy views out. src/taut/kernels/native.py is its typed face.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <stdexcept>
#include <tuple>

#include "dispatch.h"
#include "memory.h"
#include "program.h"
#include "sampler.h"
#include "threads.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace taut {
namespace {

using Ints = nb::ndarray<const int32_t, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Flag = nb::ndarray<int32_t, nb::c_contig, nb::device::cpu>;
using OperandTuple = std::tuple<int, int64_t, int64_t, int64_t, int64_t>;  // space, offset, row_bytes, column_bytes, features

const int32_t* vector_of(const Ints& array, int64_t size, const char* name) {
  if (array.ndim() != 1 || static_cast<int64_t>(array.shape(0)) != size) {
    throw std::invalid_argument(std::string("batch: ") + name + " must have " + std::to_string(size) + " entries");
  }
  return array.data();
}

std::vector<Operand> operands(const std::vector<OperandTuple>& tuples) {
  std::vector<Operand> result;
  for (const auto& [space, offset, row_bytes, column_bytes, features] : tuples) {
    if (space < 0 || space > 2) {
      throw std::invalid_argument("operand: space must be 0 (tokens), 1 (rows) or 2 (sequences)");
    }
    result.push_back({static_cast<Space>(space), offset, row_bytes, column_bytes, features});
  }
  return result;
}

bool run_program(Program& program, const std::vector<Ints>& arrays, Bytes arena, int64_t first, int64_t last,
                 std::optional<Flag> abort) {
  if (arrays.size() != 7 || arrays[4].ndim() != 2) {
    throw std::invalid_argument("batch: seven arrays are needed, the block tables with two axes");
  }
  Batch batch;
  batch.num_tokens = static_cast<int64_t>(arrays[0].size());
  batch.num_sequences = static_cast<int64_t>(arrays[3].size());
  batch.num_rows = static_cast<int64_t>(arrays[5].size());
  batch.table_width = static_cast<int64_t>(arrays[4].shape(1));
  batch.ids = vector_of(arrays[0], batch.num_tokens, "ids");
  batch.positions = vector_of(arrays[1], batch.num_tokens, "positions");
  batch.starts = vector_of(arrays[2], batch.num_sequences + 1, "starts");
  batch.context = vector_of(arrays[3], batch.num_sequences, "context");
  batch.rows = vector_of(arrays[5], batch.num_rows, "rows");
  batch.types = vector_of(arrays[6], batch.num_tokens, "types");
  if (static_cast<int64_t>(arrays[4].shape(0)) != batch.num_sequences) {
    throw std::invalid_argument("batch: one block table per sequence is needed");
  }
  batch.tables = arrays[4].data();
  const int32_t* flag = abort.has_value() && abort->size() > 0 ? abort->data() : nullptr;
  const nb::gil_scoped_release release;
  return program.run(batch, arena.data(), static_cast<int64_t>(arena.size()), first, last, flag);
}

std::vector<std::vector<int64_t>> counts_of(const Program& program) {
  std::vector<std::vector<int64_t>> counts;
  for (int64_t step = 0; step < program.size(); ++step) {
    auto& kinds = counts.emplace_back();
    for (int32_t kind = 0; kind < kNumCounters; ++kind) {
      kinds.push_back(program.count(step, static_cast<Counter>(kind)));
    }
  }
  return counts;
}

std::vector<int64_t> totals_of(const Program& program) {
  std::vector<int64_t> totals(kNumCounters);
  for (int64_t step = 0; step < program.size(); ++step) {
    for (int32_t kind = 0; kind < kNumCounters; ++kind) {
      totals[static_cast<size_t>(kind)] += program.count(step, static_cast<Counter>(kind));
    }
  }
  return totals;
}

StepSpec step_of(std::string op, const std::vector<OperandTuple>& inputs, const std::vector<OperandTuple>& outputs,
                 std::vector<uint64_t> weights, std::map<std::string, int64_t> ints, std::map<std::string, double> floats,
                 std::map<std::string, std::vector<int32_t>> lists) {
  return {std::move(op),   operands(inputs),  operands(outputs), std::move(weights),
          std::move(ints), std::move(floats), std::move(lists)};
}

KvSlot kv_slot(const std::map<std::string, uint64_t>& kv, const std::string& part) {
  const auto type = static_cast<KvType>(kv.at(part + "_type"));
  if (type > KvType::kInt4 || (type == KvType::kInt4 && part == "key")) {
    throw std::invalid_argument("kv: no such format of a " + part);
  }
  return {type, static_cast<int64_t>(kv.at(part + "_bytes")), static_cast<int64_t>(kv.at(part + "_data_bytes"))};
}

KvPool kv_pool(const std::map<std::string, uint64_t>& kv) {
  KvPool pool;
  if (kv.empty()) {
    return pool;
  }
  pool.base = reinterpret_cast<uint8_t*>(kv.at("address"));
  pool.num_blocks = static_cast<int64_t>(kv.at("num_blocks"));
  pool.block_bytes = static_cast<int64_t>(kv.at("block_bytes"));
  pool.layers = static_cast<int32_t>(kv.at("layers"));
  pool.first.base = pool.base;
  pool.first.kv_heads = static_cast<int32_t>(kv.at("kv_heads"));
  pool.first.head_dim = static_cast<int32_t>(kv.at("head_dim"));
  pool.first.keys = kv_slot(kv, "key");
  pool.first.values = kv_slot(kv, "value");
  if (pool.first.kv_heads < 1 || pool.first.head_dim < 4 || pool.first.head_dim % 4 != 0) {
    throw std::invalid_argument("kv: head_dim must be a multiple of 4");
  }
  return pool;
}

using Logits = nb::ndarray<const float, nb::ndim<2>, nb::device::cpu>;
using Doubles = nb::ndarray<const double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void sample(Logits logits, Doubles choices, Flag ids, std::shared_ptr<ThreadPool> pool, const std::string& isa) {
  const int64_t rows = static_cast<int64_t>(logits.shape(0)), vocab = static_cast<int64_t>(logits.shape(1));
  if (vocab == 0 || logits.stride(1) != 1 || static_cast<int64_t>(choices.shape(0)) != rows || choices.shape(1) != 5 ||
      static_cast<int64_t>(ids.size()) != rows) {
    throw std::invalid_argument("sample: logits need contiguous columns, choices (rows, 5), ids one entry a row");
  }
  std::vector<RowChoice> list;
  for (int64_t r = 0; r < rows; ++r) {
    const double* c = choices.data() + r * 5;
    list.push_back({c[0], static_cast<int64_t>(c[1]), c[2], c[3], c[4]});
  }
  const KernelTable& table = kernels(isa);
  const nb::gil_scoped_release release;
  const std::lock_guard lock(pool->running);
  sample_rows(table, *pool, logits.data(), logits.stride(0) * 4, rows, vocab, list.data(), ids.data());
}

// For tests: runs `count` items that do nothing but count; item fail_at throws.
int64_t count_items(ThreadPool& pool, int64_t count, int64_t fail_at) {
  const nb::gil_scoped_release release;
  std::atomic<int64_t> done{0};
  const std::lock_guard lock(pool.running);
  pool.run(count, nullptr, [&](int64_t item, int) {
    if (item == fail_at) {
      throw std::runtime_error("item " + std::to_string(item) + " fails as asked");
    }
    done.fetch_add(1);
  });
  return done.load();
}

// For tests: `jobs` jobs of `items` items, each of `rounds` dependent multiplications; seconds that they took.
double burn(ThreadPool& pool, int64_t jobs, int64_t items, int64_t rounds) {
  const nb::gil_scoped_release release;
  const std::lock_guard lock(pool.running);
  std::atomic<uint64_t> sum{0};  // keeps the work
  const auto begun = std::chrono::steady_clock::now();
  for (int64_t job = 0; job < jobs; ++job) {
    pool.run(items, nullptr, [&](int64_t item, int) {
      uint64_t value = static_cast<uint64_t>(item) + 1;
      for (int64_t round = 0; round < rounds; ++round) {
        value = value * 6364136223846793005u + 1442695040888963407u;
      }
      sum.fetch_add(value, std::memory_order_relaxed);
    });
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count() + (sum.load() == 1 ? 1e-12 : 0);
}

}  // namespace
}  // namespace taut

namespace taut {
void bind_quantized(nb::module_& m);  // bind_quantized.cc
void bind_chunks(nb::module_& m);     // bind_chunks.cc
}  // namespace taut

NB_MODULE(_native, m) {
  using namespace taut;
  m.doc() = "taut's native core";
  nb::set_leak_warnings(false);  // the runtime's threads live as long as the process
  nb::exception<IsaError>(m, "IsaError", PyExc_RuntimeError);

  m.attr("COUNTERS") = nb::cast(std::vector<std::string>(kCounterNames, kCounterNames + kNumCounters));
  m.def("runnable_isas", &runnable_isas, "ISAs that can run here, plainest first");
  m.def(
      "select_isa", [](const std::string& isa) { return std::string(kernels(isa).isa); }, "isa"_a = "",
      "The ISA that `isa` (empty: TAUT_ISA, else the widest) stands for; IsaError when it cannot run");
  nb::class_<Memory>(m, "Memory")
      .def(nb::init<size_t, bool>(), "bytes"_a, "huge_pages"_a = true)
      .def_prop_ro("address", [](const Memory& memory) { return reinterpret_cast<uint64_t>(memory.data()); })
      .def_prop_ro("size", &Memory::size)
      .def("discard", &Memory::discard, "begin"_a, "bytes"_a)
      .def(
          "array",
          [](Memory& memory) {
            return nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(memory.data(), {memory.size()}, nb::find(memory));
          },
          "The memory as uint8; the array keeps it alive");

  nb::class_<ThreadPool>(m, "ThreadPool")
      .def(nb::init<int>(), "num_threads"_a)
      .def_prop_ro("size", &ThreadPool::size)
      .def_prop_ro("active", &ThreadPool::active)
      .def("set_active", &ThreadPool::set_active, "threads"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("set_nice", &ThreadPool::set_nice, "value"_a, "The workers' nice value; False when the system refuses")
      .def("count_items", &count_items, "count"_a, "fail_at"_a = -1)
      .def("burn", &burn, "jobs"_a, "items"_a, "rounds"_a);

  nb::class_<Program>(m, "Program")
      .def(
          "__init__",
          [](Program* self, const std::string& isa, std::shared_ptr<ThreadPool> pool, const std::vector<int64_t>& space_bytes,
             const std::map<std::string, uint64_t>& kv) {
            new (self) Program(kernels(isa), std::move(pool), space_bytes, kv_pool(kv));
          },
          "isa"_a, "pool"_a, "space_bytes"_a, "kv"_a)
      .def(
          "add",
          [](Program& self, std::string op, const std::vector<OperandTuple>& inputs, const std::vector<OperandTuple>& outputs,
             std::vector<uint64_t> weights, std::map<std::string, int64_t> ints, std::map<std::string, double> floats,
             std::map<std::string, std::vector<int32_t>> lists) {
            self.add(step_of(std::move(op), inputs, outputs, std::move(weights), std::move(ints), std::move(floats),
                             std::move(lists)));
          },
          "op"_a, "inputs"_a, "outputs"_a, "weights"_a, "ints"_a, "floats"_a, "lists"_a)
      .def_prop_ro("size", &Program::size)
      .def("counts", &counts_of, "What each step has counted since the last reset, one number for each of COUNTERS")
      .def("totals", &totals_of, "The same of all steps together")
      .def("reset_counts", &Program::reset_counts)
      .def("run", &run_program, "arrays"_a, "arena"_a, "first"_a, "last"_a, "abort"_a = nb::none());

  m.def("sample", &sample, "logits"_a, "choices"_a, "ids"_a, "pool"_a, "isa"_a = "",
        "Token ids of the rows of `logits` into `ids` (int32), -1 where a logit is not finite; `choices` (rows, 5) float64: "
        "temperature, top_k, top_p, min_p and a number drawn from [0, 1)");
  bind_quantized(m);
  bind_chunks(m);
}

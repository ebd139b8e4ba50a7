// Bindings of chunks.h.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include "chunks.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace taut {

void bind_chunks(nb::module_& m) {
  using Bytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
  m.def(
      "hash_chunks",
      [](const Bytes& data, size_t chunk_bytes, ThreadPool& pool) {
        const nb::gil_scoped_release release;
        return hash_chunks(data.data(), data.size(), chunk_bytes, pool);
      },
      "data"_a, "chunk_bytes"_a, "pool"_a, "A fast hash of every chunk; against accidents, not attackers");
  m.def(
      "read_chunks",
      [](int file, int64_t offset, const Bytes& data, size_t chunk_bytes, ThreadPool& pool) {
        const nb::gil_scoped_release release;
        return read_chunks(file, offset, data.data(), data.size(), chunk_bytes, pool);
      },
      "file"_a, "offset"_a, "data"_a, "chunk_bytes"_a, "pool"_a,
      "Fills `data` from a file descriptor on all threads and returns hash_chunks of it; RuntimeError when that fails");
}

}  // namespace taut

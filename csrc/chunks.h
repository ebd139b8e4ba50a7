// Large memory in chunks: read from a file and hashed on all threads. Knows no weights.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "threads.h"

namespace taut {

// A fast hash against accidents, not attackers: every change of a single 8-byte word changes it.
uint64_t hash_bytes(const uint8_t* data, size_t bytes);

// The hash of each chunk of data[0, bytes); the last one may be short.
std::vector<uint64_t> hash_chunks(const uint8_t* data, size_t bytes, size_t chunk_bytes, ThreadPool& pool);

// Reads file[offset, offset + bytes) into data and returns the chunks' hashes; `data` is touched first by the threads that read. Throws
// std::runtime_error when the file ends early or cannot be read.
std::vector<uint64_t> read_chunks(int file, int64_t offset, uint8_t* data, size_t bytes, size_t chunk_bytes, ThreadPool& pool);

}  // namespace taut

#include "chunks.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <string>

namespace taut {
namespace {

constexpr uint64_t kPrime = 0x9e3779b97f4a7c15u;    // odd: multiplying by it loses nothing
constexpr size_t kLanes = 8, kStride = 8 * kLanes;  // as many as hide the multiplication's latency
constexpr size_t kPiece = size_t{128} << 10;        // read and hashed while in the L2 cache

uint64_t word(const uint8_t* p) {
  uint64_t value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

// Can be undone from either argument, so no change of one word is lost; the rotation brings the high bits to where they spread.
uint64_t mix(uint64_t hash, uint64_t value) {
  hash ^= value;
  return (hash << 32 | hash >> 32) * kPrime;
}

// Hash of a stream of pieces; all but the last are whole strides.
class Hash {
 public:
  void add(const uint8_t* data, size_t bytes) {
    uint64_t lanes[kLanes];  // a copy that `data` cannot be an alias of stays in registers
    std::copy(lanes_, lanes_ + kLanes, lanes);
    size_t i = 0;
    for (; i + kStride <= bytes; i += kStride) {
      for (size_t lane = 0; lane < kLanes; ++lane) {
        lanes[lane] = mix(lanes[lane], word(data + i + 8 * lane));
      }
    }
    for (; i < bytes; ++i) {
      lanes[0] = mix(lanes[0], data[i]);
    }
    std::copy(lanes, lanes + kLanes, lanes_);
    bytes_ += bytes;
  }

  uint64_t value() const {
    uint64_t hash = bytes_;
    for (const uint64_t lane : lanes_) {
      hash = mix(hash, lane);
    }
    return hash;
  }

 private:
  uint64_t lanes_[kLanes] = {1, 2, 3, 4, 5, 6, 7, 8};
  uint64_t bytes_ = 0;
};

void read_all(int file, int64_t offset, uint8_t* data, size_t bytes) {
  while (bytes > 0) {
    const ssize_t got = pread(file, data, bytes, offset);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got <= 0) {
      throw std::runtime_error(got == 0 ? "the file ends early" : std::string("reading failed: ") + std::strerror(errno));
    }
    data += got, offset += got, bytes -= static_cast<size_t>(got);
  }
}

// body(begin, bytes) of every chunk gives its hash.
template <typename Body>
std::vector<uint64_t> for_chunks(size_t bytes, size_t chunk_bytes, ThreadPool& pool, const Body& body) {
  if (chunk_bytes == 0 || chunk_bytes % kStride != 0) {
    throw std::invalid_argument("chunk_bytes must be a multiple of 64");
  }
  std::vector<uint64_t> hashes((bytes + chunk_bytes - 1) / chunk_bytes);
  const std::lock_guard lock(pool.running);
  pool.run(static_cast<int64_t>(hashes.size()), nullptr, [&](int64_t item, int) {
    const size_t begin = static_cast<size_t>(item) * chunk_bytes;
    hashes[item] = body(begin, std::min(chunk_bytes, bytes - begin));
  });
  return hashes;
}

}  // namespace

uint64_t hash_bytes(const uint8_t* data, size_t bytes) {
  Hash hash;
  hash.add(data, bytes);
  return hash.value();
}

std::vector<uint64_t> hash_chunks(const uint8_t* data, size_t bytes, size_t chunk_bytes, ThreadPool& pool) {
  return for_chunks(bytes, chunk_bytes, pool, [&](size_t begin, size_t size) { return hash_bytes(data + begin, size); });
}

std::vector<uint64_t> read_chunks(int file, int64_t offset, uint8_t* data, size_t bytes, size_t chunk_bytes, ThreadPool& pool) {
  posix_fadvise(file, offset, static_cast<off_t>(bytes), POSIX_FADV_WILLNEED);
  return for_chunks(bytes, chunk_bytes, pool, [&](size_t begin, size_t size) {
    Hash hash;
    for (size_t done = 0; done < size; done += kPiece) {
      const size_t piece = std::min(kPiece, size - done);
      read_all(file, offset + static_cast<int64_t>(begin + done), data + begin + done, piece);
      hash.add(data + begin + done, piece);
    }
    return hash.value();
  });
}

}  // namespace taut

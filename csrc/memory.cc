#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace taut {
namespace {

constexpr size_t kHugePage = size_t{2} << 20, kPage = 4096;

size_t round_up(size_t value, size_t multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace

Memory::Memory(size_t bytes, bool huge_pages) : size_(bytes) {
  if (bytes > (size_t{1} << 46)) {
    throw std::bad_alloc();
  }
  mapped_ = round_up(std::max<size_t>(bytes, 1), kHugePage) + kHugePage;
  mapping_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping_ == MAP_FAILED) {
    mapping_ = nullptr;
    throw std::bad_alloc();
  }
  data_ = reinterpret_cast<uint8_t*>(round_up(reinterpret_cast<size_t>(mapping_), kHugePage));
#ifdef MADV_HUGEPAGE
  if (huge_pages) {
    madvise(data_, round_up(std::max<size_t>(bytes, 1), kHugePage), MADV_HUGEPAGE);  // refused: ordinary pages
  }
#endif
}

Memory::~Memory() {
  if (mapping_ != nullptr) {
    munmap(mapping_, mapped_);
  }
}

void Memory::discard(size_t begin, size_t bytes) {
  const size_t first = round_up(begin, kPage), last = std::min(begin + bytes, size_) / kPage * kPage;
  if (first < last) {
    madvise(data_ + first, last - first, MADV_DONTNEED);
  }
}

}  // namespace taut

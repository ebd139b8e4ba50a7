// Large page-aligned memory straight from the operating system.
#pragma once
#include <cstddef>
#include <cstdint>

namespace taut {

// Zeroed memory at a 2 MiB boundary, committed on first touch, in huge pages where the system has them. Throws std::bad_alloc.
class Memory {
 public:
  explicit Memory(size_t bytes, bool huge_pages = true);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  // Gives the whole pages inside [begin, begin + bytes) back to the system; they read as zeros afterwards.
  void discard(size_t begin, size_t bytes);

 private:
  void* mapping_ = nullptr;
  size_t mapped_ = 0, size_ = 0;
  uint8_t* data_ = nullptr;
};

}  // namespace taut

// Every ISA's kernels against the scalar ones, bit for bit: the harness. isa_check.cc tells the whole.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels.h"

namespace taut::check {

using Words = std::vector<uint32_t>;  // what a kernel wrote, in an order that no ISA changes

// The same numbers on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 2 + 1) {}
  uint32_t bits() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state_ >> 32);
  }
  int integer(int low, int high) { return low + static_cast<int>(bits() % static_cast<uint32_t>(high - low + 1)); }
  float unit() { return static_cast<float>(static_cast<int32_t>(bits() >> 7) - (1 << 24)) * 0x1p-24f; }  // [-1, 1)
  float wide() { return unit() * __builtin_ldexpf(1.0f, integer(-30, 30)); }
  float special();  // zeros, subnormals, infinities, NaN, edges of the elementary functions, any bits

 private:
  uint64_t state_;
};

// 64-byte aligned memory, filled with a pattern that shows what a kernel did not write.
class Bytes {
 public:
  explicit Bytes(size_t size)
      : size_((size + 63) / 64 * 64 + 64), data_(static_cast<uint8_t*>(std::aligned_alloc(64, size_)), std::free) {
    std::memset(data_.get(), kPattern, size_);
  }
  static constexpr uint8_t kPattern = 0xa5;
  size_t size() const { return size_; }
  uint8_t* data() { return data_.get(); }
  const uint8_t* data() const { return data_.get(); }
  template <typename T>
  T* as() {
    return reinterpret_cast<T*>(data_.get());
  }
  Words words() const {
    Words w(size_ / 4);
    std::memcpy(w.data(), data_.get(), size_ / 4 * 4);
    return w;
  }

 private:
  size_t size_;
  std::unique_ptr<uint8_t, void (*)(void*)> data_;
};

// Floats with every NaN made the same. Of two NaN operands an x86 instruction returns the first, and a compiler may swap them: that a
// result is NaN is the kernels' promise, which NaN is not.
Words one_nan(Words floats);

enum class Values { kUnit, kWide, kSpecial };

// `rows` rows of floats, `gap` floats between them.
struct Floats {
  Floats(int64_t rows, int64_t features, int64_t gap = 0)
      : bytes(static_cast<size_t>(rows * (features + gap) * 4)), row_bytes((features + gap) * 4) {}
  Floats(int64_t rows, int64_t features, Random& random, Values kind, int64_t gap = 0) : Floats(rows, features, gap) {
    for (int64_t i = 0; i < rows * row_bytes / 4; ++i) {
      data()[i] = kind == Values::kUnit ? random.unit() : kind == Values::kWide ? random.wide() : random.special();
    }
  }
  float* data() { return bytes.as<float>(); }
  Words words() const { return one_nan(bytes.words()); }
  Rows<float> out() { return {data(), row_bytes}; }
  Rows<const float> in() { return {data(), row_bytes}; }

  Bytes bytes;
  int64_t row_bytes;
};

// How K inputs are cut (quant/schemes/int8.py). group 0: one scale a row.
struct Cuts {
  Cuts(int32_t num_inputs, int32_t group);
  Pieces pieces() const;
  int32_t scales_offset() const { return (k + 63) / 64 * 64; }
  int64_t row_bytes() const { return (scales_offset() + 8 * count() + 63) / 64 * 64; }
  int32_t count() const { return static_cast<int32_t>(begin.size()) - 1; }

  int32_t inputs, k;
  std::vector<int32_t> begin, groups;
  int32_t segment[5] = {0, 0, 0, 0, 0};
};

// Rows that a kernel quantizes into, and what they hold.
struct QuantizedOut {
  QuantizedOut(const Cuts& c, int64_t num_rows)
      : cuts(c), rows(num_rows), bytes(static_cast<size_t>(num_rows * c.row_bytes())) {}
  QuantizedRows args();
  Words words() const;

  const Cuts& cuts;
  int64_t rows;
  Bytes bytes;
};

class Check {
 public:
  // The first table is the reference.
  explicit Check(std::vector<const KernelTable*> tables, bool prints = true) : tables_(std::move(tables)), prints_(prints) {}

  // Runs a case on every table. `run` prepares its outputs anew and returns all that the kernel wrote.
  void same(const std::string& label, const std::function<Words(const KernelTable&)>& run);
  // Ends the cases since the last call: one line with their number, a digest of the reference's results and the mismatches.
  void end_family(const char* name);

  bool is_reference(const KernelTable& table) const { return &table == tables_[0]; }
  int64_t cases() const { return cases_; }
  int64_t mismatches() const { return mismatches_; }

 private:
  void report(const std::string& label, const KernelTable& table, const Words& expected, const Words& got);

  std::vector<const KernelTable*> tables_;
  bool prints_;
  int64_t cases_ = 0, mismatches_ = 0;
  int64_t family_cases_ = 0, family_mismatches_ = 0;
  uint64_t digest_ = kDigestStart;
  static constexpr uint64_t kDigestStart = 14695981039346656037u;
};

void append(Words& to, const Words& more);
std::string text(const char* format, ...) __attribute__((format(printf, 1, 2)));

// The families.
void check_linear_q8(Check&);
void check_linear_q4(Check&);
void check_linear_f32(Check&);
void check_quantize(Check&);
void check_pack(Check&);
void check_embed(Check&);
void check_norm(Check&);
void check_rope(Check&);
void check_elementwise(Check&);
void check_swiglu(Check&);
void check_pool(Check&);
void check_normalize(Check&);
void check_cache_write(Check&);
void check_attention(Check&);
void check_attention_full(Check&);
void check_peak(Check&);

}  // namespace taut::check

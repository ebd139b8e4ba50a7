#include "dispatch.h"

#include <cstdlib>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace taut {
namespace {

struct Cpu {
  bool avx2 = false, avxvnni = false, avx512 = false, avx512bf16 = false;
};

#if defined(__x86_64__)
#if defined(TAUT_EMULATE_VNNI)
constexpr bool kEmulatesVnni = true;
#else
constexpr bool kEmulatesVnni = false;
#endif
#if defined(TAUT_EMULATE)
constexpr bool kEmulatesAvx512 = true;
#else
constexpr bool kEmulatesAvx512 = false;
#endif
#if defined(TAUT_EMULATE_BF16)
constexpr bool kEmulatesBf16 = true;
#else
constexpr bool kEmulatesBf16 = false;
#endif

uint64_t enabled_state() {  // XGETBV: register state that the operating system saves
  uint32_t low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<uint64_t>(high) << 32) | low;
}

bool has(uint32_t word, std::initializer_list<int> bits) {
  for (const int bit : bits) {
    if ((word >> bit & 1) == 0) {
      return false;
    }
  }
  return true;
}

Cpu detect() {
  uint32_t a, b, c, d, a7, b7, c7, d7;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !__get_cpuid_count(7, 0, &a7, &b7, &c7, &d7)) {
    return {};
  }
  constexpr int kFma = 12, kOsxsave = 27, kAvx = 28, kF16c = 29;                          // leaf 1 ecx
  constexpr int kAvx2 = 5, kBmi2 = 8, kF = 16, kDq = 17, kBw = 30, kVl = 31, kVnni = 11;  // leaf 7 ebx; vnni: ecx
  if (!has(c, {kOsxsave})) {
    return {};
  }
  const uint64_t state = enabled_state();
  Cpu cpu;
  cpu.avx2 = (state & 0x6) == 0x6 && has(c, {kFma, kAvx, kF16c}) && has(b7, {kAvx2, kBmi2});
  uint32_t a71 = 0, b71, c71, d71;
  constexpr int kAvxVnni = 4, kBf16 = 5;  // leaf 7, subleaf 1, eax
  if (a7 < 1 || !__get_cpuid_count(7, 1, &a71, &b71, &c71, &d71)) {
    a71 = 0;
  }
  cpu.avxvnni = cpu.avx2 && (kEmulatesVnni || has(a71, {kAvxVnni}));
  const bool avx512 = cpu.avx2 && (state & 0xe6) == 0xe6 && has(b7, {kF, kDq, kBw, kVl}) && has(c7, {kVnni});
  cpu.avx512 = kEmulatesAvx512 || avx512;
  cpu.avx512bf16 = kEmulatesBf16 ? cpu.avx2 : avx512 && has(a71, {kBf16});
  return cpu;
}
#else
Cpu detect() { return {}; }
#endif

struct Candidate {
  const KernelTable* table;
  bool can_run;
};

std::vector<Candidate> candidates() {
  static const Cpu cpu = detect();
  return {{&scalar::kTable, true},
          {&avx2::kTable, cpu.avx2},
          {&avxvnni::table(), cpu.avxvnni},
          {&avx512::kTable, cpu.avx512},
          {&avx512bf16::table(), cpu.avx512bf16}};
}

}  // namespace

std::vector<std::string> runnable_isas() {
  std::vector<std::string> names;
  for (const Candidate& c : candidates()) {
    if (c.can_run) {
      names.emplace_back(c.table->isa);
    }
  }
  return names;
}

const KernelTable& kernels(const std::string& isa) {
  const char* forced = std::getenv("TAUT_ISA");
  const std::string wanted = !isa.empty() ? isa : forced != nullptr ? forced : "";
  const KernelTable* best = nullptr;
  for (const Candidate& c : candidates()) {
    if (wanted == c.table->isa) {
      if (!c.can_run) {
        throw IsaError("this processor cannot run " + wanted + " kernels");
      }
      return *c.table;
    }
    best = c.can_run ? c.table : best;
  }
  if (!wanted.empty()) {
    throw IsaError("no kernels named " + wanted);
  }
  return *best;
}

}  // namespace taut

#include "dispatch.h"

#include <cstdlib>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace taut {
namespace {

struct Cpu {
  bool avx2 = false, avxvnni = false, avx512 = false, avx512bf16 = false, amx = false;
  bool fast_bf16 = false;  // its dot product of bf16 is no slower than a multiply-add
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

#if defined(TAUT_EMULATE_AMX)
constexpr bool kEmulatesAmx = true;
#else
constexpr bool kEmulatesAmx = false;
#endif

// Linux saves the tiles' state only for a process that asked for it.
bool may_use_tiles() {
#if defined(__linux__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

// Measured: VDPBF16PS runs at the rate of VFMADD231PS on Zen 4 and 5 and at a quarter of it on Intel's Xeon 4 (docs/log.md).
bool made_by_amd() {
  uint32_t a, b, c, d;
  constexpr uint32_t kAuth = 0x68747541, kEnti = 0x69746e65, kCamd = 0x444d4163;
  return __get_cpuid(0, &a, &b, &c, &d) != 0 && b == kAuth && d == kEnti && c == kCamd;
}

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
  cpu.fast_bf16 = kEmulatesBf16 || made_by_amd();
  constexpr int kTilesBf16 = 22, kTiles = 24, kTilesInt8 = 25;  // leaf 7 edx
  constexpr uint64_t kTileState = 0x60000;
  cpu.amx =
      cpu.avx512 &&
      (kEmulatesAmx || (has(d7, {kTilesBf16, kTiles, kTilesInt8}) && (state & kTileState) == kTileState && may_use_tiles()));
  return cpu;
}
#else
Cpu detect() { return {}; }
#endif

struct Candidate {
  const KernelTable* table;
  bool can_run;
  bool is_default = true;  // runs unless another is asked for
};

std::vector<Candidate> candidates() {
  static const Cpu cpu = detect();
  return {{&scalar::kTable, true},
          {&avx2::kTable, cpu.avx2},
          {&avxvnni::table(), cpu.avxvnni},
          {&avx512::kTable, cpu.avx512},
          {&avx512bf16::table(), cpu.avx512bf16, cpu.fast_bf16},
          {&amx::table(), cpu.amx}};
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
    best = c.can_run && c.is_default ? c.table : best;
  }
  if (!wanted.empty()) {
    throw IsaError("no kernels named " + wanted);
  }
  return *best;
}

}  // namespace taut

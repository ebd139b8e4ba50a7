// Does every ISA that this machine can run compute the scalar kernels' bits?
//
// A program without Python, so that it also runs as the only process of an emulated machine (scripts/emulate_avx512.sh). It prints
// one line a family with a digest of the scalar results: equal digests on two machines say that both computed the same bits.
// Exit code: 0 no mismatch, 1 some, 2 the comparison itself is broken.
#include "tests/isa_check.h"

#include <sys/reboot.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>

#include "dispatch.h"

namespace taut::check {

float Random::special() {
  static const float kEdges[] = {0.0f,
                                 0x1p-149f,
                                 0x1.fffffcp-127f,
                                 0x1p-126f,
                                 0x1p-64f,
                                 1e-12f,
                                 0.5f,
                                 0.625f,
                                 0.62499994f,
                                 1.0f,
                                 2.0f,
                                 4.0f,
                                 8.317766f,
                                 44.0f,
                                 87.0f,
                                 88.0f,
                                 88.72284f,
                                 88.722839f,
                                 89.0f,
                                 103.0f,
                                 103.97208f,
                                 104.0f,
                                 127.0f,
                                 128.0f,
                                 1e10f,
                                 4194304.0f,
                                 8388608.5f,
                                 1e30f,
                                 0x1p127f,
                                 0x1.fffffep127f,
                                 __builtin_inff(),
                                 __builtin_nanf("")};
  const int kind = integer(0, 9);
  if (kind < 4) {
    const float edge = kEdges[bits() % (sizeof kEdges / sizeof kEdges[0])];
    return bits() & 1 ? edge : -edge;
  }
  if (kind < 6) {
    return unit() * 100.0f;
  }
  if (kind < 9) {
    return wide();
  }
  const uint32_t any = bits();
  float value;
  std::memcpy(&value, &any, 4);
  return value;
}

Words one_nan(Words floats) {
  for (uint32_t& word : floats) {
    word = (word & 0x7fffffff) > 0x7f800000 ? 0x7fc00000 : word;
  }
  return floats;
}

Cuts::Cuts(int32_t num_inputs, int32_t group) : inputs(num_inputs), k((num_inputs + 3) / 4 * 4), begin{0} {
  const int32_t unit = group != 0 ? group : k % 32 == 0 ? 32 : 4, units = k / unit;
  for (int32_t i = 0; i < 4; ++i) {
    const int32_t in_segment = units / 4 + (i < units % 4);
    const int32_t num_pieces = group != 0 ? in_segment : in_segment > 0;
    for (int32_t p = 0; p < num_pieces; ++p) {
      begin.push_back(begin.back() + (group != 0 ? group : in_segment * unit));
      groups.push_back(group != 0 ? count() - 1 : 0);
    }
    segment[i + 1] = count();
  }
}

Pieces Cuts::pieces() const {
  Pieces p{k, count(), begin.data(), {}};
  std::memcpy(p.segment, segment, sizeof segment);
  return p;
}

QuantizedRows QuantizedOut::args() {
  return {bytes.data(), cuts.row_bytes(), cuts.scales_offset(), cuts.inputs, cuts.pieces(), cuts.groups.data()};
}

// Values, scales and sums, then how many of the other bytes were written.
Words QuantizedOut::words() const {
  Words w;
  const int64_t row_bytes = cuts.row_bytes(), scales = cuts.scales_offset(), end = scales + 8 * cuts.count();
  for (int64_t r = 0; r < rows; ++r) {
    const uint8_t* row = bytes.data() + r * row_bytes;
    for (int32_t i = 0; i < cuts.k; ++i) {
      w.push_back(static_cast<uint32_t>(static_cast<int8_t>(row[i])));
    }
    uint32_t written = 0;
    for (int64_t i = cuts.k; i < row_bytes; ++i) {
      written += (i < scales || i >= end) && row[i] != Bytes::kPattern;
    }
    w.push_back(written);
    w.resize(w.size() + static_cast<size_t>(2 * cuts.count()));
    std::memcpy(&w[w.size() - static_cast<size_t>(2 * cuts.count())], row + scales, static_cast<size_t>(8 * cuts.count()));
  }
  return w;
}

void append(Words& to, const Words& more) { to.insert(to.end(), more.begin(), more.end()); }

std::string text(const char* format, ...) {
  char buffer[256];
  va_list args;
  va_start(args, format);
  std::vsnprintf(buffer, sizeof buffer, format, args);
  va_end(args);
  return buffer;
}

void Check::report(const std::string& label, const KernelTable& table, const Words& expected, const Words& got) {
  ++mismatches_;
  if (++family_mismatches_ > 20 || !prints_) {
    return;
  }
  if (expected.size() != got.size()) {
    std::printf("MISMATCH %s %s: %zu words, expected %zu\n", table.isa, label.c_str(), got.size(), expected.size());
    return;
  }
  size_t first = 0, differing = 0;
  for (size_t i = expected.size(); i-- > 0;) {
    if (expected[i] != got[i]) {
      first = i;
      ++differing;
    }
  }
  float a, b;
  std::memcpy(&a, &expected[first], 4);
  std::memcpy(&b, &got[first], 4);
  std::printf("MISMATCH %s %s: %zu of %zu words, first %zu: %08x (%.9g), expected %08x (%.9g)\n", table.isa, label.c_str(),
              differing, expected.size(), first, got[first], static_cast<double>(b), expected[first], static_cast<double>(a));
}

void Check::same(const std::string& label, const std::function<Words(const KernelTable&)>& run) {
  const Words expected = run(*tables_[0]);
  for (const uint32_t word : expected) {
    digest_ = (digest_ ^ word) * 1099511628211u;
  }
  for (size_t i = 1; i < tables_.size(); ++i) {
    ++cases_, ++family_cases_;
    const Words got = run(*tables_[i]);
    if (got != expected) {
      report(label, *tables_[i], expected, got);
    }
  }
}

void Check::end_family(const char* name) {
  std::printf("%-15s digest %016llx, %lld cases, %lld mismatches\n", name, static_cast<unsigned long long>(digest_),
              static_cast<long long>(family_cases_), static_cast<long long>(family_mismatches_));
  std::fflush(stdout);
  family_cases_ = family_mismatches_ = 0;
  digest_ = kDigestStart;
}

namespace {

// A flipped bit must be seen.
bool comparison_works(const KernelTable& scalar) {
  KernelTable other = scalar;
  other.isa = "flipped";
  Check check({&scalar, &other}, false);
  check.same("equal", [&](const KernelTable&) { return Words{1, 2, 3}; });
  const bool equal = check.mismatches() == 0;
  check.same("one bit flipped on purpose",
             [&](const KernelTable& t) { return Words{1, 2, &t == &scalar ? 0x3f800000u : 0x3f800001u}; });
  return equal && check.mismatches() == 1;
}

int run() {
  std::vector<const KernelTable*> tables;
  std::string names;
  for (const std::string& name : runnable_isas()) {
    tables.push_back(&kernels(name));
    names += " " + name;
  }
  if (!comparison_works(*tables[0])) {
    std::printf("isa_check: the comparison does not see a flipped bit\n");
    return 2;
  }
  std::printf("isas:%s\nchosen: %s\n", names.c_str(), kernels("").isa);
  Check check(tables);
  check_linear_q8(check);
  check_linear_q4(check);
  check_linear_f32(check);
  check_quantize(check);
  check_pack(check);
  check_embed(check);
  check_norm(check);
  check_rope(check);
  check_elementwise(check);
  check_swiglu(check);
  check_pool(check);
  check_normalize(check);
  check_cache_write(check);
  check_attention(check);
  check_attention_full(check);
  check_peak(check);
  std::printf("isa_check: %lld cases, %lld mismatches\n", static_cast<long long>(check.cases()),
              static_cast<long long>(check.mismatches()));
  return check.mismatches() == 0 ? 0 : 1;
}

}  // namespace
}  // namespace taut::check

int main() {
  const int code = taut::check::run();
  std::fflush(stdout);
  if (getpid() == 1) {  // the emulated machine's only process
    std::printf("isa_check: exit %d\n", code);
    std::fflush(stdout);
    sync();
    sleep(1);
    reboot(RB_POWER_OFF);
  }
  return code;
}

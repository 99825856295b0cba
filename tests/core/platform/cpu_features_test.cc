// CpuFeatures against the compiler's run-time and the kernel's own list in /proc/cpuinfo.
// SPDX-License-Identifier: Apache-2.0
#include "core/platform/cpu_features.h"

#include <doctest/doctest.h>

#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "tests/support/effort.h"

namespace kvasir {
namespace {

// The text behind "key : " of the first processor.
std::string cpuinfo(const std::string& key) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, key.size(), key) != 0) continue;
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return {};
}

#if defined(__x86_64__)
TEST_CASE("features and vendor agree with the compiler's run-time") {
  const CpuFeatures& f = cpu_features();
  __builtin_cpu_init();
  CHECK(f.avx2 == (__builtin_cpu_supports("avx2") != 0));
  CHECK(f.fma == (__builtin_cpu_supports("fma") != 0));
  CHECK(f.avx512f == (__builtin_cpu_supports("avx512f") != 0));
  CHECK(f.avx512bw == (__builtin_cpu_supports("avx512bw") != 0));
  CHECK(f.avx512dq == (__builtin_cpu_supports("avx512dq") != 0));
  CHECK(f.avx512vl == (__builtin_cpu_supports("avx512vl") != 0));
  CHECK(f.avx512_vnni == (__builtin_cpu_supports("avx512vnni") != 0));
  CHECK(f.avx512_bf16 == (__builtin_cpu_supports("avx512bf16") != 0));
  CHECK((f.vendor == "GenuineIntel") == (__builtin_cpu_is("intel") != 0));
  CHECK((f.vendor == "AuthenticAMD") == (__builtin_cpu_is("amd") != 0));
  CHECK_FALSE(f.model.empty());
}
#endif

TEST_CASE("features, vendor and model agree with the kernel") {
  const CpuFeatures& f = cpu_features();
  std::istringstream words(cpuinfo("flags"));
  std::set<std::string> flags;
  for (std::string word; words >> word;) flags.insert(word);
  if (flags.empty() || test::emulated()) {
    MESSAGE("SKIPPED: /proc/cpuinfo lists no flags, or those of another processor");
    return;
  }
  CHECK(f.avx2 == (flags.count("avx2") == 1));
  CHECK(f.fma == (flags.count("fma") == 1));
  CHECK(f.f16c == (flags.count("f16c") == 1));
  CHECK(f.avx512f == (flags.count("avx512f") == 1));
  CHECK(f.avx512bw == (flags.count("avx512bw") == 1));
  CHECK(f.avx512dq == (flags.count("avx512dq") == 1));
  CHECK(f.avx512vl == (flags.count("avx512vl") == 1));
  CHECK(f.avx512_vnni == (flags.count("avx512_vnni") == 1));
  CHECK(f.avx512_bf16 == (flags.count("avx512_bf16") == 1));
  CHECK(f.avx512_fp16 == (flags.count("avx512_fp16") == 1));
  // The kernel may know AMX and still refuse it to this process, never the other way round.
  CHECK((!f.amx_tile || flags.count("amx_tile") == 1));
  CHECK((!f.amx_bf16 || flags.count("amx_bf16") == 1));
  CHECK((!f.amx_int8 || flags.count("amx_int8") == 1));
  CHECK(f.vendor == cpuinfo("vendor_id"));
  CHECK(f.model == cpuinfo("model name"));
}

TEST_CASE("the list names what is present and nothing else") {
  CpuFeatures f;
  CHECK(f.list().empty());
  f.avx2 = f.amx_int8 = true;
  CHECK(f.list() == "avx2 amx_int8");
}

}  // namespace
}  // namespace kvasir

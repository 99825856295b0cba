// Pinning the SIMD target.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/simd_target.h"

#include <fstream>
#include <iterator>
#include <string>

#include "tests/support/simd.h"

TEST_SUITE("kernels/simd_target") {
  TEST_CASE("an unknown name is refused and changes nothing") {
    const std::string before = kvasir::kernels::simd_target_name();
    CHECK_FALSE(kvasir::kernels::set_simd_target("sse9"));
    CHECK_FALSE(kvasir::kernels::set_simd_target(""));
    CHECK(kvasir::kernels::simd_target_name() == before);
  }

  TEST_CASE("a pinned target is the one in use until best is asked for") {
    const std::string best = kvasir::kernels::simd_target_name();
    const bool tiles = kvasir::kernels::uses_bf16_tiles();
    if (kvasir::kernels::set_simd_target("avx2")) {
      CHECK(std::string(kvasir::kernels::simd_target_name()) == "AVX2");
    }
    if (kvasir::kernels::set_simd_target("avx512")) {
      CHECK(std::string(kvasir::kernels::simd_target_name()).rfind("AVX3", 0) == 0);
      CHECK_FALSE(kvasir::kernels::uses_bf16_tiles());
    }
    CHECK(kvasir::kernels::set_simd_target("best"));
    CHECK(kvasir::kernels::simd_target_name() == best);
    CHECK(kvasir::kernels::uses_bf16_tiles() == tiles);
  }

  TEST_CASE("bf16 is slower than f32 on Intel CPUs with AVX512-FP16 whose tiles are not used") {
    std::ifstream file("/proc/cpuinfo");
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const auto has = [&](const char* word) { return text.find(word) != std::string::npos; };
    const bool has_slow_pairs =
        has("GenuineIntel") && has(" avx512_fp16") && !kvasir::test::emulated();
    kvasir::test::for_each_simd_target([&] {
      const bool is_faster = !has_slow_pairs || kvasir::kernels::uses_bf16_tiles();
      CHECK(kvasir::kernels::bf16_is_faster() == is_faster);
    });
  }
}

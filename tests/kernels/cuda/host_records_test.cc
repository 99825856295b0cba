// The device's records are those of the host's kernels, number for number.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/representative.h"
#include "tests/kernels/cuda/record_case.h"

namespace {
using namespace kvasir::cuda;
using namespace kvasir::test;
using kvasir::kernels::ElementType;
using kvasir::kernels::KeyRows;

std::vector<uint8_t> made_by_host(const KeyRows& rows, RecordKind kind, KvType record,
                                  size_t bytes) {
  const auto type = static_cast<ElementType>(record);
  std::vector<uint8_t> out(bytes);
  if (kind == RecordKind::kMinMax) {
    kvasir::kernels::update_min_max(rows, true, type, out.data());
  } else {
    std::vector<float> sum(rows.head_dim);
    kvasir::kernels::update_sum(rows, true, sum.data());
    kvasir::kernels::store_mean(sum.data(), rows.head_dim, rows.n, type, out.data());
  }
  return out;
}

}  // namespace

TEST_SUITE("kernels/cuda/host_records") {
  TEST_CASE("a record has the numbers that the host gives it") {
    for (const RecordKind kind : {RecordKind::kMinMax, RecordKind::kMean})
      for (const KvType record : {KvType::kF32, KvType::kF16})
        for (const ElementType type : kElementTypes)
          for (const float scale : {1e-6f, 1.0f, 2e4f}) {
            CAPTURE(static_cast<int>(kind));
            CAPTURE(static_cast<int>(record));
            CAPTURE(static_cast<int>(type));
            CAPTURE(scale);
            RecordCase c(96, kind, record);
            for (const uint32_t n : {1u, 6u, 33u}) c.add(n, type, scale);
            c.build(static_cast<KvType>(type));
            for (size_t b = 0; b < c.n_blocks(); ++b) {
              const std::vector<uint8_t> want =
                  made_by_host(c.rows(b), kind, record, c.record_bytes());
              const std::vector<double> got = c.record(b);
              for (size_t i = 0; i < got.size(); ++i)  // of +0 and -0 either
                CHECK(got[i] == kvasir::kernels::reference::element(
                                    want.data(), i, static_cast<ElementType>(record)));
            }
          }
  }
}

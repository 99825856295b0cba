// Records of blocks of keys on the device against plain loops in double.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/block_records.h"

#include <limits>

#include "tests/kernels/cuda/record_case.h"

namespace {
using namespace kvasir::cuda;
using namespace kvasir::test;
using kvasir::kernels::ElementType;
using kvasir::kernels::KeyRows;
namespace reference = kvasir::kernels::reference;

// Blocks of 1, 3, 4, 5 and 33 keys.
constexpr uint32_t kTokens[] = {1, 3, 4, 5, 33};

// Decoded records must be those of `stats`: exact but for what the record's type rounds.
void check_record(const std::vector<double>& got, const reference::ChannelStats& stats,
                  RecordKind kind, KvType record, bool is_exact) {
  const size_t dim = stats.min.size();
  const bool is_half = record == KvType::kF16;
  for (size_t d = 0; d < dim; ++d) {
    CAPTURE(d);
    if (kind == RecordKind::kMean) {
      const double largest = std::fmax(std::fabs(stats.min[d]), std::fabs(stats.max[d]));
      const double rounding = is_half ? std::fabs(stats.mean[d]) * 0x1p-11 + 0x1p-25 : 0;
      CHECK(std::fabs(got[d] - stats.mean[d]) <= rounding + 1e-6 * largest);
      continue;
    }
    const bool is_outwards = is_half && !is_exact;
    const double below = is_outwards ? std::fmax(std::fabs(stats.min[d]) / 512, 0x1p-23) : 0;
    const double above = is_outwards ? std::fmax(std::fabs(stats.max[d]) / 512, 0x1p-23) : 0;
    CHECK(got[d] <= stats.min[d]);
    CHECK(got[d] >= stats.min[d] - below);
    CHECK(got[dim + d] >= stats.max[d]);
    CHECK(got[dim + d] <= stats.max[d] + above);
  }
}

}  // namespace

TEST_SUITE("kernels/cuda/block_records") {
  TEST_CASE("records are those of the keys, in every type, at odd lengths") {
    for (const ElementType type : kElementTypes)
      for (const uint32_t dim : {1u, 5u, 32u, 37u, 96u, 128u}) {
        if (!can_store(type, dim)) continue;
        for (const KvType record : {KvType::kF32, KvType::kF16})
          for (const RecordKind kind : {RecordKind::kMinMax, RecordKind::kMean})
            for (const float scale : {1.0f, 1e-6f}) {
              CAPTURE(static_cast<int>(type));
              CAPTURE(dim);
              CAPTURE(static_cast<int>(record));
              CAPTURE(static_cast<int>(kind));
              RecordCase c(dim, kind, record);
              for (const uint32_t n : kTokens) c.add(n, type, scale);
              c.build(static_cast<KvType>(type));
              for (size_t b = 0; b < c.n_blocks(); ++b) {
                CAPTURE(b);
                check_record(c.record(b), reference::channel_stats(c.rows(b)), kind, record,
                             type == ElementType::kF16);
              }
              CHECK(c.gaps_are_untouched());
            }
      }
  }

  TEST_CASE("blocks of different types in one call have the records that they have alone") {
    for (const RecordKind kind : {RecordKind::kMinMax, RecordKind::kMean}) {
      RecordCase mixed(64, kind, KvType::kF16);
      for (const ElementType type : kElementTypes) mixed.add(7, type, 1.0f);
      mixed.build(KvType::kMixed);
      for (size_t b = 0; b < mixed.n_blocks(); ++b) {
        CAPTURE(b);
        check_record(mixed.record(b), reference::channel_stats(mixed.rows(b)), kind, KvType::kF16,
                     mixed.rows(b).type == ElementType::kF16);
      }
    }
  }

  TEST_CASE("an f16 minmax record stays finite, and passes over what is no number") {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const float infinity = std::numeric_limits<float>::infinity();
    RecordCase c(5, RecordKind::kMinMax, KvType::kF16);
    c.add_floats({1e30f, -1e30f, 65519.0f, nan, infinity, 1e30f, -1e30f, 65519.0f, 3.0f, -2.0f});
    c.build(KvType::kF32);
    CHECK(c.record(0) ==
          std::vector<double>{65504, -65504, 65472, 3, -2, 65504, -65504, 65504, 3, 65504});
  }

  TEST_CASE("a minmax record in f16 bounds every key it was made of, channel by channel") {
    for (const float scale : {1e-7f, 1e-3f, 1.0f, 1e3f}) {
      RecordCase c(61, RecordKind::kMinMax, KvType::kF16);
      for (uint32_t b = 0; b < 20; ++b) c.add(16, ElementType::kF32, scale);
      c.build(KvType::kF32);
      size_t n_rounded = 0;
      for (size_t b = 0; b < c.n_blocks(); ++b) {
        const std::vector<double> record = c.record(b);
        const auto* k = static_cast<const uint8_t*>(c.rows(b).k);
        for (size_t t = 0; t < 16; ++t)
          for (size_t d = 0; d < 61; ++d) {
            const double key =
                reference::element(k + t * c.rows(b).token_stride, d, ElementType::kF32);
            CHECK(record[d] <= key);
            CHECK(record[61 + d] >= key);
            n_rounded += key != reference::round_to(key, ElementType::kF16) ? 1 : 0;
          }
      }
      CHECK(n_rounded > 10000);  // else nothing was rounded at all
    }
  }
}

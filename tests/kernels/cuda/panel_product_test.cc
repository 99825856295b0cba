// Products of panels: against what the rounded matrices give, by the places of panels and
// registers, and the mistakes that the checker finds.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/panel_product.h"

#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/convert.h"
#include "kernels/cuda/launch.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/fault_of.h"
#include "tests/kernels/rows.h"

namespace {
using namespace kvasir::cuda;
using emulation::FaultKind;
using kvasir::kernels::ElementType;
using kvasir::test::check_fault;
using kvasir::test::DeviceArray;
using kvasir::test::random_floats;
using kvasir::test::verdict;
using kvasir::test::Verdict;

// What a kernel does wrong; each is right but for one.
enum class Mistake {
  kNone,
  kNoFence,  // between writing panels and multiplying
  kNoBarrier,
  kNoBegin,
  kNotFinished,  // registers are read
  kOtherSums,    // are finished
  kWrittenMeanwhile,
  kWrittenAfter,  // without a barrier
  kOtherPanel,    // of one thread
  kWarpMissing,
  kNotAligned,
  kOddColumn,  // that no product begins at
};

// What the thread has of matrix [64, 64], row-major: registers of columns 8 n to 8 n + 7.
KVASIR_DEVICE void move_sums(bool is_store, Global<float> to, float (*d)[4]) {
  const uint32_t lane = thread_x() % 32, row = thread_x() / 32 * 16 + lane / 4;
  for (uint32_t n = 0; n < 8; ++n) {
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t at = 64 * (row + i / 2 * 8) + 8 * n + 2 * (lane % 4) + i % 2;
      if (is_store)
        to[at] = d[n][i];
      else
        d[n][i] = to[at];
    }
  }
}

template <bool kIsF16>
KVASIR_DEVICE void fill_panel(Global<const float> from, Shared<uint16_t> panel) {
  for (uint32_t i = thread_x(); i < 64 * 64; i += threads_x()) {
    const uint32_t bits = kIsF16 ? pack_f16(from[i], 0.0f) : pack_bf16(from[i], 0.0f);
    panel[panel_place(i / 64, i % 64)] = static_cast<uint16_t>(bits);
  }
}

template <bool kIsF16, bool kAdds>
KVASIR_DEVICE void multiply_rows(float (&sums)[16][4], Shared<const uint16_t> x,
                                 Shared<const uint16_t> y) {
  if constexpr (kIsF16) {
    multiply_rows_f16<kAdds>(sums, x, y);
  } else {
    multiply_rows_bf16<kAdds>(sums, x, y);
  }
}

// d += a b^T, and c += a e^T; is_new: what they were before does not count.
template <bool kIsF16>
KVASIR_KERNEL void multiply_by_rows(Mistake mistake, bool is_new, Global<const float> a,
                                    Global<const float> b, Global<const float> e, Global<float> d,
                                    Global<float> c) {
  const auto is = [&](Mistake of) { return mistake == of; };
  SharedMemory shared;
  const Shared<uint16_t> left =
      is(Mistake::kNotAligned) ? shared.take<uint16_t>(kPanelElements) : shared.take_panels(1);
  const Shared<uint16_t> right = shared.take_panels(3);
  fill_panel<kIsF16>(a, left);
  fill_panel<kIsF16>(b, right);
  fill_panel<kIsF16>(e, right + kPanelElements);
  fill_panel<kIsF16>(b, right + 2 * kPanelElements);
  if (!is(Mistake::kNoFence)) fence_async();
  if (!is(Mistake::kNoBarrier)) block_sync();
  if (is(Mistake::kWarpMissing) && thread_x() >= 96) return;
  float sums[16][4], others[8][4] = {};
  move_sums(false, d, sums);
  move_sums(false, c, sums + 8);
  if (!is(Mistake::kNoBegin)) begin_products(sums);
  for (uint32_t k = 0; k < 64; k += 16) {
    const Shared<const uint16_t> x = left + (k + (is(Mistake::kOddColumn) ? 8 : 0));
    const Shared<const uint16_t> y =
        right + (k + (is(Mistake::kOtherPanel) && thread_x() == 77 ? kPanelElements : 0));
    if (is_new && k == 0)
      multiply_rows<kIsF16, false>(sums, x, y);
    else
      multiply_rows<kIsF16, true>(sums, x, y);
  }
  if (is(Mistake::kWrittenMeanwhile)) {
    block_sync();
    if (thread_x() == 0) left[0] = 0;
  }
  if (!is(Mistake::kNotFinished)) commit_products();
  if (is(Mistake::kOtherSums)) {
    wait_for_products<0>(others);
  } else if (!is(Mistake::kNotFinished)) {
    wait_for_products<0>(sums);
  }
  if (is(Mistake::kWrittenAfter) && thread_x() == 64) left[0] = 0;
  move_sums(true, d, sums);
  move_sums(true, c, sums + 8);
}

// d += a b, a in registers.
template <bool kIsF16>
KVASIR_KERNEL void multiply_by_columns(Global<const float> a, Global<const float> b,
                                       Global<float> d) {
  SharedMemory shared;
  const Shared<uint16_t> right = shared.take_panels(1);
  fill_panel<kIsF16>(b, right);
  fence_async();
  block_sync();
  const uint32_t lane = thread_x() % 32, g = thread_x() / 32 * 16 + lane / 4, t = lane % 4;
  const auto of_a = [&](uint32_t row, uint32_t k) {
    const float x = a[64 * row + k], y = a[64 * row + k + 1];
    return kIsF16 ? pack_f16(x, y) : pack_bf16(x, y);
  };
  float sums[8][4];
  move_sums(false, d, sums);
  begin_products(sums);
  for (uint32_t k = 0; k < 64; k += 16) {
    const uint32_t of[4] = {of_a(g, k + 2 * t), of_a(g + 8, k + 2 * t), of_a(g, k + 8 + 2 * t),
                            of_a(g + 8, k + 8 + 2 * t)};
    if constexpr (kIsF16) {
      multiply_columns_f16<0>(sums, of, right + k * kPanelWidth);
    } else {
      multiply_columns_bf16<0>(sums, of, right + k * kPanelWidth);
    }
  }
  commit_products();
  wait_for_products<0>(sums);
  move_sums(true, d, sums);
}

std::vector<float> rounded(const std::vector<float>& x, bool is_f16) {
  const ElementType type = is_f16 ? ElementType::kF16 : ElementType::kBF16;
  std::vector<uint16_t> half(x.size());
  std::vector<float> out(x.size());
  kvasir::kernels::convert_from_f32(type, x.data(), half.data(), x.size());
  kvasir::kernels::convert_to_f32(type, half.data(), out.data(), x.size());
  return out;
}

// d + a b, or a b^T, in double.
std::vector<double> product(std::vector<float> a, std::vector<float> b, const std::vector<float>& d,
                            bool is_f16, bool by_rows) {
  a = rounded(a, is_f16);
  b = rounded(b, is_f16);
  std::vector<double> out(d.begin(), d.end());
  for (uint32_t row = 0; row < 64; ++row)
    for (uint32_t column = 0; column < 64; ++column)
      for (uint32_t k = 0; k < 64; ++k)
        out[64 * row + column] +=
            double{a[64 * row + k]} * double{by_rows ? b[64 * column + k] : b[64 * k + column]};
  return out;
}

LaunchShape four_panels() {  // of two arrays
  SharedSize size;
  size.add_panels(1);
  size.add_panels(3);
  return {.threads = 128, .shared_bytes = size.bytes};
}

}  // namespace

TEST_SUITE("kernels/cuda/panel_product") {
  TEST_CASE("products of panels are those of the rounded matrices") {
    const std::vector<float> a = random_floats(64 * 64, 1.0f, 1),
                             b = random_floats(64 * 64, 1.0f, 2),
                             d = random_floats(64 * 64, 1.0f, 3),
                             e = random_floats(64 * 64, 1.0f, 4);
    const DeviceArray<float> on_a(a), on_b(b), on_e(e);
    for (const bool is_f16 : {true, false}) {
      CAPTURE(is_f16);
      for (const bool is_new : {false, true}) {
        const DeviceArray<float> rows(d), behind(d);
        launch(is_f16 ? multiply_by_rows<true> : multiply_by_rows<false>, four_panels(), {},
               Mistake::kNone, is_new, on_a.pointer(), on_b.pointer(), on_e.pointer(),
               rows.pointer(), behind.pointer());
        const std::vector<float> before = is_new ? std::vector<float>(64 * 64) : d;
        kvasir::test::check_close(rows.values(), product(a, b, before, is_f16, true), 1e-6);
        kvasir::test::check_close(behind.values(), product(a, e, before, is_f16, true), 1e-6);
      }
      const DeviceArray<float> columns(d);
      launch(is_f16 ? multiply_by_columns<true> : multiply_by_columns<false>, four_panels(), {},
             on_a.pointer(), on_b.pointer(), columns.pointer());
      kvasir::test::check_close(columns.values(), product(a, b, d, is_f16, false), 1e-6);
    }
  }

  TEST_CASE("who multiplies panels waits for what is in them, and for the products") {
    const DeviceArray<float> in(random_floats(64 * 64, 1.0f, 1)), out(std::vector<float>(64 * 64)),
        other(std::vector<float>(64 * 64));
    const auto run = [&](Mistake mistake) -> Verdict {
      return verdict([&] {
        launch(multiply_by_rows<true>, four_panels(), {}, mistake, false, in.pointer(),
               in.pointer(), in.pointer(), out.pointer(), other.pointer());
      });
    };
    CHECK(run(Mistake::kNone).text == "");
    check_fault(run(Mistake::kNoFence), FaultKind::kRace, {"fence_async()"});
    CHECK_FALSE(run(Mistake::kNoBarrier).is_clean);
    check_fault(run(Mistake::kNoBegin), FaultKind::kWarp, {"begin_products()"});
    check_fault(run(Mistake::kOtherSums), FaultKind::kWarp, {"other registers"});
    check_fault(run(Mistake::kWrittenMeanwhile), FaultKind::kRace, {"under way"});
    check_fault(run(Mistake::kWrittenAfter), FaultKind::kRace, {"thread 64", "thread 0"});
    check_fault(run(Mistake::kOtherPanel), FaultKind::kWarp, {"unlike panels", "77"});
    check_fault(run(Mistake::kWarpMissing), FaultKind::kWarp,
                {"make a product with it", "thread 96 has returned"});
    check_fault(run(Mistake::kNotAligned), FaultKind::kBounds, {"1024"});
    check_fault(run(Mistake::kOddColumn), FaultKind::kBounds, {"16 bytes behind"});
    CHECK(run(Mistake::kNotFinished).is_clean);
    CHECK(std::isnan(out.values()[0]));
  }

  TEST_CASE("threads that are not 128 make no product") {
    const DeviceArray<float> in(random_floats(64 * 64, 1.0f, 1)), out(std::vector<float>(64 * 64)),
        other(std::vector<float>(64 * 64));
    LaunchShape shape = four_panels();
    shape.threads = 96;
    check_fault(verdict([&] {
                  launch(multiply_by_rows<true>, shape, {}, Mistake::kNone, false, in.pointer(),
                         in.pointer(), in.pointer(), out.pointer(), other.pointer());
                }),
                FaultKind::kWarp, {"of no 128 threads"});
  }
}

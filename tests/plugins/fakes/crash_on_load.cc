// A selector whose file crashes whoever loads it.
// SPDX-License-Identifier: Apache-2.0
#include "tests/plugins/fakes/fake.h"

namespace {
using namespace kvasir;

volatile int* volatile nowhere = nullptr;
const int crashed = *nowhere;

class CrashOnLoad {
 public:
  static constexpr kvasir_desc kDesc =
      test::fake_desc(KVASIR_KIND_SELECTOR, "kvasir.test.crash_on_load", {});

  CrashOnLoad(const sdk::Host&, const sdk::Options&) {}
  void bind(const kvasir_geometry&) {}
  void limits(kvasir_sel_limits& out) const { out.unit = static_cast<uint32_t>(crashed); }
  kvasir_status select(const sdk::Step&, const kvasir_sel_in&, kvasir_selection&) {
    return KVASIR_FALLBACK;
  }
};
}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_SELECTOR, "kvasir.test.crash_on_load", "0.1.0", CrashOnLoad)

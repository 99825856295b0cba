// An attention backend whose attention is right and whose mass is not: option `fault`.
// SPDX-License-Identifier: Apache-2.0
#include <kvasir/sdk/view.h>

#include <limits>

#include "tests/plugins/fakes/fake.h"
#include "tests/plugins/fakes/inner_backend.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

constexpr const char* kFaults[] = {"none", "nan", "minus", "untouched", "error", "behind"};
constexpr kvasir_option_schema kOptions[] = {
    sdk::enum_option({.key = "fault", .help = "what goes wrong"}, kFaults, 0)};

class BadMass : private InnerBackend {
 public:
  static constexpr kvasir_desc kDesc =
      fake_desc(KVASIR_KIND_ATTENTION, "kvasir.test.bad_mass", kOptions,
                {.provides = KVASIR_PROVIDE_MASS | KVASIR_PROVIDE_TOKEN_ITEMS});

  BadMass(const sdk::Host& host, const sdk::Options& o)
      : InnerBackend(host.raw()), fault_(kFaults[o.choice("fault")]) {}
  void bind(const kvasir_geometry& geometry) { InnerBackend::bind(geometry); }
  void plan(const kvasir_attn_shape& shape, kvasir_attn_plan& out) {
    InnerBackend::plan(shape, out);
  }
  void run(const sdk::Step& step, const kvasir_attn_in& in, kvasir_attn_out& out) {
    InnerBackend::run(step, in, out);
  }
  void mass(const sdk::Step& step, const kvasir_attn_in& in, const kvasir_attn_mass& out) {
    if (fault_ == "error") throw sdk::Error(KVASIR_ERR_INTERNAL, "broken on request");
    if (fault_ == "untouched") return;
    InnerBackend::mass(step, in, out);
    float* const value = sdk::floats(out.value, "value");
    if (fault_ == "nan") value[0] = std::numeric_limits<float>::quiet_NaN();
    if (fault_ == "minus") value[0] = -1;
    if (fault_ == "behind") value[out.value.shape[0] * out.value.shape[1]] = 0;
  }

 private:
  std::string_view fault_;
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_ATTENTION, "kvasir.test.bad_mass", "0.1.0", BadMass)

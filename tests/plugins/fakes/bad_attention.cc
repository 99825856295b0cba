// An attention backend that computes honestly, through another one, and spoils its result on
// request, to prove that the host notices: option `fault`, from run() number `from_call` on.
// SPDX-License-Identifier: Apache-2.0
#include <kvasir/sdk/view.h>

#include <limits>

#include "tests/plugins/fakes/fake.h"
#include "tests/plugins/fakes/inner_backend.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

constexpr const char* kFaults[] = {
    "none",      "nan",      "inf",           "nan_lse",    "error",       "error_no_text",
    "untouched", "skips",    "skips_beyond",  "scratch",    "swaps_heads", "writes_q",
    "writes_kv", "o_behind", "wrong_by_half", "late_lease", "trap"};
constexpr kvasir_option_schema kOptions[] = {
    sdk::enum_option({.key = "fault", .help = "what goes wrong"}, kFaults, 0),
    sdk::int_option({.key = "from_call", .help = "honest calls before that"}, 0, 0, 1 << 30),
    sdk::int_option({.key = "seq", .help = "only in calls that name it, 0 = all"}, 0, 0, 1 << 30)};

class BadAttention : private InnerBackend {
 public:
  static constexpr kvasir_desc kDesc =
      fake_desc(KVASIR_KIND_ATTENTION, "kvasir.test.bad_attention", kOptions,
                {.provides = KVASIR_PROVIDE_LOG_WEIGHT | KVASIR_PROVIDE_HEAD_LOG_WEIGHT |
                             KVASIR_PROVIDE_TOKEN_ITEMS});  // and no distances

  BadAttention(const sdk::Host& host, const sdk::Options& o)
      : InnerBackend(host.raw()),
        fault_(kFaults[o.choice("fault")]),
        honest_(o.u32("from_call")),
        seq_(o.u32("seq")) {}
  void bind(const kvasir_geometry& geometry) { InnerBackend::bind(geometry); }
  void plan(const kvasir_attn_shape& shape, kvasir_attn_plan& out) {
    InnerBackend::plan(shape, out);
    if (fault_ == "scratch") out.scratch_bytes = UINT64_MAX;
  }
  kvasir_status run(const sdk::Step& step, const kvasir_attn_in& in, kvasir_attn_out& out) {
    const std::string_view fault = ++n_runs_ > honest_ && names(step, seq_) ? fault_ : "none";
    if (fault == "trap") __builtin_trap();
    if (fault == "error") throw sdk::Error(KVASIR_ERR_INTERNAL, "broken on request");
    if (fault == "error_no_text") return KVASIR_ERR_INTERNAL;
    if (fault == "untouched") return KVASIR_OK;
    InnerBackend::run(step, in, out);
    float* const o = sdk::floats(out.o, "o");
    if (fault == "nan") o[0] = std::numeric_limits<float>::quiet_NaN();
    if (fault == "inf") o[g_.v_dim - 1] = std::numeric_limits<float>::infinity();
    if (fault == "nan_lse") *sdk::floats(out.lse, "lse") = std::numeric_limits<float>::quiet_NaN();
    if (fault == "skips") out.keys_skipped = 5;  // no fault, but no other fake has an opinion
    if (fault == "skips_beyond") out.keys_skipped = UINT64_MAX;
    const uint64_t n = out.o.shape[0] * out.o.shape[1] * out.o.shape[2];
    if (fault == "swaps_heads")
      std::swap_ranges(o + n - 2 * g_.v_dim, o + n - g_.v_dim, o + n - g_.v_dim);
    if (fault == "wrong_by_half") o[n - 1] *= 1.5f;
    if (fault == "writes_q") sdk::floats(in.parts[0].q, "q")[0] += 1;
    if (fault == "writes_kv") *static_cast<unsigned char*>(in.parts[0].leases[0].k) ^= 1;
    if (fault == "o_behind") o[n] = 0;
    if (fault == "late_lease" && leases_) kept_ = leases_[0].n_tokens;
    leases_ = in.parts[0].leases;
    return KVASIR_OK;
  }

 private:
  std::string_view fault_;
  uint32_t honest_, seq_, n_runs_ = 0;
  const kvasir_lease* leases_ = nullptr;
  volatile uint32_t kept_ = 0;
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_ATTENTION, "kvasir.test.bad_attention", "0.1.0", BadAttention)

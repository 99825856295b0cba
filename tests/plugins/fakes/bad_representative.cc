// A representative that misbehaves on request: every record is zero, every score 1, but for what
// `fault` says.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "tests/plugins/fakes/fake.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

constexpr const char* kFaults[] = {
    "none",         "nan_score",    "inf_score",    "unwritten_score", "score_error", "score_again",
    "score_behind", "update_error", "writes_pages", "writes_record",   "huge_record", "odd_record",
    "no_record",    "odd_flags",    "huge_state",   "mass_unasked",    "odd_page",    "reads_more"};
constexpr kvasir_option_schema kOptions[] = {
    sdk::enum_option({.key = "fault", .help = "what goes wrong"}, kFaults, 0)};

class BadRepresentative {
 public:
  static constexpr kvasir_desc kDesc =
      fake_desc(KVASIR_KIND_REPRESENTATIVE, "kvasir.test.bad_representative", kOptions,
                {.provides = KVASIR_PROVIDE_SCORES});

  BadRepresentative(const sdk::Host&, const sdk::Options& o) : fault_(kFaults[o.choice("fault")]) {}
  void bind(const kvasir_geometry& geometry) { n_q_heads_ = geometry.n_q_heads; }
  void layout(kvasir_layout& out) const {
    out.record_bytes = fault_ == "huge_record"  ? uint64_t{1} << 40
                       : fault_ == "odd_record" ? 7
                       : fault_ == "no_record"  ? 0
                                                : 64;
    if (fault_ == "odd_page") out.page_bytes = 7;
    if (fault_ == "odd_flags") out.flags = 1u << 30;
    if (fault_ == "huge_state") out.memory.state_bytes = UINT64_MAX;
    if (fault_ == "mass_unasked") out.mass.at = KVASIR_MASS_AT_DECODE;
  }
  kvasir_status update(const sdk::Step& step, const sdk::UpdateItems&) {
    if (fault_ == "update_error") throw sdk::Error(KVASIR_ERR_INTERNAL, "broken on request");
    if (fault_ == "writes_pages" && step.raw().slab)
      const_cast<void**>(step.raw().slab->pages)[0] = nullptr;
    return KVASIR_OK;
  }
  kvasir_status score(const sdk::Step& step, const kvasir_score_in&, kvasir_score_out& out) {
    if (fault_ == "score_error") throw sdk::Error(KVASIR_ERR_INTERNAL, "broken on request");
    if (fault_ == "writes_record") *static_cast<unsigned char*>(step.raw().slab->pages[0]) ^= 1;
    if (fault_ == "score_again") return KVASIR_AGAIN;
    if (fault_ == "unwritten_score") return KVASIR_OK;
    const uint64_t n = out.offsets[uint64_t{step.n_seqs()} * n_q_heads_];
    auto* const value = static_cast<float*>(out.value.data);
    std::fill_n(value, n, 1.0f);
    if (fault_ == "reads_more") out.bytes_read = n * 64 + 1;
    if (fault_ == "nan_score") value[n - 1] = NAN;
    if (fault_ == "inf_score") value[0] = INFINITY;
    if (fault_ == "score_behind") value[n] = 1;
    return KVASIR_OK;
  }

 private:
  std::string_view fault_;
  uint32_t n_q_heads_ = 1;
};
}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_REPRESENTATIVE, "kvasir.test.bad_representative", "0.1.0",
                  BadRepresentative)

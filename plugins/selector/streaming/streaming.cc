// Attends to the sink and the last tokens only. Sink and window are the core's, so that nothing is
// left to choose but, with a budget, how far back the last tokens reach beyond the window.
// Xiao et al. 2023, "Efficient Streaming Language Models with Attention Sinks", arXiv:2309.17453.
// SPDX-License-Identifier: Apache-2.0
#include <kvasir/sdk/plugin.h>

#include <array>

#include "plugins/shared/recent.h"
#include "plugins/shared/token_budget.h"

namespace {
using namespace kvasir;

constexpr std::array kOptions = {sdk::budget_option(0),
                                 sdk::evict_option("what lies between sink and window is dropped"),
                                 sdk::kPrefillSelectOption};

class Streaming {
 public:
  static constexpr kvasir_desc kDesc =
      sdk::describe({.kind = KVASIR_KIND_SELECTOR,
                     .id = "kvasir.streaming",
                     .version = "0.1.0",
                     .name = "Streaming",
                     .vendor = "Kvasir",
                     .license = "Apache-2.0",
                     .summary = "Attends to the sink and the last tokens, to nothing between.",
                     .options = kOptions,
                     .needs = KVASIR_NEED_TOKEN_ITEMS});

  Streaming(const sdk::Host&, const sdk::Options& options)
      : budget_tokens_(options.u32("budget_tokens")), recent_(options) {}

  // Tokens, so that sink and window end exactly where they are configured to.
  void limits(kvasir_sel_limits& out) const {
    out.unit = KVASIR_UNIT_TOKEN;
    out.scope = KVASIR_SCOPE_SEQUENCE;
    out.max_units = budget_tokens_;
    recent_.limits(out);
  }

  void select(const sdk::Step& step, const kvasir_sel_in&, kvasir_selection& out) const {
    say(step, out);
    if (budget_tokens_ == 0) out.reuse_steps = UINT32_MAX;
  }

  void evict_plan(const sdk::Step& step, kvasir_selection& out) const { say(step, out); }

 private:
  void say(const sdk::Step& step, kvasir_selection& out) const {
    if (budget_tokens_ == 0) {
      return sdk::flag_lists(out, KVASIR_SCOPE_SEQUENCE, step.n_seqs(), KVASIR_LIST_NONE);
    }
    sdk::lay_out_lists(out, KVASIR_SCOPE_SEQUENCE, step.n_seqs(), [&](uint32_t s) {
      return sdk::n_recent(step.candidates(s, 0), budget_tokens_);
    });
    for (uint32_t s = 0; s < step.n_seqs(); ++s)
      sdk::take_recent(step.candidates(s, 0), sdk::list_indices(out, s));
  }

  uint32_t budget_tokens_;
  sdk::RecentOnly recent_;
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_SELECTOR, "kvasir.streaming", "0.1.0", Streaming)

// Attends to everything: the baseline of every comparison.
// SPDX-License-Identifier: Apache-2.0
#include <kvasir/sdk/plugin.h>

#include <array>

namespace {
using namespace kvasir;

constexpr std::array kOptions = {sdk::int_option(
    {.key = "budget_tokens",
     .help = "only one that covers the context: everything is attended to whatever it says",
     .unit = "tokens",
     .flags = KVASIR_OPTION_OPTIONAL},
    0, 0, INT32_MAX)};

class Dense {
 public:
  static constexpr kvasir_desc kDesc =
      sdk::describe({.kind = KVASIR_KIND_SELECTOR,
                     .id = "kvasir.dense",
                     .version = "0.1.0",
                     .name = "Dense",
                     .vendor = "Kvasir",
                     .license = "Apache-2.0",
                     .summary = "Attends to every cached token; the baseline.",
                     .options = kOptions});

  Dense(const sdk::Host&, const sdk::Options& options)
      : has_budget_(options.delivered("budget_tokens")),
        budget_tokens_(has_budget_ ? options.u32("budget_tokens") : 0) {}

  // A budget that it would not keep is refused, not forgotten.
  void validate(const kvasir_geometry& geometry) const {
    if (!has_budget_ || budget_tokens_ >= geometry.max_context) return;
    sdk::fail_invalid(
        "dense attends to everything: budget_tokens = " + std::to_string(budget_tokens_) +
        " is less than the context of " + std::to_string(geometry.max_context) +
        " tokens; leave it out, or choose a selector that selects");
  }

  // No select(): every candidate is attended. max_units = 0: there is no budget to fall short of.
  void limits(kvasir_sel_limits& out) const {
    out.unit = KVASIR_UNIT_BLOCK;
    out.scope = KVASIR_SCOPE_SEQUENCE;
  }

 private:
  bool has_budget_;
  uint32_t budget_tokens_;
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_SELECTOR, "kvasir.dense", "0.1.0", Dense)

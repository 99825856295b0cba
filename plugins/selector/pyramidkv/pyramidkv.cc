// SnapKV's votes with a budget that falls from layer to layer.
// Cai et al. 2024, "PyramidKV: Dynamic KV Cache Compression based on Pyramidal Information
// Funneling", arXiv:2406.02069; rounding as in Zefan-Cai/KVCache-Factory, or as in NVIDIA/kvpress.
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cmath>

#include "plugins/shared/prompt_votes.h"

namespace {
using namespace kvasir;

constexpr const char* kCompatNames[] = {"none", "kvpress"};
constexpr auto kOptions = [] {
  constexpr size_t kVotes = sdk::kVoteOptions.size();
  std::array<kvasir_option_schema, kVotes + 2> all{};
  std::copy(sdk::kVoteOptions.begin(), sdk::kVoteOptions.end(), all.begin());
  all[kVotes] = sdk::int_option(
      {.key = "beta", .help = "the last layer keeps about budget_tokens / beta"}, 20, 1, INT32_MAX);
  all[kVotes + 1] = sdk::enum_option(
      {.key = "compat", .help = "kvpress: its budgets per layer, in which sink and window count"},
      kCompatNames, 0);
  return all;
}();

class PyramidKv {
 public:
  static constexpr kvasir_desc kDesc =
      sdk::describe({.kind = KVASIR_KIND_SELECTOR,
                     .id = "kvasir.pyramidkv",
                     .version = "0.1.0",
                     .name = "PyramidKV",
                     .vendor = "Kvasir",
                     .license = "Apache-2.0",
                     .summary = "SnapKV with budgets that fall from the first layer to the last.",
                     .options = kOptions,
                     .caps = KVASIR_CAP_OPAQUE_STATE | KVASIR_CAP_HISTORY_STATE,
                     .needs = KVASIR_NEED_MASS | KVASIR_NEED_TOKEN_ITEMS});

  explicit PyramidKv(const sdk::Options& options)
      : beta_(options.u32("beta")), kvpress_(options.choice("compat") == 1) {}

  void bind(const sdk::Host& host, const kvasir_geometry& geometry, uint32_t budget_tokens) {
    n_layers_ = geometry.n_layers;
    forced_ = uint64_t{geometry.sink_tokens} + std::max(1u, geometry.window_tokens);
    base_ = budget_tokens;
    const uint64_t n_enough = 2 * (base_ + forced_);
    std::string line = "budget_tokens = " + std::to_string(base_) +
                       " on average: " + std::to_string(keep(0, n_enough)) + " in layer 0, " +
                       std::to_string(keep(n_layers_ - 1, n_enough)) + " in layer " +
                       std::to_string(n_layers_ - 1);
    if (!kvpress_) {
      line += "; the same in all layers for prompts below " + std::to_string(2 * base_) + " tokens";
    }
    host.log(KVASIR_LOG_INFO, line);
  }

  // Of n tokens before the window. In integers, as published: the layers together may keep a little
  // more than n_layers * budget.
  uint64_t keep(uint32_t layer, uint64_t n) const {
    if (kvpress_) return keep_as_kvpress(layer, n);
    if (n <= base_ || n + forced_ < 2 * base_ || n_layers_ == 1) return base_;
    uint64_t least = base_ / beta_, most = 2 * base_ - least;
    if (most >= n) {
      most = n;
      least = 2 * base_ - most;
    }
    return most - layer * ((most - least) / (n_layers_ - 1));
  }
  uint64_t max_keep() const {
    if (n_layers_ == 1) return base_;
    if (!kvpress_) return 2 * base_ - base_ / beta_;
    const auto base = static_cast<double>(base_ + forced_);
    return static_cast<uint64_t>(std::nearbyint(2 * base - base / beta_)) - forced_;
  }

 private:
  // Floats, rounded half to even; what the numbers speak of has sink and window in it. Where the
  // narrowest layer could not hold these all layers are alike.
  uint64_t keep_as_kvpress(uint32_t layer, uint64_t n) const {
    const auto base = static_cast<double>(base_ + forced_), before = static_cast<double>(n);
    double least = base / beta_, most = 2 * base - least;
    if (most >= before) {
      most = before;
      least = 2 * base - most;
    }
    if (n_layers_ == 1 || most < least || least < static_cast<double>(forced_)) return base_;
    const double total = most - layer * ((most - least) / (n_layers_ - 1));
    return static_cast<uint64_t>(std::nearbyint(total)) - forced_;
  }

  uint32_t beta_;
  bool kvpress_;
  uint32_t n_layers_ = 1;
  uint64_t forced_ = 0;  // sink and window
  uint64_t base_ = 0;    // mean over the layers
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_SELECTOR, "kvasir.pyramidkv", "0.1.0", sdk::PromptVotes<PyramidKv>)

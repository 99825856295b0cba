// Chooses at random: the lower bound of a comparison. What a strategy gains over it at the same
// budget, granularity and row scope is what its idea is worth.
// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "plugins/sdk/block_choice.h"
#include "plugins/sdk/keep_best.h"
#include "plugins/sdk/plugin.h"

namespace {
using namespace kvasir;

constexpr const char* kUnitNames[] = {"block", "token"};
constexpr std::array kOptions = {
    sdk::int_option({.key = "budget_tokens",
                     .help = "selected per layer, kv head and step, rounded down to the unit",
                     .unit = "tokens"},
                    4096, 1, INT32_MAX),
    sdk::enum_option({.key = "unit", .help = "whole blocks or single tokens"}, kUnitNames, 0)};

// splitmix64 (Steele, Lea, Flood 2014, doi:10.1145/2660193.2660195): one well-mixed word per input.
constexpr uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

class Random {
 public:
  static constexpr kvasir_desc kDesc =
      sdk::describe({.kind = KVASIR_KIND_SELECTOR,
                     .id = "kvasir.random",
                     .version = "0.1.0",
                     .name = "Random",
                     .vendor = "Kvasir",
                     .license = "Apache-2.0",
                     .summary = "Chooses at random: the lower bound of a comparison.",
                     .options = kOptions,
                     .needs = KVASIR_NEED_TOKEN_ROWS});

  Random(const sdk::Host& host, const sdk::Options& options)
      : host_(host),
        budget_tokens_(options.u32("budget_tokens")),
        unit_(options.choice("unit") == 0 ? KVASIR_UNIT_BLOCK : KVASIR_UNIT_TOKEN) {}

  void validate(const kvasir_geometry& geometry) const { budget(geometry); }

  void bind(const kvasir_geometry& geometry) {
    budget_ = budget(geometry);
    n_heads_ = geometry.head_select_shared ? 1 : geometry.n_kv_heads;
    seed_ = geometry.seed;
  }

  void limits(kvasir_sel_limits& out) const {
    out.unit = unit_;
    out.scope = n_heads_ == 1 ? KVASIR_SCOPE_SEQUENCE : KVASIR_SCOPE_KV_HEAD;
    out.max_units = budget_;
  }

  // The draw depends on the seed and on what is asked, not on what was asked before: a forked,
  // restored or repeated sequence draws the same.
  void select(const sdk::Step& step, const kvasir_sel_in&, kvasir_selection& out) const {
    const auto score = [&](uint32_t i, const sdk::Candidates& from, float* to) {
      const uint64_t row =
          mix(mix(mix(mix(seed_) + step.layer()) + i % n_heads_) + step.row(i / n_heads_).kv_len);
      for (uint64_t c = 0; c < from.size(); ++c)
        to[c] = static_cast<float>(mix(row + from[c]) >> 40);  // 24 bits, exact
    };
    sdk::keep_best(
        host_, step, n_heads_, sdk::PlanList::kKept,
        [&](uint32_t, const sdk::Candidates&) { return budget_; }, score, out);
  }

 private:
  uint32_t budget(const kvasir_geometry& geometry) const {
    return unit_ == KVASIR_UNIT_TOKEN
               ? budget_tokens_
               : sdk::tokens_to_blocks("budget_tokens", budget_tokens_, geometry);
  }
  sdk::Host host_;
  uint32_t budget_tokens_;
  uint32_t unit_;
  uint64_t budget_ = 0;
  uint32_t n_heads_ = 1;
  uint64_t seed_ = 0;
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_SELECTOR, "kvasir.random", "0.1.0", Random)

// Chooses at random: the lower bound of a comparison. What a strategy gains over it at the same
// budget, unit and scope is what its choice is worth.
// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "plugins/shared/keep_best.h"
#include "plugins/shared/unit_budget.h"

namespace {
using namespace kvasir;

constexpr std::array kOptions = {sdk::unit_budget_option(), sdk::kUnitOption};

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
                     .needs = KVASIR_NEED_TOKEN_ITEMS});

  Random(const sdk::Host& host, const sdk::Options& options) : host_(host), budget_(options) {}

  void validate(const kvasir_geometry& geometry) const { budget_.validate(geometry); }
  void bind(const kvasir_geometry& geometry) {
    budget_.bind(geometry);
    seed_ = geometry.seed;
  }
  void limits(kvasir_sel_limits& out) const { budget_.limits(out); }

  // The draw depends on the seed and on what is asked, not on what was asked before: a forked,
  // restored or repeated sequence draws the same.
  void select(const sdk::Step& step, const kvasir_sel_in&, kvasir_selection& out) const {
    const uint32_t n_heads = budget_.n_heads();
    const auto score = [&](uint32_t i, const sdk::Candidates& from, float* to) {
      const uint64_t salt =
          mix(mix(mix(mix(seed_) + step.layer()) + i % n_heads) + step.seq(i / n_heads).kv_len);
      for (uint64_t c = 0; c < from.size(); ++c)
        to[c] = static_cast<float>(mix(salt + from[c]) >> 40);  // 24 bits, exact
    };
    sdk::keep_best(
        host_, step, n_heads, sdk::PlanList::kKept,
        [&](uint32_t, const sdk::Candidates&) { return budget_.units(); }, score, out);
  }

 private:
  sdk::Host host_;
  sdk::UnitBudget budget_;
  uint64_t seed_ = 0;
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_SELECTOR, "kvasir.random", "0.1.0", Random)

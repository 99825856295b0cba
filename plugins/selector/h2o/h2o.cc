// Heavy hitters: the tokens that received most attention so far stay, beside the recent ones.
// Zhang et al. 2023, "H2O: Heavy-Hitter Oracle", arXiv:2306.14048.
// SPDX-License-Identifier: Apache-2.0
#include <kvasir/sdk/mass.h>
#include <kvasir/sdk/plugin.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "plugins/shared/keep_best.h"
#include "plugins/shared/token_budget.h"

namespace {
using namespace kvasir;

constexpr const char* kModeNames[] = {"drop", "mask"};
constexpr const char* kRecentGroup = "recent";
constexpr kvasir_option_schema tokens_option(const char* key, const char* group, const char* help) {
  return sdk::int_option(
      {.key = key, .help = help, .unit = "tokens", .flags = KVASIR_OPTION_OPTIONAL, .group = group},
      0, 0, INT32_MAX);
}
constexpr kvasir_option_schema ratio_option(const char* key, const char* group, const char* help,
                                            const char* with = nullptr) {
  return sdk::float_option(
      {.key = key, .help = help, .flags = KVASIR_OPTION_OPTIONAL, .group = group, .with = with},
      0.1, 0.0, 1.0);
}
constexpr std::array kOptions = {
    sdk::budget_option(512, sdk::kBudgetGroup),
    tokens_option("hh_size", sdk::kBudgetGroup, "heavy hitters kept, instead of budget_tokens"),
    tokens_option("recent_size", kRecentGroup, "last tokens kept; not set: cache.window_tokens"),
    ratio_option("heavy_ratio", sdk::kBudgetGroup, "heavy hitters as a share of the prompt"),
    ratio_option("recent_ratio", kRecentGroup, "last tokens as a share of the prompt",
                 "heavy_ratio"),
    sdk::enum_option({.key = "mode", .help = "drop for good, or mask until the next prompt"},
                     kModeNames, 0),
    sdk::kEvictAtOption,
    sdk::bool_option({.key = "normalize", .help = "divide by the queries that could see the token"},
                     false),
};

// How many of the last tokens and how many heavy hitters before them stay.
class Budget {
 public:
  explicit Budget(const sdk::Options& o)
      : budget_(o.u32_or("budget_tokens", 0)),
        is_ratio_(o.delivered("heavy_ratio")),
        has_heavy_(o.delivered("hh_size")),
        heavy_(o.u32_or("hh_size", 0)),
        recent_(o.u32_or("recent_size", 0)) {
    if (!is_ratio_) return;
    heavy_ratio_ = o.f64("heavy_ratio");
    if (o.delivered("recent_ratio")) recent_ratio_ = o.f64("recent_ratio");
  }

  void validate(const kvasir_geometry& geometry) const {
    if (recent_ != 0 && recent_ < geometry.window_tokens) {
      sdk::fail_invalid("recent_size = " + std::to_string(recent_) + " is less than " +
                        "window_tokens = " + std::to_string(geometry.window_tokens) +
                        ", which are always attended: lower window_tokens");
    }
    if (!is_ratio_ && !has_heavy_ && beyond_window(recent_, geometry.window_tokens) > budget_) {
      sdk::fail_invalid("recent_size = " + std::to_string(recent_) + " leaves nothing of " +
                        "budget_tokens = " + std::to_string(budget_) + " for heavy hitters");
    }
  }
  void bind(const kvasir_geometry& geometry) { window_ = geometry.window_tokens; }

  bool is_native() const { return has_heavy_ || is_ratio_ || recent_ != 0; }
  // Both as the prompt's length makes them; shares are rounded down, as published.
  uint64_t recent(uint64_t prompt_end) const {
    return std::max<uint64_t>({window_, recent_, share(recent_ratio_, prompt_end)});
  }
  uint64_t heavy(uint64_t prompt_end) const {
    if (is_ratio_) return share(heavy_ratio_, prompt_end);
    return has_heavy_ ? heavy_ : budget_ - beyond_window(recent_, window_);
  }
  // Beyond sink and window.
  uint64_t tokens(uint64_t prompt_end) const {
    return heavy(prompt_end) + recent(prompt_end) - window_;
  }

 private:
  static uint64_t share(double ratio, uint64_t n) {
    return static_cast<uint64_t>(std::floor(ratio * static_cast<double>(n)));
  }
  static uint32_t beyond_window(uint32_t recent, uint32_t window) {
    return recent > window ? recent - window : 0;
  }
  uint32_t budget_;
  bool is_ratio_;
  bool has_heavy_;
  uint32_t heavy_;
  uint32_t recent_;
  double heavy_ratio_ = 0.0, recent_ratio_ = 0.0;
  uint32_t window_ = 0;
};

class H2o {
 public:
  static constexpr kvasir_desc kDesc =
      sdk::describe({.kind = KVASIR_KIND_SELECTOR,
                     .id = "kvasir.h2o",
                     .version = "0.1.0",
                     .name = "H2O",
                     .vendor = "Kvasir",
                     .license = "Apache-2.0",
                     .summary = "Keeps the tokens that received most attention, and the last ones.",
                     .options = kOptions,
                     .needs = KVASIR_NEED_MASS | KVASIR_NEED_TOKEN_ITEMS});

  H2o(const sdk::Host& host, const sdk::Options& options)
      : host_(host),
        budget_(options),
        action_(options.choice("mode") == 0 ? KVASIR_ACTION_EVICT : KVASIR_ACTION_RESTRICT),
        each_step_(sdk::evicts_each_step(options)),
        normalize_(options.boolean("normalize")) {}

  void validate(const kvasir_geometry& geometry) const {
    budget_.validate(geometry);
    sdk::MassHeads::validate(geometry);
  }

  void bind(const kvasir_geometry& geometry) {
    budget_.bind(geometry);
    heads_ = sdk::MassHeads(geometry);
    block_size_ = geometry.block_size;
    max_context_ = geometry.max_context;
    if (budget_.is_native()) {
      host_.log(KVASIR_LOG_INFO,
                "at " + std::to_string(max_context_) + " tokens " +
                    std::to_string(budget_.heavy(max_context_)) + " heavy hitters and the last " +
                    std::to_string(budget_.recent(max_context_)) +
                    " stay: budget_tokens = " + std::to_string(budget_.tokens(max_context_)) +
                    " beside sink_tokens and window_tokens");
    }
  }

  void limits(kvasir_sel_limits& out) const {
    out.unit = KVASIR_UNIT_TOKEN;
    out.max_units = budget_.tokens(max_context_);
    sdk::plan_evictions(each_step_, out);
    out.plans.action = action_;
    heads_.ask(out);
    out.mass.last_queries = KVASIR_ALL_QUERIES;
  }

  // Per token the sum of its mass, mean over the group; a sum per query head where the largest
  // counts. f32: in f16 a sum of 2048 takes no more probabilities.
  void layout(kvasir_layout& out) const {
    out.flags = KVASIR_LAYOUT_SEALED_ONLY | KVASIR_LAYOUT_PER_TOKEN | KVASIR_LAYOUT_OBSERVE_WRITES;
    out.record_bytes = uint64_t{block_size_} * heads_.n_lists_per_head() * sizeof(float);
    out.format = uint64_t{1} << 48 | heads_.n_lists_per_head();
  }

  void update(const sdk::Step&, const sdk::UpdateItems&) const {}  // keys do not matter

  void observe(const sdk::Step& step, const kvasir_mass& mass) const {
    const uint32_t n_per_head = heads_.n_lists_per_head();
    const float share = n_per_head > 1 ? 1.0f : 1.0f / static_cast<float>(heads_.group_size());
    sdk::check_mass(mass, step.n_seqs() * heads_.n_lists());
    host_.for_each(mass.n_lists, [&](uint32_t list) {
      const uint32_t s = list / heads_.n_lists(), head = list % heads_.n_lists() / n_per_head;
      Sums of(*this, step, s, head);
      const uint32_t at = list % n_per_head;
      sdk::for_each_mass(mass, list, [&](uint32_t token, float value) {
        float* const sums = of.token(token);
        if (!sums) sdk::fail_invalid("observe: token " + std::to_string(token) + " has no record");
        sums[at] += value * share;
      });
    });
  }

  void evict_plan(const sdk::Step& step, kvasir_selection& out) const {
    const uint32_t n_heads = heads_.n_heads();
    const auto first_recent = [&](uint32_t i) -> uint32_t {
      const kvasir_step_seq& seq = step.seq(i / n_heads);
      const uint64_t recent = budget_.recent(seq.prompt_end);
      return seq.kv_len > recent ? seq.kv_len - static_cast<uint32_t>(recent) : 0;
    };
    const auto count = [&](uint32_t i, const sdk::Candidates& from) -> uint64_t {
      const uint64_t n_older = from.place_of(first_recent(i));
      return budget_.heavy(step.seq(i / n_heads).prompt_end) + from.size() - n_older;
    };
    const auto score = [&](uint32_t i, const sdk::Candidates& from, float* to) {
      Sums of(*this, step, i / n_heads, i % n_heads);
      const uint32_t kv_len = step.seq(i / n_heads).kv_len;
      const uint64_t n_older = from.place_of(first_recent(i));
      for (uint64_t c = 0; c < n_older; ++c) to[c] = weight(of.token(from[c]), kv_len - from[c]);
      std::fill(to + n_older, to + from.size(), std::numeric_limits<float>::infinity());
    };
    const bool at_prompt_end = step.phase() == KVASIR_PHASE_PREFILL;  // afterwards few are lost
    sdk::keep_best(host_, step, n_heads,
                   at_prompt_end ? sdk::PlanList::kKept : sdk::PlanList::kLost, count, score, out);
  }

 private:
  // Where the sums of one head's tokens lie. Ascending tokens: a record is looked up per block.
  class Sums {
   public:
    Sums(const H2o& of, const sdk::Step& step, uint32_t seq, uint32_t head)
        : step_(step),
          seq_(seq),
          head_(head),
          block_size_(of.block_size_),
          n_per_token_(of.heads_.n_lists_per_head()) {}
    // Null: it has none.
    float* token(uint32_t token) {
      if (token - begin_ >= n_) {  // of unsigned numbers: also where it lies before
        const uint32_t block = token / block_size_;
        record_ = reinterpret_cast<float*>(step_.record(seq_, head_, block));
        begin_ = block * block_size_;
        n_ = block_size_;
      }
      return record_ ? record_ + size_t{token - begin_} * n_per_token_ : nullptr;
    }

   private:
    const sdk::Step& step_;
    uint32_t seq_, head_, block_size_, n_per_token_;
    uint32_t begin_ = 0, n_ = 0;  // tokens that record_ is of
    float* record_ = nullptr;
  };

  // sums: null, or [n_lists_per_head]; age: queries that may have seen the token.
  float weight(const float* sums, uint32_t age) const {
    if (!sums) return 0.0f;
    float most = sums[0];
    for (uint32_t i = 1; i < heads_.n_lists_per_head(); ++i) most = std::max(most, sums[i]);
    return normalize_ ? most / static_cast<float>(age) : most;
  }

  sdk::Host host_;
  Budget budget_;
  uint32_t action_;
  bool each_step_, normalize_;
  sdk::MassHeads heads_;
  uint32_t block_size_ = 1;
  uint32_t max_context_ = 0;
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_SELECTOR, "kvasir.h2o", "0.1.0", H2o)

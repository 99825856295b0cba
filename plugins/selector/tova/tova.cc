// Keeps the tokens that the latest query attends to most, all heads taken together.
// Oren et al. 2024, "Transformers are Multi-State RNNs", arXiv:2401.06104.
// SPDX-License-Identifier: Apache-2.0
#include <kvasir/sdk/mass.h>
#include <kvasir/sdk/plugin.h>
#include <kvasir/sdk/sequences.h>
#include <kvasir/sdk/state.h>

#include <array>
#include <vector>

#include "plugins/shared/keep_best.h"
#include "plugins/shared/layers.h"
#include "plugins/shared/token_budget.h"

namespace {
using namespace kvasir;

constexpr const char* kCacheSizeAliases[] = {"multi_state_size", nullptr};
constexpr std::array kOptions = {sdk::budget_option(512, sdk::kBudgetGroup),
                                 sdk::cap_option("cache_size", kCacheSizeAliases),
                                 sdk::kEvictAtOption};

// What the latest query saw, between its attention and the plan of the same step.
struct LatestQuery {
  struct Layer {
    std::vector<uint32_t> token;  // ascending
    std::vector<float> mass;
  };
  std::vector<Layer> layers;
  void truncate(uint32_t) { layers.clear(); }
};

class Tova : public sdk::Sequences<LatestQuery> {
 public:
  static constexpr kvasir_desc kDesc =
      sdk::describe({.kind = KVASIR_KIND_SELECTOR,
                     .id = "kvasir.tova",
                     .version = "0.1.0",
                     .name = "TOVA",
                     .vendor = "Kvasir",
                     .license = "Apache-2.0",
                     .summary = "Keeps the tokens that the latest query attends to most.",
                     .options = kOptions,
                     .caps = KVASIR_CAP_OPAQUE_STATE | KVASIR_CAP_HISTORY_STATE,
                     .needs = KVASIR_NEED_MASS | KVASIR_NEED_TOKEN_ITEMS});

  Tova(const sdk::Host& host, const sdk::Options& options)
      : host_(host), budget_(options, "cache_size"), each_step_(sdk::evicts_each_step(options)) {}

  void validate(const kvasir_geometry& geometry) const { budget_.tokens(geometry); }

  void bind(const kvasir_geometry& geometry) {
    budget_.log(host_, geometry);
    budget_tokens_ = budget_.tokens(geometry);
    n_layers_ = geometry.n_layers;
    max_context_ = geometry.max_context;
    const uint64_t kept = uint64_t{budget_tokens_} + geometry.sink_tokens + geometry.window_tokens;
    const uint64_t of_each = std::min<uint64_t>(kept + 1, max_context_);
    most_attended_ = std::max<uint64_t>(max_context_, geometry.max_sequences * of_each);
    n_sparse_layers_ = sdk::n_sparse_layers(geometry);
  }

  void limits(kvasir_sel_limits& out) const {
    out.unit = KVASIR_UNIT_TOKEN;
    out.scope = KVASIR_SCOPE_SEQUENCE;
    out.max_units = budget_tokens_;
    sdk::plan_evictions(each_step_, out);
    out.plans.action = KVASIR_ACTION_EVICT;
    out.mass.level = KVASIR_MASS_TOKEN;
    out.mass.reduce = KVASIR_MASS_SUM_ALL;  // ranks as the mean over all heads does
    out.mass.last_queries = 1;
    out.memory.state_peak_bytes =
        (sizeof(uint32_t) + sizeof(float)) * most_attended_ * n_sparse_layers_;
  }

  void observe(const sdk::Step& step, const kvasir_mass& mass) {
    sdk::check_mass(mass, step.n_seqs());
    for (uint32_t s = 0; s < step.n_seqs(); ++s) {
      LatestQuery::Layer& layer = layer_of(step, s) = {};
      const uint64_t n = mass.list_offsets[s + 1] - mass.list_offsets[s];
      layer.token.reserve(n);
      layer.mass.reserve(n);
      sdk::for_each_mass(mass, s, [&](uint32_t token, float value) {
        layer.token.push_back(token);
        layer.mass.push_back(value);
      });
    }
  }

  void evict_plan(const sdk::Step& step, kvasir_selection& out) {
    for (uint32_t s = 0; s < step.n_seqs(); ++s) {
      if (layer_of(step, s).token.empty()) {
        sdk::fail_invalid("evict_plan: no query was observed in layer " +
                          std::to_string(step.layer()));
      }
    }
    const auto count = [&](uint32_t, const sdk::Candidates&) { return uint64_t{budget_tokens_}; };
    const auto score = [&](uint32_t s, const sdk::Candidates& from, float* to) {
      const LatestQuery::Layer& layer = layer_of(step, s);
      size_t at = 0;
      for (uint64_t c = 0; c < from.size(); ++c) {
        while (at < layer.token.size() && layer.token[at] < from[c]) ++at;
        const bool is_seen = at < layer.token.size() && layer.token[at] == from[c];
        to[c] = is_seen ? layer.mass[at] : 0.0f;
      }
    };
    const bool at_prompt_end = step.phase() == KVASIR_PHASE_PREFILL;  // afterwards few are lost
    sdk::keep_best(host_, step, 1, at_prompt_end ? sdk::PlanList::kKept : sdk::PlanList::kLost,
                   count, score, out);
    for (uint32_t s = 0; s < step.n_seqs(); ++s) layer_of(step, s) = {};
  }

  const void* get_extension(const char* id) const { return sdk::state_if_asked<Tova>(id); }
  void save(uint64_t seq, sdk::StateWriter& out) {
    out.put(static_cast<uint32_t>(state_of(seq).layers.size()));
    for (const LatestQuery::Layer& layer : state_of(seq).layers) {
      out.put_list(layer.token);
      out.put_list(layer.mass);
    }
  }
  void load(uint64_t seq, sdk::StateReader& in) {
    LatestQuery state;
    const auto n = in.take<uint32_t>();
    if (n != 0 && n != n_layers_) in.damaged("it has " + std::to_string(n) + " layers");
    state.layers.resize(n);
    for (LatestQuery::Layer& layer : state.layers) {
      layer.token = in.take_ascending(max_context_, "attended tokens");
      layer.mass = in.take_numbers<float>(layer.token.size(), true, "their mass");
    }
    state_of(seq) = std::move(state);
  }

 private:
  LatestQuery::Layer& layer_of(const sdk::Step& step, uint32_t seq) {
    LatestQuery& state = state_of(step.seq(seq).id);
    if (state.layers.empty()) state.layers.resize(n_layers_);
    return state.layers[step.layer()];
  }

  sdk::Host host_;
  sdk::TokenBudget budget_;
  bool each_step_;
  uint32_t budget_tokens_ = 0;
  uint32_t n_layers_ = 0, n_sparse_layers_ = 0, max_context_ = 0;
  uint64_t most_attended_ = 0;  // by the queries of one step: a prompt, or what is kept of each
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_SELECTOR, "kvasir.tova", "0.1.0", Tova)

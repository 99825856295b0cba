// Chooses by the true attention mass of the query at hand: the upper bound of a comparison. It
// reads every key, so it saves nothing.
// SPDX-License-Identifier: Apache-2.0
#include <kvasir/sdk/queries.h>

#include <array>
#include <numeric>

#include "plugins/shared/best_first.h"
#include "plugins/shared/exact_mass.h"
#include "plugins/shared/unit_budget.h"

namespace {
using namespace kvasir;

constexpr const char* kPAliases[] = {"top_p", nullptr};
constexpr std::array kOptions = {
    sdk::unit_budget_option("budget"),
    sdk::float_option({.key = "p",
                       .help = "instead: as few as reach this share of the mass, forced parts "
                               "included",
                       .aliases = kPAliases,
                       .flags = KVASIR_OPTION_OPTIONAL,
                       .group = "budget"},
                      0.95, 0.0, 1.0),
    sdk::kUnitOption};

class Oracle {
 public:
  static constexpr kvasir_desc kDesc =
      sdk::describe({.kind = KVASIR_KIND_SELECTOR,
                     .id = "kvasir.oracle",
                     .version = "0.1.0",
                     .name = "Oracle",
                     .vendor = "Kvasir",
                     .license = "Apache-2.0",
                     .summary = "Chooses by true attention mass: the upper bound of a comparison.",
                     .options = kOptions,
                     .needs = KVASIR_NEED_KEYS | KVASIR_NEED_TOKEN_ITEMS});

  Oracle(const sdk::Host& host, const sdk::Options& options)
      : host_(host),
        budget_(options),
        by_share_(options.delivered("p")),
        p_(by_share_ ? options.f64("p") : 1.0) {}

  void validate(const kvasir_geometry& geometry) const {
    budget_.validate(geometry);
    sdk::ExactMass::validate(geometry);
  }

  void bind(const kvasir_geometry& geometry) {
    exact_ = sdk::ExactMass(geometry);
    group_size_ = geometry.n_q_heads / geometry.n_kv_heads;
    n_q_heads_ = geometry.n_q_heads;
    head_dim_ = geometry.head_dim;
    budget_.bind(geometry);
    n_heads_ = budget_.n_heads();
  }

  void limits(kvasir_sel_limits& out) const { budget_.limits(out); }

  void select(const sdk::Step& step, const kvasir_sel_in& in, kvasir_selection& out) const {
    const uint32_t n_lists = step.n_seqs() * n_heads_;
    std::vector<std::vector<uint32_t>> chosen(n_lists);
    const sdk::Queries queries(in.q, n_q_heads_, head_dim_);
    const std::vector<float> q = queries.pooled(step);
    host_.for_each(n_lists, [&](uint32_t i) { chosen[i] = choose(step, in, i, q.data()); });
    sdk::write_lists(out, budget_.scope(), chosen);
    uint64_t read = 0;
    for (uint32_t s = 0; s < step.n_seqs(); ++s)
      for (uint32_t head = 0; head < n_q_heads_ / group_size_; ++head)
        read += exact_.bytes(in, s, step.seq(s).kv_len, head);
    sdk::say_read(out, read);
  }

 private:
  // Mass of every token, summed over the query heads that share list i.
  std::vector<double> mass(const sdk::Step& step, const kvasir_sel_in& in, uint32_t i,
                           const float* q) const {
    const uint32_t s = i / n_heads_, heads = n_q_heads_ / n_heads_;
    std::vector<double> sum(step.seq(s).kv_len);
    const uint32_t together = std::min(heads, group_size_);  // query heads of one kv head
    for (uint32_t h = i % n_heads_ * heads; h < (i % n_heads_ + 1) * heads; h += together)
      exact_.add(in, s, step.seq(s).kv_len, h / group_size_,
                 q + (uint64_t{s} * n_q_heads_ + h) * head_dim_, together, sum);
    return sum;
  }

  std::vector<uint32_t> choose(const sdk::Step& step, const kvasir_sel_in& in, uint32_t i,
                               const float* q) const {
    const std::vector<double> of_token = mass(step, in, i, q);
    const sdk::Candidates from = step.candidates(i / n_heads_, i % n_heads_);
    const uint64_t per = budget_.per_unit();
    std::vector<double> score(from.size());
    for (uint64_t c = 0; c < from.size(); ++c)
      for (uint64_t t = from[c] * per;
           t < std::min<uint64_t>((uint64_t{from[c]} + 1) * per, of_token.size()); ++t)
        score[c] += of_token[t];
    const std::vector<uint32_t> order =
        sdk::best_first(score, by_share_ ? score.size() : budget_.units());
    uint64_t n = order.size();
    if (by_share_) {
      // Mass to find among the candidates; what an earlier selector left out counts as missed.
      const kvasir_step_seq& seq = step.seq(i / n_heads_);
      double left = -(1.0 - p_) * std::accumulate(of_token.begin(), of_token.end(), 0.0);
      const uint64_t end = std::min<uint64_t>(seq.unit_end * per, of_token.size());
      for (uint64_t t = seq.unit_begin * per; t < end; ++t) left += of_token[t];
      for (n = 0; n < order.size() && left > 0.0; ++n) left -= score[order[n]];
    }
    std::vector<uint32_t> out(order.begin(), order.begin() + static_cast<ptrdiff_t>(n));
    std::sort(out.begin(), out.end());
    for (uint32_t& index : out) index = from[index];
    return out;
  }

  sdk::Host host_;
  sdk::UnitBudget budget_;
  bool by_share_;
  double p_;
  sdk::ExactMass exact_;
  uint32_t group_size_ = 1, n_q_heads_ = 1, head_dim_ = 1;
  uint32_t n_heads_ = 1;
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_SELECTOR, "kvasir.oracle", "0.1.0", Oracle)

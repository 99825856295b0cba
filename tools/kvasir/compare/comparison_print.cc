// A comparison as JSON and as a table.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/compare/comparison.h"
#include "tools/kvasir/session/strategy.h"

namespace kvasir::tool {
namespace {

std::vector<std::string> table_head(const Comparison& c) {
  std::vector<std::string> head{"strategy",     "prefill tok/s",      "decode tok/s",
                                "K+V MB/token", "to choose MB/token", "attended",
                                "same top-1",   "KL to dense",        "fallbacks"};
  if (c.strategies[0].perplexity) head.push_back("perplexity");
  return head;
}

std::vector<std::string> table_row(const ComparedStrategy& s) {
  const Engagement& d = s.run.decode;
  const double steps = std::max(1.0, static_cast<double>(d.steps));
  std::vector<std::string> row{
      s.run.strategy,
      format("%.1f", s.run.prefill_tokens_per_second()),
      format("%.2f", s.run.decode_tokens_per_second()),
      format("%.3f", static_cast<double>(d.kv_bytes_read) / steps / 1e6),
      format("%.3f", static_cast<double>(d.bytes_read_to_choose()) / steps / 1e6),
      format("%.1f %%", s.run.attended_percent()),
      format("%.1f %%", 100.0 * s.top1_agreement),
      format("%.5f", s.mean_kl),
      std::to_string(d.fallbacks)};
  if (s.perplexity) row.push_back(format("%.3f", *s.perplexity));
  return row;
}

bool leaves_out(const Comparison& c, const ComparedStrategy& s) {
  return &s == c.strategies.data() || s.run.has_engaged(c.most_attended);
}

bool choice_matters(const ComparedStrategy& s) { return !s.masked || s.masked->choice_matters(); }

Json masked_json(const ComparedStrategy::Masked& m) {
  return {
      {"top1_agreement", static_cast<double>(m.tokens.by_mask) / static_cast<double>(m.tokens.n)},
      {"mean_kl", m.kl.mean_of_mask()},
      {"mean_kl_saved", m.kl.gain()},
      {"mean_kl_saved_error", m.kl.error()}};
}

}  // namespace

Json to_json(const Comparison& c) {
  Json out = to_json(c.setup);
  out["prompt_tokens"] = c.prompt_tokens;
  out["decode_steps"] = c.decode_steps;
  out["fed"] = c.fed_text ? "text" : "greedy";
  out["load_ms"] = c.load_ms;
  out["strategies"] = Json::array();
  for (const ComparedStrategy& s : c.strategies) {
    Json strategy = to_json(s.run);
    strategy["prefill_shared_with"] = json_or_null(s.prefill_shared_with);
    strategy["top1_agreement"] = s.top1_agreement;
    strategy["mean_kl"] = s.mean_kl;
    strategy["mean_kl_error"] = s.mean_kl_error;
    strategy["perplexity"] = json_or_null(s.perplexity);
    strategy["masked"] = s.masked ? masked_json(*s.masked) : Json();
    strategy["engaged"] = leaves_out(c, s) && choice_matters(s);
    out["strategies"].push_back(strategy);
  }
  return out;
}

std::string to_line(const ComparedStrategy& s) {
  return s.run.strategy +
         format(": decode %.2f tok/s, attended %.1f %%, same top-1 %.1f %%, KL to dense %.5f",
                s.run.decode_tokens_per_second(), s.run.attended_percent(),
                100.0 * s.top1_agreement, s.mean_kl);
}

std::string to_text(const Comparison& c) {
  std::string out = format("%llu prompt tokens, then %u tokens %s in all; %s, %u threads\n\n",
                           static_cast<unsigned long long>(c.prompt_tokens), c.decode_steps,
                           c.fed_text ? "of the text, the same" : "that dense generates, the same",
                           name(c.setup.compute), c.setup.n_threads);
  Table table(table_head(c), {1, 2, 3, 4, 5, 6, 7, 8, 9});
  std::vector<std::string> shared, idle, masked;
  std::vector<const RunReport*> reports;
  for (const ComparedStrategy& s : c.strategies) {
    table.add(table_row(s));
    reports.push_back(&s.run);
    if (!leaves_out(c, s))
      idle.push_back(s.run.strategy);
    else if (!choice_matters(s))
      masked.push_back(s.run.strategy);
    if (s.prefill_shared_with) shared.push_back(s.run.strategy + " with " + *s.prefill_shared_with);
  }
  out += table.text();
  if (!idle.empty()) out += "\n" + not_engaged_text(idle, c.most_attended);
  if (!masked.empty())
    out += "\n" + kept_by_mask_text(masked, "the tokens that dense attention predicts") +
           ", and KL changes by less than 0.01 nats, or than chance would change it.\n";
  out += restored_text(reports);
  if (shared.empty()) return out;
  return out + "\nPrompts read together: " + join(shared, ", ") +
         ". Their prefill speed counts the shared pass and what their own plugins took.\n";
}

}  // namespace kvasir::tool

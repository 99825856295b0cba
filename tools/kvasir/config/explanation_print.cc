// An explanation as JSON and as text.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/config/explanation.h"

namespace kvasir::tool {
namespace {

// Reads a value as TOML writes it. JSON writes numbers, truth values, strings and lists alike.
Json value_json(const std::string& toml) {
  if (toml == "not set") return nullptr;
  const Json value = Json::parse(toml, nullptr, false);
  return value.is_discarded() ? Json(toml) : value;
}

std::string value_text(const std::string& toml) {
  const Json value = value_json(toml);
  if (value.is_null()) return "not set";
  if (!value.is_array()) return value.dump();
  std::vector<std::string> parts;
  for (const Json& part : value) parts.push_back(part.dump());
  return "[" + join(parts, ", ") + "]";
}

Json plugin_json(const ExplainedPlugin& plugin) {
  Json options = Json::array();
  for (const ExplainedValue& option : plugin.options)
    options.push_back({{"key", option.key},
                       {"value", value_json(option.value)},
                       {"origin", option.origin},
                       {"note", option.note}});
  return {{"table", plugin.table}, {"id", plugin.id}, {"file", plugin.file}, {"options", options}};
}

Json budget_json(const ExplainedBudget& b) {
  return {{"selector", b.budget.selector},
          {"budget_tokens", b.budget.limited ? Json(b.budget.tokens) : Json()},
          {"of_context", b.budget.of_context},
          {"said", b.said}};
}

Json attended_json(const Explanation& e) {
  const MemoryPlan& p = e.plan;
  return {{"model", e.model},
          {"context", e.context},
          {"sink_tokens", p.sink_tokens},
          {"selected_tokens", p.selected_tokens},
          {"attends_all", p.attends_all},
          {"window_tokens", p.window_tokens},
          {"attended_tokens", p.attended_tokens},
          {"attended_share", e.attended_share()},
          {"layers", e.n_layers},
          {"dense_layers", p.n_dense_layers},
          {"sliding_layers", p.n_sliding_layers},
          {"mean_share", e.mean_share()},
          {"kv_bytes_per_step", p.kv_bytes_per_step}};
}

std::string settings_text(const Explanation& e) {
  const auto is_selector = [](const ExplainedPlugin& plugin) { return plugin.is_selector; };
  const auto n_selectors = std::count_if(e.plugins.begin(), e.plugins.end(), is_selector);
  size_t selector = 0;  // of a chain
  Table table({"key", "value", "from", ""});
  for (const ExplainedValue& value : e.cache)
    table.add({value.key, value_text(value.value), value.origin, value.note});
  for (const ExplainedPlugin& plugin : e.plugins) {
    std::string section = plugin.table;
    if (n_selectors > 1 && plugin.is_selector) section += "." + std::to_string(selector++);
    table.add({section + ".plugin", plugin.id, plugin.file, ""});
    for (const ExplainedValue& option : plugin.options)
      table.add({section + "." + option.key, value_text(option.value), option.origin, option.note});
  }
  return table.text();
}

std::string budgets_text(const Explanation& e) {
  std::string out =
      "\nbudget_tokens, the most per layer, kv head and step beyond sink and window:\n";
  for (const ExplainedBudget& b : e.budgets) {
    out += "  " + b.budget.selector + ": " +
           (b.budget.limited ? std::to_string(b.budget.tokens) : "no limit") +
           (b.budget.of_context ? " of a full context, mean over layers and kv heads" : "") + "\n";
    for (const std::string& text : b.said) out += "    " + text + "\n";
  }
  return out;
}

std::string attended_text(const Explanation& e) {
  const MemoryPlan& p = e.plan;
  const auto tokens = [](uint64_t n) { return std::to_string(n); };
  std::string others;
  if (p.n_dense_layers != 0) others += format(", all in %u dense ones", p.n_dense_layers);
  if (p.n_sliding_layers != 0)
    others += format(", a sliding window of %llu in %u, which the model has by itself",
                     static_cast<unsigned long long>(p.sliding_tokens / p.n_sliding_layers),
                     p.n_sliding_layers);
  if (!others.empty())
    others = format(" in %u layers", e.n_layers - p.n_dense_layers - p.n_sliding_layers) + others +
             format(": %.2f %% on average", 100.0 * e.mean_share());
  return format("\nattended per layer, kv head and decoded token at %u tokens (%s): ", e.context,
                e.model.c_str()) +
         "sink " + tokens(p.sink_tokens) + " + selected " + (p.attends_all ? "at most " : "") +
         tokens(p.selected_tokens) + " + window " + tokens(p.window_tokens) + " = " +
         tokens(p.attended_tokens) + format(" tokens (%.2f %%)", 100.0 * e.attended_share()) +
         others + "\n";
}

}  // namespace

Json to_json(const Explanation& e) {
  Json out{{"strategy", e.strategy}, {"cache", Json::array()}, {"plugins", Json::array()}};
  for (const ExplainedValue& v : e.cache)
    out["cache"].push_back(
        {{"key", v.key}, {"value", value_json(v.value)}, {"origin", v.origin}, {"note", v.note}});
  for (const ExplainedPlugin& plugin : e.plugins) out["plugins"].push_back(plugin_json(plugin));
  out["budgets"] = Json::array();
  for (const ExplainedBudget& budget : e.budgets) out["budgets"].push_back(budget_json(budget));
  out["memory"] = {{"representative_bytes", e.plan.record_bytes},
                   {"state_bytes", e.plan.state_bytes},
                   {"state_peak_bytes", e.plan.state_peak_bytes}};
  out["attended"] = attended_json(e);
  return out;
}

std::string to_text(const Explanation& e) {
  return "strategy " + e.strategy + "\n\n" + settings_text(e) + budgets_text(e) +
         "\nkept beside K and V: summaries " + bytes_text(e.plan.record_bytes) + ", own state " +
         bytes_text(e.plan.state_bytes) + ", at most " + bytes_text(e.plan.state_peak_bytes) +
         " while a prompt is read\n" + attended_text(e);
}

}  // namespace kvasir::tool

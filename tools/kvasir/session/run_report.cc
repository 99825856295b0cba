// See run_report.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/session/run_report.h"

#include <algorithm>

#include "core/plugin/check/plugin_checks.h"
#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/session/tier_report.h"

namespace kvasir::tool {
namespace {

std::vector<PluginUsed> plugins_of(const Pipeline& pipeline) {
  std::vector<PluginUsed> list;
  const auto add = [&](const Instance* instance) {
    if (instance) list.push_back({instance->id(), instance->version(), instance->file()});
  };
  for (const auto& selector : pipeline.selectors) add(selector.get());
  add(pipeline.representative.get());
  add(pipeline.storage.get());
  add(pipeline.attention.get());
  add(pipeline.window_storage.get());
  add(pipeline.window_attention.get());
  return list;
}

// Sums over all steps; per step where the text says so.
std::string engagement_text(const RunReport& r) {
  const Engagement& d = r.decode;
  const auto steps = static_cast<double>(d.steps);
  std::string out = format(
      "engagement: %s: considered %llu, selected %llu, attended %llu tokens (%.1f %%), "
      "%.3f MB of K and V + %.3f MB to choose by read per step, %llu fallbacks\n",
      r.strategy.c_str(), static_cast<unsigned long long>(d.tokens_considered),
      static_cast<unsigned long long>(d.tokens_selected),
      static_cast<unsigned long long>(d.tokens_attended), r.attended_percent(),
      megabytes(d.kv_bytes_read, steps), megabytes(d.bytes_read_to_choose(), steps),
      static_cast<unsigned long long>(d.fallbacks));
  if (d.sliding_tokens != 0)
    out += format(
        "sliding windows: %llu more tokens attended in layers that the model gives a window; "
        "strategies choose in the others\n",
        static_cast<unsigned long long>(d.sliding_tokens));
  if (d.window_kv_bytes_read != 0)
    out += format(
        "hybrid: of K and V %s read %.3f MB in the window, %s %.3f MB in the context, "
        "per step\n",
        r.window_attention.c_str(), megabytes(d.window_kv_bytes_read, steps), r.attention.c_str(),
        megabytes(d.kv_bytes_read - d.window_kv_bytes_read, steps));
  if (d.device_copy_bytes != 0)
    out += format("device: %.3f MB copied between host and device per step\n",
                  megabytes(d.device_copy_bytes, steps));
  if (d.backend_skipped != 0)
    out += format("backend: %llu attended tokens skipped by itself\n",
                  static_cast<unsigned long long>(d.backend_skipped));
  return out;
}

std::string boundary_text(const RunReport& r) {
  const Engagement& d = r.decode;
  const auto steps = static_cast<double>(d.steps);
  const double nanos = static_cast<double>(d.boundary_calls) * r.crossing_nanos;
  return format(
      "boundary: %.2f plugin calls per layer and step, their crossing costs %.4f ms per step "
      "(%.3f %%) and checks of what they return %.4f ms (%.3f %%); %.3f ms model, %.3f ms plugins, "
      "%.3f ms core between them\n",
      per(static_cast<double>(d.boundary_calls), static_cast<double>(d.layer_steps)),
      per(nanos, steps) / 1e6, 100.0 * per(nanos, static_cast<double>(d.total_nanos)),
      per(static_cast<double>(d.check_nanos), steps) / 1e6,
      100.0 * per(static_cast<double>(d.check_nanos), static_cast<double>(d.total_nanos)),
      per(static_cast<double>(d.model_nanos), steps) / 1e6,
      per(static_cast<double>(d.plugin_nanos), steps) / 1e6,
      per(static_cast<double>(d.core_nanos), steps) / 1e6);
}

std::string checks_text(const RunReport& r) {
  if (!r.checks) return "";
  return format("checks: %llu plugin calls on guarded copies, %llu compared with %s: no fault\n",
                static_cast<unsigned long long>(r.checks->calls),
                static_cast<unsigned long long>(r.checks->compared), r.checks->reference.c_str());
}

Json engagement_json(const Engagement& e, double crossing_nanos) {
  Json out{{"steps", e.steps},
           {"tokens_considered", e.tokens_considered},
           {"tokens_selected", e.tokens_selected},
           {"tokens_attended", e.tokens_attended},
           {"sliding_tokens", e.sliding_tokens},
           {"kv_bytes_read", e.kv_bytes_read},
           {"window_kv_bytes_read", e.window_kv_bytes_read},
           {"representative_bytes_read", e.representative_bytes_read},
           {"selector_bytes_read", e.selector_bytes_read},
           {"device_copy_bytes", e.device_copy_bytes},
           {"fallbacks", e.fallbacks},
           {"selections", e.selections},
           {"reused", e.reused},
           {"bypassed", e.bypassed},
           {"boundary_calls", e.boundary_calls},
           {"boundary_calls_per_layer_step",
            per(static_cast<double>(e.boundary_calls), static_cast<double>(e.layer_steps))},
           {"boundary_ms", static_cast<double>(e.boundary_calls) * crossing_nanos / 1e6},
           {"plugin_ms", static_cast<double>(e.plugin_nanos) / 1e6},
           {"core_ms", static_cast<double>(e.core_nanos) / 1e6},
           {"check_ms", static_cast<double>(e.check_nanos) / 1e6},
           {"model_ms", static_cast<double>(e.model_nanos) / 1e6},
           {"total_ms", static_cast<double>(e.total_nanos) / 1e6},
           {"choose_ms", static_cast<double>(e.choose_nanos) / 1e6},
           {"attend_ms", static_cast<double>(e.attend_nanos) / 1e6}};
  if (e.backend_skipped != 0) out["backend_skipped"] = e.backend_skipped;
  add_tiers(out, e);
  return out;
}

}  // namespace

uint32_t RunReport::prompt_tokens_read() const {
  return figures.prompt_tokens - figures.cached_prompt_tokens - figures.restored_prompt_tokens -
         figures.reused_prompt_tokens;
}

double RunReport::prefill_tokens_per_second() const {
  return per(prompt_tokens_read() * 1e3, figures.prefill_ms);
}

double RunReport::decode_tokens_per_second() const {
  return per(static_cast<double>(decode.steps) * 1e3, figures.decode_ms);
}

double RunReport::attended_percent() const {
  return 100.0 * static_cast<double>(decode.tokens_attended) /
         std::max(1.0, static_cast<double>(decode.tokens_considered));
}

RunReport run_report(Engine& engine, const RunFigures& figures, StrategyId strategy) {
  const Pipeline& pipeline = engine.pipeline(strategy);
  RunReport out;
  out.strategy = pipeline.strategy.name;
  out.plugins = plugins_of(pipeline);
  out.attention = pipeline.attention->id();
  if (pipeline.window_attention) out.window_attention = pipeline.window_attention->id();
  out.figures = figures;
  out.prefill = engine.prefill_engagement(strategy);
  out.decode = engine.decode_engagement(strategy);
  out.crossing_nanos = engine.crossing_nanos();
  if (const PluginChecks* checks = pipeline.storage->checks())
    out.checks = {checks->n_calls, checks->n_compared, checks->reference};
  return out;
}

Json to_json(const RunReport& r) {
  const RunFigures& f = r.figures;
  Json plugins = Json::array();
  for (const PluginUsed& plugin : r.plugins)
    plugins.push_back({{"id", plugin.id}, {"version", plugin.version}, {"file", plugin.file}});
  Json out{{"strategy", r.strategy},
           {"plugins", plugins},
           {"prompt_tokens", f.prompt_tokens},
           {"cached_prompt_tokens", f.cached_prompt_tokens},
           {"restored_prompt_tokens", f.restored_prompt_tokens},
           {"restore_ms", f.restore_ms},
           {"reused_prompt_tokens", f.reused_prompt_tokens},
           {"chunks_ms", f.chunks_ms},
           {"first_token_ms", r.first_token_ms()},
           {"generated_tokens", f.generated_tokens},
           {"load_ms", f.load_ms},
           {"prefill_ms", f.prefill_ms},
           {"decode_ms", f.decode_ms},
           {"prefill_tokens_per_second", r.prefill_tokens_per_second()},
           {"decode_tokens_per_second", r.decode_tokens_per_second()}};
  out.update(engagement_json(r.decode, r.crossing_nanos));
  if (r.checks)
    out["plugin_checks"] = {{"calls", r.checks->calls},
                            {"compared", r.checks->compared},
                            {"reference", r.checks->reference}};
  out["prefill"] = engagement_json(r.prefill, r.crossing_nanos);
  return out;
}

std::string restored_text(const std::vector<const RunReport*>& reports) {
  uint64_t restored = 0, all = 0;
  for (const RunReport* report : reports) {
    restored += report->figures.restored_prompt_tokens;
    all += report->figures.prompt_tokens;
  }
  if (restored == 0) return "";
  return format(
      "\n%llu of %llu prompt tokens of all strategies were in the store: prefill times are of the "
      "others.\n",
      static_cast<unsigned long long>(restored), static_cast<unsigned long long>(all));
}

std::string to_text(const RunReport& r) {
  const RunFigures& f = r.figures;
  std::string out;
  if (f.cached_prompt_tokens != 0)
    out = format("prompt cache: %u of %u prompt tokens were in the file\n", f.cached_prompt_tokens,
                 f.prompt_tokens);
  if (f.restored_prompt_tokens != 0)
    out += format(
        "store: %u of %u prompt tokens were in the store, %.1f ms to look for them, "
        "first token after %.1f ms\n",
        f.restored_prompt_tokens, f.prompt_tokens, f.restore_ms, r.first_token_ms());
  if (f.reused_prompt_tokens != 0)
    out += format(
        "chunks: %u of %u prompt tokens were not computed again, %.1f ms to read the chunks "
        "before\n",
        f.reused_prompt_tokens, f.prompt_tokens, f.chunks_ms);
  out += format(
      "timings: prefill %u tokens in %.1f ms (%.1f tokens/s), decode %llu steps in %.1f ms "
      "(%.2f tokens/s)\n",
      r.prompt_tokens_read(), f.prefill_ms, r.prefill_tokens_per_second(),
      static_cast<unsigned long long>(r.decode.steps), f.decode_ms, r.decode_tokens_per_second());
  if (r.decode.steps == 0) return out;
  return out + engagement_text(r) + boundary_text(r) +
         tiers_text(r.decode, static_cast<double>(r.decode.steps)) + checks_text(r);
}

std::string not_engaged_text(const std::vector<std::string>& strategies, double most_percent) {
  return format(
      "did not engage: %s attended to more than %g %% of the tokens (--most-attended): what stands "
      "here of %s is dense attention's. Give a smaller budget or a longer context.\n",
      join(strategies, ", ").c_str(), most_percent, strategies.size() > 1 ? "them" : "it");
}

}  // namespace kvasir::tool

// Reports; see run_report.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/session/run_report.h"

#include <unistd.h>

#include <cstdio>

namespace kvasir::tool {
namespace {

std::string format(const char* pattern, auto... values) {
  char text[512];
  std::snprintf(text, sizeof(text), pattern, values...);
  return text;
}

double per(double numerator, double denominator) {
  return denominator > 0 ? numerator / denominator : 0.0;
}

nlohmann::ordered_json plugins_json(const Pipeline& pipeline) {
  auto list = nlohmann::ordered_json::array();
  const auto add = [&](const Instance* instance) {
    if (instance)
      list.push_back(
          {{"id", instance->id()}, {"version", instance->version()}, {"file", instance->file()}});
  };
  for (const auto& selector : pipeline.selectors) add(selector.get());
  add(pipeline.representative.get());
  add(pipeline.storage.get());
  add(pipeline.attention.get());
  add(pipeline.window_storage.get());
  add(pipeline.window_attention.get());
  return list;
}

double megabytes(uint64_t bytes, double steps) {
  return per(static_cast<double>(bytes), steps) / 1e6;
}

// Nothing where all is in one tier.
void add_tiers(nlohmann::ordered_json& out, const Engagement& e) {
  if (e.tiers.size() < 2) return;
  out["blocks_hit"] = e.blocks_hit;
  out["blocks_missed"] = e.blocks_missed;
  out["transfer_wait_ms"] = static_cast<double>(e.transfer_wait_nanos) / 1e6;
  auto& tiers = out["tiers"] = nlohmann::ordered_json::array();
  for (const TierTraffic& tier : e.tiers)
    tiers.push_back({{"tier", tier.tier},
                     {"bytes_read", tier.bytes_read},
                     {"bytes_written", tier.bytes_written},
                     {"tokens", tier.tokens}});
}

std::string tiers_text(const Engagement& e, double steps) {
  if (e.tiers.size() < 2) return "";
  std::string out = "tiers:";
  for (const TierTraffic& tier : e.tiers)
    out += format(" %s %.3f MB read, %.3f MB written per step;", tier.tier.c_str(),
                  megabytes(tier.bytes_read, steps), megabytes(tier.bytes_written, steps));
  uint64_t missed = 0;
  for (size_t i = 1; i < e.tiers.size(); ++i) missed += e.tiers[i].tokens;
  return out + format(
                   " %llu of %llu tokens and %llu of %llu blocks had to come, %.3f ms waited "
                   "per step\n",
                   static_cast<unsigned long long>(missed),
                   static_cast<unsigned long long>(e.tiers[0].tokens),
                   static_cast<unsigned long long>(e.blocks_missed),
                   static_cast<unsigned long long>(e.blocks_hit + e.blocks_missed),
                   per(static_cast<double>(e.transfer_wait_nanos), steps) / 1e6);
}

nlohmann::ordered_json engagement_json(const Engagement& e, double crossing_nanos) {
  nlohmann::ordered_json out{
      {"steps", e.steps},
      {"tokens_considered", e.tokens_considered},
      {"tokens_selected", e.tokens_selected},
      {"tokens_attended", e.tokens_attended},
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
      {"model_ms", static_cast<double>(e.model_nanos) / 1e6},
      {"total_ms", static_cast<double>(e.total_nanos) / 1e6}};
  if (e.backend_skipped != 0) out["backend_skipped"] = e.backend_skipped;
  add_tiers(out, e);
  return out;
}

}  // namespace

nlohmann::ordered_json to_json(Engine& engine, const RunFigures& f, StrategyId strategy) {
  const double crossing = engine.crossing_nanos();
  const Engagement& d = engine.decode_engagement(strategy);
  const uint32_t n_read = f.prompt_tokens - f.cached_prompt_tokens;
  nlohmann::ordered_json out{
      {"strategy", engine.pipeline(strategy).strategy.name},
      {"plugins", plugins_json(engine.pipeline(strategy))},
      {"prompt_tokens", f.prompt_tokens},
      {"cached_prompt_tokens", f.cached_prompt_tokens},
      {"generated_tokens", f.generated_tokens},
      {"load_ms", f.load_ms},
      {"prefill_ms", f.prefill_ms},
      {"decode_ms", f.decode_ms},
      {"prefill_tokens_per_second", per(n_read * 1e3, f.prefill_ms)},
      {"decode_tokens_per_second", per(static_cast<double>(d.steps) * 1e3, f.decode_ms)}};
  out.update(engagement_json(d, crossing));
  out["prefill"] = engagement_json(engine.prefill_engagement(strategy), crossing);
  return out;
}

std::string to_text(Engine& engine, const RunFigures& f) {
  const Engagement& d = engine.decode_engagement();
  const auto steps = static_cast<double>(d.steps);
  const uint32_t n_read = f.prompt_tokens - f.cached_prompt_tokens;
  std::string out;
  if (f.cached_prompt_tokens != 0)
    out = format("prompt cache: %u of %u prompt tokens were in the file\n", f.cached_prompt_tokens,
                 f.prompt_tokens);
  out += format(
      "timings: prefill %u tokens in %.1f ms (%.1f tokens/s), decode %llu steps in %.1f ms "
      "(%.2f tokens/s)\n",
      n_read, f.prefill_ms, per(n_read * 1e3, f.prefill_ms),
      static_cast<unsigned long long>(d.steps), f.decode_ms, per(steps * 1e3, f.decode_ms));
  if (d.steps == 0) return out;
  const auto considered = static_cast<double>(d.tokens_considered);
  out += format(
      "engagement: %s: considered %llu, selected %llu, attended %llu tokens (%.1f %%), "
      "%.3f MB of K and V + %.3f MB to choose by read per step, %llu fallbacks\n",
      engine.pipeline().strategy.name.c_str(), static_cast<unsigned long long>(d.tokens_considered),
      static_cast<unsigned long long>(d.tokens_selected),
      static_cast<unsigned long long>(d.tokens_attended),
      100.0 * per(static_cast<double>(d.tokens_attended), considered),
      per(static_cast<double>(d.kv_bytes_read), steps) / 1e6,
      per(static_cast<double>(d.bytes_read_to_choose()), steps) / 1e6,
      static_cast<unsigned long long>(d.fallbacks));
  if (d.window_kv_bytes_read != 0)
    out += format(
        "hybrid: of K and V %s read %.3f MB in the window, %s %.3f MB in the context, "
        "per step\n",
        engine.pipeline().window_attention->id().c_str(),
        per(static_cast<double>(d.window_kv_bytes_read), steps) / 1e6,
        engine.pipeline().attention->id().c_str(),
        per(static_cast<double>(d.kv_bytes_read - d.window_kv_bytes_read), steps) / 1e6);
  if (d.device_copy_bytes != 0)
    out += format("device: %.3f MB copied between host and device per step\n",
                  per(static_cast<double>(d.device_copy_bytes), steps) / 1e6);
  if (d.backend_skipped != 0)
    out += format("backend: %llu attended tokens skipped by itself\n",
                  static_cast<unsigned long long>(d.backend_skipped));
  const double boundary_nanos = static_cast<double>(d.boundary_calls) * engine.crossing_nanos();
  const auto total = static_cast<double>(d.total_nanos);
  out += format(
      "boundary: %.2f plugin calls per layer and step, their crossing costs %.4f ms per step "
      "(%.3f %%); %.3f ms model, %.3f ms plugins, %.3f ms core between them\n",
      per(static_cast<double>(d.boundary_calls), static_cast<double>(d.layer_steps)),
      per(boundary_nanos, steps) / 1e6, 100.0 * per(boundary_nanos, total),
      per(static_cast<double>(d.model_nanos), steps) / 1e6,
      per(static_cast<double>(d.plugin_nanos), steps) / 1e6,
      per(static_cast<double>(d.core_nanos), steps) / 1e6);
  return out + tiers_text(d, steps);
}

ProgressBar::ProgressBar(std::string label, bool enabled)
    : label_(std::move(label)),
      enabled_(enabled && isatty(STDERR_FILENO)),
      begin_(std::chrono::steady_clock::now()),
      last_(begin_ - std::chrono::seconds(1)) {}

ProgressBar::~ProgressBar() {
  if (drawn_) std::fprintf(stderr, "\r\033[K");
}

void ProgressBar::update(uint64_t done, uint64_t total) {
  const auto now = std::chrono::steady_clock::now();
  if (!enabled_ || total == 0 || (now - last_ < std::chrono::milliseconds(100) && done != total))
    return;
  last_ = now;
  constexpr uint64_t kWidth = 30;
  const double seconds = std::chrono::duration<double>(now - begin_).count();
  const auto filled = static_cast<size_t>(kWidth * done / total);
  const double rate = per(static_cast<double>(done), seconds);
  std::fprintf(stderr, "\r\033[K%s [%s%s] %llu/%llu  %.0f/s  %.0f s left", label_.c_str(),
               std::string(filled, '#').c_str(), std::string(kWidth - filled, '.').c_str(),
               static_cast<unsigned long long>(done), static_cast<unsigned long long>(total), rate,
               per(static_cast<double>(total - done), rate));
  std::fflush(stderr);
  drawn_ = true;
}

}  // namespace kvasir::tool

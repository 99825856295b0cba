// See plugin_host.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/session/plugin_host.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "core/error.h"
#include "tools/kvasir/cli/interrupt.h"
#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/session/strategy.h"

namespace kvasir::tool {

HostServices::Log stderr_log(const std::string& level) {
  static constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::debug, spdlog::level::info,
                                                          spdlog::level::warn, spdlog::level::err};
  auto logger = spdlog::get("kvasir");
  if (!logger) logger = spdlog::stderr_logger_mt("kvasir");
  logger->set_pattern("kvasir: %l: %v");
  const auto wanted = spdlog::level::from_str(level);
  if (wanted == spdlog::level::off && level != "off")
    throw input_error("--log-level " + level + ": expected debug, info, warn, error or off");
  logger->set_level(wanted);
  return [logger](uint32_t severity, const std::string& plugin, const std::string& text) {
    logger->log(kLevels[severity > 3 ? 3 : severity], "{}{}{}", plugin, plugin.empty() ? "" : ": ",
                text);
  };
}

namespace {

constexpr auto kInterruptPatience = std::chrono::seconds(3);  // of who pressed Ctrl-C

// Says that a call takes long, at `slow` and at twice that, four times, ...
class SlowCalls {
 public:
  explicit SlowCalls(std::chrono::seconds slow) : slow_(slow) {}

  void operator()(const RunningCall& call, std::chrono::milliseconds age) {
    const Breadcrumb& in = call.crumb;
    if (is_interrupted()) {
      waited_ += Watchdog::kPeriod;
      if (waited_ >= kInterruptPatience) {
        std::fprintf(stderr, "kvasir: interrupted, and %s does not return from %s\n", in.plugin,
                     in.function);
        std::_Exit(130);
      }
    }
    if (number_ != call.number) {
      number_ = call.number;
      next_ = slow_;
    }
    if (slow_.count() == 0 || age < next_) return;
    next_ *= 2;
    const std::string where =
        in.layer == Breadcrumb::kNoLayer ? "" : format(", layer %u", in.layer);
    std::fprintf(
        stderr, "kvasir: warning: %s: %s has run for %lld s%s (%s)\n", in.plugin, in.function,
        static_cast<long long>(std::chrono::duration_cast<std::chrono::seconds>(age).count()),
        where.c_str(), in.path);
  }

 private:
  std::chrono::seconds slow_, next_{0};
  std::chrono::milliseconds waited_{0};
  uint64_t number_ = 0;
};

}  // namespace

PluginHost::PluginHost(const Options& options, uint32_t slow_call_seconds)
    : topology_(Topology::detect(options.numa)),
      pool_(topology_, options.threads),
      services_(pool_,
                [this, log = stderr_log(options.log_level)](
                    uint32_t severity, const std::string& plugin, const std::string& text) {
                  if (severity == KVASIR_LOG_INFO) said_.emplace_back(plugin, text);
                  if (severity != KVASIR_LOG_DEBUG && !shown_.emplace(plugin, text).second) return;
                  log(severity, plugin, text);
                }),
      registry_(plugin_search(options), services_),
      watchdog_(SlowCalls(std::chrono::seconds(slow_call_seconds))) {
  if (options.check_plugins) services_.check_plugins("kvasir.reference");
}

}  // namespace kvasir::tool

// See plugin_host.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/session/plugin_host.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "core/error.h"
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

PluginHost::PluginHost(const Options& options)
    : topology_(Topology::detect()),
      pool_(topology_, options.threads),
      services_(pool_,
                [this, log = stderr_log(options.log_level)](
                    uint32_t severity, const std::string& plugin, const std::string& text) {
                  if (severity == KVASIR_LOG_INFO) said_.emplace_back(plugin, text);
                  if (severity != KVASIR_LOG_DEBUG && !shown_.emplace(plugin, text).second) return;
                  log(severity, plugin, text);
                }),
      registry_(plugin_search(options), services_) {}

}  // namespace kvasir::tool

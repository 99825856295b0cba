// kvasir plugin: every plugin file that is found, with a verdict; all about one plugin.
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include <filesystem>

#include "core/error.h"
#include "core/plugin/loader.h"
#include "tools/kvasir/cli/print.h"
#include "tools/kvasir/commands.h"
#include "tools/kvasir/session/blocked_plugins.h"
#include "tools/kvasir/session/first_contact.h"
#include "tools/kvasir/session/plugin_host.h"
#include "tools/kvasir/session/strategy.h"
#include "tools/kvasir/system/plugin_info.h"
#include "tools/kvasir/system/plugin_list.h"

namespace kvasir::tool {
namespace {

void list(const Options& options) {
  PluginHost host(options);
  print(PluginList{plugin_search(options), host.registry().files()}, options.json);
}

// `what`: an id, which names one plugin, or the path of a file, which may hold several.
std::vector<PluginInfo> find_plugins(PluginHost& host, const std::string& what) {
  if (what.find('/') == std::string::npos) {
    const OpenPlugin plugin = host.registry().open_any(what);
    return {plugin_info(*plugin.desc, plugin.path)};
  }
  PluginFile file = inspect_plugin_file(what);
  std::error_code error;
  const std::string reason = why_blocked(std::filesystem::weakly_canonical(what, error).string());
  if (!reason.empty()) {
    file.verdict = PluginFile::Verdict::kRefused;
    file.reason = reason;
  }
  if (file.verdict != PluginFile::Verdict::kUsable) throw input_error(describe(file));
  const LoadedPlugin loaded(file, *host.services().host());
  std::vector<PluginInfo> found;
  for (const kvasir_desc* desc : loaded.descs()) found.push_back(plugin_info(*desc, what));
  return found;
}

void info(const Options& options, const std::string& what) {
  PluginHost host(options);
  Json document{{"plugins", Json::array()}};
  std::string text;
  for (const PluginInfo& found : find_plugins(host, what)) {
    document["plugins"].push_back(to_json(found));
    text += (text.empty() ? "" : "\n") + to_text(found);
  }
  if (options.json) return print_json(document);
  print_text(text);
}

void allow(const std::string& what) {
  const std::vector<std::string> paths = unblock(what);
  if (paths.empty()) throw input_error("plugin unblock " + what + ": no such plugin is blocked");
  for (const std::string& path : paths) print_text(path + ": allowed again\n");
}

void add_flags(CLI::App& command, Options& o) {
  command.add_option("--plugin-dir", o.plugin_dirs, "Folder to search for plugins first")
      ->allow_extra_args(false);
  command.add_option("--log-level", o.log_level, "debug, info, warn, error")
      ->envname("KVASIR_LOG_LEVEL");
  add_json(command, o.json);
}

}  // namespace

void add_plugin(CLI::App& app) {
  auto* plugin =
      app.add_subcommand("plugin", "Which plugins there are, and what one of them takes");
  plugin->require_subcommand(1);
  auto options = std::make_shared<Options>();
  auto* listed = plugin->add_subcommand("list", "Every plugin file found, with a verdict");
  add_flags(*listed, *options);
  listed->callback([=] { list(*options); });
  auto what = std::make_shared<std::string>();
  auto* shown = plugin->add_subcommand("info", "One plugin: what it needs, provides and takes");
  add_flags(*shown, *options);
  shown->add_option("plugin", *what, "Id, or path of a file")->required();
  shown->callback([=] { info(*options, *what); });
  auto* probed = plugin->add_subcommand("probe", "")->group("");  // first_contact.h
  probed->add_option("file", *what)->required();
  probed->callback([=] { probe_plugin(*what); });
  auto* allowed = plugin->add_subcommand("unblock", "Allow a file again that crashed kvasir");
  allowed->add_option("plugin", *what, "Id, or path of a file")->required();
  allowed->callback([=] { allow(*what); });
}

}  // namespace kvasir::tool

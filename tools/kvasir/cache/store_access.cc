// See store_access.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/cache/store_access.h"

#include <charconv>
#include <filesystem>
#include <map>

#include "core/error.h"
#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/session/strategy.h"

namespace kvasir::tool {
namespace {

Options with_folder(const StoreOptions& o) {
  Options out = o.strategy;
  if (o.folder.empty()) return out;
  if (!std::filesystem::is_directory(o.folder))
    throw input_error(o.folder + ": no such folder; a run with --set storage.plugin=tiered and " +
                      "--set storage.store=" + o.folder + " makes it");
  out.set.emplace_back("storage.plugin=tiered");
  out.set.push_back("storage.store=" + std::filesystem::absolute(o.folder).string());
  return out;
}

uint64_t parse_unit(const std::string& text, const std::string& flag,
                    const std::map<std::string, uint64_t>& units, const char* examples) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const auto unit = units.find(std::string(end, text.data() + text.size()));
  if (error != std::errc() || end == text.data() || unit == units.end() ||
      number > UINT64_MAX / unit->second)
    throw input_error(flag + " " + text + ": give it like " + examples);
  return number * unit->second;
}

}  // namespace

StoreAccess::StoreAccess(const StoreOptions& options)
    : model_(options.model),
      host_(options.strategy),
      pipeline_(build_pipeline(resolve_strategy(with_folder(options)), host_.registry(),
                               host_.services())) {
  if (!pipeline_.storage->has_store())
    throw input_error("storage " + pipeline_.storage->id() +
                      " keeps nothing beyond a run: give FOLDER, or a strategy (-s) with "
                      "storage.plugin = \"tiered\" and storage.store");
}

std::vector<kvasir_store_run> StoreAccess::runs() const {
  std::vector<kvasir_store_run> out = storage().list_store();
  if (model_.empty()) return out;
  std::erase_if(out, [&](const kvasir_store_run& run) {
    return !run_text(run).starts_with(model_) &&
           std::string(run.about).find(model_) == std::string::npos;
  });
  if (out.empty())
    throw input_error("--model " + model_ +
                      ": the store has none of that name; `kvasir cache "
                      "list` shows which it has");
  return out;
}

std::string run_text(const kvasir_store_run& run) {
  return format("%016llx%016llx", static_cast<unsigned long long>(run.run[0]),
                static_cast<unsigned long long>(run.run[1]));
}

uint64_t parse_bytes(const std::string& text, const std::string& flag) {
  return parse_unit(text, flag,
                    {{"", 1},
                     {"K", 1ull << 10},
                     {"M", 1ull << 20},
                     {"G", 1ull << 30},
                     {"T", 1ull << 40},
                     {"KiB", 1ull << 10},
                     {"MiB", 1ull << 20},
                     {"GiB", 1ull << 30},
                     {"TiB", 1ull << 40}},
                    "500M, 10G or 10GiB");
}

uint64_t parse_seconds(const std::string& text, const std::string& flag) {
  return parse_unit(text, flag, {{"", 1}, {"s", 1}, {"m", 60}, {"h", 3600}, {"d", 86400}},
                    "30m, 12h or 7d");
}

}  // namespace kvasir::tool

// See store_access.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/cache/store_access.h"

#include <charconv>
#include <filesystem>
#include <map>
#include <string_view>

#include "core/error.h"
#include "core/plugin/option_schema.h"
#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/session/strategy.h"

namespace kvasir::tool {
namespace {

bool is_address(const std::string& place) { return place.find("://") != place.npos; }

Options at_known_store(const StoreOptions& o) {
  if (!o.place.empty() && !is_address(o.place) && !std::filesystem::is_directory(o.place))
    throw input_error(o.place + ": no such folder; `kvasir cache add`, or a run with --set " +
                      "storage.plugin=tiered and --set storage.store=" + o.place + ", makes it");
  return at_store(o.strategy, o.place);
}

[[noreturn]] void refuse(const std::string& text, const std::string& flag, const char* examples) {
  throw input_error(flag + " " + text + ": give it like " + examples);
}

}  // namespace

Options at_store(const Options& options, const std::string& place) {
  Options out = options;
  if (place.empty()) return out;
  out.set.emplace_back("storage.plugin=tiered");
  out.set.push_back("storage.store=" +
                    (is_address(place) ? place : std::filesystem::absolute(place).string()));
  return out;
}

StoreAccess::StoreAccess(const StoreOptions& options)
    : model_(options.model),
      host_(options.strategy),
      pipeline_(build_pipeline(resolve_strategy(at_known_store(options)), host_.registry(),
                               host_.services())) {
  if (!pipeline_.storage->has_store())
    throw input_error("storage " + pipeline_.storage->id() +
                      " keeps nothing beyond a run: give STORE, or a strategy (-s) with "
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

uint64_t size_of_flag(const std::string& text, const std::string& flag) {
  const bool is_short = !text.empty() && std::string_view("KMGT").find(text.back()) != text.npos;
  int64_t bytes = 0;
  if (!parse_bytes(is_short ? text + "iB" : text, bytes)) refuse(text, flag, "500M, 10G or 10GiB");
  return static_cast<uint64_t>(bytes);
}

uint64_t seconds_of_flag(const std::string& text, const std::string& flag) {
  static const std::map<std::string, uint64_t> kUnits = {
      {"", 1}, {"s", 1}, {"m", 60}, {"h", 3600}, {"d", 86400}};
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const auto unit = kUnits.find(std::string(end, text.data() + text.size()));
  if (error != std::errc() || end == text.data() || unit == kUnits.end() ||
      number > UINT64_MAX / unit->second)
    refuse(text, flag, "30m, 12h or 7d");
  return number * unit->second;
}

}  // namespace kvasir::tool

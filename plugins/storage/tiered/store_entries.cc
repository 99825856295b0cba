// See store_entries.h.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/storage/tiered/store_entries.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <map>
#include <set>
#include <tuple>

namespace kvasir::tiered {
namespace {

constexpr int64_t kUseSeconds = 60;  // uses closer than this count as one
constexpr size_t kHashDigits = 32;

}  // namespace

std::string hex(const Hash& hash) {
  char text[kHashDigits + 1];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(hash[0]),
                static_cast<unsigned long long>(hash[1]));
  return text;
}

std::optional<Hash> hash_of(const std::string& text) {
  if (text.size() != kHashDigits || text.find_first_not_of("0123456789abcdef") != text.npos)
    return std::nullopt;
  return Hash{std::stoull(text.substr(0, 16), nullptr, 16),
              std::stoull(text.substr(16), nullptr, 16)};
}

std::string record_text(const StoreName& name) {
  return hex(name.name) + "-" + std::to_string(name.block) + "-" + std::to_string(name.layer);
}

std::optional<StoreName> record_name(const Hash& run, const std::string& text) {
  StoreName out{run, {}, 0, 0};
  const auto hash = hash_of(text.substr(0, std::min(kHashDigits, text.size())));
  if (!hash || std::sscanf(text.c_str() + kHashDigits, "-%9u-%9u", &out.block, &out.layer) != 2)
    return std::nullopt;
  out.name = *hash;
  if (record_text(out) != text) return std::nullopt;
  return out;
}

std::string printable(std::string text, size_t most) {
  text.resize(std::min(text.size(), most));
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  return text;
}

bool is_of_run(const kvasir_store_filter& filter, const Hash& run) {
  return (filter.flags & KVASIR_STORE_ONE_RUN) == 0 || run == Hash{filter.run[0], filter.run[1]};
}

std::vector<kvasir_store_run> runs_of(
    const std::vector<StoreEntry>& entries, const std::function<std::string(const Hash&)>& about,
    const std::function<uint32_t(const StoreEntry&)>& block_size) {
  struct Run {
    kvasir_store_run sums{};
    std::set<Hash> names;
    uint32_t block_size = 0;
  };
  std::map<Hash, Run> runs;
  for (const StoreEntry& entry : entries) {
    const auto [at, is_new] = runs.try_emplace(entry.name.run);
    kvasir_store_run& sums = at->second.sums;
    const auto used = static_cast<uint64_t>(std::max<int64_t>(entry.used, 0));
    if (is_new) {
      std::copy(entry.name.run.begin(), entry.name.run.end(), sums.run);
      std::strncpy(sums.about, printable(about(entry.name.run), sizeof sums.about - 1).c_str(),
                   sizeof sums.about - 1);
      sums.first_used = sums.last_used = used;
    }
    if (at->second.block_size == 0) at->second.block_size = block_size(entry);
    ++sums.n_files;
    sums.bytes += entry.bytes;
    sums.first_used = std::min(sums.first_used, used);
    sums.last_used = std::max(sums.last_used, used);
    if (at->second.names.insert(entry.name.name).second) ++sums.n_blocks;
  }
  std::vector<kvasir_store_run> out;
  for (auto& [hash, run] : runs) {
    run.sums.n_tokens = run.sums.n_blocks * run.block_size;
    out.push_back(run.sums);
  }
  return out;
}

kvasir_store_result prune(std::vector<StoreEntry> entries, const kvasir_store_filter& filter,
                          const std::function<bool(const StoreEntry&, bool& gone)>& remove) {
  kvasir_store_result out{};
  out.struct_size = sizeof out;
  std::sort(entries.begin(), entries.end(), [](const StoreEntry& a, const StoreEntry& b) {
    return std::tuple(a.used / kUseSeconds, b.name.block, a.name.layer, a.place) <
           std::tuple(b.used / kUseSeconds, a.name.block, b.name.layer, b.place);
  });
  for (const StoreEntry& entry : entries) out.bytes += entry.bytes;
  out.n_files = entries.size();
  const bool by_limit = (filter.flags & KVASIR_STORE_LIMIT) != 0;
  const bool by_age = (filter.flags & KVASIR_STORE_OLDER) != 0;
  const auto oldest = std::time(nullptr) - static_cast<int64_t>(std::min<uint64_t>(
                                               filter.older_than_seconds, INT64_MAX / 2));
  uint64_t left = out.bytes;
  for (const StoreEntry& entry : entries) {
    const bool goes = (by_limit && left > filter.limit_bytes) || (by_age && entry.used < oldest) ||
                      (!by_limit && !by_age);
    if (!goes) continue;
    bool gone = false;
    const bool removed = remove(entry, gone);
    if (removed || gone) left -= entry.bytes;
    if (!removed) continue;
    ++out.n_removed;
    out.removed_bytes += entry.bytes;
  }
  return out;
}

}  // namespace kvasir::tiered

// See tier_report.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/session/tier_report.h"

#include <algorithm>
#include <optional>

#include "tools/kvasir/cli/text.h"

namespace kvasir::tool {

double per(double numerator, double denominator) {
  return denominator > 0 ? numerator / denominator : 0.0;
}

double megabytes(uint64_t bytes, double steps) {
  return per(static_cast<double>(bytes), steps) / 1e6;
}

namespace {

double at_a_time(const TierTraffic& tier) {
  return per(static_cast<double>(tier.read_nanos), static_cast<double>(tier.busy_nanos));
}

// Of the time in which slower tiers were read, the part that no step waited for; none when nothing
// was read or a storage does not measure.
std::optional<double> hidden_share(const Engagement& e) {
  uint64_t busy = 0;
  for (const TierTraffic& tier : e.tiers) busy += tier.busy_nanos;
  if (busy == 0) return std::nullopt;
  return std::max(0.0,
                  1.0 - static_cast<double>(e.transfer_wait_nanos) / static_cast<double>(busy));
}

double hidden_share(const TierTraffic& tier) {
  return 1.0 - per(static_cast<double>(tier.waited_nanos), static_cast<double>(tier.busy_nanos));
}

// Of tiers that are read while the step computes: how long that took, and how much of it no step
// waited for.
std::string reading_text(const Engagement& e, double steps) {
  std::string out;
  for (const TierTraffic& tier : e.tiers)
    if (tier.n_reads != 0)
      out +=
          format(" %s: %.1f reads of %.1f KB, %.1f at a time, in %.3f ms per step, %.1f %% hidden;",
                 tier.tier.c_str(), per(static_cast<double>(tier.n_reads), steps),
                 per(static_cast<double>(tier.bytes_read), static_cast<double>(tier.n_reads)) / 1e3,
                 at_a_time(tier), per(static_cast<double>(tier.busy_nanos), steps) / 1e6,
                 100.0 * hidden_share(tier));
  const auto share = hidden_share(e);
  return share ? "reading:" + out + format(" of all, %.1f %% hidden\n", 100.0 * *share) : "";
}

// Where tokens came from, when several slower tiers gave some: " (3.1 % from file, 0.4 % from
// file_2)".
std::string shares_text(const Engagement& e) {
  std::string out;
  size_t n = 0;
  for (size_t i = 1; i < e.tiers.size(); ++i) {
    const TierTraffic& tier = e.tiers[i];
    if (tier.tokens == 0) continue;
    const double share =
        per(static_cast<double>(tier.tokens), static_cast<double>(e.tiers[0].tokens));
    out += format("%s%.1f %% from %s", n++ == 0 ? " (" : ", ", 100.0 * share, tier.tier.c_str());
  }
  return n > 1 ? out + ")" : "";
}

}  // namespace

void add_tiers(Json& out, const Engagement& e) {
  if (e.tiers.size() < 2) return;
  out["blocks_hit"] = e.blocks_hit;
  out["blocks_missed"] = e.blocks_missed;
  out["transfer_wait_ms"] = static_cast<double>(e.transfer_wait_nanos) / 1e6;
  auto& tiers = out["tiers"] = Json::array();
  for (const TierTraffic& tier : e.tiers) {
    tiers.push_back({{"tier", tier.tier},
                     {"bytes_read", tier.bytes_read},
                     {"bytes_written", tier.bytes_written},
                     {"tokens", tier.tokens},
                     {"reads", tier.n_reads},
                     {"reading_ms", static_cast<double>(tier.busy_nanos) / 1e6},
                     {"waited_ms", static_cast<double>(tier.waited_nanos) / 1e6},
                     {"reads_at_a_time", at_a_time(tier)}});
    if (tier.busy_nanos != 0) tiers.back()["reading_hidden"] = hidden_share(tier);
  }
  if (const auto share = hidden_share(e)) out["reading_hidden"] = *share;
}

std::string tiers_text(const Engagement& e, double steps) {
  if (e.tiers.size() < 2) return "";
  std::string out = "tiers:";
  for (const TierTraffic& tier : e.tiers)
    out += format(" %s %.3f MB read, %.3f MB written per step;", tier.tier.c_str(),
                  megabytes(tier.bytes_read, steps), megabytes(tier.bytes_written, steps));
  uint64_t missed = 0;
  for (size_t i = 1; i < e.tiers.size(); ++i) missed += e.tiers[i].tokens;
  return out +
         format(
             " %llu of %llu tokens%s and %llu of %llu blocks had to come, %.3f ms waited "
             "per step\n",
             static_cast<unsigned long long>(missed),
             static_cast<unsigned long long>(e.tiers[0].tokens), shares_text(e).c_str(),
             static_cast<unsigned long long>(e.blocks_missed),
             static_cast<unsigned long long>(e.blocks_hit + e.blocks_missed),
             per(static_cast<double>(e.transfer_wait_nanos), steps) / 1e6) +
         reading_text(e, steps);
}

}  // namespace kvasir::tool

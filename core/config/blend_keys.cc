// The keys of [blend]; see blend.h.
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <charconv>

#include "core/config/raw.h"

namespace kvasir {
namespace {

struct Mode {
  BlendMode mode;
  const char* name;
};
constexpr std::array<Mode, 8> kModes{{{BlendMode::kFull, "full"},
                                      {BlendMode::kPrefix, "prefix"},
                                      {BlendMode::kReuse, "reuse"},
                                      {BlendMode::kReuseUncorrected, "reuse_uncorrected"},
                                      {BlendMode::kRatio, "ratio"},
                                      {BlendMode::kRandom, "random"},
                                      {BlendMode::kOracle, "oracle"},
                                      {BlendMode::kAuto, "auto"}}};

}  // namespace

const char* name(BlendMode mode) {
  for (const Mode& known : kModes)
    if (known.mode == mode) return known.name;
  return "";
}

const std::vector<std::string>& blend_mode_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const Mode& known : kModes) all.emplace_back(known.name);
    return all;
  }();
  return names;
}

namespace config {
namespace {

BlendMode read_mode(const OptionSetting& e) {
  const auto* text = std::get_if<std::string>(&e.value);
  if (!text) throw wrong_type(e, "a string");
  std::string listed;
  for (const Mode& known : kModes) {
    if (*text == known.name) return known.mode;
    listed.append(listed.empty() ? "\"" : ", \"").append(known.name).append("\"");
  }
  throw error_at(e.origin, e.key + " = " + value_text(e.value) + " is not one of " + listed +
                               did_you_mean(*text, blend_mode_names()));
}

double read_share(const OptionSetting& e) {
  const auto* whole = std::get_if<int64_t>(&e.value);
  const auto* real = std::get_if<double>(&e.value);
  if (!whole && !real) throw wrong_type(e, "a number");
  const double share = real ? *real : static_cast<double>(*whole);
  if (!(share >= 0 && share <= 1))
    throw error_at(e.origin, e.key + " = " + value_text(e.value) + " is out of range 0..1");
  return share;
}

uint32_t read_count(const OptionSetting& e, int64_t least, int64_t most) {
  const auto* value = std::get_if<int64_t>(&e.value);
  if (!value) throw wrong_type(e, "an integer");
  if (*value < least || *value > most)
    throw error_at(e.origin, e.key + " = " + std::to_string(*value) + " is out of range " +
                                 std::to_string(least) + ".." + std::to_string(most));
  return static_cast<uint32_t>(*value);
}

bool read_bool(const OptionSetting& e) {
  const auto* value = std::get_if<bool>(&e.value);
  if (!value) throw wrong_type(e, "true or false");
  return *value;
}

std::string share_text(double share) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), share).ptr;
  return {text.data(), end};
}

struct BlendKey {
  const char* name;
  void (*set)(BlendConfig&, const OptionSetting&);
  std::string (*print)(const BlendConfig&);
};
constexpr std::array<BlendKey, 8> kBlendKeys{{
    {"mode", [](BlendConfig& c, const OptionSetting& e) { c.mode = read_mode(e); },
     [](const BlendConfig& c) { return std::string("\"").append(name(c.mode)).append("\""); }},
    {"ratio", [](BlendConfig& c, const OptionSetting& e) { c.ratio = read_share(e); },
     [](const BlendConfig& c) { return share_text(c.ratio); }},
    {"min_ratio", [](BlendConfig& c, const OptionSetting& e) { c.min_ratio = read_share(e); },
     [](const BlendConfig& c) { return share_text(c.min_ratio); }},
    {"narrowing", [](BlendConfig& c, const OptionSetting& e) { c.narrowing = read_share(e); },
     [](const BlendConfig& c) { return share_text(c.narrowing); }},
    {"check_layer",
     [](BlendConfig& c, const OptionSetting& e) { c.check_layer = read_count(e, 1, 4095); },
     [](const BlendConfig& c) { return std::to_string(c.check_layer); }},
    {"min_tokens",
     [](BlendConfig& c, const OptionSetting& e) { c.min_tokens = read_count(e, 0, 1 << 30); },
     [](const BlendConfig& c) { return std::to_string(c.min_tokens); }},
    {"load_ahead", [](BlendConfig& c, const OptionSetting& e) { c.load_ahead = read_bool(e); },
     [](const BlendConfig& c) { return std::string(c.load_ahead ? "true" : "false"); }},
    {"chunks_behind_bos",
     [](BlendConfig& c, const OptionSetting& e) { c.chunks_behind_bos = read_bool(e); },
     [](const BlendConfig& c) { return std::string(c.chunks_behind_bos ? "true" : "false"); }},
}};

}  // namespace

void apply_blend_entry(const OptionSetting& entry, StrategyConfig& strategy) {
  std::vector<std::string> names;
  for (const BlendKey& key : kBlendKeys) {
    if (entry.key == key.name) {
      key.set(strategy.blend, entry);
      strategy.blend_origins[entry.key] = entry.origin;
      return;
    }
    names.emplace_back(key.name);
  }
  throw error_at(entry.origin,
                 "unknown key " + entry.key + " in [blend]" + did_you_mean(entry.key, names));
}

void explain_blend(const StrategyConfig& strategy, std::vector<ExplainLine>& lines) {
  if (strategy.blend_origins.empty()) return;
  for (const BlendKey& key : kBlendKeys) {
    const auto origin = strategy.blend_origins.find(key.name);
    lines.push_back(
        {std::string("blend.") + key.name, key.print(strategy.blend),
         origin == strategy.blend_origins.end() ? Origin{}.text() : origin->second.text()});
  }
}

}  // namespace config
}  // namespace kvasir

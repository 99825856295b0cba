// A strategy as the user wrote it: [cache] is the core's, one table per plugin kind, every value
// with the place it came from. Parsed from TOML; unknown keys are errors with file:line:column.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/config/blend.h"

namespace kvasir {

// Where a value came from; precedence kDefault < kFile < kEnvironment < kCommandLine.
struct Origin {
  enum class Source { kDefault, kFile, kEnvironment, kCommandLine } source = Source::kDefault;
  std::string name;  // file path, variable name, or flag text
  uint32_t line = 0, column = 0;
  std::string text() const;  // "quest.toml:12:3", "KVASIR_SET_…", "--set …", "default"
};

template <class T>
struct Setting {
  T value{};
  Origin origin{};
};

using OptionValue = std::variant<bool, int64_t, double, std::string, std::vector<int64_t>>;

struct OptionSetting {  // as written; checked against the plugin's schema when the plugin is known
  std::string key;
  OptionValue value;
  Origin origin;
};

enum class Kind { kSelector = 1, kRepresentative, kStorage, kAttention };  // the ABI's numbers
const char* table_name(Kind kind);  // selector, representative, storage, attention

struct PluginSection {
  Kind kind = Kind::kSelector;
  Setting<std::string> plugin;               // id, bare id of ours, or a path ending in .so
  std::optional<Setting<std::string>> path;  // file to take the id from
  std::vector<OptionSetting> options;
};

enum class WindowMode { kRolling, kPrompt };
enum class HeadSelectMode { kSeparate, kShared };
enum class GqaReduce { kSum, kMean, kMax, kSoftmaxSum };
// While a layer computes, its state says what the next one will choose by its best scores. kRead:
// those blocks start to move, and the next layer chooses by its own query. kChoose: they are its
// choice.
enum class Foresee { kOff, kRead, kChoose };
// Of two backends, which attends a prompt's queries to the context. kAuto: the window's where it
// can read the context's blocks, else the context's own.
enum class PromptAttention { kAuto, kWindow, kContext };
enum class OnFault { kFallback, kFail };
enum class Positions { kTrue, kSlot };

struct CacheConfig {
  Setting<uint32_t> block_size{128};  // tokens, 1..4096
  Setting<uint32_t> sink_tokens{4};
  Setting<uint32_t> window_tokens{64};
  Setting<WindowMode> window_mode{WindowMode::kRolling};  // "rolling", "prompt"
  Setting<uint32_t> window_flush_tokens{0};               // prompt mode: hand over in bulk
  Setting<std::vector<uint32_t>> dense_layers{};          // alias dense_layer_num = n: 0..n-1
  Setting<uint32_t> dense_layer_every{0};                 // n: layers 0, n, 2n … too; 0 = none
  Setting<uint32_t> dense_below_tokens{0};  // kv_len below which a step is dense, nothing given up
  Setting<uint32_t> token_step{0};          // 0 = the plugin's reuse_steps
  Setting<uint32_t> layer_step{1};
  Setting<HeadSelectMode> head_select_mode{HeadSelectMode::kSeparate};  // "separate", "shared"
  Setting<GqaReduce> gqa_reduce{GqaReduce::kSum};
  Setting<uint32_t> chunk_size{512};        // prefill tokens per pass
  Setting<uint32_t> max_seq_len{0};         // tokens of context; 0 = what the prompt needs. -c wins
  Setting<uint32_t> threads_num{0};         // workers; 0 = one per physical core. -t wins
  Setting<bool> bypass{true};               // a budget that covers everything takes the dense path
  Setting<Foresee> foresee{Foresee::kOff};  // "off", "read", "choose"
  Setting<PromptAttention> prompt_attention{PromptAttention::kAuto};  // "auto", "window", "context"
  Setting<OnFault> on_fault{OnFault::kFallback};                      // "fallback", "fail"
  Setting<uint32_t> slow_call_seconds{10};  // a plugin call of that length is said; 0: none
  Setting<uint32_t> transfer_seconds{30};   // a block that takes longer to arrive is lost
  // "true"; "slot": keys and queries are rotated by their index among what is attended
  // (arXiv:2309.17453), so distances never exceed the attended length
  Setting<Positions> positions{Positions::kTrue};
};

struct StrategyConfig {
  std::string name;  // file stem, or "default"
  CacheConfig cache;
  std::vector<PluginSection> selectors;  // a chain, coarse to fine; one = the plain case
  std::optional<PluginSection> representative;
  PluginSection storage, attention;
  // Hybrid mode: two [[storage]] and two [[attention]] tables. Those with holds = "window" are
  // here, those with holds = "context" above. Both or neither.
  std::optional<PluginSection> window_storage, window_attention;
  bool is_hybrid() const { return window_storage.has_value(); }
  // [blend], and where its values came from, by key; those that nobody set are missing.
  BlendConfig blend{};
  std::map<std::string, Origin> blend_origins{};
  // What [representative] representative_type (or anchor_type) may say in place of plugin, in lower
  // case, and the plugin it means. Comes with `defaults`; empty: the key is the plugin's own.
  std::map<std::string, std::string> representative_types;
};

// One `--set cache.window_tokens=64`; the value is TOML, a bare word counts as a string.
struct Override {
  std::string key, value;
  Origin origin;
};

// Reads path (with its includes; later tables win), then environment overrides
// (KVASIR_SET_<TABLE>_<KEY>=value), then `overrides` in order. `defaults` supplies sections that
// nothing else names (the tool passes its default strategy). Throws Error(kInput).
// [cache] and [blend] are merged key by key. A plugin table that names a plugin replaces what an
// earlier layer said about that kind; one that does not adds its options to it. Selectors of a
// chain are addressed as selector.<n>.<key>, the tables of hybrid mode as storage.window.<key> and
// storage.context.<key>. An empty path: defaults and overrides only.
StrategyConfig load_strategy(const std::string& path, const std::vector<Override>& overrides,
                             const StrategyConfig& defaults);
// The same from text, for tests and fuzzing; `label` stands for the file name. No includes.
StrategyConfig parse_strategy(const std::string& toml, const std::string& label,
                              const std::vector<Override>& overrides,
                              const StrategyConfig& defaults);

// One resolved setting, for `config explain`: "cache.window_tokens", "64", "quest.toml:3:1".
struct ExplainLine {
  std::string key, value, origin;
};
// [cache] in full, [blend] where something is set there, then the plugin sections as written (the
// plugins' own defaults come with Pipeline::explained).
std::vector<ExplainLine> explain(const StrategyConfig& strategy);

// The candidate nearest to `name` by edit distance, or empty when none is near.
std::string nearest_name(const std::string& name, const std::vector<std::string>& candidates);

}  // namespace kvasir

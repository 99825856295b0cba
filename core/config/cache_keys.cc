// The keys of [cache]: name, aliases, type, range, in one table.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cctype>
#include <limits>

#include "core/config/cache_keys.h"
#include "core/config/raw.h"

namespace kvasir::config {
namespace {

constexpr uint32_t kMaxTokens = 1u << 30;
constexpr uint32_t kMaxLayers = 4096;
constexpr uint32_t kMaxThreads = 4096;

uint32_t read_u32(const OptionSetting& e, uint32_t min, uint32_t max) {
  const auto* value = std::get_if<int64_t>(&e.value);
  if (!value) throw wrong_type(e, "an integer");
  if (*value < min || *value > max) {
    throw error_at(e.origin, e.key + " = " + std::to_string(*value) + " is out of range " +
                                 std::to_string(min) + ".." + std::to_string(max));
  }
  return static_cast<uint32_t>(*value);
}

template <auto Field, uint32_t Min, uint32_t Max>
void set_u32(CacheConfig& cache, const OptionSetting& e) {
  cache.*Field = {read_u32(e, Min, Max), e.origin};
}

template <auto Field>
void set_bool(CacheConfig& cache, const OptionSetting& e) {
  const auto* value = std::get_if<bool>(&e.value);
  if (!value) throw wrong_type(e, "true or false");
  cache.*Field = {*value, e.origin};
}

template <auto Field>
std::string print_number(const CacheConfig& cache) {
  return std::to_string((cache.*Field).value);
}

// Enum values are written by name; case does not matter, as in the configs people bring along.
template <auto Field, const auto& Names>
void set_enum(CacheConfig& cache, const OptionSetting& e) {
  const auto* value = std::get_if<std::string>(&e.value);
  if (!value) throw wrong_type(e, "a string");
  std::string wanted = *value;
  for (char& c : wanted) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  std::vector<std::string> names;
  std::string listed;
  for (size_t i = 0; i < std::size(Names); ++i) {
    if (wanted == Names[i]) {
      using Enum = std::remove_reference_t<decltype((cache.*Field).value)>;
      cache.*Field = {static_cast<Enum>(i), e.origin};
      return;
    }
    names.emplace_back(Names[i]);
    listed += (i ? ", \"" : "\"") + names.back() + "\"";
  }
  throw error_at(e.origin, e.key + " = " + value_text(e.value) + " is not one of " + listed +
                               did_you_mean(*value, names));
}

template <auto Field, const auto& Names>
std::string print_enum(const CacheConfig& cache) {
  return std::string("\"") + Names[static_cast<size_t>((cache.*Field).value)] + "\"";
}

template <auto Field>
Origin origin_of(const CacheConfig& cache) {
  return (cache.*Field).origin;
}

// In the order of the enums of strategy.h.
constexpr const char* kWindowModes[] = {"rolling", "prompt"};
constexpr const char* kHeadSelectModes[] = {"separate", "shared"};
constexpr const char* kReduces[] = {"sum", "mean", "max", "softmax_sum"};
constexpr const char* kForesees[] = {"off", "read", "choose"};
constexpr const char* kPromptAttentions[] = {"auto", "window", "context"};
constexpr const char* kOnFaults[] = {"fallback", "fail"};
constexpr const char* kPositions[] = {"true", "slot"};

void set_dense_layers(CacheConfig& cache, const OptionSetting& e) {
  const auto* list = std::get_if<std::vector<int64_t>>(&e.value);
  if (!list) throw wrong_type(e, "a list of layer numbers");
  std::vector<uint32_t> layers;
  for (const int64_t layer : *list) {
    if (layer < 0 || layer >= kMaxLayers) {
      throw error_at(e.origin, e.key + ": layer " + std::to_string(layer) + " is out of range 0.." +
                                   std::to_string(kMaxLayers - 1));
    }
    layers.push_back(static_cast<uint32_t>(layer));
  }
  std::sort(layers.begin(), layers.end());
  layers.erase(std::unique(layers.begin(), layers.end()), layers.end());
  cache.dense_layers = {std::move(layers), e.origin};
}

void set_dense_layer_num(CacheConfig& cache, const OptionSetting& e) {
  std::vector<uint32_t> layers(read_u32(e, 0, kMaxLayers));
  for (size_t i = 0; i < layers.size(); ++i) layers[i] = static_cast<uint32_t>(i);
  cache.dense_layers = {std::move(layers), e.origin};
}

std::string print_dense_layers(const CacheConfig& cache) {
  const auto& layers = cache.dense_layers.value;
  return value_text(std::vector<int64_t>(layers.begin(), layers.end()));
}

template <auto Field>
std::string print_bool(const CacheConfig& cache) {
  return (cache.*Field).value ? "true" : "false";
}

template <auto Field, uint32_t Min, uint32_t Max>
constexpr CacheKey number_key(const char* name) {
  return {name, name, &set_u32<Field, Min, Max>, &print_number<Field>, &origin_of<Field>};
}
template <auto Field, const auto& Names>
constexpr CacheKey enum_key(const char* name) {
  return {name, name, &set_enum<Field, Names>, &print_enum<Field, Names>, &origin_of<Field>};
}
template <auto Field>
constexpr CacheKey bool_key(const char* name) {
  return {name, name, &set_bool<Field>, &print_bool<Field>, &origin_of<Field>};
}
constexpr CacheKey alias(const char* name, CacheKey of) {
  return {name, of.canonical, of.set, nullptr, nullptr};
}

using C = CacheConfig;
constexpr CacheKey kSink = number_key<&C::sink_tokens, 0, kMaxTokens>("sink_tokens");
constexpr CacheKey kWindow = number_key<&C::window_tokens, 0, kMaxTokens>("window_tokens");
constexpr CacheKey kDense = {"dense_layers", "dense_layers", &set_dense_layers, &print_dense_layers,
                             &origin_of<&C::dense_layers>};

constexpr CacheKey kCacheKeys[] = {
    number_key<&C::block_size, 1, 4096>("block_size"),
    kSink,
    alias("n_sink", kSink),
    alias("start_size", kSink),
    alias("n_init", kSink),
    kWindow,
    alias("recent_size", kWindow),
    alias("n_local", kWindow),
    alias("local_windows_len", kWindow),
    enum_key<&C::window_mode, kWindowModes>("window_mode"),
    number_key<&C::window_flush_tokens, 0, kMaxTokens>("window_flush_tokens"),
    kDense,
    {"dense_layer_num", "dense_layers", &set_dense_layer_num, nullptr, nullptr},
    number_key<&C::dense_layer_every, 0, kMaxLayers>("dense_layer_every"),
    number_key<&C::dense_below_tokens, 0, kMaxTokens>("dense_below_tokens"),
    number_key<&C::token_step, 0, kMaxTokens>("token_step"),
    number_key<&C::layer_step, 1, kMaxLayers>("layer_step"),
    enum_key<&C::head_select_mode, kHeadSelectModes>("head_select_mode"),
    enum_key<&C::gqa_reduce, kReduces>("gqa_reduce"),
    number_key<&C::chunk_size, 1, 1u << 20>("chunk_size"),
    number_key<&C::max_seq_len, 0, kMaxTokens>("max_seq_len"),
    number_key<&C::threads_num, 0, kMaxThreads>("threads_num"),
    bool_key<&C::bypass>("bypass"),
    enum_key<&C::foresee, kForesees>("foresee"),
    enum_key<&C::prompt_attention, kPromptAttentions>("prompt_attention"),
    enum_key<&C::on_fault, kOnFaults>("on_fault"),
    number_key<&C::slow_call_seconds, 0, 1u << 20>("slow_call_seconds"),
    number_key<&C::transfer_seconds, 1, 1u << 20>("transfer_seconds"),
    enum_key<&C::positions, kPositions>("positions"),
};

// Keys that who writes down a list of settings may put here.
constexpr std::pair<const char*, Kind> kElsewhere[] = {
    {"kv_type", Kind::kStorage},
    {"type_k", Kind::kStorage},
    {"type_v", Kind::kStorage},
    {"budget_tokens", Kind::kSelector},
    {"budget_blocks", Kind::kSelector},
    {"second_block_count", Kind::kSelector},
    {"second_select_num", Kind::kSelector},
    {"preselect_block", Kind::kSelector},
    {"preselect_block_count", Kind::kSelector},
    {"representative_type", Kind::kRepresentative},
    {"anchor_type", Kind::kRepresentative},
    {"representative_num", Kind::kRepresentative},
    {"anchor_num", Kind::kRepresentative},
};

const CacheKey& find_key(const OptionSetting& entry) {
  for (const CacheKey& key : kCacheKeys) {
    if (entry.key == key.name) return key;
  }
  for (const auto& [name, table] : kElsewhere) {
    if (entry.key == name)
      throw error_at(entry.origin, "unknown key " + entry.key + " in [cache]: it belongs in [" +
                                       table_name(table) + "]");
  }
  throw error_at(entry.origin, "unknown key " + entry.key + " in [cache]" +
                                   did_you_mean(entry.key, cache_key_names()));
}

}  // namespace

std::span<const CacheKey> cache_keys() { return kCacheKeys; }

std::vector<std::string> cache_key_names() {
  std::vector<std::string> names;
  for (const CacheKey& key : kCacheKeys) names.emplace_back(key.name);
  return names;
}

void apply_cache_entry(const OptionSetting& entry, CacheConfig& cache) {
  find_key(entry).set(cache, entry);
}

void apply_cache_table(const RawTable& table, CacheConfig& cache) {
  std::vector<std::pair<std::string, const OptionSetting*>> seen;
  for (const OptionSetting& entry : table.entries) {
    const CacheKey& key = find_key(entry);
    for (const auto& [canonical, other] : seen) {
      if (canonical == key.canonical) {
        throw error_at(entry.origin, entry.key + " and " + other->key + " (" +
                                         other->origin.text() +
                                         ") are two names of one setting: keep one");
      }
    }
    seen.emplace_back(key.canonical, &entry);
    key.set(cache, entry);
  }
}

void check_cache(const CacheConfig& cache) {
  if (cache.window_flush_tokens.value != 0 && cache.window_mode.value != WindowMode::kPrompt) {
    throw error_at(
        cache.window_flush_tokens.origin,
        "window_flush_tokens needs window_mode = \"prompt\" (window_mode is \"rolling\", "
        "from " +
            cache.window_mode.origin.text() + ")");
  }
}

}  // namespace kvasir::config

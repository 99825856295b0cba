// From a strategy to created plugins: open all, check every option, check them against each other,
// and only then create.
// SPDX-License-Identifier: Apache-2.0
#include "core/plugin/pipeline.h"

#include <algorithm>
#include <array>

#include "core/plugin/check/plugin_checks.h"
#include "core/plugin/dtypes.h"
#include "core/plugin/option_schema.h"

namespace kvasir {
namespace {

// A plugin that is opened and whose options are checked, but that has not run yet.
struct Prepared {
  const PluginSection* section;
  OpenPlugin plugin;
  ResolvedOptions options;
};

// [storage] plugin = "org.example.tiers" (a.toml:3:1)
std::string line_of(const Prepared& p) {
  return std::string("[") + table_name(p.section->kind) + "] plugin = \"" +
         p.section->plugin.value + "\" (" + p.section->plugin.origin.text() + ")";
}

Prepared prepare(const PluginSection& section, Kind kind, PluginRegistry& registry) {
  if (section.plugin.value.empty()) {
    throw input_error(std::string("the strategy names no ") + table_name(kind) + ": add [" +
                      table_name(kind) + "] with plugin = \"<id>\"");
  }
  OpenPlugin plugin;
  try {
    plugin = registry.open(kind, section.plugin.value, section.path ? section.path->value : "");
    checked_schema(*plugin.desc);
  } catch (const Error& e) {  // options name their own line, what concerns the plugin gets this one
    throw Error(e.kind(), section.plugin.origin.text() + ": " + e.what());
  }
  ResolvedOptions options(*plugin.desc, section);
  return {&section, std::move(plugin), std::move(options)};
}

struct Need {
  uint64_t bit;
  const char* what;
  Kind provider;  // kSelector: the host itself
};
constexpr std::array<Need, 10> kNeeds = {{
    {KVASIR_NEED_SCORES, "scores", Kind::kRepresentative},
    {KVASIR_NEED_MASS, "attention mass", Kind::kAttention},
    {KVASIR_NEED_KEYS, "keys", Kind::kSelector},
    {KVASIR_NEED_INPUT, "attention input", Kind::kSelector},
    {KVASIR_NEED_UNROTATED_K, "unrotated keys", Kind::kSelector},
    {KVASIR_NEED_LOG_WEIGHT, "weights per index", Kind::kAttention},
    {KVASIR_NEED_HEAD_LOG_WEIGHT, "weights per index and query head", Kind::kAttention},
    {KVASIR_NEED_TOKEN_ITEMS, "attention over single tokens", Kind::kAttention},
    {KVASIR_NEED_DISTANCE, "distance limits between query and key", Kind::kAttention},
    {KVASIR_NEED_CONTRIBUTION, "contributions to the attention", Kind::kSelector},
}};

void check_need(const Prepared& p, const Need& need, const Prepared* representative,
                const Prepared& attention) {
  if (need.provider == Kind::kRepresentative) {
    if (representative) return;
    throw input_error(line_of(p) + " needs " + need.what +
                      ", and the strategy has no [representative]: add one");
  }
  if (need.provider == Kind::kAttention && !(attention.plugin.desc->provides & need.bit)) {
    throw input_error(line_of(p) + " needs " + need.what + "; " + line_of(attention) +
                      " provides none: choose a backend that does");
  }
}

void check_needs(const Prepared& p, const Prepared* representative, const Prepared& attention) {
  uint64_t rest = p.plugin.desc->needs;
  for (const Need& need : kNeeds) {
    if (!(rest & need.bit)) continue;
    check_need(p, need, representative, attention);
    rest &= ~need.bit;
  }
  if (rest == 0) return;
  std::string bits;
  for (int bit = 0; bit < 64; ++bit) {
    if (rest >> bit & 1) bits += (bits.empty() ? "" : ", ") + std::to_string(bit);
  }
  throw input_error(line_of(p) + " needs what this host does not know (needs bit " + bits +
                    "): update the host, or use an older plugin");
}

// 0 means any. A reader must share an element type with what the storage can hold.
void check_dtypes(const Prepared& storage, const Prepared& reader) {
  const uint64_t held = storage.plugin.desc->dtypes, read = reader.plugin.desc->dtypes;
  if (held == 0 || read == 0 || (held & read)) return;
  throw input_error(line_of(reader) + " reads K and V of " + dtype_list(read) + "; " +
                    line_of(storage) + " holds " + dtype_list(held) +
                    ": choose plugins that share a type");
}

void check_caps(const Prepared& p) {
  if ((p.plugin.desc->caps & KVASIR_CAP_OWN_THREADS) && p.section->kind != Kind::kStorage) {
    throw input_error(line_of(p) + " says it starts threads of its own; only a storage may");
  }
}

template <class T>
std::unique_ptr<T> create(const Prepared& p, const HostServices& services) {
  try {
    return std::make_unique<T>(p.plugin, services, p.options);
  } catch (const PluginError& e) {  // whatever its reason: this strategy cannot be run here
    const bool is_resource = e.kind() == ErrorKind::kResource;
    throw Error(is_resource ? ErrorKind::kResource : ErrorKind::kInput,
                p.section->plugin.origin.text() + ": " + e.what());
  }
}

struct PreparedPipeline {
  std::vector<Prepared> selectors;
  std::unique_ptr<Prepared> representative;
  std::unique_ptr<Prepared> storage, attention;
  std::unique_ptr<Prepared> window_storage, window_attention;  // null unless hybrid

  std::vector<const Prepared*> all() const {
    std::vector<const Prepared*> list;
    for (const Prepared& p : selectors) list.push_back(&p);
    if (representative) list.push_back(representative.get());
    for (const auto* p : {&window_storage, &storage, &window_attention, &attention})
      if (*p) list.push_back(p->get());
    return list;
  }
  std::string holds(const Prepared* p) const {
    if (!window_storage) return "";
    if (p == window_storage.get() || p == window_attention.get()) return "window";
    return p == storage.get() || p == attention.get() ? "context" : "";
  }
};

PreparedPipeline prepare_all(const StrategyConfig& strategy, PluginRegistry& registry) {
  PreparedPipeline p;
  if (strategy.selectors.empty()) prepare({}, Kind::kSelector, registry);
  for (const PluginSection& section : strategy.selectors) {
    p.selectors.push_back(prepare(section, Kind::kSelector, registry));
  }
  if (strategy.representative) {
    p.representative = std::make_unique<Prepared>(
        prepare(*strategy.representative, Kind::kRepresentative, registry));
  }
  p.storage = std::make_unique<Prepared>(prepare(strategy.storage, Kind::kStorage, registry));
  p.attention = std::make_unique<Prepared>(prepare(strategy.attention, Kind::kAttention, registry));
  if (strategy.is_hybrid()) {
    p.window_storage =
        std::make_unique<Prepared>(prepare(*strategy.window_storage, Kind::kStorage, registry));
    p.window_attention =
        std::make_unique<Prepared>(prepare(*strategy.window_attention, Kind::kAttention, registry));
  }
  return p;
}

void check_all(const PreparedPipeline& p) {
  for (const Prepared* plugin : p.all()) {
    check_needs(*plugin, p.representative.get(), *p.attention);
    if (p.window_attention) check_needs(*plugin, p.representative.get(), *p.window_attention);
    check_caps(*plugin);
  }
  check_dtypes(*p.storage, *p.attention);
  if (p.window_storage) check_dtypes(*p.window_storage, *p.window_attention);
  if (p.representative) check_dtypes(*p.storage, *p.representative);
  for (const Prepared& selector : p.selectors) {
    if (!(selector.plugin.desc->needs & KVASIR_NEED_KEYS) && selector.plugin.desc->dtypes == 0)
      continue;
    check_dtypes(*p.storage, selector);
    if (p.window_storage) check_dtypes(*p.window_storage, selector);
  }
}

// Of a storage that was created: what it orders blocks by depends on its options.
void check_heat(const PreparedPipeline& p, const Storage& storage) {
  const uint32_t wanted = storage.heat_wanted();
  if (wanted == KVASIR_HEAT_MASS)
    for (const Prepared* attention : {p.attention.get(), p.window_attention.get()})
      if (attention && !(attention->plugin.desc->provides & KVASIR_PROVIDE_MASS))
        throw input_error(line_of(*p.storage) + " orders blocks by their attention mass; " +
                          line_of(*attention) +
                          " provides none: choose another order, or a backend that does");
  const auto is_scored = [](const Prepared& s) {
    return (s.plugin.desc->needs & KVASIR_NEED_SCORES) != 0;
  };
  if (wanted == KVASIR_HEAT_SCORE &&
      std::none_of(p.selectors.begin(), p.selectors.end(), is_scored))
    throw input_error(line_of(*p.storage) +
                      " orders blocks by the scores that a selector chooses by, and none of the "
                      "strategy chooses by scores of a [representative]: choose another order");
}

void log_notes(const PreparedPipeline& p, const HostServices& services) {
  bool uses_scores = false;
  for (const Prepared& selector : p.selectors) {
    uses_scores = uses_scores || (selector.plugin.desc->needs & KVASIR_NEED_SCORES);
  }
  if (p.representative && !uses_scores) {
    services.log(KVASIR_LOG_WARN, p.representative->plugin.desc->id,
                 line_of(*p.representative) + " is built and kept, but no selector uses scores");
  }
  for (const Prepared* plugin : p.all()) {
    for (const auto& line : plugin->options.explained()) {
      const bool is_aside = line.value == ResolvedOptions::kSetAside;
      if (!is_aside && line.note.find("deprecated") == std::string::npos) continue;
      services.log(
          KVASIR_LOG_WARN, plugin->plugin.desc->id,
          line.origin + ": " + line.key + " is " + (is_aside ? line.value + ": " : "") + line.note);
    }
  }
}

}  // namespace

Pipeline build_pipeline(const StrategyConfig& strategy, PluginRegistry& registry,
                        const HostServices& services) {
  const PreparedPipeline prepared = prepare_all(strategy, registry);
  check_all(prepared);
  log_notes(prepared, services);
  Pipeline pipeline;
  pipeline.strategy = strategy;
  pipeline.storage = create<Storage>(*prepared.storage, services);
  check_heat(prepared, *pipeline.storage);
  pipeline.attention = create<Attention>(*prepared.attention, services);
  if (prepared.window_storage) {
    pipeline.window_storage = create<Storage>(*prepared.window_storage, services);
    pipeline.window_attention = create<Attention>(*prepared.window_attention, services);
  }
  const PluginChecks* const checks = services.checks();
  if (checks && !checks->reference.empty() && !pipeline.is_hybrid()) {
    PluginSection section;
    section.kind = Kind::kAttention;
    section.plugin.value = checks->reference;
    pipeline.reference = create<Attention>(prepare(section, Kind::kAttention, registry), services);
  }
  if (prepared.representative) {
    pipeline.representative = create<Representative>(*prepared.representative, services);
  }
  for (const Prepared& selector : prepared.selectors) {
    pipeline.selectors.push_back(create<Selector>(selector, services));
  }
  for (const Prepared* plugin : prepared.all()) {
    pipeline.explained.push_back({plugin->section->kind, plugin->plugin.desc->id,
                                  plugin->plugin.path, plugin->options.explained(),
                                  prepared.holds(plugin)});
    pipeline.names_files |= plugin->options.names_files();
  }
  return pipeline;
}

bool same_plugin(const Pipeline& a, const Pipeline& b, Kind kind) {
  const auto find = [kind](const Pipeline& of) {
    std::vector<const Pipeline::Explained*> found;
    for (const Pipeline::Explained& section : of.explained)
      if (section.kind == kind) found.push_back(&section);
    return found;
  };
  const auto left = find(a), right = find(b);
  const auto same_option = [](const auto& x, const auto& y) {
    return x.key == y.key && x.value == y.value;
  };
  const auto same = [&](const Pipeline::Explained* x, const Pipeline::Explained* y) {
    return x->id == y->id && x->file == y->file && x->holds == y->holds &&
           std::equal(x->options.begin(), x->options.end(), y->options.begin(), y->options.end(),
                      same_option);
  };
  return !left.empty() && std::equal(left.begin(), left.end(), right.begin(), right.end(), same);
}

}  // namespace kvasir

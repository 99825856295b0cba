// See table.h.
// SPDX-License-Identifier: Apache-2.0
#include "tests/strategies/table.h"

#include <filesystem>
#include <sstream>

#include "tests/strategies/variants.h"

namespace kvasir::test {
namespace {

// Blocks of 8, chunks of 16: a prompt of 70 tokens takes several of each.
const std::string kCommon =
    "cache.block_size=8 cache.chunk_size=16 cache.on_fault=fail storage.type_k=f32 "
    "storage.type_v=f32 ";

std::vector<Entry> make_entries() {
  const auto all = Engages::kNever;
  const auto evicts = Engages::kAfterPrompt;
  const std::string forced = "cache.sink_tokens=4 cache.window_tokens=16 ";
  std::vector<Entry> entries;
  entries.push_back({.name = "dense",
                     .preset = "dense",
                     .engages = all,
                     .dense_up_to = UINT32_MAX,
                     .why = "it has no budget"});
  entries.push_back({.name = "streaming",
                     .preset = "streaming",
                     .small = forced,
                     .full = "cache.window_tokens=4096",
                     .half = "cache.window_tokens=8",
                     .dense_up_to = 20});
  entries.push_back({.name = "streaming, positions by slot",
                     .preset = "streaming",
                     .small = forced + "cache.positions=slot",
                     .full = "cache.window_tokens=4096",
                     .half = "cache.window_tokens=8",
                     .dense_up_to = 20});
  entries.push_back({.name = "streaming, evicting",
                     .preset = "streaming",
                     .small = forced + "selector.evict=true",
                     .full = "cache.window_tokens=4096",
                     .half = "cache.window_tokens=8",
                     .dense_up_to = 20,
                     .rewinds = Rewinds::kNever,
                     .why = "what leaves the window is given up"});
  entries.push_back({.name = "streaming, evicting, sparse prompts and positions by slot",
                     .preset = "streaming",
                     .small = forced + "cache.positions=slot selector.budget_tokens=4 "
                                       "selector.evict=true selector.prefill_select_tokens=16",
                     .full = "cache.window_tokens=4096",
                     .half = "cache.window_tokens=8",
                     .dense_up_to = 24,
                     .rewinds = Rewinds::kNever,
                     .slice = "selector.prefill_select_tokens",
                     .why = "what leaves the window is given up"});
  entries.push_back({.name = "block_topk",
                     .preset = "block_topk",
                     .small = forced + "selector.budget_tokens=32",
                     .full = "selector.budget_tokens=4096",
                     .half = "selector.budget_tokens=16",
                     .dense_up_to = 48});
  entries.push_back(
      {.name = "quest",
       .preset = "quest",
       .small = "cache.window_tokens=8 cache.dense_layers=[0] selector.token_budget=32",
       .full = "selector.token_budget=4096",
       .half = "selector.token_budget=16",
       .dense_up_to = 40});
  entries.push_back({.name = "quest_tight",
                     .preset = "quest_tight",
                     .small = "cache.sink_tokens=8 cache.window_tokens=8 selector.token_budget=32",
                     .full = "selector.token_budget=4096",
                     .half = "selector.token_budget=16",
                     .dense_up_to = 40});
  entries.push_back({.name = "ktransformers",
                     .preset = "ktransformers",
                     .small = "cache.sink_tokens=8 cache.local_windows_len=16 "
                              "selector.second_block_count=4 representative.last_queries=16",
                     .full = "selector.second_block_count=512",
                     .half = "selector.second_block_count=2",
                     .dense_up_to = 48,
                     .rewinds = Rewinds::kDecoded,
                     .why = "the prompt's end chose the representatives"});
  entries.push_back(
      {.name = "ktransformers_preselect",
       .preset = "ktransformers_preselect",
       .small = "cache.sink_tokens=8 cache.local_windows_len=16 cache.dense_layer_num=1 "
                "selector.0.preselect_block_count=4 selector.0.window_size=16 "
                "selector.1.second_block_count=2 representative.last_queries=16",
       .full = "selector.0.preselect_block_count=512 selector.1.second_block_count=512",
       .half = "selector.1.second_block_count=1",
       .dense_up_to = 40,
       .rewinds = Rewinds::kDecoded,
       .why = "the prompt's end chose what is reachable"});
  entries.push_back({.name = "infllm",
                     .preset = "infllm",
                     .small = "cache.n_init=8 cache.n_local=16 selector.topk=3 "
                              "selector.exc_block_size=8",
                     .full = "cache.bypass=true selector.topk=512",
                     .half = "selector.topk=1",
                     .dense_up_to = 16,
                     .rewinds = Rewinds::kNever,
                     .slice = "selector.exc_block_size",
                     .why = "representatives keep the mass of queries that are gone; beyond the "
                            "window keys stand at one constant distance, whatever the "
                            "budget, unless bypass is true"});
  entries.push_back({.name = "infllm, nothing is far",
                     .preset = "infllm",
                     .small = "cache.n_init=8 cache.n_local=16 selector.topk=3 "
                              "selector.exc_block_size=8",
                     .full = "cache.n_local=4096",
                     .half = "cache.n_local=8",
                     .dense_up_to = 16,
                     .rewinds = Rewinds::kNever,
                     .slice = "selector.exc_block_size",
                     .why = "representatives keep the mass of queries that are gone; within the "
                            "window all stand at their true positions"});
  const std::string votes = "cache.window_tokens=8 ";
  entries.push_back({.name = "snapkv",
                     .preset = "snapkv",
                     .small = votes + "selector.max_capacity_prompt=32",
                     .full = "selector.max_capacity_prompt=4096",
                     .half = "selector.max_capacity_prompt=16",
                     .engages = evicts,
                     .dense_up_to = 32,
                     .rewinds = Rewinds::kDecoded,
                     .why = "what the prompt's end evicted does not come back"});
  entries.push_back({.name = "snapkv, retrieving",
                     .preset = "snapkv",
                     .small = votes + "selector.max_capacity_prompt=32 selector.mode=retrieve",
                     .full = "selector.max_capacity_prompt=4096",
                     .half = "selector.max_capacity_prompt=16",
                     .engages = evicts,
                     .dense_up_to = 32,
                     .rewinds = Rewinds::kDecoded,
                     .why = "a cut prompt has no end whose queries could vote"});
  entries.push_back({.name = "pyramidkv",
                     .preset = "pyramidkv",
                     .small = votes + "selector.max_capacity_prompt=32 selector.beta=4",
                     .full = "selector.max_capacity_prompt=4096",
                     .half = "selector.max_capacity_prompt=16",
                     .engages = evicts,
                     .dense_up_to = 32,
                     .rewinds = Rewinds::kDecoded,
                     .why = "what the prompt's end evicted does not come back"});
  entries.push_back({.name = "pyramidkv, kvpress' budgets",
                     .preset = "pyramidkv",
                     .small = votes + "selector.max_capacity_prompt=32 selector.beta=4 "
                                      "selector.compat=kvpress",
                     .full = "selector.max_capacity_prompt=4096",
                     .half = "selector.max_capacity_prompt=16",
                     .engages = evicts,
                     .dense_up_to = 32,
                     .rewinds = Rewinds::kDecoded,
                     .why = "what the prompt's end evicted does not come back"});
  entries.push_back({.name = "h2o, in shares of the prompt",
                     .preset = "h2o",
                     .small = "selector.heavy_ratio=0.2 selector.recent_ratio=0.2",
                     .full = "!selector.heavy_ratio !selector.recent_ratio selector.hh_size=4096",
                     .half = "selector.heavy_ratio=0.1 selector.recent_ratio=0.1",
                     .engages = evicts,
                     .dense_up_to = 1,
                     .rewinds = Rewinds::kNever,
                     .why =
                         "a share of the prompt never covers what is generated: a full budget is "
                         "one in tokens; each token evicts another"});
  const std::string tokens = "!selector.heavy_ratio !selector.recent_ratio ";
  entries.push_back({.name = "h2o, in tokens",
                     .preset = "h2o",
                     .small = tokens + "selector.hh_size=12 selector.recent_size=12",
                     .full = "selector.hh_size=4096",
                     .half = "selector.hh_size=6 selector.recent_size=6",
                     .engages = evicts,
                     .dense_up_to = 24,
                     .rewinds = Rewinds::kNever,
                     .why = "each token evicts another"});
  entries.push_back({.name = "h2o, in tokens, masking",
                     .preset = "h2o",
                     .small = tokens + "selector.hh_size=12 selector.recent_size=12 "
                                       "selector.mode=mask selector.normalize=true",
                     .full = "selector.hh_size=4096",
                     .half = "selector.hh_size=6 selector.recent_size=6",
                     .engages = evicts,
                     .dense_up_to = 24,
                     .rewinds = Rewinds::kNever,
                     .why = "its sums keep what the forgotten queries added"});
  entries.push_back({.name = "tova",
                     .preset = "tova",
                     .small = "selector.cache_size=24",
                     .full = "selector.cache_size=4096",
                     .half = "selector.cache_size=12",
                     .engages = evicts,
                     .dense_up_to = 24,
                     .rewinds = Rewinds::kNever,
                     .why = "each token evicts another"});
  entries.push_back({.name = "tova, after the prompt only",
                     .preset = "tova",
                     .small = "selector.cache_size=24 selector.evict_at=prompt_end",
                     .full = "selector.cache_size=4096",
                     .half = "selector.cache_size=12",
                     .engages = evicts,
                     .dense_up_to = 24,
                     .rewinds = Rewinds::kDecoded,
                     .why = "what the prompt's end evicted does not come back"});
  const std::string skewed =
      "cache.sink_tokens=0 cache.window_tokens=0 cache.dense_layers=[0] "
      "selector.partial_weight_ratio=0.4 ";
  entries.push_back({.name = "infinigen",
                     .preset = "infinigen",
                     .small = skewed + "selector.budget_tokens=16",
                     .full = "selector.budget_tokens=4096",
                     .half = "selector.budget_tokens=8",
                     .dense_up_to = 16,
                     .rewinds = Rewinds::kDecoded,
                     .why = "columns stay those of the whole prompt"});
  entries.push_back({.name = "infinigen, a pool",
                     .preset = "infinigen",
                     .small = skewed + "selector.budget_tokens=16 selector.pool_limit=32 "
                                       "selector.speculate_ahead=0",
                     .full = "selector.budget_tokens=4096 selector.pool_limit=0",
                     .half = "selector.budget_tokens=8",
                     .dense_up_to = 16,
                     .rewinds = Rewinds::kNever,
                     .why = "a full pool evicts with every token"});
  const std::string hashed =
      "cache.window_tokens=8 cache.dense_layers=[0] cache."
      "window_flush_tokens=8 selector.K=5 selector.L=24 ";
  entries.push_back({.name = "magicpig",
                     .preset = "magicpig",
                     .small = hashed,
                     .full = "selector.K=0",
                     .half = "selector.L=8",
                     .full_is = Equal::kBound,
                     .dense_up_to = 11,
                     .why = "its budget is what it draws: half of it is fewer tables"});
  entries.push_back({.name = "magicpig, a budget and static tokens",
                     .preset = "magicpig",
                     .small = hashed + "selector.budget_tokens=24 selector.static=snapkv "
                                       "selector.static_tokens=6 selector.planes=per_head",
                     .full = "selector.budget_tokens=4096",
                     .half = "selector.budget_tokens=15",
                     .dense_up_to = 11,
                     .rewinds = Rewinds::kDecoded,
                     .why = "a cut prompt has no end whose queries could vote"});
  entries.push_back({.name = "twilight",
                     .preset = "twilight",
                     .small = forced + "cache.dense_layers=[0] selector.0.budget_tokens=48 "
                                       "selector.1.p=0.8",
                     .full = "selector.0.budget_tokens=4096 selector.1.p=1",
                     .half = "selector.1.p=0.4",
                     .full_is = Equal::kBound,
                     .dense_up_to = 24,
                     .why = "p = 1 keeps every token that has a share in f32: it is asked, not "
                            "bypassed"});
  entries.push_back({.name = "twilight, a budget",
                     .preset = "twilight",
                     .small = forced + "cache.dense_layers=[0] selector.0.budget_tokens=48 "
                                       "selector.1.budget_tokens=12",
                     .full = "selector.0.budget_tokens=4096 selector.1.budget_tokens=4096",
                     .half = "selector.1.budget_tokens=6",
                     .dense_up_to = 24});
  entries.push_back({.name = "duoattention",
                     .preset = "duoattention",
                     .small = forced,
                     .full = "selector.sparsity=0",
                     .half = "cache.window_tokens=8",
                     .full_is = Equal::kBound,
                     .dense_up_to = 20,
                     .why = "retrieval heads alone: the lists say all, and are read as indices"});
  entries.push_back({.name = "duoattention, evicting",
                     .preset = "duoattention",
                     .small = forced + "selector.evict=true",
                     .full = "selector.sparsity=0",
                     .half = "cache.window_tokens=8",
                     .full_is = Equal::kBound,
                     .dense_up_to = 20,
                     .rewinds = Rewinds::kNever,
                     .why = "streaming heads give up what leaves the window"});
  entries.push_back({.name = "duoattention, sparse prompts",
                     .preset = "duoattention",
                     .small = forced + "selector.prefill_select_tokens=16",
                     .full = "selector.sparsity=0",
                     .half = "cache.window_tokens=8",
                     .full_is = Equal::kBound,
                     .dense_up_to = 20,
                     .slice = "selector.prefill_select_tokens",
                     .why = "retrieval heads alone: the lists say all, and are read as indices"});
  entries.push_back({.name = "duoattention, evicting, sparse prompts",
                     .preset = "duoattention",
                     .small = forced + "selector.evict=true selector.prefill_select_tokens=16",
                     .full = "selector.sparsity=0",
                     .half = "cache.window_tokens=8",
                     .full_is = Equal::kBound,
                     .dense_up_to = 20,
                     .rewinds = Rewinds::kNever,
                     .slice = "selector.prefill_select_tokens",
                     .why = "streaming heads give up what leaves the window"});
  entries.push_back({.name = "oracle",
                     .preset = "oracle",
                     .small = forced + "selector.budget_tokens=32",
                     .full = "selector.budget_tokens=4096",
                     .half = "selector.budget_tokens=16",
                     .dense_up_to = 48});
  entries.push_back({.name = "oracle, a share of the mass, in tokens",
                     .preset = "oracle",
                     .small = forced + "!selector.budget_tokens selector.unit=token selector.p=0.8",
                     .full = "!selector.p selector.budget_tokens=4096",
                     .half = "selector.p=0.6",
                     .dense_up_to = 20});
  entries.push_back({.name = "random",
                     .preset = "random",
                     .small = forced + "selector.budget_tokens=32",
                     .full = "selector.budget_tokens=4096",
                     .half = "selector.budget_tokens=16",
                     .dense_up_to = 48});
  add_variants(entries);
  return entries;
}

void take_out(StrategyConfig& strategy, const std::string& name) {
  REQUIRE(strategy.selectors.size() == 1);
  auto& options = strategy.selectors[0].options;
  const size_t n =
      std::erase_if(options, [&](const OptionSetting& o) { return "selector." + o.key == name; });
  REQUIRE_MESSAGE(n == 1, name << " is not set");
}

}  // namespace

const std::vector<Entry>& entries() {
  static const std::vector<Entry> all = make_entries();
  return all;
}

std::set<std::string> shipped_selectors() {
  const std::string prefix = "cuda_";
  std::set<std::string> names;
  for (const auto& folder :
       std::filesystem::directory_iterator(KVASIR_SOURCE_DIR "/plugins/selector")) {
    if (!folder.is_directory()) continue;
    const std::string name = folder.path().filename();
    names.insert(name.starts_with(prefix) ? name.substr(prefix.size()) : name);
  }
  return names;
}

const Entry& entry_named(const std::string& name) {
  for (const Entry& entry : entries())
    if (entry.name == name) return entry;
  FAIL("no entry " << name);
  return entries()[0];
}

StrategyConfig strategy_of(const Entry& entry, const std::string& more) {
  const std::string file = KVASIR_SOURCE_DIR "/configs/strategies/" + entry.preset + ".toml";
  std::istringstream settings(kCommon + entry.small + " " + more);
  std::vector<Override> overrides;
  std::vector<std::string> out;
  for (std::string setting; settings >> setting;) {
    const size_t equals = setting.find('=');
    if (setting[0] == '!') {
      out.push_back(setting.substr(1));
    } else {
      overrides.push_back({setting.substr(0, equals), setting.substr(equals + 1), {}});
    }
  }
  StrategyConfig strategy = load_strategy(file, overrides, {});
  for (const std::string& name : out) take_out(strategy, name);
  return strategy;
}

StrategyConfig dense_of(const StrategyConfig& strategy) {
  StrategyConfig dense = strategy;
  dense.selectors.resize(1);
  dense.selectors[0] = {};
  dense.selectors[0].plugin.value = "kvasir.dense";
  dense.representative.reset();
  const auto exact = [](const OptionSetting& o) {
    return o.key == "type_k" && o.value == OptionValue(std::string("f32"));
  };
  const auto& stored = strategy.storage.options;
  const bool rounds = std::none_of(stored.begin(), stored.end(), exact);
  const bool before_rope = strategy.cache.positions.value == Positions::kSlot ||
                           strategy.selectors[0].plugin.value == "kvasir.infllm";
  dense.cache.positions.value = rounds && before_rope ? Positions::kSlot : Positions::kTrue;
  return dense;
}

Logits feed(Engine& engine, SequenceId seq, uint32_t n) {
  Logits out;
  for (uint32_t i = 0; i < n; ++i) out.push_back(decode(engine, seq, token_at(engine.kv_len(seq))));
  return out;
}

Logits run(Engine& engine, uint32_t n_prompt, uint32_t n_decoded) {
  const auto seq = engine.open();
  Logits out;
  if (n_prompt > 0) out.push_back(prefill(engine, seq, some_tokens(n_prompt, 3)));
  for (auto& logits : feed(engine, seq, n_decoded)) out.push_back(std::move(logits));
  engine.close(seq);
  return out;
}

}  // namespace kvasir::test

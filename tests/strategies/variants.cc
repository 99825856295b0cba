// See variants.h.
// SPDX-License-Identifier: Apache-2.0
#include "tests/strategies/variants.h"

#include <algorithm>

#include "tests/support/temp_dir.h"
#include "tools/skew/skew.h"

namespace kvasir::test {
namespace {

// Of the model that entries run on. Engines of tests do not say which file it came from.
const std::string& skew_file() {
  constexpr uint64_t kNoHash = 0;
  static const TempDir dir;
  static const std::string path = [] {
    std::string out = dir.path("tiny.skew");
    write_skew_file(skew_matrices(*tiny_model(8, 2).model, test_pool(), some_tokens(200, 21), 2048),
                    kNoHash, out);
    return out;
  }();
  return path;
}

class Variants {
 public:
  explicit Variants(std::vector<Entry>& entries) : entries_(entries) {}

  // The entry named `of` with more settings.
  Entry& add(const std::string& of, const std::string& what, const std::string& settings) {
    const auto base = std::find_if(entries_.begin(), entries_.end(),
                                   [&](const Entry& entry) { return entry.name == of; });
    REQUIRE_MESSAGE(base != entries_.end(), of << " is no entry");
    Entry entry = *base;
    entry.name += ": " + what;
    entry.small += " " + settings;
    entry.is_variant = true;
    return entries_.emplace_back(std::move(entry));
  }

 private:
  std::vector<Entry>& entries_;
};

void add_evicting(Variants& to) {
  const std::string h2o = "h2o, in tokens";
  to.add(h2o, "positions by slot", "cache.positions=slot");
  Entry& once = to.add(h2o, "after the prompt only", "selector.evict_at=prompt_end");
  once.rewinds = Rewinds::kDecoded;
  once.why = "what the prompt's end evicted does not come back";
  to.add(h2o, "one choice, by the largest sum",
         "cache.gqa_reduce=max cache.head_select_mode=shared");
  to.add("tova", "positions by slot", "cache.positions=slot");
  to.add("snapkv", "the largest vote, pooled before",
         "cache.gqa_reduce=max selector.pool_first=true "
         "selector.pooling=maxpool");
  to.add("snapkv", "one choice, positions by slot",
         "cache.head_select_mode=shared cache.positions=slot");
}

void add_infinigen(Variants& to) {
  const std::string skewed = "selector.skew_file=" + skew_file() + " ";
  const std::string plain = "selector.skew_tokens=0 ";
  to.add("infinigen", "int8", "selector.partial_type=int8");
  to.add("infinigen", "columns as they are", plain);
  to.add("infinigen", "the best by either sum", plain + "selector.column_score=union");
  for (const std::string& options :
       {plain + "selector.column_score=qk selector.refresh_every=7 selector.partial_type=int8",
        plain + "selector.speculate_ahead=0 selector.refresh_every=5",
        std::string("selector.refresh_every=7")}) {
    Entry& entry = to.add("infinigen", "columns anew, " + options, options);
    entry.rewinds = Rewinds::kNever;
    entry.why = "columns are those of queries that a cut takes away";
  }
  to.add("infinigen", "skewed", skewed);
  to.add("infinigen", "sparse prompts", skewed + "selector.prefill_select_tokens=8").slice =
      "selector.prefill_select_tokens";
  Entry& offline = to.add("infinigen", "columns of a text", skewed + "selector.columns=offline");
  offline.rewinds = Rewinds::kAnywhere;
  offline.why = "no query has a say in the columns";
  to.add("infinigen, a pool", "the oldest goes", "selector.eviction_policy=fifo");
  to.add("infinigen, a pool", "the one used longest ago goes", "selector.eviction_policy=lru");
}

void add_magicpig(Variants& to) {
  to.add("magicpig", "32-bit ids, answers hashed at once",
         "selector.table_layout=csr cache.window_flush_tokens=1");
  Entry& exact = to.add("magicpig", "answers attended exactly", "cache.window_flush_tokens=0");
  exact.engages = Engages::kAfterPrompt;
  exact.why = "without a prompt there is nothing to draw from";
  to.add("magicpig", "a window that rolls",
         "cache.window_mode=rolling cache.window_flush_tokens=0");
}

// Twilight behind others than its preset's.
void add_chains(Variants& to) {
  const auto behind = [&](const std::string& plugin, Rewinds rewinds, const std::string& options) {
    Entry& entry =
        to.add("twilight", "behind " + plugin,
               "selector.0.plugin=kvasir." + plugin + " selector.0.budget_tokens=32 " + options);
    entry.dense_up_to = 12;
    entry.rewinds = rewinds;
    entry.why += "; a cut is what its first selector makes of it";
  };
  for (const char* plugin : {"random", "oracle", "duoattention", "streaming"})
    behind(plugin, Rewinds::kAnywhere, "");
  behind("preselect", Rewinds::kDecoded, "");
  behind("magicpig", Rewinds::kDecoded, "selector.0.K=4 selector.0.L=24");
  behind("infinigen", Rewinds::kDecoded,
         "selector.0.alpha=1000 selector.0.speculate_ahead=0 selector.0.partial_weight_ratio=0.5");
  for (const char* plugin : {"snapkv", "pyramidkv", "h2o", "tova"})
    behind(plugin, Rewinds::kNever, "");
}

// What the core, a storage and a backend make of a strategy.
void add_surroundings(Variants& to) {
  to.add("infllm", "a choice per kv head", "cache.head_select_mode=separate");
  to.add("infllm", "a choice every 4 tokens", "cache.token_step=4");
  to.add("ktransformers", "the largest of three keys",
         "representative.combine=max representative.representative_num=3");
  to.add("quest", "a choice every 2 layers", "cache.layer_step=2");
  for (const char* of : {"block_topk", "infllm", "snapkv", "h2o, in tokens", "infinigen, a pool"})
    to.add(of, "tiered", "storage.plugin=kvasir.tiered storage.cached_blocks=2");
  for (const char* of : {"block_topk", "infllm", "tova", "twilight", "magicpig"})
    to.add(of, "reference arithmetic", "attention.plugin=kvasir.reference");
  for (const char* of : {"quest", "infllm", "h2o, in tokens", "infinigen", "magicpig"}) {
    Entry& entry = to.add(of, "q8_0", "storage.type_k=q8_0 storage.type_v=q8_0");
    entry.head_dim = 32;  // values that q8_0 takes together
  }
}

}  // namespace

void add_variants(std::vector<Entry>& entries) {
  Variants to(entries);
  add_evicting(to);
  add_infinigen(to);
  add_magicpig(to);
  add_chains(to);
  add_surroundings(to);
}

}  // namespace kvasir::test

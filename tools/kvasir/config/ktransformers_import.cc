// See ktransformers_import.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/config/ktransformers_import.h"

#include <algorithm>
#include <cstdint>

#include "core/error.h"
#include "tools/kvasir/config/ktransformers_yaml.h"
#include "tools/kvasir/session/ktransformers_keys.h"

namespace kvasir::tool {
namespace {

// Writes the TOML, table by table.
class Import {
 public:
  Import(const std::string& yaml, const std::string& label,
         const std::vector<std::string>& kv_types)
      : yaml_(yaml, label), kv_types_(kv_types), notes_(yaml_.notes()) {}

  ImportedStrategy strategy(const std::string& label) {
    const bool preselect = yaml_.boolean("preselect_block");
    const int64_t second = yaml_.integer("second_block_count", 1);
    const int64_t first = preselect ? yaml_.integer("preselect_block_count", 1) : 0;
    out_ = "# Imported from " + label + ", the long-context mode of KTransformers.\n";
    cache();
    // KTransformers skips the second selection when it could take more than was preselected.
    const bool choose = !preselect || second <= first;
    if (preselect) preselection(choose);
    if (choose) {
      table(preselect ? "[[selector]]" : "[selector]");
      line("plugin = \"kvasir.block_topk\"");
      number("second_block_count", 1);
      representative();
    } else {
      note("second_block_count",
           "above preselect_block_count: all preselected blocks are attended, "
           "and representative_type has no meaning");
    }
    storage();
    table("[attention]");
    line("plugin = \"kvasir.cpu\"");
    return {out_, notes_};
  }

 private:
  void note(const std::string& key, const std::string& what) {
    notes_.push_back(yaml_.note(key, what));
  }

  void table(const std::string& head) { out_ += "\n" + head + "\n"; }
  void line(const std::string& text) { out_ += text + "\n"; }
  void pair(const std::string& key, const std::string& value) {
    line(key + " = " + value + (yaml_.is_written(key) ? "" : "  # KTransformers' default"));
  }
  void number(const std::string& key, int64_t least) {
    if (yaml_.has(key)) pair(key, std::to_string(yaml_.integer(key, least)));
  }

  void cache() {
    table("[cache]");
    const int64_t block = yaml_.integer("block_size", 1);
    // KTransformers has no key for the first tokens. It keeps one block, or as many as hold 64
    // tokens.
    const int64_t sink = block > 32 ? block : 64 / block * block;
    number("block_size", 1);
    line("sink_tokens = " + std::to_string(sink) + "  # fixed in KTransformers");
    number("local_windows_len", 0);
    number("dense_layer_num", 0);
    const std::string mode = yaml_.lower("head_select_mode");
    if (mode != "shared" && mode != "separate")
      throw yaml_.wrong("head_select_mode", " cannot be said here: SHARED or SEPARATE");
    pair("head_select_mode", "\"" + mode + "\"");
    line("gqa_reduce = \"sum\"");
    number("token_step", 1);
    number("layer_step", 1);
    number("chunk_size", 1);
    number("max_seq_len", 1);
    number("threads_num", 1);
  }

  void preselection(bool chain) {
    table(chain ? "[[selector]]" : "[selector]");
    line("plugin = \"kvasir.preselect\"");
    const bool by_capacity = yaml_.has("max_capacity_prompt");
    if (by_capacity && yaml_.is_written("preselect_block_count"))
      throw yaml_.wrong("max_capacity_prompt",
                        " and preselect_block_count are one setting: keep one");
    number(by_capacity ? "max_capacity_prompt" : "preselect_block_count", 1);
    number("kernel_size", 1);
  }

  void representative() {
    const auto type = representative_types().find(yaml_.lower("representative_type"));
    if (type == representative_types().end())
      throw yaml_.wrong("representative_type",
                        " is none of DYNAMIC, FIXED, BLOCK_MEAN, BLOCK_MAX, QUEST");
    table("[representative]");
    const std::string& plugin = type->second;
    line("plugin = \"" + plugin + "\"");
    const int64_t n = yaml_.integer("representative_num", 1);
    if (plugin == "kvasir.dynamic" || plugin == "kvasir.fixed") {
      number("representative_num", 1);
      if (n > 1 && plugin == "kvasir.dynamic")
        note("representative_num",
             "scores are sums of dot products; in KTransformers more than one key with DYNAMIC "
             "sums only what is positive per channel: compat = \"ktransformers\" does so here");
      return;
    }
    const bool is_quest = plugin == "kvasir.minmax";
    if (n != (is_quest ? 2 : 1))
      throw yaml_.wrong("representative_num", is_quest
                                                  ? " must be 2 with QUEST"
                                                  : " must be 1 with BLOCK_MEAN and BLOCK_MAX");
  }

  void storage() {
    table("[storage]");
    line("plugin = \"kvasir.dram\"");
    std::string type = yaml_.lower("kv_type");
    if (type == "fp16" || type == "fp32") type.erase(1, 1);
    std::string held;
    for (const std::string& known : kv_types_) held += (held.empty() ? "" : ", ") + known;
    if (std::find(kv_types_.begin(), kv_types_.end(), type) == kv_types_.end())
      throw yaml_.wrong("kv_type", " cannot be stored: the storage holds " + held);
    pair("kv_type", "\"" + type + "\"");
  }

  KtransformersYaml yaml_;
  const std::vector<std::string>& kv_types_;
  std::string out_;
  std::vector<std::string> notes_;
};

}  // namespace

ImportedStrategy import_ktransformers(const std::string& yaml, const std::string& label,
                                      const std::vector<std::string>& kv_types) {
  return Import(yaml, label, kv_types).strategy(label);
}

}  // namespace kvasir::tool

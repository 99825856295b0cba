// See ktransformers_import.h. The keys are those of doc/en/long_context_introduction.md (new names)
// and of config.yaml and server/config/config.py (old names, defaults) of kvcache-ai/ktransformers.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/config/ktransformers_import.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <map>

#include "core/config/strategy.h"
#include "core/error.h"
#include "tools/kvasir/session/ktransformers_keys.h"

namespace kvasir::tool {
namespace {

constexpr size_t kMaxBytes = 256u * 1024;

// Sections of a whole config.yaml that say nothing about the KV cache.
constexpr const char* kOtherSections[] = {"log",         "server", "db",   "user",
                                          "model",       "web",    "ext",  "local_chat",
                                          "local_store", "attn",   "kvc2", "async_server"};

struct Key {
  const char* name;   // ours, and the newer one of theirs
  const char* older;  // or null
  const char* def;    // what KTransformers takes when the key is missing; null: the key stays out
};
constexpr Key kKeys[] = {
    {"max_seq_len", nullptr, "32000"},
    {"chunk_size", nullptr, "4096"},
    {"block_size", nullptr, "128"},
    {"local_windows_len", nullptr, "4096"},
    {"second_block_count", "second_select_num", "32"},
    {"threads_num", nullptr, nullptr},
    {"representative_type", "anchor_type", "DYNAMIC"},
    {"representative_num", "anchor_num", "1"},
    {"kv_type", nullptr, "FP16"},
    {"dense_layer_num", nullptr, "2"},
    {"preselect_block", nullptr, "True"},
    {"preselect_block_count", nullptr, "32"},
    {"kernel_size", nullptr, nullptr},
    {"max_capacity_prompt", nullptr, nullptr},
    {"head_select_mode", nullptr, "SHARED"},
    {"layer_step", nullptr, "1"},
    {"token_step", nullptr, "100"},
};

// One value with where it was written; line 0: KTransformers' default.
struct Value {
  std::string text;
  std::string written_as;
  size_t line = 0;
};

class Import {
 public:
  Import(const std::string& yaml, const std::string& label,
         const std::vector<std::string>& kv_types)
      : label_(label), kv_types_(kv_types) {
    if (yaml.size() > kMaxBytes)
      throw input_error(label + ": larger than " + std::to_string(kMaxBytes / 1024) +
                        " KiB; a configuration is a few lines");
    try {
      const YAML::Node document = YAML::Load(yaml);
      if (!document.IsMap())
        throw input_error(label + ": no keys; expected KTransformers' config.yaml");
      read(section_of(document));
    } catch (const YAML::Exception& e) {
      throw fail(static_cast<size_t>(e.mark.line + 1), "not valid YAML: " + e.msg);
    }
    add_defaults();
  }

  ImportedStrategy strategy() {
    const bool preselect = boolean("preselect_block");
    const int64_t second = integer("second_block_count", 1);
    const int64_t first = preselect ? integer("preselect_block_count", 1) : 0;
    out_ = "# Imported from " + label_ + ", the long-context mode of KTransformers.\n";
    cache();
    // Theirs switches the second selection off when it could take more than was preselected.
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
  Error fail(size_t line, const std::string& what) const {
    return input_error(label_ + (line ? ":" + std::to_string(line) : "") + ": " + what);
  }
  Error wrong(const std::string& key, const std::string& what) const {
    const Value& value = values_.at(key);
    return fail(value.line, value.written_as + " = " + value.text + what);
  }
  static size_t line_of(const YAML::Node& node) {
    return static_cast<size_t>(node.Mark().line + 1);
  }

  YAML::Node section_of(const YAML::Node& document) const {
    YAML::Node found;
    for (const auto& entry : document) {
      const std::string name = scalar(entry.first, "a key");
      if (name == "long_context") {
        if (found.IsMap()) throw fail(line_of(entry.first), "long_context is there twice");
        if (!entry.second.IsMap()) throw fail(line_of(entry.first), "long_context has no keys");
        found.reset(entry.second);
      }
    }
    if (!found.IsMap()) return document;
    for (const auto& entry : document) {
      const std::string name = entry.first.Scalar();
      const auto* end = std::end(kOtherSections);
      if (name != "long_context" && std::find(std::begin(kOtherSections), end, name) == end)
        throw fail(line_of(entry.first), "unknown section " + name);
    }
    return found;
  }

  std::string scalar(const YAML::Node& node, const std::string& what) const {
    if (!node.IsScalar()) throw fail(line_of(node), what + " must be a word or a number");
    std::string text = node.Scalar();
    const auto printable = [](char c) { return c >= 0x20 && c < 0x7f; };
    if (text.size() > 64 || !std::all_of(text.begin(), text.end(), printable))
      throw fail(line_of(node), what + " is too long or holds control characters");
    return text;
  }

  void read(const YAML::Node& section) {
    for (const auto& entry : section) {
      const std::string name = scalar(entry.first, "a key");
      const size_t line = line_of(entry.first);
      const auto* key = std::find_if(std::begin(kKeys), std::end(kKeys), [&](const Key& k) {
        return name == k.name || (k.older && name == k.older);
      });
      if (key == std::end(kKeys)) throw unknown(name, line);
      if (const auto before = values_.find(key->name); before != values_.end())
        throw fail(line, name + " and " + before->second.written_as + " (line " +
                             std::to_string(before->second.line) +
                             ") are one setting: keep one of them");
      if (entry.second.IsNull() && std::string(key->name) == "token_step") {
        values_[key->name] = {"1", name, line};  // as shipped; theirs cannot run it
        note(key->name, "no value: a choice at every token");
        continue;
      }
      if (entry.second.IsNull()) throw fail(line, name + " has no value");
      values_[key->name] = {scalar(entry.second, name), name, line};
    }
  }

  Error unknown(const std::string& name, size_t line) const {
    std::vector<std::string> names;
    for (const Key& key : kKeys) {
      names.emplace_back(key.name);
      if (key.older) names.emplace_back(key.older);
    }
    const std::string near = nearest_name(name, names);
    return fail(line,
                "unknown key " + name + (near.empty() ? "" : " (did you mean \"" + near + "\"?)"));
  }

  void add_defaults() {
    for (const Key& key : kKeys)
      if (key.def && !values_.count(key.name)) values_[key.name] = {key.def, key.name, 0};
  }

  void note(const std::string& key, const std::string& what) {
    const Value& value = values_.at(key);
    std::string text = label_;
    if (value.line) text.append(":").append(std::to_string(value.line));
    notes_.push_back(text.append(": ").append(value.written_as).append(": ").append(what));
  }

  // ---- values ----

  int64_t integer(const std::string& key, int64_t least) const {
    const std::string& text = values_.at(key).text;
    const bool digits =
        !text.empty() && text.size() <= 10 &&
        std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c); });
    const int64_t value = digits ? std::stoll(text) : -1;
    if (value < least)
      throw wrong(key, " must be an integer from " + std::to_string(least) + " on");
    return value;
  }
  bool boolean(const std::string& key) const {
    const std::string word = lower(key);
    if (word == "true" || word == "yes" || word == "on") return true;
    if (word == "false" || word == "no" || word == "off") return false;
    throw wrong(key, " must be True or False");
  }
  std::string lower(const std::string& key) const {
    std::string text = values_.at(key).text;
    for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return text;
  }

  // ---- tables ----

  void table(const std::string& head) { out_ += "\n" + head + "\n"; }
  void line(const std::string& text) { out_ += text + "\n"; }
  void pair(const std::string& key, const std::string& value) {
    line(key + " = " + value + (values_.at(key).line ? "" : "  # KTransformers' default"));
  }
  void number(const std::string& key, int64_t least) {
    if (values_.count(key)) pair(key, std::to_string(integer(key, least)));
  }

  void cache() {
    table("[cache]");
    const int64_t block = integer("block_size", 1);
    // Theirs has no key for the initial part: one block, or as many as hold 64 tokens.
    const int64_t sink = block > 32 ? block : 64 / block * block;
    number("block_size", 1);
    line("sink_tokens = " + std::to_string(sink) + "  # fixed in KTransformers");
    number("local_windows_len", 0);
    number("dense_layer_num", 0);
    const std::string mode = lower("head_select_mode");
    if (mode != "shared" && mode != "separate")
      throw wrong("head_select_mode", " cannot be said here: SHARED or SEPARATE");
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
    const bool by_capacity = values_.count("max_capacity_prompt");
    if (by_capacity && values_.at("preselect_block_count").line)
      throw wrong("max_capacity_prompt", " and preselect_block_count are one setting: keep one");
    number(by_capacity ? "max_capacity_prompt" : "preselect_block_count", 1);
    number("kernel_size", 1);
  }

  void representative() {
    const auto type = representative_types().find(lower("representative_type"));
    if (type == representative_types().end())
      throw wrong("representative_type",
                  " is none of DYNAMIC, FIXED, BLOCK_MEAN, BLOCK_MAX, QUEST");
    table("[representative]");
    const std::string& plugin = type->second;
    line("plugin = \"" + plugin + "\"");
    const int64_t n = integer("representative_num", 1);
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
      throw wrong("representative_num",
                  is_quest ? " must be 2 with QUEST" : " must be 1 with BLOCK_MEAN and BLOCK_MAX");
  }

  void storage() {
    table("[storage]");
    line("plugin = \"kvasir.dram\"");
    std::string type = lower("kv_type");
    if (type == "fp16" || type == "fp32") type.erase(1, 1);
    std::string held;
    for (const std::string& known : kv_types_) held += (held.empty() ? "" : ", ") + known;
    if (std::find(kv_types_.begin(), kv_types_.end(), type) == kv_types_.end())
      throw wrong("kv_type", " cannot be stored: the storage holds " + held);
    pair("kv_type", "\"" + type + "\"");
  }

  std::string label_, out_;
  std::vector<std::string> kv_types_;
  std::map<std::string, Value> values_;  // by the newer name
  std::vector<std::string> notes_;
};

}  // namespace

ImportedStrategy import_ktransformers(const std::string& yaml, const std::string& label,
                                      const std::vector<std::string>& kv_types) {
  return Import(yaml, label, kv_types).strategy();
}

}  // namespace kvasir::tool

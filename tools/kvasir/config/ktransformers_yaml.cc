// See ktransformers_yaml.h. The keys are those of doc/en/long_context_introduction.md (new names)
// and of config.yaml and server/config/config.py (old names, defaults) of kvcache-ai/ktransformers.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/config/ktransformers_yaml.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cctype>

#include "core/config/strategy.h"

namespace kvasir::tool {
namespace {

constexpr size_t kMaxBytes = 256u * 1024;

// Sections of a whole config.yaml that say nothing about the KV cache.
constexpr const char* kOtherSections[] = {"log",         "server", "db",   "user",
                                          "model",       "web",    "ext",  "local_chat",
                                          "local_store", "attn",   "kvc2", "async_server"};

struct Key {
  const char* name;   // in kvasir, and the newer name in KTransformers
  const char* older;  // or null
  const char* def;    // KTransformers' value when the key is missing; null: it has none
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

size_t line_of(const YAML::Node& node) { return static_cast<size_t>(node.Mark().line + 1); }

}  // namespace

// Fills the values; apart, so that the header needs no YAML.
struct KtransformersYaml::Reader {
  KtransformersYaml& out;

  YAML::Node section_of(const YAML::Node& document) const {
    YAML::Node found;
    for (const auto& entry : document) {
      const std::string name = scalar(entry.first, "a key");
      if (name == "long_context") {
        if (found.IsMap()) throw out.fail(line_of(entry.first), "long_context is there twice");
        if (!entry.second.IsMap()) throw out.fail(line_of(entry.first), "long_context has no keys");
        found.reset(entry.second);
      }
    }
    if (!found.IsMap()) return document;
    for (const auto& entry : document) {
      const std::string name = entry.first.Scalar();
      const auto* end = std::end(kOtherSections);
      if (name != "long_context" && std::find(std::begin(kOtherSections), end, name) == end)
        throw out.fail(line_of(entry.first), "unknown section " + name);
    }
    return found;
  }

  std::string scalar(const YAML::Node& node, const std::string& what) const {
    if (!node.IsScalar()) throw out.fail(line_of(node), what + " must be a word or a number");
    std::string text = node.Scalar();
    const auto printable = [](char c) { return c >= 0x20 && c < 0x7f; };
    if (text.size() > 64 || !std::all_of(text.begin(), text.end(), printable))
      throw out.fail(line_of(node), what + " is too long or holds control characters");
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
      if (const auto before = out.values_.find(key->name); before != out.values_.end())
        throw out.fail(line, name + " and " + before->second.written_as + " (line " +
                                 std::to_string(before->second.line) +
                                 ") are one setting: keep one of them");
      if (entry.second.IsNull() && std::string(key->name) == "token_step") {
        out.values_[key->name] = {"1", name, line};  // KTransformers ships this, but cannot run it
        out.notes_.push_back(out.note(key->name, "no value: a choice at every token"));
        continue;
      }
      if (entry.second.IsNull()) throw out.fail(line, name + " has no value");
      out.values_[key->name] = {scalar(entry.second, name), name, line};
    }
  }

  Error unknown(const std::string& name, size_t line) const {
    std::vector<std::string> names;
    for (const Key& key : kKeys) {
      names.emplace_back(key.name);
      if (key.older) names.emplace_back(key.older);
    }
    const std::string near = nearest_name(name, names);
    return out.fail(
        line, "unknown key " + name + (near.empty() ? "" : " (did you mean \"" + near + "\"?)"));
  }

  void add_defaults() {
    for (const Key& key : kKeys)
      if (key.def && !out.has(key.name)) out.values_[key.name] = {key.def, key.name, 0};
  }
};

KtransformersYaml::KtransformersYaml(const std::string& yaml, const std::string& label)
    : label_(label) {
  if (yaml.size() > kMaxBytes)
    throw input_error(label + ": larger than " + std::to_string(kMaxBytes / 1024) +
                      " KiB; a configuration is a few lines");
  Reader reader{*this};
  try {
    const YAML::Node document = YAML::Load(yaml);
    if (!document.IsMap())
      throw input_error(label + ": no keys; expected KTransformers' config.yaml");
    reader.read(reader.section_of(document));
  } catch (const YAML::Exception& e) {
    throw fail(static_cast<size_t>(e.mark.line + 1), "not valid YAML: " + e.msg);
  }
  reader.add_defaults();
}

std::string KtransformersYaml::place(size_t line) const {
  std::string text = label_;
  if (line) text.append(":").append(std::to_string(line));
  return text.append(": ");
}

Error KtransformersYaml::fail(size_t line, const std::string& what) const {
  return input_error(place(line) + what);
}

Error KtransformersYaml::wrong(const std::string& key, const std::string& what) const {
  const Value& value = values_.at(key);
  return fail(value.line, value.written_as + " = " + value.text + what);
}

std::string KtransformersYaml::note(const std::string& key, const std::string& what) const {
  const Value& value = values_.at(key);
  return place(value.line) + value.written_as + ": " + what;
}

int64_t KtransformersYaml::integer(const std::string& key, int64_t least) const {
  const std::string& text = values_.at(key).text;
  const bool digits =
      !text.empty() && text.size() <= 10 &&
      std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c); });
  if (digits && text.size() > 1 && text[0] == '0')
    throw wrong(key, " begins with 0, which KTransformers reads as octal: write it in decimal");
  const int64_t value = digits ? std::stoll(text) : -1;
  if (value < least) throw wrong(key, " must be an integer from " + std::to_string(least) + " on");
  return value;
}

bool KtransformersYaml::boolean(const std::string& key) const {
  const std::string word = lower(key);
  if (word == "true" || word == "yes" || word == "on") return true;
  if (word == "false" || word == "no" || word == "off") return false;
  throw wrong(key, " must be True or False");
}

std::string KtransformersYaml::lower(const std::string& key) const {
  std::string text = values_.at(key).text;
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

}  // namespace kvasir::tool

// kvasir model info: shape, tensors, tokenizer, rope and cache size of a GGUF.
// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <optional>

#include "core/error.h"
#include "core/model/layers/model.h"
#include "core/model/tokenizer/chat_template.h"
#include "core/model/tokenizer/tokenizer.h"
#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/commands.h"

namespace kvasir::tool {
namespace {

using Json = nlohmann::ordered_json;

const char* name(RopeScaling scaling) {
  switch (scaling) {
    case RopeScaling::kLinear:
      return "linear";
    case RopeScaling::kDynamicNtk:
      return "dynamic";
    case RopeScaling::kYarn:
      return "yarn";
    case RopeScaling::kLlama3:
      return "llama3";
    default:
      return "none";
  }
}

Json rope_json(const RopeConfig& rope) {
  return {{"pairing", rope.pairing == RopePairing::kInterleaved ? "interleaved" : "half_split"},
          {"n_dims", rope.n_dims},
          {"base", plain(rope.base)},
          {"scaling", name(rope.scaling)},
          {"factor", plain(rope.factor)},
          {"original_context", rope.original_context},
          {"n_freq_factors", rope.freq_factors.size()}};
}

Json shape_json(const ModelShape& s) {
  return {{"architecture", s.architecture},
          {"n_layers", s.n_layers},
          {"d_model", s.d_model},
          {"d_ff", s.d_ff},
          {"vocab_size", s.vocab_size},
          {"n_q_heads", s.n_q_heads},
          {"n_kv_heads", s.n_kv_heads},
          {"group_size", s.group_size()},
          {"head_dim", s.head_dim},
          {"v_head_dim", s.v_head_dim},
          {"max_context", s.max_context},
          {"norm_eps", plain(s.norm_eps)},
          {"qkv_bias", s.qkv_bias},
          {"qk_norm", s.qk_norm},
          {"tied_embeddings", s.tied_embeddings},
          {"rope", rope_json(s.rope)},
          {"kv_bytes_per_token_f16", s.kv_bytes_per_token(2, 2)}};
}

// A file without a tokenizer is still a model: logits can be had for ids.
Json tokenizer_json(const GgufFile& file) {
  try {
    const auto t = Tokenizer::from_gguf(file);
    Json out{{"model", t->model_name()}, {"pre", t->pre_name()}, {"vocab_size", t->vocab_size()}};
    for (const auto& [key, id] : {std::pair{"bos", t->bos()}, {"eos", t->eos()}, {"unk", t->unk()}})
      out[key] = id == kNoToken ? Json() : Json(id);
    out["add_bos"] = t->add_bos();
    return out;
  } catch (const Error& e) {
    return {{"problem", e.what()}};
  }
}

std::string chat_template_text(const GgufFile& file) {
  const auto jinja = file.get<std::string_view>("tokenizer.chat_template");
  if (!jinja) return "none";
  const auto family = recognise_chat_template(*jinja);
  return family ? kvasir::name(*family) : "unknown";
}

Json tensor_types_json(const GgufFile& file) {
  struct Sum {
    uint64_t n_tensors = 0, n_elements = 0, n_bytes = 0;
  };
  std::map<std::string, Sum> sums;
  for (const GgufTensor& tensor : file.tensors()) {
    Sum& sum = sums[kvasir::name(tensor.type)];
    ++sum.n_tensors;
    sum.n_elements += tensor.n_elements;
    sum.n_bytes += tensor.n_bytes;
  }
  auto list = Json::array();
  for (const auto& [type, sum] : sums)
    list.push_back({{"type", type},
                    {"n_tensors", sum.n_tensors},
                    {"n_elements", sum.n_elements},
                    {"n_bytes", sum.n_bytes}});
  return list;
}

std::string text_of(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

// Key and value in two columns; what lies inside an object is indented.
void add_rows(Table& table, const Json& object, const std::string& indent = "") {
  for (const auto& [key, value] : object.items()) {
    if (value.is_array()) continue;
    table.add({indent + key, value.is_object() ? "" : text_of(value)});
    if (value.is_object()) add_rows(table, value, indent + "  ");
  }
}

void print_tensors(const Json& tensors) {
  Table table({"tensor", "type", "shape", "bytes"}, {3});
  for (const Json& tensor : tensors)
    table.add({tensor["name"], tensor["type"], tensor["shape"].dump(), tensor["n_bytes"].dump()});
  std::printf("\n%s", table.text().c_str());
}

void print_text(const Json& report) {
  Table facts({"model", report["file"]});
  add_rows(facts, report);
  std::fputs(facts.text().c_str(), stdout);
  Table types({"type", "tensors", "elements", "bytes"}, {1, 2, 3});
  for (const Json& t : report["tensor_types"])
    types.add({t["type"], t["n_tensors"].dump(), t["n_elements"].dump(), t["n_bytes"].dump()});
  std::printf("\n%s", types.text().c_str());
  if (report.contains("tensors")) print_tensors(report["tensors"]);
}

struct InfoOptions {
  std::string model;
  bool keys = false, tensors = false, json = false;
};

void info(const InfoOptions& o) {
  const GgufFile file = GgufFile::open(o.model);
  Json report{{"file", file.path()},
              {"file_bytes", file.file_bytes()},
              {"gguf_version", file.version()},
              {"name", std::string(file.get_or<std::string_view>("general.name", ""))}};
  try {
    report.update(shape_json(read_shape(file)));
  } catch (const Error& e) {  // one who asks for the keys wants to see why it does not run
    if (!o.keys && !o.tensors) throw;
    report["problem"] = e.what();
  }
  uint64_t n_parameters = 0;
  for (const GgufTensor& tensor : file.tensors())
    if (tensor.name != "rope_freqs.weight") n_parameters += tensor.n_elements;
  report["n_parameters"] = n_parameters;
  report["tokenizer"] = tokenizer_json(file);
  report["chat_template"] = chat_template_text(file);
  report["tensor_types"] = tensor_types_json(file);
  if (o.tensors)
    for (const GgufTensor& t : file.tensors())
      report["tensors"].push_back({{"name", t.name},
                                   {"type", kvasir::name(t.type)},
                                   {"shape", t.shape},
                                   {"n_bytes", t.n_bytes}});
  if (o.keys)
    for (const std::string& key : file.keys()) report["metadata"][key] = file.describe(key);
  if (o.json) return print_json(report);
  print_text(report);
}

}  // namespace

void add_model_info(CLI::App& model) {
  auto* command = model.add_subcommand("info", "Shape, tensors, tokenizer, bytes per token");
  auto o = std::make_shared<InfoOptions>();
  command->add_option("-m,--model", o->model, "Model file (GGUF)")
      ->envname("KVASIR_ARG_MODEL")
      ->required();
  command->add_flag("--keys", o->keys, "List the metadata");
  command->add_flag("--tensors", o->tensors, "List the tensors");
  command->add_flag("--json", o->json, "One JSON document on stdout, nothing else there");
  command->callback([=] { info(*o); });
}

}  // namespace kvasir::tool

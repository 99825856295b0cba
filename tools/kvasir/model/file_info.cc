// See file_info.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/model/file_info.h"

#include <map>

#include "core/error.h"
#include "core/model/tokenizer/chat_template.h"
#include "tools/kvasir/cli/text.h"

namespace kvasir::tool {
namespace {

// A file without a tokenizer is still a model: `kvasir model logits` takes token ids.
TokenizerInfo tokenizer_info(const GgufFile& file) {
  TokenizerInfo out;
  try {
    const auto t = Tokenizer::from_gguf(file);
    out.model = t->model_name();
    out.pre = t->pre_name();
    out.vocab_size = t->vocab_size();
    out.bos = t->bos();
    out.eos = t->eos();
    out.unk = t->unk();
    out.add_bos = t->add_bos();
  } catch (const Error& e) {
    out.problem = e.what();
  }
  return out;
}

std::string chat_template_text(const GgufFile& file) {
  const auto jinja = file.get<std::string_view>("tokenizer.chat_template");
  if (!jinja) return "none";
  const auto family = recognise_chat_template(*jinja);
  return family ? kvasir::name(*family) : "unknown";
}

std::vector<TensorType> tensor_types(const GgufFile& file) {
  std::map<std::string, TensorType> types;
  for (const GgufTensor& tensor : file.tensors()) {
    TensorType& type = types[name(tensor.type)];
    type.type = name(tensor.type);
    ++type.n_tensors;
    type.n_elements += tensor.n_elements;
    type.n_bytes += tensor.n_bytes;
  }
  std::vector<TensorType> list;
  for (const auto& [_, type] : types) list.push_back(type);
  return list;
}

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
          {"sliding_windows", s.sliding_windows},
          {"rope", rope_json(s.rope)},
          {"kv_bytes_per_token_f16", s.kv_bytes_per_token(2, 2)}};
}

Json tokenizer_json(const TokenizerInfo& t) {
  if (!t.problem.empty()) return {{"problem", t.problem}};
  const auto id = [](TokenId token) { return token == kNoToken ? Json() : Json(token); };
  return {{"model", t.model}, {"pre", t.pre},     {"vocab_size", t.vocab_size}, {"bos", id(t.bos)},
          {"eos", id(t.eos)}, {"unk", id(t.unk)}, {"add_bos", t.add_bos}};
}

std::string text_of(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

// Key and value in two columns; what lies inside an object is indented.
void add_facts(Table& table, const Json& object, const std::string& indent = "") {
  for (const auto& [key, value] : object.items()) {
    if (value.is_array()) continue;
    table.add({indent + key, value.is_object() ? "" : text_of(value)});
    if (value.is_object()) add_facts(table, value, indent + "  ");
  }
}

std::string tensors_text(const std::vector<TensorInfo>& tensors) {
  Table table({"tensor", "type", "shape", "bytes"}, {3});
  for (const TensorInfo& t : tensors)
    table.add({t.name, t.type, Json(t.shape).dump(), std::to_string(t.n_bytes)});
  return "\n" + table.text();
}

}  // namespace

ModelInfo model_info(const GgufFile& file, const ModelInfoOptions& options) {
  ModelInfo out;
  out.file = file.path();
  out.file_bytes = file.file_bytes();
  out.gguf_version = file.version();
  out.name = file.get_or<std::string_view>("general.name", "");
  try {
    out.shape = read_shape(file);
  } catch (const Error& e) {
    if (!options.metadata && !options.tensors) throw;
    out.problem = e.what();
  }
  for (const GgufTensor& tensor : file.tensors())
    if (tensor.name != "rope_freqs.weight") out.n_parameters += tensor.n_elements;
  out.tokenizer = tokenizer_info(file);
  out.chat_template = chat_template_text(file);
  out.tensor_types = tensor_types(file);
  if (options.tensors)
    for (const GgufTensor& t : file.tensors())
      out.tensors.push_back({t.name, name(t.type), t.shape, t.n_bytes});
  if (options.metadata)
    for (const std::string& key : file.keys()) out.metadata.emplace_back(key, file.describe(key));
  return out;
}

Json to_json(const ModelInfo& info) {
  Json out{{"file", info.file},
           {"file_bytes", info.file_bytes},
           {"gguf_version", info.gguf_version},
           {"name", info.name}};
  if (info.shape)
    out.update(shape_json(*info.shape));
  else
    out["problem"] = info.problem;
  out["n_parameters"] = info.n_parameters;
  out["tokenizer"] = tokenizer_json(info.tokenizer);
  out["chat_template"] = info.chat_template;
  out["tensor_types"] = Json::array();
  for (const TensorType& t : info.tensor_types)
    out["tensor_types"].push_back({{"type", t.type},
                                   {"n_tensors", t.n_tensors},
                                   {"n_elements", t.n_elements},
                                   {"n_bytes", t.n_bytes}});
  for (const TensorInfo& t : info.tensors)
    out["tensors"].push_back(
        {{"name", t.name}, {"type", t.type}, {"shape", t.shape}, {"n_bytes", t.n_bytes}});
  for (const auto& [key, value] : info.metadata) out["metadata"][key] = value;
  return out;
}

// Facts have the names and the order that they have in JSON.
std::string to_text(const ModelInfo& info) {
  Table facts({"model", info.file});
  add_facts(facts, to_json(info));
  Table types({"type", "tensors", "elements", "bytes"}, {1, 2, 3});
  for (const TensorType& t : info.tensor_types)
    types.add({t.type, std::to_string(t.n_tensors), std::to_string(t.n_elements),
               std::to_string(t.n_bytes)});
  return facts.text() + "\n" + types.text() +
         (info.tensors.empty() ? "" : tensors_text(info.tensors));
}

}  // namespace kvasir::tool

// See trace_header.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/trace/trace_header.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>

#include "core/error.h"

namespace kvasir::tool {
namespace {

constexpr int kTraceVersion = 1;
constexpr const char* kPairings[] = {"interleaved", "half_split"};
constexpr const char* kScalings[] = {"none", "linear", "dynamic_ntk", "yarn", "llama3"};
constexpr const char* kTypes[] = {"f32", "f16"};
constexpr uint32_t kMostTokens = 1u << 24;  // the names of PrescribedModel
constexpr uint32_t kMostHeads = 1u << 10, kMostDim = 1u << 10, kMostLayers = 1u << 14;
constexpr uint32_t kMostWidth = 1u << 20;

// Takes keys out of an object, so that what is left is unknown.
class Fields {
 public:
  Fields(Json object, std::string where) : object_(std::move(object)), where_(std::move(where)) {
    if (!object_.is_object()) refuse("is no object");
  }
  [[noreturn]] void refuse(const std::string& why) const { throw input_error(where_ + why); }

  Json take(const char* key) {
    const auto at = object_.find(key);
    if (at == object_.end()) refuse(std::string("'") + key + "' is missing");
    Json value = *at;
    object_.erase(at);
    return value;
  }
  uint32_t whole(const char* key, uint32_t low, uint32_t high) {
    return whole_of(take(key), key, low, high);
  }
  uint32_t whole_of(const Json& value, const char* key, uint32_t low, uint32_t high) const {
    if (!value.is_number_unsigned() || value.get<uint64_t>() < low || value.get<uint64_t>() > high)
      refuse(std::string("'") + key + "' must be a whole number from " + std::to_string(low) +
             " to " + std::to_string(high));
    return value.get<uint32_t>();
  }
  float number(const char* key) {
    const Json value = take(key);
    if (!value.is_number() || !std::isfinite(value.get<float>()))
      refuse(std::string("'") + key + "' must be a finite number");
    return value.get<float>();
  }
  template <size_t n>
  uint32_t choice(const char* key, const char* const (&names)[n]) {
    const Json value = take(key);
    const auto* at = std::find(std::begin(names), std::end(names),
                               value.is_string() ? value.get<std::string>() : std::string());
    if (at == std::end(names)) refuse(std::string("'") + key + "' is none of its names");
    return static_cast<uint32_t>(at - std::begin(names));
  }
  void end() const {
    if (!object_.empty()) refuse("'" + object_.begin().key() + "' is not known");
  }

 private:
  Json object_;
  std::string where_;
};

Json rope_json(const RopeConfig& r) {
  return {{"pairing", kPairings[static_cast<size_t>(r.pairing)]},
          {"n_dims", r.n_dims},
          {"base", r.base},
          {"scaling", kScalings[static_cast<size_t>(r.scaling)]},
          {"factor", r.factor},
          {"original_context", r.original_context},
          {"attn_factor", r.attn_factor},
          {"beta_fast", r.beta_fast},
          {"beta_slow", r.beta_slow},
          {"low_freq_factor", r.low_freq_factor},
          {"high_freq_factor", r.high_freq_factor},
          {"freq_factors", r.freq_factors}};
}

RopeConfig rope_of(const Json& json, const std::string& where, uint32_t head_dim) {
  Fields in(json, where + "rope: ");
  RopeConfig r;
  r.pairing = static_cast<RopePairing>(in.choice("pairing", kPairings));
  r.n_dims = in.whole("n_dims", 0, head_dim);
  r.base = in.number("base");
  r.scaling = static_cast<RopeScaling>(in.choice("scaling", kScalings));
  r.factor = in.number("factor");
  r.original_context = in.whole("original_context", 0, UINT32_MAX);
  r.attn_factor = in.number("attn_factor");
  r.beta_fast = in.number("beta_fast");
  r.beta_slow = in.number("beta_slow");
  r.low_freq_factor = in.number("low_freq_factor");
  r.high_freq_factor = in.number("high_freq_factor");
  const Json factors = in.take("freq_factors");
  const bool fits = factors.is_array() && (factors.empty() || factors.size() == r.n_dims / 2) &&
                    std::all_of(factors.begin(), factors.end(), [](const Json& x) {
                      return x.is_number() && std::isfinite(x.get<float>()) && x.get<float>() > 0;
                    });
  if (!fits) in.refuse("'freq_factors' must be n_dims / 2 positive numbers, or none");
  r.freq_factors = factors.get<std::vector<float>>();
  if (!(r.base > 0) || !(r.factor > 0) || r.n_dims % 2 != 0)
    in.refuse("base and factor must be above 0, n_dims even");
  in.end();
  return r;
}

}  // namespace

std::string trace_header_text(const TraceHeader& h) {
  const Json json{{"version", kTraceVersion},
                  {"model", h.model},
                  {"layers", h.layers},
                  {"n_model_layers", h.n_model_layers},
                  {"context", h.context},
                  {"steps", h.steps},
                  {"n_q_heads", h.n_q_heads},
                  {"n_kv_heads", h.n_kv_heads},
                  {"head_dim", h.head_dim},
                  {"v_head_dim", h.v_head_dim},
                  {"d_model", h.d_model},
                  {"softmax_scale", h.softmax_scale},
                  {"type", kTypes[h.type == kernels::ElementType::kF16]},
                  {"rope", rope_json(h.rope)}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

TraceHeader parse_trace_header(const std::string& text, const std::string& path) {
  const std::string where = path + ": kvasir_trace: ";
  Fields in(Json::parse(text, nullptr, false), where);
  in.whole("version", kTraceVersion, kTraceVersion);
  TraceHeader h;
  const Json model = in.take("model");
  if (!model.is_string()) in.refuse("'model' must be a text");
  h.model = model.get<std::string>();
  h.n_model_layers = in.whole("n_model_layers", 1, kMostLayers);
  const Json layers = in.take("layers");
  if (!layers.is_array() || layers.empty()) in.refuse("'layers' must be numbers of layers");
  for (const Json& layer : layers) {
    const uint32_t least = h.layers.empty() ? 0 : h.layers.back() + 1;
    h.layers.push_back(in.whole_of(layer, "layers", least, h.n_model_layers - 1));
  }
  h.context = in.whole("context", 1, kMostTokens);
  h.steps = in.whole("steps", 1, kMostTokens - h.context);
  h.n_q_heads = in.whole("n_q_heads", 1, kMostHeads);
  h.n_kv_heads = in.whole("n_kv_heads", 1, h.n_q_heads);
  if (h.n_q_heads % h.n_kv_heads != 0) in.refuse("'n_kv_heads' must divide n_q_heads");
  h.head_dim = in.whole("head_dim", 1, kMostDim);
  h.v_head_dim = in.whole("v_head_dim", 1, kMostDim);
  h.d_model = in.whole("d_model", 1, kMostWidth);
  h.softmax_scale = in.number("softmax_scale");
  if (!(h.softmax_scale > 0)) in.refuse("'softmax_scale' must be above 0");
  h.type = in.choice("type", kTypes) == 1 ? kernels::ElementType::kF16 : kernels::ElementType::kF32;
  h.rope = rope_of(in.take("rope"), where, h.head_dim);
  in.end();
  return h;
}

}  // namespace kvasir::tool

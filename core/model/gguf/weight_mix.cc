// See weight_mix.h. The rules are those of llama.cpp's llama-quantize without an importance matrix.
// SPDX-License-Identifier: Apache-2.0
#include "core/model/gguf/weight_mix.h"

#include <algorithm>
#include <charconv>

#include "core/error.h"

namespace kvasir {
namespace {

using Kind = WeightMix::Kind;

struct NamedMix {
  const char* name;
  GgmlType type;
  Kind kind;
  uint32_t file_type;  // Q4_K and Q5_K alone have no number but that of their small mix
};
constexpr NamedMix kMixes[] = {
    {"F32", GgmlType::kF32, Kind::kUniform, 0},
    {"F16", GgmlType::kF16, Kind::kUniform, 1},
    {"BF16", GgmlType::kBF16, Kind::kUniform, 32},
    {"Q8_0", GgmlType::kQ8_0, Kind::kUniform, 7},
    {"Q4_0", GgmlType::kQ4_0, Kind::kUniform, 2},
    {"Q4_1", GgmlType::kQ4_1, Kind::kUniform, 3},
    {"Q5_0", GgmlType::kQ5_0, Kind::kUniform, 8},
    {"Q5_1", GgmlType::kQ5_1, Kind::kUniform, 9},
    {"IQ4_NL", GgmlType::kIQ4_NL, Kind::kUniform, 25},
    {"Q4_K", GgmlType::kQ4_K, Kind::kUniform, 14},
    {"Q5_K", GgmlType::kQ5_K, Kind::kUniform, 16},
    {"Q6_K", GgmlType::kQ6_K, Kind::kUniform, 18},
    {"Q4_K_S", GgmlType::kQ4_K, Kind::kSmall, 14},
    {"Q4_K_M", GgmlType::kQ4_K, Kind::kMedium, 15},
    {"Q5_K_S", GgmlType::kQ5_K, Kind::kSmall, 16},
    {"Q5_K_M", GgmlType::kQ5_K, Kind::kMedium, 17},
};

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  return out;
}

const NamedMix& named(GgmlType type, Kind kind) {
  for (const NamedMix& mix : kMixes)
    if (mix.type == type && mix.kind == kind) return mix;
  throw input_error(std::string("models cannot be written as ") + name(type) + "; choose one of " +
                    weight_mix_names());
}

// "blk.<layer>.<tail>"
struct LayerTensor {
  uint32_t layer = 0;
  std::string_view tail;  // empty: of no layer
};
LayerTensor layer_tensor(std::string_view name) {
  constexpr std::string_view kPrefix = "blk.";
  if (!name.starts_with(kPrefix)) return {};
  LayerTensor out;
  const char* const end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(name.data() + kPrefix.size(), end, out.layer);
  if (error != std::errc() || rest == end) return {};
  out.tail = {rest + 1, static_cast<size_t>(end - rest - 1)};
  return out;
}

bool has_more_bits(uint32_t layer, uint32_t n_layers) {
  const uint32_t eighth = n_layers / 8;
  return layer < eighth || layer >= 7 * n_layers / 8 || (layer - eighth) % 3 == 2;
}

GgmlType type_in_layer(const WeightMix& mix, const LayerTensor& tensor, uint32_t n_layers) {
  const bool is_value = tensor.tail == "attn_v.weight";
  const bool is_down = tensor.tail.starts_with("ffn_down");
  if ((!is_value && !is_down) || tensor.layer >= n_layers) return mix.type;
  if (mix.kind == Kind::kMedium && has_more_bits(tensor.layer, n_layers)) return GgmlType::kQ6_K;
  const bool is_early = tensor.layer < (is_value ? 4 : n_layers / 8);
  if (mix.kind == Kind::kSmall && mix.type == GgmlType::kQ4_K && is_early) return GgmlType::kQ5_K;
  return mix.type;
}

GgmlType fitting(GgmlType type, uint64_t row_elements) {
  while (row_elements % block_elements(type) != 0) {
    switch (type) {
      case GgmlType::kQ4_K:
        type = GgmlType::kQ5_0;
        break;
      case GgmlType::kQ5_K:
        type = GgmlType::kQ5_1;
        break;
      case GgmlType::kQ6_K:
        type = GgmlType::kQ8_0;
        break;
      default:
        return GgmlType::kF16;
    }
  }
  return type;
}

}  // namespace

bool WeightMix::is_matrix(std::string_view tensor, const std::vector<uint64_t>& shape) {
  const auto has = [&](std::string_view part) { return tensor.find(part) != tensor.npos; };
  // The router of experts is small, and what it chooses is sensitive to rounding.
  return shape.size() >= 2 && tensor.ends_with(".weight") && !has("_norm.") &&
         !has("ffn_gate_inp.");
}

GgmlType WeightMix::type_of(std::string_view tensor, uint64_t row_elements,
                            const MixedModel& model) const {
  const bool is_output =
      tensor == "output.weight" || (model.tied_embeddings && tensor == "token_embd.weight");
  if (is_output && output) return fitting(*output, row_elements);
  if (is_output && kind != Kind::kUniform) return fitting(GgmlType::kQ6_K, row_elements);
  return fitting(type_in_layer(*this, layer_tensor(tensor), model.n_layers), row_elements);
}

std::string WeightMix::name() const { return named(type, kind).name; }
uint32_t WeightMix::file_type() const { return named(type, kind).file_type; }

WeightMix weight_mix_by_name(const std::string& name, const std::string& flag) {
  for (const NamedMix& mix : kMixes)
    if (lower(mix.name) == lower(name)) return {mix.type, mix.kind};
  throw input_error(flag + " " + name + ": expected one of " + weight_mix_names());
}

std::string weight_mix_names() {
  std::string names;
  for (const NamedMix& mix : kMixes) names += (names.empty() ? "" : ", ") + lower(mix.name);
  return names;
}

}  // namespace kvasir

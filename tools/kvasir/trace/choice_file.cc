// See choice_file.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/trace/choice_file.h"

#include <deque>

#include "tools/kvasir/trace/safetensors.h"

namespace kvasir::tool {
namespace {

constexpr int kChoiceVersion = 1;

std::string metadata_of(const RecallReport& report) {
  Json json{{"version", kChoiceVersion},       {"trace", report.recorded->file},
            {"model", report.recorded->model}, {"context", report.shape.context},
            {"steps", report.shape.steps},     {"n_kv_heads", report.shape.n_kv_heads},
            {"strategies", Json::object()}};
  for (const RecallResult& result : report.strategies) {
    Json settings = Json::object();
    for (const auto& [key, value] : result.settings) settings[key] = value;
    json["strategies"][result.label] = settings;
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

void write_choices(const RecallReport& report, const std::string& path) {
  SafetensorsWriter writer("kvasir_choices", metadata_of(report));
  struct Tensors {
    std::vector<int32_t> ends, tokens;
  };
  std::deque<Tensors> kept;  // until they are written
  const RecallShape& shape = report.shape;
  for (const RecallResult& result : report.strategies)
    for (uint32_t layer = 1; layer < shape.n_layers; ++layer) {
      Tensors& of_layer = kept.emplace_back();
      for (uint32_t step = 0; step < shape.steps; ++step)
        for (uint32_t head = 0; head < shape.n_kv_heads; ++head) {
          const std::vector<uint32_t>& tokens = result.choices.at(layer, step, head);
          of_layer.tokens.insert(of_layer.tokens.end(), tokens.begin(), tokens.end());
          of_layer.ends.push_back(static_cast<int32_t>(of_layer.tokens.size()));
        }
      const std::string name =
          result.label + ".layers." + std::to_string(report.recorded->layers[layer]) + ".";
      writer.add(name + "ends", "I32", {shape.steps, shape.n_kv_heads}, of_layer.ends.data(),
                 of_layer.ends.size() * sizeof(int32_t));
      writer.add(name + "tokens", "I32", {of_layer.tokens.size()}, of_layer.tokens.data(),
                 of_layer.tokens.size() * sizeof(int32_t));
    }
  writer.write(path);
}

}  // namespace kvasir::tool

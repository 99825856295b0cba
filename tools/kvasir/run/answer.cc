// See answer.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/run/answer.h"

#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/session/strategy.h"

namespace kvasir::tool {
namespace {

Json device_json(const Model::Placement& p) {
  return {{"layers", p.n_layers},
          {"head", p.has_head},
          {"weight_bytes", p.weight_bytes},
          {"scratch_bytes", p.scratch_bytes},
          {"copied_to_device_bytes", p.copied_to_device},
          {"copied_to_host_bytes", p.copied_to_host}};
}

std::string device_text(const Model::Placement& p) {
  if (p.library.empty()) return "";
  return format(
      "kvasir: on the GPU: the last %u layers%s, weights %s; activations copied: %s there, "
      "%s back\n",
      p.n_layers, p.has_head ? " and the head" : "", bytes_text(p.weight_bytes).c_str(),
      bytes_text(p.copied_to_device).c_str(), bytes_text(p.copied_to_host).c_str());
}

}  // namespace

Json to_json(const Answer& a) {
  Json out = to_json(a.run);
  out["model"] = a.setup.model;
  out["context"] = a.context;
  out["compute"] = name(a.setup.compute);
  out["deterministic"] = a.setup.deterministic;
  out["threads"] = a.setup.n_threads;
  out["peak_resident_bytes"] = a.peak_resident_bytes;
  out["planned_bytes"] = a.planned_bytes;
  if (!a.on_device.library.empty()) out["device"] = device_json(a.on_device);
  out["finish_reason"] = name(a.generation.end);
  out["tokens"] = a.generation.tokens;
  out["text"] = a.generation.text;
  if (a.blend) out["blend"] = to_json(*a.blend);
  return out;
}

std::string to_text(const Answer& a) {
  const std::string out =
      (a.blend ? to_text(*a.blend) : "") + to_text(a.run) + device_text(a.on_device);
  if (a.generation.end != Generation::End::kContext) return out;
  return out + format("kvasir: the answer stops where the context of %u tokens is full: raise -c\n",
                      a.context);
}

}  // namespace kvasir::tool

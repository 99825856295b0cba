// See answer.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/run/answer.h"

#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/session/strategy.h"

namespace kvasir::tool {

Json to_json(const Answer& a) {
  Json out = to_json(a.run);
  out["model"] = a.setup.model;
  out["context"] = a.context;
  out["compute"] = name(a.setup.compute);
  out["deterministic"] = a.setup.deterministic;
  out["threads"] = a.setup.n_threads;
  out["peak_resident_bytes"] = a.peak_resident_bytes;
  out["planned_bytes"] = a.planned_bytes;
  out["finish_reason"] = name(a.generation.end);
  out["tokens"] = a.generation.tokens;
  out["text"] = a.generation.text;
  if (a.blend) out["blend"] = to_json(*a.blend);
  return out;
}

std::string to_text(const Answer& a) {
  const std::string out = (a.blend ? to_text(*a.blend) : "") + to_text(a.run);
  if (a.generation.end != Generation::End::kContext) return out;
  return out + format("kvasir: the answer stops where the context of %u tokens is full: raise -c\n",
                      a.context);
}

}  // namespace kvasir::tool

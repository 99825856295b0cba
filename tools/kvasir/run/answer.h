// What `kvasir run` reports when it has answered a prompt.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "tools/kvasir/session/blend_arm.h"
#include "tools/kvasir/session/generate.h"
#include "tools/kvasir/session/run_report.h"
#include "tools/kvasir/session/session.h"

namespace kvasir::tool {

struct Answer {
  RunReport run;
  Setup setup;
  uint32_t context = 0;  // tokens
  uint64_t peak_resident_bytes = 0, planned_bytes = 0;
  Model::Placement on_device;
  Generation generation;
  std::optional<BlendReport> blend;  // of a prompt of chunks
};

Json to_json(const Answer& answer);
// The text on stderr below the answer: the report of the run, and why the answer stops early.
std::string to_text(const Answer& answer);

}  // namespace kvasir::tool

// kvasir model: what a model file holds, models of random weights or in other types, logits of
// given tokens, skewing matrices.
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include "tools/kvasir/commands.h"

namespace kvasir::tool {

void add_model(CLI::App& app) {
  auto* model = app.add_subcommand(
      "model", "Show what a model file holds, make or quantise one, write its logits");
  model->require_subcommand(1);
  add_model_info(*model);
  add_model_random(*model);
  add_model_quantize(*model);
  add_model_logits(*model);
  add_model_skew(*model);
}

}  // namespace kvasir::tool

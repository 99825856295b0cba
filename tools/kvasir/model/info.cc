// kvasir model info: shape, tensors, tokenizer, rope and cache size of a GGUF.
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include "tools/kvasir/cli/options.h"
#include "tools/kvasir/commands.h"
#include "tools/kvasir/model/file_info.h"

namespace kvasir::tool {
namespace {

struct InfoOptions {
  std::string model;
  ModelInfoOptions parts;
  bool json = false;
};

}  // namespace

void add_model_info(CLI::App& model) {
  auto* command = model.add_subcommand("info", "Shape, tensors, tokenizer, bytes per token");
  auto o = std::make_shared<InfoOptions>();
  command->add_option("-m,--model", o->model, "Model file (GGUF)")
      ->envname("KVASIR_ARG_MODEL")
      ->required();
  command->add_flag("--keys", o->parts.metadata, "List the metadata");
  command->add_flag("--tensors", o->parts.tensors, "List the tensors");
  add_json(*command, o->json);
  command->callback([=] { print(model_info(GgufFile::open(o->model), o->parts), o->json); });
}

}  // namespace kvasir::tool

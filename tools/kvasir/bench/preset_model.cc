// See preset_model.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/bench/preset_model.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "core/error.h"
#include "core/model/synthetic/random_model.h"
#include "tools/kvasir/cli/interrupt.h"
#include "tools/kvasir/cli/progress_bar.h"

namespace kvasir::tool {

PresetModel::PresetModel(const std::string& preset_name, const std::string& type) {
  RandomModelSpec spec = preset(preset_name);
  spec.type = weight_mix_by_name(type, "--type");
  const char* base = std::getenv("TMPDIR");
  folder_ = std::string(base && *base ? base : "/tmp") + "/kvasir-bench-XXXXXX";
  if (!mkdtemp(folder_.data()))
    throw Error(ErrorKind::kResource, "a folder for the model, " + folder_ + ", cannot be made: " +
                                          std::strerror(errno) + "; set TMPDIR");
  path_ = folder_ + "/" + preset_name + ".gguf";
  try {
    ProgressBar bar("writing the model (MB)");
    write_random_model(spec, path_, nullptr, [&](uint64_t done, uint64_t total) {
      stop_if_interrupted();
      bar.update(done / 1000000, total / 1000000);
    });
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
    throw;
  }
}

PresetModel::~PresetModel() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

}  // namespace kvasir::tool

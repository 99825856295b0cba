// The hash of a model's bytes, computed once and kept for later runs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "core/model/gguf/gguf.h"

namespace kvasir::tool {

// GgufFile::content_hash(), which reads the whole model. It is kept in $XDG_CACHE_HOME/kvasir (by
// default ~/.cache/kvasir) under device, inode, size and times of the file's parts, so that a file
// that was not touched is read once. Where nothing can be kept, it is computed each time.
uint64_t model_hash(const GgufFile& file);

}  // namespace kvasir::tool

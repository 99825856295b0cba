// Skewing matrices from a file that is not trusted.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/instance.h>

#include <string>
#include <vector>

namespace kvasir::infinigen {

// [layer][kv head][column of A][head_dim], see kvasir/ext/draft/skew.h. Throws sdk::Error naming
// the file when it was made for another model, has another size than its header says, was
// damaged, or holds what is no orthogonal matrix.
std::vector<float> load_skew_file(const std::string& path, const kvasir_geometry& geometry);

}  // namespace kvasir::infinigen

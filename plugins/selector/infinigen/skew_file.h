// Skewing matrices from a file that is not trusted.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/instance.h>

#include <string>
#include <vector>

namespace kvasir::infinigen {

struct SkewFile {
  std::vector<float> matrices;  // [layer][kv head][column of A][head_dim]
  std::vector<float> sums;      // [layer][kv head][q, k][column of A]
};

// See kvasir/ext/draft/skew.h. Throws sdk::Error naming the file when it was made for another
// model, has another size than its header says, was damaged, or holds what is no orthogonal matrix
// or no sum of absolute values.
SkewFile load_skew_file(const std::string& path, const kvasir_geometry& geometry);

}  // namespace kvasir::infinigen

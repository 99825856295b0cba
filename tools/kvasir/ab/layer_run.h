// What the arms of an A/B run capture of dense attention, layer by layer, on its first samples.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tools/kvasir/ab/lineup.h"
#include "tools/kvasir/ab/run_folder.h"
#include "tools/kvasir/ab/sample_maker.h"
#include "tools/kvasir/ab/worker.h"

namespace kvasir::tool {

// Why layers of such a model cannot be looked at; empty: they can.
std::string why_no_layers(const ModelShape& shape);

// Of the first ab.n_layer_samples samples of each task and length: records what dense attention
// computes over the prompt and the first decoded tokens, then lets every arm choose over these
// queries and keys, in an engine without the model. An error of a strategy is reported on stderr
// and leaves its lines out. Samples that the folder has are not looked at again. Loads the model:
// no other session should hold it.
void look_at_layers(const Options& options, const AbOptions& ab, const std::vector<Entrant>& lineup,
                    Worker& worker, RunFolder& folder);

}  // namespace kvasir::tool

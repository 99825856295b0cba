// What strategies chose over a trace, as a safetensors file, so that a selector written elsewhere
// can be compared with them, query by query.
//
// Tensors of strategy S, where L is a layer of the model; the first recorded one is dense and has
// none:
//   S.layers.L.ends    [steps][n_kv_heads] I32   where the kv head's tokens end in
//   S.layers.L.tokens;
//                                                they begin where those before them end
//   S.layers.L.tokens  [n] I32                   positions that it attended to, ascending
// The metadata `kvasir_choices` is JSON: the trace, and for each S its settings. First tokens,
// window and the open block are among the positions. Where query heads choose for themselves they
// stand together.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tools/kvasir/recall/recall_report.h"

namespace kvasir::tool {

// The report of a replay whose results have their choices. The file appears when it is whole.
void write_choices(const RecallReport& report, const std::string& path);

}  // namespace kvasir::tool

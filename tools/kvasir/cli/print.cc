// See print.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/cli/print.h"

#include <cstdio>

namespace kvasir::tool {

void print_json(const Json& document) {
  print_text(document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

void print_text(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

}  // namespace kvasir::tool

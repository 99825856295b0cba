// See print.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/cli/print.h"

#include <cstdio>

#include "core/platform/standard_output.h"
#include "tools/kvasir/cli/files.h"

namespace kvasir::tool {

void print_json(const Json& document) {
  print_text(document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

void print_text(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), standard_output()) != text.size())
    fail_standard_output();
}

void print_text_now(const std::string& text) {
  print_text(text);
  if (std::fflush(standard_output()) != 0) fail_standard_output();
}

}  // namespace kvasir::tool

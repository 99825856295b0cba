// The least number of tokens that a task takes, as its error says.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>

#include "core/task/task.h"
#include "tests/support/error_of.h"

namespace kvasir::test {

inline uint32_t least_length(Task task, PieceEncoder& encoder) {
  const std::string message = error_of([&] { TaskGenerator(task, {}, 4, encoder); });
  const size_t at = message.find("at least ");
  return at == std::string::npos ? 4 : static_cast<uint32_t>(std::stoul(message.substr(at + 9)));
}

}  // namespace kvasir::test

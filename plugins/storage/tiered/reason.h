// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <system_error>

namespace kvasir::tiered {

// The text of an errno.
inline std::string reason(int error) { return std::generic_category().message(error); }

}  // namespace kvasir::tiered

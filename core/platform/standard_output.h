// Standard output of the program, apart from descriptor 1, which plugins know: what they print
// there must not mix with a result that a script reads.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <string>

namespace kvasir {

// Once, before plugins are loaded. From now on descriptor 1, and with it stdout, leads to standard
// error. Where the system has no descriptor left, all stays as it is.
void claim_standard_output();

FILE* standard_output();  // stdout until it is claimed

// A new descriptor of standard output when the path names it (/dev/stdout and its other names, or a
// link to one), else -1.
int open_if_standard_output(const std::string& path);

}  // namespace kvasir

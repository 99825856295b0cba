// Plugin files that crashed kvasir: they are refused until they change or the user allows them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace kvasir::tool {

// The list of them, in the user's cache folder; "" where there is none. A line per crash:
// DEVICE INODE SIZE MTIME MTIME_NS CTIME CTIME_NS CAUSE FUNCTION ID PATH, where FUNCTION has '+'
// for spaces. Crash reports append to it from a signal handler.
std::string blocked_plugins_file();

// Numbers that change with every write to the file, each with a space behind it; "": no such file.
std::string file_state(const std::string& path);

// "crashed kvasir …; rebuild it, or …" for a file that has not changed since; "" for all others.
std::string why_blocked(const std::string& path);

// Removes what the list says of an id or a path. Returns the paths.
std::vector<std::string> unblock(const std::string& what);

}  // namespace kvasir::tool

// A crash says which plugin it happened in, and writes down that the plugin's file is not to be
// trusted again.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

namespace kvasir::tool {

// For SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT, exceptions that nobody catches and exit() inside
// a plugin, from now on. Handlers that were installed before run after ours; without one the signal
// ends the process, with a core file where the system writes them. The calling thread needs a
// SignalStack to report a stack that ran over. A mapped file that cannot be read is no crash: the
// handler names the file and ends the process as a wrong file does, with exit code 2.
//
//   blocked_plugins: the file that a crash is appended to (session/blocked_plugins.h), or ""
void install_crash_report(const std::string& blocked_plugins);

// From now on a crash is also written here, as "SIGSEGV in plugin ID (FILE): FUNCTION, layer 3",
// and its file is not put on the list: for a process whose crash another one outlives. `text` must
// outlive the process's plugins; what does not fit is left out.
void write_crashes_to(char* text, size_t bytes);

}  // namespace kvasir::tool

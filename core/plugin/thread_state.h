// What a thread brings into a plugin and needs back unchanged: how it rounds, in which locale it
// writes numbers, which signals reach it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <clocale>
#include <csignal>
#include <cstdint>
#include <string>

namespace kvasir {

// Of the calling thread, as it was when this was made.
class ThreadState {
 public:
  enum Part : uint32_t { kFloatControl = 1, kLocale = 2, kSignalMask = 4 };

  ThreadState();
  // Sets what differs now as it was. Returns which parts did, 0: none.
  uint32_t restore() const;

 private:
  uint32_t float_control_;
  locale_t locale_;           // of the thread
  const char* locale_names_;  // of the process; only compared
  sigset_t signals_;
};

// Rounding and exceptions of the calling thread alone: for the workers of a plugin's loop.
uint32_t float_control();
void set_float_control(uint32_t control);

// The warning: "select changed the thread's signal mask, which is …".
std::string restored_text(const std::string& function, uint32_t parts);

}  // namespace kvasir

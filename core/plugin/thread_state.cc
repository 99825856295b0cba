// See thread_state.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/plugin/thread_state.h"

#include <cstring>

#if defined(__x86_64__)
#include <fpu_control.h>
#include <immintrin.h>
#else
#include <cfenv>
#endif

namespace kvasir {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kControlBits = 0xffc0;  // of MXCSR; arithmetic itself sets the others
#endif

sigset_t signal_mask() {
  sigset_t signals;
  std::memset(&signals, 0, sizeof signals);  // the system fills in its own part only
  pthread_sigmask(SIG_BLOCK, nullptr, &signals);
  return signals;
}

// The names of the process's locale, copied while they are valid: setlocale() frees them.
const std::string& known_locale(const char* names) {
  thread_local std::string copy;
  thread_local const char* copied = nullptr;
  if (copied != names || copy != names) copy = copied = names;
  return copy;
}

}  // namespace

#if defined(__x86_64__)
// MXCSR below, the control word of the x87 unit above.
uint32_t float_control() {
  fpu_control_t x87;
  _FPU_GETCW(x87);
  return (_mm_getcsr() & kControlBits) | uint32_t{x87} << 16;
}
void set_float_control(uint32_t control) {
  const auto x87 = static_cast<fpu_control_t>(control >> 16);
  _FPU_SETCW(x87);
  _mm_setcsr((_mm_getcsr() & ~kControlBits) | (control & kControlBits));
}
#else
uint32_t float_control() { return static_cast<uint32_t>(std::fegetround()); }
void set_float_control(uint32_t control) { std::fesetround(static_cast<int>(control)); }
#endif

ThreadState::ThreadState()
    : float_control_(float_control()),
      locale_(uselocale(nullptr)),
      locale_names_(std::setlocale(LC_ALL, nullptr)),
      signals_(signal_mask()) {
  known_locale(locale_names_);
}

uint32_t ThreadState::restore() const {
  uint32_t changed = 0;
  if (float_control() != float_control_) {
    set_float_control(float_control_);
    changed |= kFloatControl;
  }
  if (uselocale(nullptr) != locale_) {
    uselocale(locale_);
    changed |= kLocale;
  }
  if (std::setlocale(LC_ALL, nullptr) != locale_names_) {
    std::setlocale(LC_ALL, known_locale(locale_names_).c_str());
    changed |= kLocale;
  }
  const sigset_t now = signal_mask();
  if (std::memcmp(&now, &signals_, sizeof now) != 0) {
    pthread_sigmask(SIG_SETMASK, &signals_, nullptr);
    changed |= kSignalMask;
  }
  return changed;
}

std::string restored_text(const std::string& function, uint32_t parts) {
  std::string names;
  const auto add = [&](uint32_t part, const char* name) {
    if (!(parts & part)) return;
    if (!names.empty()) names += " and ";
    names += name;
  };
  add(ThreadState::kFloatControl, "floating-point control (MXCSR)");
  add(ThreadState::kLocale, "locale");
  add(ThreadState::kSignalMask, "signal mask");
  return function + " changed the thread's " + names +
         ", which is as before now (a defect of the plugin)";
}

}  // namespace kvasir

// The two ways into a plugin: counted and timed inside a step, plain outside. Only the .cc files of
// this folder include it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

#include "core/plugin/breadcrumb.h"
#include "core/plugin/check/call_arguments.h"
#include "core/plugin/instance.h"
#include "core/plugin/loader.h"
#include "core/plugin/thread_state.h"

namespace kvasir {

// Why a call failed: in the plugin's words, or that this function may not answer so.
inline std::string refusal_text(const char* function, kvasir_status status, const kvasir_err& err) {
  if (status < KVASIR_OK && status != KVASIR_ERR_CAPACITY) return err_text(err);
  return std::string(function) + "() may not answer so (a defect of the plugin)";
}

// While it lives, the thread is in the plugin; afterwards it is as before.
class Instance::ThreadGuard {
 public:
  ThreadGuard(const Instance& instance, const char* function, uint32_t layer = Breadcrumb::kNoLayer)
      : instance_(instance),
        function_(function),
        crumb_({instance.crumb_id_, instance.crumb_path_, function, layer}) {}
  ~ThreadGuard() {
    if (CheckedPlugin* const checked = instance_.checked_.get())
      checked->allocated += checked->allocated_now() - allocated_before_;
    if (const uint32_t parts = before_.restore()) [[unlikely]]
      instance_.tell_restored(function_, parts);
  }
  ThreadGuard(const ThreadGuard&) = delete;
  ThreadGuard& operator=(const ThreadGuard&) = delete;

 private:
  const Instance& instance_;
  const char* function_;
  ThreadState before_;
  int64_t allocated_before_ = instance_.checked_ ? instance_.checked_->allocated_now() : 0;
  BreadcrumbScope crumb_;
};

template <class Fn>
kvasir_status Instance::step_call(const char* function, const kvasir_step* step, Fn&& fn,
                                  std::initializer_list<kvasir_status> accepted, uint32_t layer) {
  if (step) layer = step->layer;
  kvasir_err err{};
  err.struct_size = sizeof(err);
  kvasir_status status;
  {
    const ThreadGuard guard(*this, function, layer);
    const auto begin = std::chrono::steady_clock::now();
    status = fn(&err);
    const auto end = std::chrono::steady_clock::now();
    stats_.nanos += static_cast<uint64_t>((end - begin).count());
  }
  ++stats_.calls;
  if (status == KVASIR_OK) [[likely]]
    return status;
  if (std::find(accepted.begin(), accepted.end(), status) != accepted.end()) return status;
  fail(function, status, refusal_text(function, status, err), step, layer);
}

template <class Fn>
auto Instance::unfailing_call(const char* function, Fn&& fn) const {
  const ThreadGuard guard(*this, function);
  return fn();
}

template <class Fn>
kvasir_status Instance::control_call(const char* function, Fn&& fn, kvasir_status accepted) const {
  CallArguments arguments(checked_.get());
  kvasir_err err{};
  err.struct_size = sizeof(err);
  kvasir_status status;
  {
    const ThreadGuard guard(*this, function);
    status = fn(arguments.out("err", err));
  }
  finish(function, arguments);
  if (status != KVASIR_OK && status != accepted)
    fail(function, status, refusal_text(function, status, err));
  return status;
}

}  // namespace kvasir

// State per sequence that is gone when the prompt or step that made it is: a saved sequence needs
// none of it. Inherit publicly: seq_* and kvasir.state/1 come with it.
// SPDX-License-Identifier: Apache-2.0 OR MIT
#pragma once

#include <string_view>

#include "plugins/sdk/sequences.h"
#include "plugins/sdk/state.h"

namespace kvasir::sdk {

// State: as for Sequences. Between calls it holds nothing that a later prompt or step reads: what
// an interrupted prompt left is not that of the next one.
template <class State>
class PassingState : public Sequences<State> {
 public:
  const void* get_extension(const char* id) const {
    static constexpr kvasir_state nothing = {
        sizeof(kvasir_state), 0,
        [](void*, uint64_t, int32_t (*)(void*, const void*, uint64_t) KVASIR_NOEXCEPT, void*,
           kvasir_err*) noexcept -> kvasir_status { return KVASIR_OK; },
        [](void*, uint64_t, const void* bytes, uint64_t n, kvasir_err* err) noexcept {
          return guard(err, [&] { StateReader(bytes, n).finish(); });
        }};
    return std::string_view(id) == KVASIR_EXT_STATE ? &nothing : nullptr;
  }
};

}  // namespace kvasir::sdk

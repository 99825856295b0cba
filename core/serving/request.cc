// See request.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/serving/request.h"

namespace kvasir {

const char* name(RequestState state) {
  switch (state) {
    case RequestState::kQueued:
      return "queued";
    case RequestState::kPrefilling:
      return "prefilling";
    case RequestState::kDecoding:
      return "decoding";
    case RequestState::kDone:
      return "done";
    case RequestState::kFailed:
      return "failed";
    case RequestState::kCancelled:
      return "cancelled";
  }
  return "";
}

std::string RequestStatus::error_text() const { return ItemResult{.error = error}.text(); }

TokenSource forced_tokens(std::vector<TokenId> tokens,
                          std::function<void(uint32_t, std::span<const float>)> seen) {
  return [tokens = std::move(tokens), seen = std::move(seen),
          at = uint32_t{0}](std::span<const float> logits) mutable -> std::optional<TokenId> {
    if (seen) seen(at, logits);
    if (at == tokens.size()) return std::nullopt;
    return tokens[at++];
  };
}

}  // namespace kvasir

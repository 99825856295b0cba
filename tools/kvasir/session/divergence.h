// How far predictions are from another strategy's, and from the token that came.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "core/model/tokenizer/tokenizer.h"

namespace kvasir::tool {

TokenId most_likely(std::span<const float> logits);

// KL(p || q) = sum_i p_i (log p_i - log q_i) of the two softmaxes of logits, in nats, in double.
double kl_divergence(std::span<const float> p, std::span<const float> q);

// -log softmax(logits)[token], in nats, in double.
double negative_log_likelihood(std::span<const float> logits, TokenId token);

}  // namespace kvasir::tool

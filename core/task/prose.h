// Filler: sentences of our own grammar over our own words. No digits and none of the phrases that
// tasks plant, so nothing in it can be taken for an answer.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "core/task/random.h"

namespace kvasir {

// "The quiet baker carried a lamp to the harbor before dawn." Capital, full stop, no line end.
std::string prose_sentence(TaskRandom& random);
// The same in Chinese, with its own full stop.
std::string prose_sentence_zh(TaskRandom& random);

}  // namespace kvasir

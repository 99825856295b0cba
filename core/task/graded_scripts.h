// Scripts of the tasks whose answers are written freely and scored; statements.h says what they
// are, task.h what they look like.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/task/statements.h"

namespace kvasir {

// A numbered list of words, as RULER's cwe: options.pairs words (10) stand in it 30 times each, or
// 6 times in fewer than 4,096 tokens, the others 3 times, or once. A short list with its answer
// comes before. The words are the project's own: no prompt of RULER's.
Script common_words(const TaskOptions& options, size_t budget, TaskRandom& random,
                    PieceEncoder& encoder);
// Coded words, as RULER's fwe: of n draws, word k of the vocabulary stands n / (k^2 zeta(2)) times,
// rounded down; `...` takes the place of the first, the answer is words 2 to 4.
Script frequent_words(const TaskOptions& options, size_t budget, TaskRandom& random,
                      PieceEncoder& encoder);

// Facts `The baker owns 37 ropes.`, options.pairs of them (8); the question needs several.
Script facts_count(const TaskOptions& options, TaskRandom& random);
Script facts_most(const TaskOptions& options, TaskRandom& random);
Script facts_sum(const TaskOptions& options, TaskRandom& random);
// options.pairs needles (3), all asked for in turn; then which code was the first.
Script multi_turn(const TaskOptions& options, TaskRandom& random);

// A JSON object of UUIDs that fills the budget, as InfiniteBench's kv_retrieval; one is asked for.
Script uuid_retrieval(const TaskOptions& options, size_t budget, TaskRandom& random,
                      PieceEncoder& encoder);
// The forms of options.pairs tools (3) at the start of the context; the question names a tool and
// the values, not the keys.
Script tool_call(const TaskOptions& options, TaskRandom& random);
Script needle_zh(TaskRandom& random);

}  // namespace kvasir

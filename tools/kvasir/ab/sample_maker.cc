// See sample_maker.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/ab/sample_maker.h"

#include <algorithm>

#include "core/error.h"

namespace kvasir::tool {

SampleMaker::SampleMaker(const AbOptions& options, const Tokenizer& tokenizer)
    : options_(options), encoder_(tokenizer) {}

Sample SampleMaker::make(size_t task, uint32_t length, uint64_t index) {
  if (!options_.sets.empty()) return tokenised(options_.sets[task].samples[index], index, encoder_);
  auto& made = generators_[{options_.tasks[task], length}];
  if (!made)
    made = std::make_unique<TaskGenerator>(options_.tasks[task], options_.task, length, encoder_);
  return made->make(options_.seed, index);
}

std::vector<std::string> task_names(const AbOptions& options) {
  std::vector<std::string> out;
  for (const Task task : options.tasks) out.emplace_back(name(task));
  for (const SampleSet& set : options.sets) out.push_back(set.task);
  return out;
}

void check_tasks(Session& session, AbOptions& options) {
  PieceEncoder encoder(session.tokenizer());
  size_t longest = 0;
  for (const SampleSet& set : options.sets)
    for (size_t i = 0; i < options.n_samples; ++i) {
      const Sample sample = tokenised(set.samples[i], i, encoder);
      longest = std::max(longest, sample.tokens.ids.size());
      if (options.n_questions != 1 && sample.turns.size() != options.n_questions)
        throw input_error("--questions " + std::to_string(options.n_questions) + ": " + set.task +
                          ", sample " + set.samples[i].id + ": asks " +
                          std::to_string(sample.turns.size()));
    }
  if (longest) options.lengths = {static_cast<uint32_t>(longest)};
  for (const uint32_t length : options.lengths)
    for (const Task task : options.tasks) {
      TaskGenerator generator(task, options.task, length, encoder);
      if (options.n_questions == 1) continue;
      const size_t n_asked = generator.make(options.seed, 0).turns.size();
      if (n_asked != options.n_questions)
        throw input_error(
            "--questions " + std::to_string(options.n_questions) + ": " + name(task) + " asks " +
            std::to_string(n_asked) +
            " about a context; kv_retrieval, mqar and needle_multi_query (with enough "
            "--pairs) ask as many as wanted: --task kv_retrieval");
    }
}

}  // namespace kvasir::tool

// See schedule.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/serving/schedule.h"

#include <algorithm>

namespace kvasir {

Job* Schedule::find(RequestId id) const {
  const auto it = jobs.find(id);
  return it == jobs.end() || it->second->has_ended ? nullptr : it->second.get();
}

void Schedule::split(Job& job) {
  if (job.group->members.size() == 1) return;
  auto alone = std::make_shared<PromptGroup>();
  alone->members = {&job};
  alone->prompt = job.group->prompt;
  alone->piece_tokens = job.group->piece_tokens;
  alone->read = job.group->read;
  const auto queued = std::find(queue.begin(), queue.end(), job.group);
  if (queued != queue.end()) queue.insert(queued + 1, alone);
  if (std::find(reading.begin(), reading.end(), job.group) != reading.end())
    reading.push_back(alone);
  std::erase(job.group->members, &job);
  job.group = std::move(alone);
}

void Schedule::remove(const PromptGroup& group) {
  const auto is_it = [&](const auto& other) { return other.get() == &group; };
  std::erase_if(queue, is_it);
  std::erase_if(reading, is_it);
}

void Schedule::remove(Job& job) {
  std::erase(decoding, &job);
  std::erase(job.group->members, &job);
  if (job.group->members.empty()) remove(*job.group);
}

}  // namespace kvasir

// One sample put to strategies: requests for a scheduler, and the records of what was answered.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/serving/scheduler.h"
#include "core/task/evaluate.h"
#include "tools/kvasir/ab/predictions.h"
#include "tools/kvasir/ab/runner.h"

namespace kvasir::tool {

// Strategies are places of the lineup. While it is asked no other sample uses the strategies' ids:
// what they count is this sample's. Callbacks of its requests point to it: it must stay where it is
// until they have ended.
class AskedSample {
 public:
  // ids: of the lineup in the engine, for this sample alone.
  AskedSample(const AbParts& parts, const AbOptions& options, Sample sample, uint32_t length,
              const std::vector<StrategyId>& ids);
  AskedSample(const AskedSample&) = delete;

  const Sample& sample() const { return sample_; }
  uint32_t length() const { return length_; }

  // A request of each strategy, which read the prompt together where they can. on_read: called with
  // the request's id when it has read the prompt; may be null.
  void submit(Scheduler& scheduler, const std::vector<size_t>& strategies,
              const std::function<void(RequestId)>& on_read = nullptr);
  std::optional<RequestId> request_of(size_t strategy) const;
  // Whether all requests have ended.
  bool is_answered() const { return n_waiting_ == 0; }
  // Of all strategies' prompts, and how many of them the storage had.
  uint64_t prompt_tokens() const;
  uint64_t restored_tokens() const;
  // Of a strategy that was asked; null: it was not, or has no error.
  std::exception_ptr error_of(size_t strategy) const;

  // A record for each question, once all strategies have answered. A strategy that was not asked
  // has failed for `why_not_asked`. Without `is_timed` times are 0.
  std::vector<AbRecord> records(size_t strategy, const std::string& why_not_asked,
                                bool is_timed) const;

 private:
  // What a strategy's decoding has counted so far.
  struct Counts {
    uint64_t steps = 0, considered = 0, selected = 0, attended = 0, kv_bytes = 0, choose_bytes = 0,
             fallbacks = 0, nanos = 0;
    std::vector<TierTraffic> tiers = {};
  };
  struct Given {
    TaskAnswer answer = {};
    RequestStatus status = {};
    RequestId id = 0;
    std::vector<Counts> until;  // [questions + 1]: counts at their beginnings, and at the end
    uint64_t prefill_before = 0, prefill_nanos = 0;
  };

  Counts counts_of(size_t strategy) const;
  Request request(size_t strategy);
  // The counts at the beginning of each question up to this one, unless they are known.
  void count_until(size_t strategy, size_t question);
  void end(size_t strategy, const TaskAnswer& answer, const RequestStatus& status);
  AbRecord record_of(size_t strategy, uint32_t question) const;
  void fill(AbRecord& record, uint32_t question, const Given& given, bool is_timed) const;
  uint64_t prefill_nanos(const Given& given) const;

  const AbParts& parts_;
  const AbOptions& options_;
  const Sample sample_;
  const uint32_t length_;
  const std::vector<StrategyId>& ids_;
  std::vector<uint32_t> question_of_step_;  // from 0 on, by prediction
  Predictions predictions_;
  std::map<size_t, Given> given_;
  size_t n_waiting_ = 0;
};

}  // namespace kvasir::tool

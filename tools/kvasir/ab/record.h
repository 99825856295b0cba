// One question under one strategy, a line of predictions.csv. All that a run reports is computed
// from these lines.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace kvasir::tool {

struct AbRecord {
  std::string task;
  uint32_t length = 0;
  uint64_t index = 0;     // of the sample
  uint32_t question = 1;  // about its context; one that judges all together is the first
  std::string strategy;   // label
  bool failed = false;    // it ended with an error, which `given` says; the last of its records
  bool right = false;     // greedy decoding gives every token of every answer
  uint64_t answer_tokens = 0, answer_tokens_right = 0;
  double depth = 0;          // of the needle asked for (first), as a share of the prompt
  uint64_t predictions = 0;  // compared with dense attention's, from the same tokens
  uint64_t agreed = 0;       // with the same most likely token
  double kl = 0;             // mean KL(dense || strategy) of them, in nats
  uint64_t prompt_tokens = 0;
  uint64_t decoded = 0;  // of the question and its answer
  // Sums over decode steps, layers and kv heads.
  uint64_t considered = 0, selected = 0, attended = 0;
  uint64_t kv_bytes = 0, choose_bytes = 0, fallbacks = 0;
  std::string tier_bytes;  // read from each tier of a storage that counts: "memory 4096, file 0"
  std::string expected, given;  // one_line(), turns joined by " | "
  // Nanoseconds, not the same in another run; 0: not measured. The prompt's stands with the first
  // question.
  uint64_t prefill_nanos = 0, decode_nanos = 0;
};

// Text that keeps to its line and is UTF-8: other bytes are written as \n, \\ and \xFF.
std::string one_line(const std::string& text);

std::string record_header();  // lines without their end
std::string to_line(const AbRecord& record);
// None when the line is no such record: the end of a file whose writer was killed.
std::optional<AbRecord> parse_record(const std::string& line);

}  // namespace kvasir::tool

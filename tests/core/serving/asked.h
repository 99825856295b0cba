// Requests whose course a test follows.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/serving/scheduler.h"
#include "tests/core/serving/replay.h"

namespace kvasir::test {

// One request: prompt some_tokens(n_prompt, seed), then n_new tokens. Stays where it is.
struct Asked {
  RequestId id = 0;
  uint32_t n_prompt = 0, n_new = 0, seed = 0;
  Logits logits{};  // after the prompt and after each token
  std::vector<uint32_t> progress{};
  RequestStatus end{};
  bool has_ended = false;

  Asked(uint32_t prompt, uint32_t n, uint32_t seed_in)
      : n_prompt(prompt), n_new(n), seed(seed_in) {}
  Asked(const Asked&) = delete;
  Asked& operator=(const Asked&) = delete;

  Request request(StrategyId strategy = 0) {
    Request made;
    made.strategy = strategy;
    made.prompt = some_tokens(n_prompt, seed);
    made.max_new_tokens = n_new;
    std::vector<TokenId> tokens;
    for (uint32_t i = 0; i < n_new; ++i) tokens.push_back(token_at(i, seed));
    made.next = forced_tokens(std::move(tokens), [this](uint32_t after, std::span<const float> l) {
      if (after == 0) logits.clear();
      logits.emplace_back(l.begin(), l.end());
    });
    made.on_progress = [this](uint32_t done, uint32_t) { progress.push_back(done); };
    made.on_end = [this](const RequestStatus& status) {
      end = status;
      has_ended = true;
    };
    return made;
  }
  void submit(Scheduler& scheduler, StrategyId strategy = 0) {
    id = scheduler.submit(request(strategy));
  }
  bool is_done() const { return has_ended && end.state == RequestState::kDone; }

  // What the sequence does alone, in pieces of piece_tokens.
  std::vector<Op> ops(uint32_t piece_tokens) const {
    std::vector<Op> out{{Op::Kind::kBeginPrompt, n_prompt, {}}};
    const std::vector<TokenId> prompt = some_tokens(n_prompt, seed);
    for (uint32_t at = 0; at < n_prompt; at += piece_tokens)
      out.push_back(
          {Op::Kind::kTokens,
           0,
           {prompt.begin() + at, prompt.begin() + std::min(n_prompt, at + piece_tokens)}});
    for (uint32_t i = 0; i < n_new; ++i) out.push_back({Op::Kind::kTokens, 0, {token_at(i, seed)}});
    return out;
  }
  void check(Soloists& alone, const Entry& entry, uint32_t piece_tokens) const {
    CAPTURE(entry.name);
    CAPTURE(end.error_text());
    REQUIRE(is_done());
    Logits want = alone.play(entry, ops(piece_tokens));
    const auto n_pieces = static_cast<ptrdiff_t>((n_prompt + piece_tokens - 1) / piece_tokens);
    want.erase(want.begin(), want.begin() + n_pieces - 1);  // those within the prompt
    check_as_alone(logits, want, kCompany);
  }
};

}  // namespace kvasir::test

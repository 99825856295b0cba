// What Engine holds; its functions are in engine.cc (sequences), engine_step.cc (a step),
// engine_verify.cc (tokens to verify) and engine_restore.cc (blocks of earlier sequences).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "core/runtime/engine.h"
#include "core/runtime/step/step_loop.h"

namespace kvasir {

struct Engine::Impl {
  Impl(const Model& model_in, Pipeline pipeline, ThreadPool& pool_in, HostServices& services_in,
       const EngineOptions& options_in);
  StrategyId add(Pipeline pipeline) {
    const StrategyRun* alike = nullptr;
    for (const auto& run : runs)
      if (!alike && can_share(pipeline, run->pipeline)) alike = run.get();
    runs.push_back(
        std::make_unique<StrategyRun>(model, std::move(pipeline), pool, services, options, alike));
    return static_cast<StrategyId>(runs.size() - 1);
  }
  Sequence& find(SequenceId id) const {
    const auto it = sequences.find(id);
    if (it == sequences.end())
      throw Error(ErrorKind::kInternal, "no sequence " + std::to_string(id));
    return *it->second;
  }
  // One that no step has failed in; not all of its layers may have been restored.
  Sequence& readable(SequenceId id) const {
    Sequence& seq = find(id);
    if (seq.fault) std::rethrow_exception(seq.fault);
    return seq;
  }
  // One that a step may go on with.
  Sequence& usable(SequenceId id) const {
    Sequence& seq = readable(id);
    if (!seq.awaited.empty())
      throw Error(ErrorKind::kInternal,
                  "sequence " + std::to_string(id) + " has layers that were not restored yet");
    if (drafts.contains(id))
      throw Error(ErrorKind::kInternal, "sequence " + std::to_string(id) +
                                            " waits for accept(): its drafts are not settled");
    return seq;
  }
  StrategyRun& run_of(const Sequence& seq) const { return *runs[seq.strategy]; }
  void truncate(Sequence& seq, uint32_t kv_len) const;
  // Whether prompts may begin with what the storage keeps; why not is logged once.
  bool may_restore(StrategyRun& run) const;
  void check_sliding_windows(const Sequence& seq, uint32_t kv_len) const;
  void cut(StrategyRun& run, Sequence& seq, uint32_t kv_len) const;
  SequenceId fork(const Sequence& parent);
  void close(SequenceId id);

  // What a step makes of its items.
  struct Plan {
    std::vector<Lane> lanes;
    std::vector<Lane*> lane_of;  // [runs], null: no pieces
    std::vector<TokenId> tokens;
    uint64_t n_queries = 0;            // of all items, those that are not planned yet included
    struct Done {                      // what an item has become
      Sequence* seq = nullptr;         // null: refused
      std::vector<uint32_t> query;     // of each of its tokens, or of a recomputation the first
      std::vector<SequenceId> leaves;  // of tokens to verify
    };
    std::vector<Done> items;
  };
  Plan plan(std::span<const StepItem> items, std::vector<ItemResult>& results);
  void refuse_what_is_wrong(std::span<const StepItem> items) const;
  void check(const Sequence& seq, const StepItem& item) const;
  void check_given(const Sequence& seq, const StepItem& item, size_t n_items) const;
  void check_recompute(const Sequence& seq, const StepItem& item, size_t n_items) const;
  static void check_ascending(const Sequence& seq, std::span<const uint32_t> positions,
                              uint32_t begin, uint32_t end);
  void check_placing(const Sequence& seq, const StepItem& item, size_t n_items) const;
  void check_logits(const StepItem& item, size_t n_tokens) const;
  void check_verify(const Sequence& seq, const StepItem& item) const;
  void add_recompute(Plan& plan, const StepItem& item, Plan::Done& done);
  void add_drafts(Plan& plan, const StepItem& item, Plan::Done& done);
  Lane& lane(Plan& plan, StrategyId strategy);
  Piece piece_of(Sequence& seq, uint32_t q_begin, uint32_t n) const;
  void add_followers(Plan& plan, const StepItem& item, Sequence& leader, const Piece& piece,
                     ItemResult& result);
  void check_followers(const Sequence& leader, const StepItem& item) const;
  void check_follower(const Sequence& leader, const Sequence& follower) const;
  void advance(Sequence& seq, std::span<const TokenId> tokens) const;
  void finish_prompt(Sequence& seq) const;
  void advance_drafts(const StepItem& item, const Plan::Done& done, ItemResult& result);
  void drop_drafts(SequenceId id);
  void name_content(std::span<const StepItem> items, const Plan& plan) const;
  // The queries whose logits write_logits() computes, ascending; of a recomputation all, for it is
  // known at the end which are left.
  static std::vector<uint32_t> queries_of_logits(std::span<const StepItem> items, const Plan& plan);
  void write_logits(std::span<const StepItem> items, const Plan& plan);
  // Tokens of a recomputation that were not narrowed away.
  static uint32_t queries_left(const Plan& plan, const Sequence& seq);

  const Model& model;
  ThreadPool& pool;
  HostServices& services;
  EngineOptions options;
  StepLoop loop;
  std::vector<std::unique_ptr<StrategyRun>> runs;
  std::map<SequenceId, std::unique_ptr<Sequence>> sequences;  // destroyed before the runs' storages
  // Tokens that wait for accept(): a fork of the sequence for each leaf of their tree.
  struct Leaf {
    SequenceId fork;
    std::vector<uint32_t> path;  // indices of tokens, the first one's parent is the sequence
  };
  std::map<SequenceId, std::vector<Leaf>> drafts;
  SequenceId next_id = 1;
};

}  // namespace kvasir

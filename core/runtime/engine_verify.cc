// Several tokens verified in one step: forks for the paths of their tree, and what is kept of them.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>

#include "core/runtime/engine_impl.h"

namespace kvasir {

void Engine::accept(SequenceId id, int32_t token) {
  Impl& m = *impl_;
  const auto drafts = m.drafts.extract(id);
  if (drafts.empty())
    throw Error(ErrorKind::kInternal, "sequence " + std::to_string(id) + " has nothing to accept");
  std::optional<SequenceId> chosen;
  uint32_t depth = 0;
  for (const Impl::Leaf& leaf : drafts.mapped()) {
    const auto at = std::find(leaf.path.begin(), leaf.path.end(), static_cast<uint32_t>(token));
    if (token < 0 || chosen || at == leaf.path.end()) {
      m.close(leaf.fork);
      continue;
    }
    chosen = leaf.fork;
    depth = static_cast<uint32_t>(at - leaf.path.begin());
  }
  if (!chosen) {
    if (token < 0) return;
    throw Error(ErrorKind::kInternal, "token " + std::to_string(token) + " was not verified");
  }
  Sequence& fork = m.find(*chosen);
  const uint32_t kept = m.find(id).kv_len + depth + 1;
  std::vector<LayerSelection> selections;
  for (LayerState& layer : fork.layers) {
    selections.push_back(std::move(layer.drafted[depth]));
    layer.drafted.clear();
  }
  try {
    m.truncate(fork, kept);
  } catch (...) {
    m.close(*chosen);
    throw;
  }
  for (size_t layer = 0; layer < fork.layers.size(); ++layer)
    fork.layers[layer].selection = std::move(selections[layer]);
  m.close(id);
  m.sequences[id] = std::move(m.sequences[*chosen]);
  m.sequences.erase(*chosen);
}

void Engine::Impl::check_verify(const Sequence& seq, const StepItem& item) const {
  const std::string why = run_of(seq).cannot_verify();
  if (!why.empty())
    throw input_error(why + ": it cannot verify several tokens in one step, feed them one by one");
  if (!item.parents.empty() && item.parents.size() != item.tokens.size())
    throw Error(ErrorKind::kInternal, std::to_string(item.parents.size()) + " parents for " +
                                          std::to_string(item.tokens.size()) + " tokens");
  for (size_t i = 0; i < item.parents.size(); ++i)
    if (item.parents[i] < -1 || item.parents[i] >= static_cast<int32_t>(i))
      throw Error(ErrorKind::kInternal, "token " + std::to_string(i) + " follows token " +
                                            std::to_string(item.parents[i]) +
                                            ", which does not come before it");
}

// A fork for each leaf, which decodes the path to it. Paths that share tokens compute them each:
// the tokens are few, and reading the weights is what a step costs.
void Engine::Impl::add_drafts(Plan& plan, const StepItem& item, Plan::Done& done) {
  const auto n = static_cast<uint32_t>(item.tokens.size());
  const auto parent = [&](uint32_t t) {
    return item.parents.empty() ? static_cast<int32_t>(t) - 1 : item.parents[t];
  };
  std::vector<bool> has_child(n);
  for (uint32_t t = 0; t < n; ++t)
    if (parent(t) >= 0) has_child[static_cast<uint32_t>(parent(t))] = true;
  std::vector<Leaf> leaves;
  uint64_t n_queries = plan.n_queries - n;
  for (uint32_t t = 0; t < n; ++t) {
    if (has_child[t]) continue;
    Leaf leaf{0, {}};
    for (auto at = static_cast<int32_t>(t); at >= 0; at = parent(static_cast<uint32_t>(at)))
      leaf.path.insert(leaf.path.begin(), static_cast<uint32_t>(at));
    n_queries += leaf.path.size();
    leaves.push_back(std::move(leaf));
  }
  if (n_queries > options.max_step_tokens)
    throw input_error("the paths of the drafts have " + std::to_string(n_queries) +
                      " tokens with the rest of the step, which takes " +
                      std::to_string(options.max_step_tokens));
  plan.n_queries = n_queries;
  done.query.resize(n);
  const Sequence& seq = find(item.seq);
  std::vector<Leaf>& kept = drafts[item.seq];
  for (Leaf& leaf : leaves) {
    try {
      leaf.fork = fork(seq);
    } catch (...) {
      drop_drafts(item.seq);
      throw;
    }
    kept.push_back(leaf);
  }
  for (const Leaf& leaf : kept) {
    done.leaves.push_back(leaf.fork);
    const auto at = static_cast<uint32_t>(plan.tokens.size());
    Piece piece = piece_of(find(leaf.fork), at, static_cast<uint32_t>(leaf.path.size()));
    piece.drafts = true;
    Lane& own = lane(plan, seq.strategy);
    own.pieces.push_back(piece);
    own.n_decode += piece.n_q;
    for (uint32_t d = 0; d < leaf.path.size(); ++d) {
      plan.tokens.push_back(item.tokens[leaf.path[d]]);
      done.query[leaf.path[d]] = at + d;
    }
  }
}

// A leaf that failed takes the others with it; the sequence is as it was.
void Engine::Impl::advance_drafts(const StepItem& item, const Plan::Done& done,
                                  ItemResult& result) {
  if (done.leaves.empty()) return;
  for (const Leaf& leaf : drafts[item.seq]) {
    Sequence& seq = find(leaf.fork);
    if (seq.fault) result.error = seq.fault;
    std::vector<TokenId> path;
    for (const uint32_t t : leaf.path) path.push_back(item.tokens[t]);
    advance(seq, path);
  }
}

void Engine::Impl::drop_drafts(SequenceId id) {
  const auto node = drafts.extract(id);
  if (node.empty()) return;
  for (const Leaf& leaf : node.mapped()) close(leaf.fork);
}

}  // namespace kvasir

// See given_prompt.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/session/given_prompt.h"

#include <algorithm>
#include <exception>

namespace kvasir::tool {

void give_prompt(Engine& engine, const std::vector<SequenceId>& seqs, uint32_t n_tokens,
                 const GivenProjections& projections, GivenTo given_to,
                 const std::function<void(uint32_t done)>& on_progress) {
  for (const SequenceId seq : seqs) engine.begin_prompt(seq, n_tokens);
  const std::vector<TokenId> tokens(std::min(engine.max_step_tokens(), n_tokens));
  for (uint32_t done = 0; done < n_tokens;) {
    const uint32_t n = std::min<uint32_t>(static_cast<uint32_t>(tokens.size()), n_tokens - done);
    const StepItem item{.seq = seqs[0],
                        .tokens = std::span(tokens).first(n),
                        .followers = std::span(seqs).subspan(1),
                        .given = projections,
                        .given_to = given_to};
    const std::vector<ItemResult> results = engine.step({&item, 1});
    if (results[0].error) std::rethrow_exception(results[0].error);
    for (const std::exception_ptr& error : results[0].follower_errors)
      if (error) std::rethrow_exception(error);
    done += n;
    on_progress(done);
  }
}

}  // namespace kvasir::tool
